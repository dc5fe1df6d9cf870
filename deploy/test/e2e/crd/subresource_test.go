package crd

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestStatusAndScale(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		webhook := startConverter(t)
		namespace := transcript.Namespace(t)
		g := define(t, c, namespace, "subresource.trigate.test", webhook.conversion)
		admin := transcript.Admin(t)
		path := g.path("v1", "a")

		body := "{apiVersion: subresource.trigate.test/v1, kind: Gadget, metadata: {name: a}, spec: {size: 1, replicas: 2}, status: {phase: Lost}}"
		answer := admin.Send(t, http.MethodPost, g.path("v1", ""), body).Want(t, http.StatusCreated)
		if status := answer.Field(t, "status"); status != nil {
			t.Errorf("a new object has status %v, want none", status)
		}
		wantField := func(answer *framework.Answer, want any, at ...any) {
			t.Helper()
			if got := answer.Want(t, http.StatusOK).Field(t, at...); got != want {
				t.Errorf("%s: %v = %v, want %v", answer.Request, at, got, want)
			}
		}
		patch := func(path, body string) *framework.Answer {
			return admin.Send(t, http.MethodPatch, path, body, framework.MergePatch)
		}

		t.Log("a write to the status changes nothing else, and none else the status")
		answer = patch(path+"/status", `{"spec": {"size": 9}, "status": {"phase": "Ready", "replicas": 2, "selector": "app=a"}}`)
		wantField(answer, "Ready", "status", "phase")
		wantField(answer, number("1"), "spec", "size")
		wantField(answer, number("1"), "metadata", "generation")
		answer = patch(path, `{"spec": {"size": 3}, "status": {"phase": "Lost"}}`)
		wantField(answer, "Ready", "status", "phase")
		wantField(answer, number("3"), "spec", "size")
		wantField(answer, number("2"), "metadata", "generation")
		patch(path+"/status", `{"status": {"replicas": "two"}}`).Want(t, http.StatusUnprocessableEntity)

		t.Log("the scale")
		wantField(admin.Send(t, http.MethodGet, path+"/scale", ""), "app=a", "status", "selector")
		wantField(patch(path+"/scale", `{"spec": {"replicas": 5}}`), number("5"), "spec", "replicas")
		wantField(admin.Send(t, http.MethodGet, path, ""), number("5"), "spec", "replicas")
		patch(path+"/scale", `{"spec": {"replicas": -1}}`).Want(t, http.StatusUnprocessableEntity)
		admin.Send(t, http.MethodPut, path+"/scale",
			"{apiVersion: autoscaling/v1, kind: Scale, metadata: {name: a, namespace: "+namespace+", resourceVersion: '1'}, spec: {replicas: 1}}").
			Want(t, http.StatusConflict)
		transcript.Kubectl(t, "scale", "gadgets.subresource.trigate.test/a", "--replicas=7", "--namespace", namespace)
		transcript.Kubectl(t, "get", "gadgets.subresource.trigate.test/a", "--subresource=scale", "--namespace", namespace)
		transcript.Kubectl(t, "get", "gadgets.subresource.trigate.test/a", "--subresource=status", "--namespace", namespace, "--output=yaml")

		t.Log("each is a right of its own")
		c.Grant(t, framework.Grant{Name: "scaler", User: "scaler", Namespace: namespace, Rules: rules(
			framework.May("get,patch", "subresource.trigate.test", "gadgets/scale"),
		)})
		scaler := transcript.As(t, c.User(t, "scaler"))
		scaler.Send(t, http.MethodPatch, path+"/scale", `{"spec": {"replicas": 3}}`, framework.MergePatch).Want(t, http.StatusOK)
		scaler.Send(t, http.MethodPatch, path+"/status", `{"status": {"phase": "Lost"}}`, framework.MergePatch).Want(t, http.StatusForbidden)
		scaler.Send(t, http.MethodGet, path, "").Want(t, http.StatusForbidden)
	})
}

func TestGadgetsEndWithTheirDefinition(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		webhook := startConverter(t)
		g := &gadgets{cluster: c, group: "end.trigate.test", namespace: c.Namespace(t)}
		admin := c.Admin(t)
		t.Run("first life", func(t *testing.T) {
			define(t, c, g.namespace, g.group, webhook.conversion)
			admin.Send(t, http.MethodPost, g.path("v1", ""), g.gadget("v1", "a", "size: 1")).Want(t, http.StatusCreated)
		})
		framework.Eventually(t, "the type is served no longer", func() error {
			if answer := admin.Send(t, http.MethodGet, g.path("v1", ""), ""); answer.Code != http.StatusNotFound {
				return fmt.Errorf("got code %d", answer.Code)
			}
			return nil
		})
		define(t, c, g.namespace, g.group, webhook.conversion)
		admin.Send(t, http.MethodGet, g.path("v1", "a"), "").WantMessage(t, http.StatusNotFound, `gadgets.end.trigate.test "a" not found`)
	})
}

func TestGadgetsEndWithTheirNamespace(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		webhook := startConverter(t)
		g := define(t, c, c.Namespace(t), "namespace.trigate.test", webhook.conversion)
		admin := c.Admin(t)
		admin.Send(t, http.MethodPost, g.path("v1", ""), g.gadget("v1", "a", "size: 1")).Want(t, http.StatusCreated)
		admin.Send(t, http.MethodDelete, "/api/v1/namespaces/"+g.namespace, "").Want(t, http.StatusOK)
		framework.Eventually(t, "end of the namespace", func() error {
			if answer := admin.Send(t, http.MethodGet, "/api/v1/namespaces/"+g.namespace, ""); answer.Code != http.StatusNotFound {
				return fmt.Errorf("got code %d", answer.Code)
			}
			return nil
		})
		admin.Send(t, http.MethodGet, g.path("v1", "a"), "").Want(t, http.StatusNotFound)
	})
}
