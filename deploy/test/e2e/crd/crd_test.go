// Package crd tests custom resources: their schemas, subresources and versions, and
// that admission hands them on as they are.
package crd

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// gadgets is a custom resource of a test: Gadgets of a group of its own, in the
// versions v1 and v2.
type gadgets struct {
	cluster   *framework.Cluster
	group     string
	namespace string
}

// define makes the custom resource and waits until it is served in both versions.
// conversion is that of the definition's spec, as JSON.
func define(t *testing.T, c *framework.Cluster, namespace, group, conversion string) *gadgets {
	t.Helper()
	g := &gadgets{cluster: c, group: group, namespace: namespace}
	admin := c.Admin(t)
	admin.Send(t, http.MethodPost, definitions, g.definition(conversion)).Want(t, http.StatusCreated)
	t.Cleanup(func() {
		admin.Send(t, http.MethodDelete, g.definitionPath(), "").Want(t, http.StatusOK)
		g.awaitGone(t)
	})
	for _, version := range []string{"v1", "v2"} {
		framework.Eventually(t, version+" of "+group, func() error {
			// A write, since what admission does with the new type has to work, too.
			answer := admin.Send(t, http.MethodPost, g.path(version, "")+"?dryRun=All", g.gadget(version, "probe", "size: 1"))
			if answer.Code != http.StatusCreated {
				return fmt.Errorf("got code %d: %s", answer.Code, answer.Body)
			}
			return nil
		})
	}
	return g
}

func (g *gadgets) definitionPath() string { return definitions + "/gadgets." + g.group }

func (g *gadgets) awaitGone(t *testing.T) {
	t.Helper()
	framework.Eventually(t, "the definition's end", func() error {
		if answer := g.cluster.Admin(t).Send(t, http.MethodGet, g.definitionPath(), ""); answer.Code != http.StatusNotFound {
			return fmt.Errorf("got code %d, want it gone", answer.Code)
		}
		return nil
	})
}

// path is that of the gadgets in the test's namespace, or of one of them.
func (g *gadgets) path(version, name string) string {
	return strings.TrimSuffix("/apis/"+g.group+"/"+version+"/namespaces/"+g.namespace+"/gadgets/"+name, "/")
}

// gadget is one in YAML. Its spec is in YAML's flow style, with its size as v1 has it.
func (g *gadgets) gadget(version, name, spec string) string {
	if version == "v2" {
		if before, size, found := strings.Cut(spec, "size: "); found {
			size, after, _ := strings.Cut(size, ",")
			spec = before + "dimensions: {size: " + size + "}," + after
		}
	}
	return "{apiVersion: " + g.group + "/" + version + ", kind: Gadget, metadata: {name: " + name + "}, spec: {" + spec + "}}"
}

func (g *gadgets) definition(conversion string) string {
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.` + g.group + `}
spec:
  group: ` + g.group + `
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList, shortNames: [gd], categories: [toys]}
  conversion: ` + conversion + `
  versions:
` + version("v1", false, "colour", "size: {type: integer, format: int64, minimum: 0, description: How large it is.}", "self.size", "size") +
		version("v2", true, "title", "dimensions: {type: object, required: [size], properties: {size: {type: integer, format: int64, minimum: 0}}}", "self.dimensions.size", "dimensions")
}

func version(name string, storage bool, selectable, size, sizeExpression, required string) string {
	return fmt.Sprintf(`
  - name: %s
    served: true
    storage: %v
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Colour, type: string, jsonPath: .spec.colour}
    selectableFields: [{jsonPath: .spec.%s}]
    schema:
      openAPIV3Schema:
        type: object
        description: Gadget is a thing of the tests.
        properties:
          spec:
            type: object
            required: [%s]
            x-kubernetes-validations:
            - {rule: "%s <= self.limit", message: the size is above the limit}
            - {rule: "self.colour == oldSelf.colour", message: the colour does not change, reason: FieldValueForbidden, fieldPath: .colour}
            properties:
              %s
              limit: {type: integer, format: int64, default: 9223372036854775807}
              colour: {type: string, default: blue, enum: [blue, red, grün]}
              title: {type: string, maxLength: 30, x-kubernetes-validations: [{rule: "self != 'nothing'", messageExpression: "'there is ' + self"}]}
              replicas: {type: integer, format: int32, default: 1}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer, default: 1}}}
              extra: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            properties: {replicas: {type: integer, format: int32}, selector: {type: string}, phase: {type: string}}
`, name, storage, selectable, required, sizeExpression, size)
}
