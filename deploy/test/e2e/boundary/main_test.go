// Package boundary tests what goes wrong when the gates of an API server are taken
// out of its process: requests whose identity, objects or answers do not survive the
// way from one process to another, or reach a gate at another moment. The right
// results are those of stock kube-apiserver.
package boundary

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// Tests with webhooks run one after the other: audit annotations have the index of a
// webhook among all there are.

const configMap = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1}, data: {a: b}}"

var configMaps = framework.Rule("create", "", "v1", "configmaps")

// core is the path of a collection of the core group.
func core(namespace, resource string) string {
	return "/api/v1/namespaces/" + namespace + "/" + resource
}

// group is the path of a collection of another group, such as apps/v1.
func group(groupVersion, namespace, resource string) string {
	return "/apis/" + groupVersion + "/namespaces/" + namespace + "/" + resource
}

// named is configMap with another name.
func named(name string) string { return strings.Replace(configMap, "c1", name, 1) }

// rules are the rules of a grant.
func rules(rules ...rbacv1.PolicyRule) []rbacv1.PolicyRule { return rules }

// sorted yields the keys of a map in order, since answers are compared one by one.
func sorted[V any](m map[string]V) iter.Seq[string] {
	return slices.Values(slices.Sorted(maps.Keys(m)))
}

// summary says briefly what a webhook was asked.
func summary(requests []*admissionv1.AdmissionRequest) string {
	var lines []string
	for _, r := range requests {
		lines = append(lines, fmt.Sprintf("%s %s %s/%s, object %d bytes, old object %d bytes", r.Operation, r.Resource.Resource, r.Name, r.SubResource, len(r.Object.Raw), len(r.OldObject.Raw)))
	}
	return "[" + strings.Join(lines, "; ") + "]"
}

// distinct are requests without those that repeat the one before: validation lies
// within the loop by which an object is stored, which has another turn if what the
// server had in its cache was not the latest.
func distinct(requests []*admissionv1.AdmissionRequest) []*admissionv1.AdmissionRequest {
	return slices.CompactFunc(requests, func(a, b *admissionv1.AdmissionRequest) bool {
		repeated := *b
		repeated.UID = a.UID
		return reflect.DeepEqual(a, &repeated)
	})
}
