package admission

import (
	"fmt"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMissingNamespacesAreRefused(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		const message = `namespaces "missing" not found`
		admin.Send(t, "POST", core("missing", "configmaps"), configMap).WantMessage(t, 404, message)
		admin.Send(t, "POST", core("missing", "configmaps")+"?dryRun=All", configMap).WantMessage(t, 404, message)
		admin.Send(t, "POST", core("missing", "pods"), pod).WantMessage(t, 404, message)
		admin.Send(t, "PATCH", core("missing", "configmaps")+"/c1?fieldManager=test", configMap,
			framework.ServerSideApply).WantMessage(t, 404, message)
		admin.Send(t, "POST", group("apps/v1", "missing", "deployments"),
			"{apiVersion: apps/v1, kind: Deployment, metadata: {generateName: d-}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: main, image: i}]}}}}").
			WantMessage(t, 404, message)
		// Others than creations look for the object, and reviews need no namespace.
		admin.Send(t, "DELETE", core("missing", "configmaps")+"/c1", "").WantMessage(t, 404, `configmaps "c1" not found`)
		admin.Send(t, "DELETE", core("missing", "configmaps"), "").Want(t, 200)
		admin.Send(t, "PUT", core("missing", "configmaps")+"/c1", configMap).WantMessage(t, 404, `configmaps "c1" not found`)
		admin.Send(t, "POST", group("authorization.k8s.io/v1", "missing", "localsubjectaccessreviews"),
			"{apiVersion: authorization.k8s.io/v1, kind: LocalSubjectAccessReview, spec: {user: u, resourceAttributes: {namespace: missing, verb: get, resource: pods}}}").Want(t, 201)
	})
}

func TestTerminatingNamespacesTakeNothingNew(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := heldNamespace(t, c, s)
		admin.Send(t, "POST", core(ns, "configmaps"),
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: old, finalizers: [trigate.test/hold]}}").Want(t, 201)
		c.Admin(t).Send(t, "DELETE", "/api/v1/namespaces/"+ns, "").Want(t, 200)

		// The very next request is refused already.
		refused := admin.Send(t, "POST", core(ns, "configmaps"), configMap).WantMessage(t, 403, fmt.Sprintf(
			`configmaps "c1" is forbidden: unable to create new content in namespace %s because it is being terminated`, ns))
		if got := refused.String(t, "details", "causes", 0, "reason"); got != "NamespaceTerminating" {
			t.Errorf("got cause %q, want NamespaceTerminating", got)
		}
		admin.Send(t, "POST", core(ns, "configmaps")+"?dryRun=All", configMap).Want(t, 403)
		admin.Send(t, "PATCH", core(ns, "configmaps")+"/c2?fieldManager=test",
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: c2}}", framework.ServerSideApply).Want(t, 403)
		admin.Send(t, "POST", core(ns, "pods"), pod).Want(t, 403)

		// What is there may be changed and deleted. The controller may have deleted it
		// already, so that the first answer is not compared.
		c.Admin(t).Send(t, "PATCH", core(ns, "configmaps/old"), `{"data":{"a":"new"}}`, framework.MergePatch).Want(t, 200)
		c.Admin(t).Send(t, "DELETE", core(ns, "configmaps/old"), "").Want(t, 200)
		admin.Send(t, "PATCH", core(ns, "configmaps/old"), `{"data":{"a":"newer"}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "DELETE", core(ns, "configmaps/old"), "").Want(t, 200)
		admin.Send(t, "PATCH", core(ns, "configmaps/old"), `{"metadata":{"finalizers":null}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "GET", core(ns, "configmaps/old"), "").Want(t, 404)
	})
}

func TestImmortalNamespacesStay(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		for _, name := range []string{"default", "kube-system", "kube-public"} {
			admin.Send(t, "DELETE", "/api/v1/namespaces/"+name, "").
				WantMessage(t, 403, fmt.Sprintf(`namespaces %q is forbidden: this namespace may not be deleted`, name))
		}
	})
}

// heldNamespace makes a namespace that stays when it is deleted, until the test ends.
func heldNamespace(t *testing.T, c *framework.Cluster, s *framework.Transcript) string {
	t.Helper()
	ns := s.Namespace(t)
	admin := c.Admin(t)
	setFinalizers := func(finalizers string) {
		admin.Send(t, "PATCH", "/api/v1/namespaces/"+ns, `{"metadata":{"finalizers":`+finalizers+`}}`,
			framework.MergePatch).Want(t, 200)
	}
	setFinalizers(`["trigate.test/hold"]`)
	t.Cleanup(func() { setFinalizers("null") })
	return ns
}
