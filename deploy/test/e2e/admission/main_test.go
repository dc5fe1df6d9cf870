// Package admission tests what admission does to requests: the plugins that are on by
// default, webhooks and admission policies. Stock kube-apiserver and Trigate have to
// agree word for word: in codes, messages, warnings and audit annotations.
package admission

import (
	"iter"
	"maps"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// core is the path of a collection of the core group.
func core(namespace, resource string) string {
	return "/api/v1/namespaces/" + namespace + "/" + resource
}

// group is the path of a collection of another group, such as apps/v1.
func group(groupVersion, namespace, resource string) string {
	return "/apis/" + groupVersion + "/namespaces/" + namespace + "/" + resource
}

// sorted yields the keys of a map in order, since answers are compared one by one.
func sorted[V any](m map[string]V) iter.Seq[string] {
	return slices.Values(slices.Sorted(maps.Keys(m)))
}

// rules are the rules of a grant.
func rules(rules ...rbacv1.PolicyRule) []rbacv1.PolicyRule { return rules }

// configMap is the simplest of all objects.
const configMap = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1}, data: {a: b}}"

// pod is a Pod that PodSecurity's baseline lets pass.
const pod = "{apiVersion: v1, kind: Pod, metadata: {name: p1}, spec: {containers: [{name: main, image: example.com/image:1}]}}"
