package crd

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestSchema(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		webhook := startConverter(t)
		g := define(t, c, transcript.Namespace(t), "schema.trigate.test", webhook.conversion)
		admin := transcript.Admin(t)
		gadgets := g.path("v1", "")
		invalid := func(name, why string) string {
			return `Gadget.schema.trigate.test "` + name + `" is invalid: ` + why
		}
		// unchecked is said when rules meet an object that they cannot be asked about.
		const unchecked = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
		create := func(spec string) *framework.Answer {
			return admin.Send(t, http.MethodPost, gadgets+"?dryRun=All", g.gadget("v1", "a", spec))
		}

		t.Log("defaults, also inside of lists, and pruning")
		answer := admin.Send(t, http.MethodPost, gadgets, g.gadget("v1", "first", "size: 3, parts: [{name: wheel}], unknown: 1")).Want(t, http.StatusCreated)
		want := map[string]any{
			"size": number("3"), "limit": number("9223372036854775807"), "colour": "blue", "replicas": number("1"),
			"parts": []any{map[string]any{"name": "wheel", "count": number("1")}},
		}
		if diff := cmp.Diff(want, answer.Field(t, "spec")); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
		admin.Send(t, http.MethodPost, gadgets+"?dryRun=All&fieldValidation=Warn", g.gadget("v1", "a", "size: 3, unknown: 1")).
			Want(t, http.StatusCreated).WantWarnings(t, `unknown field \"spec.unknown\"`)
		admin.Send(t, http.MethodPost, gadgets+"?dryRun=All&fieldValidation=Strict", g.gadget("v1", "a", "size: 3, unknown: 1")).
			Want(t, http.StatusBadRequest)

		t.Log("types and limits")
		create("colour: red").WantMessage(t, http.StatusUnprocessableEntity, invalid("a", `[spec.size: Required value, `+unchecked+`]`))
		create("size: -1").WantMessage(t, http.StatusUnprocessableEntity, invalid("a", `spec.size: Invalid value: -1: spec.size in body should be greater than or equal to 0`))
		create("size: large").Want(t, http.StatusUnprocessableEntity)
		create("size: 1.5").Want(t, http.StatusUnprocessableEntity)
		create("size: 1, colour: green").WantMessage(t, http.StatusUnprocessableEntity,
			invalid("a", `[spec.colour: Unsupported value: "green": supported values: "blue", "red", "grün", `+unchecked+`]`))
		create("size: 1, colour: grün").Want(t, http.StatusCreated)
		create("size: 1, title: 'more than thirty letters are too many'").Want(t, http.StatusUnprocessableEntity)
		create("size: 1, parts: [{name: a}, {name: a}]").WantMessage(t, http.StatusUnprocessableEntity,
			invalid("a", `spec.parts[1]: Duplicate value: {"name":"a"}`))
		admin.Send(t, http.MethodPost, gadgets, "{apiVersion: schema.trigate.test/v1, kind: Widget, metadata: {name: a}}").
			WantMessage(t, http.StatusUnprocessableEntity, `Widget.schema.trigate.test "a" is invalid: kind: Invalid value: "Widget": must be Gadget`)
		admin.Send(t, http.MethodPost, gadgets, "{apiVersion: schema.trigate.test/v1, kind: Gadget, metadata: {name: No_Name}, spec: {size: 1}}").
			Want(t, http.StatusUnprocessableEntity)

		t.Log("rules")
		create("size: 3, limit: 2").WantMessage(t, http.StatusUnprocessableEntity, invalid("a", `spec: Invalid value: the size is above the limit`))
		create("size: 3, title: nothing").WantMessage(t, http.StatusUnprocessableEntity, invalid("a", `spec.title: Invalid value: "nothing": there is nothing`))
		patch := func(body string) *framework.Answer {
			return admin.Send(t, http.MethodPatch, g.path("v1", "first"), body, framework.MergePatch)
		}
		patch(`{"spec": {"colour": "red"}}`).WantMessage(t, http.StatusUnprocessableEntity, invalid("first", `spec.colour: Forbidden: the colour does not change`))
		patch(`{"spec": {"size": 4, "limit": 4}}`).Want(t, http.StatusOK)
		patch(`{"spec": {"size": 5}}`).Want(t, http.StatusUnprocessableEntity)
		patch(`{"spec": {"size": null}}`).Want(t, http.StatusUnprocessableEntity)

		t.Log("what clients read of it")
		admin.Send(t, http.MethodGet, gadgets+"?fieldSelector=spec.colour=blue", "").Want(t, http.StatusOK)
		admin.Send(t, http.MethodGet, gadgets+"?fieldSelector=spec.size=4", "").Want(t, http.StatusBadRequest)
		admin.Send(t, http.MethodGet, "/apis/schema.trigate.test", "").Want(t, http.StatusOK)
		admin.Send(t, http.MethodGet, "/apis/schema.trigate.test/v2", "").Want(t, http.StatusOK)
		explain := []string{"explain", "gadgets", "--api-version=schema.trigate.test/v1", "--recursive"}
		framework.Eventually(t, "OpenAPI of the type", func() error {
			if result := c.Kubectl(t, explain...); result.Code != 0 {
				return fmt.Errorf("kubectl explain: exit code %d: %s", result.Code, result.Stderr)
			}
			return nil
		})
		transcript.Kubectl(t, explain...)
		transcript.Kubectl(t, "get", "gadgets.schema.trigate.test", "--namespace", g.namespace)
		transcript.Kubectl(t, "api-resources", "--api-group=schema.trigate.test")
	})
}

func TestBadDefinitionsAreRefused(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		for _, spec := range []string{
			// No schema, no versions, a name that does not fit, no storage version, types missing.
			"{group: bad.trigate.test, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: true}]}",
			"{group: bad.trigate.test, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, versions: []}",
			"{group: other.trigate.test, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}",
			"{group: bad.trigate.test, scope: Sometimes, names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}",
			"{group: bad.trigate.test, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {properties: {spec: {properties: {a: {}}}}}}}]}",
			"{group: bad.trigate.test, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-validations: [{rule: self.no.such.field}]}}}]}",
			"{group: bad.trigate.test, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, conversion: {strategy: Webhook}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}",
			"{group: bad.k8s.io, scope: Namespaced, names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}",
		} {
			transcript.Admin(t).Send(t, http.MethodPost, definitions,
				"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.bad.trigate.test}, spec: "+spec+"}").
				Want(t, http.StatusUnprocessableEntity)
		}
		transcript.As(t, c.User(t, "jane")).Send(t, http.MethodPost, definitions, "{}").Want(t, http.StatusForbidden)
	})
}
