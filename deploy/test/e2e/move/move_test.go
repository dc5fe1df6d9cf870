// Package move tests that the data of kube-apiserver becomes Trigate's, and the other way
// round.
package move

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: moved}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: moved}
data: {from: FROM}
---
apiVersion: v1
kind: Secret
metadata: {name: word, namespace: moved}
stringData: {from: FROM}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ann, namespace: moved}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: moved}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: ann-reads, namespace: moved}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: ann, namespace: moved}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {from: {type: string}}}}}}
`

const thing = `
apiVersion: example.com/v1
kind: Thing
metadata: {name: thing, namespace: moved}
spec: {from: FROM}
`

// TestThereAndBack has stock kube-apiserver write, Trigate go on with its etcd and its
// keys, and stock go on after Trigate.
func TestThereAndBack(t *testing.T) {
	dir := t.TempDir()
	first := framework.StartStock(t, framework.StockOptions{Dir: dir})
	write(t, first, "stock")
	token := strings.TrimSpace(first.MustKubectl(t, "--namespace", "moved", "create", "token", "ann", "--duration=1h"))
	wrote := contents(t, first)
	stop(t, first)

	second := framework.StartTrigate(t, framework.TrigateOptions{Dir: dir})
	if diff := cmp.Diff(wrote, contents(t, second)); diff != "" {
		t.Errorf("what Trigate reads of stock's data (-stock +trigate):\n%s", diff)
	}
	mayRead(t, second, token)
	write(t, second, "trigate")
	token = strings.TrimSpace(second.MustKubectl(t, "--namespace", "moved", "create", "token", "ann", "--duration=1h"))
	wrote = contents(t, second)
	stop(t, second)

	third := framework.StartStock(t, framework.StockOptions{Dir: dir})
	if diff := cmp.Diff(wrote, contents(t, third)); diff != "" {
		t.Errorf("what stock reads of Trigate's data (-trigate +stock):\n%s", diff)
	}
	mayRead(t, third, token)
}

// write makes the objects, or changes them.
func write(t *testing.T, c *framework.Cluster, from string) {
	t.Helper()
	c.MustKubectlInput(t, strings.ReplaceAll(objects, "FROM", from), "apply", "-f", "-")
	c.MustKubectl(t, "wait", "--for=condition=Established", "customresourcedefinition/things.example.com", "--timeout=1m")
	framework.Eventually(t, "custom resource", func() error {
		if result := c.KubectlInput(t, strings.ReplaceAll(thing, "FROM", from), "apply", "-f", "-"); result.Code != 0 {
			return errors.New(result.Stderr) // the API server has not noticed yet
		}
		return nil
	})
}

// contents are the objects as they are read, with their resourceVersions.
func contents(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	return c.MustKubectl(t, "--namespace", "moved", "get", "configmap/settings", "secret/word", "role/reader", "rolebinding/ann-reads",
		"serviceaccount/ann", "thing/thing", "customresourcedefinition/things.example.com", "--output=yaml")
}

// mayRead reads by a token that the other one has signed.
func mayRead(t *testing.T, c *framework.Cluster, token string) {
	t.Helper()
	config := rest.AnonymousClientConfig(c.Config(t))
	config.BearerToken = token
	client := framework.ClientFor(t, config)
	if _, err := client.CoreV1().RESTClient().Get().Namespace("moved").Resource("configmaps").Name("settings").DoRaw(t.Context()); err != nil {
		t.Errorf("%s: reading with a token of before: %v", c.Name, err)
	}
	if _, err := client.CoreV1().RESTClient().Get().Namespace("moved").Resource("secrets").Name("word").DoRaw(t.Context()); err == nil {
		t.Errorf("%s: a Secret was read that the role does not allow", c.Name)
	}
}

func stop(t *testing.T, c *framework.Cluster) {
	t.Helper()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
}
