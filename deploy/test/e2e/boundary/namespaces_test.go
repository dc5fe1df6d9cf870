package boundary

import (
	"fmt"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestTerminatingNamespacesTakeNothingNew(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		c.RegisterMutating(t, "trigate-test-terminating", hook.Mutating("mutate", ns, framework.Rule("*", "", "v1", "configmaps")))
		c.Grant(t, framework.Grant{Name: "terminating", User: "terminating", Namespace: ns, Rules: rules(framework.May("create,update,patch,delete", "", "configmaps"))})
		user, plain := s.As(t, c.User(t, "terminating")), c.As(t, c.User(t, "terminating"))
		finalizers := func(value string) {
			c.Admin(t).Send(t, "PATCH", "/api/v1/namespaces/"+ns, `{"metadata":{"finalizers":`+value+`}}`, framework.MergePatch).Want(t, 200)
		}
		finalizers(`["trigate.test/hold"]`)
		t.Cleanup(func() { finalizers("null") })
		const held = "{apiVersion: v1, kind: ConfigMap, metadata: {name: old, finalizers: [trigate.test/hold]}, data: {a: b}}"
		user.Send(t, "POST", core(ns, "configmaps"), held).Want(t, 201)
		hook.Take()

		c.Admin(t).Send(t, "DELETE", "/api/v1/namespaces/"+ns, "").Want(t, 200)
		refused := user.Send(t, "POST", core(ns, "configmaps"), configMap).WantMessage(t, 403, fmt.Sprintf(
			`configmaps "c1" is forbidden: unable to create new content in namespace %s because it is being terminated`, ns))
		if got := refused.String(t, "details", "causes", 0, "reason"); got != "NamespaceTerminating" {
			t.Errorf("got cause %q, want NamespaceTerminating", got)
		}
		if requests := hook.Take(); len(requests) != 0 {
			t.Errorf("the webhook was asked %s about a refused request", summary(requests))
		}
		// The controller deletes at any time, and with it the answers change.
		plain.Send(t, "PUT", core(ns, "configmaps/old"), held).Want(t, 200)
		plain.Send(t, "PATCH", core(ns, "configmaps/old"), `{"data":{"a":"new"}}`, framework.MergePatch).Want(t, 200)
		plain.Send(t, "DELETE", core(ns, "configmaps/old"), "").Want(t, 200)
		user.Send(t, "PATCH", core(ns, "configmaps/old"), `{"metadata":{"finalizers":null}}`, framework.MergePatch).Want(t, 200)
		user.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 403)
	})
}

func TestNamespacesMadeAnewTakeObjectsAtOnce(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		admin := c.Admin(t)
		const name = "trigate-anew"
		namespace := "{apiVersion: v1, kind: Namespace, metadata: {name: " + name + "}}"
		admin.Send(t, "POST", "/api/v1/namespaces", namespace).Want(t, 201)
		// The very next request.
		admin.Send(t, "POST", core(name, "configmaps"), configMap).Want(t, 201)
		admin.Send(t, "DELETE", "/api/v1/namespaces/"+name, "").Want(t, 200)
		if refused := admin.Send(t, "POST", core(name, "configmaps"), named("c2")); refused.Code != 403 && refused.Code != 404 {
			t.Errorf("got code %d after the namespace's deletion, want 403 or 404", refused.Code)
		}
		admin.Await(t, "GET", "/api/v1/namespaces/"+name, "", 404)
		admin.Send(t, "POST", core(name, "configmaps"), named("c3")).Want(t, 404)
		admin.Send(t, "POST", "/api/v1/namespaces", namespace).Want(t, 201)
		admin.Send(t, "POST", core(name, "configmaps"), configMap).Want(t, 201)
		admin.Send(t, "DELETE", "/api/v1/namespaces/"+name, "").Want(t, 200)
	})
}
