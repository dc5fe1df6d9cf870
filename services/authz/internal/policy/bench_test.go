package policy

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// grown returns a policy of n bindings, half of them in namespaces: each user has
// one of both kinds, and everybody has one for the paths of discovery.
func grown(n int) []runtime.Object {
	to := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	objects := []runtime.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "discovery"}, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*", "/healthz", "/version"},
		}}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"apps"}, Resources: []string{"deployments", "replicasets"}},
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"configmaps", "pods", "services"}},
		}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "nodes"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "discovery"}, RoleRef: to("discovery"),
			Subjects: []rbacv1.Subject{namedGroup(user.AllAuthenticated)},
		},
	}
	for i := range n / 2 {
		name, subjects := fmt.Sprintf("user-%d", i), []rbacv1.Subject{namedUser(fmt.Sprintf("user-%d", i))}
		objects = append(objects,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: to("nodes"), Subjects: subjects},
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%100), Name: name}, RoleRef: to("view"), Subjects: subjects})
	}
	return objects
}

// upstream returns kube-apiserver's own authorizer over objects.
func upstream(b *testing.B, objects []runtime.Object) authorizer.Authorizer {
	b.Helper()
	var indexers [resourceCount]cache.Indexer
	for i := range indexers {
		indexers[i] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	for _, o := range objects {
		resource := map[string]Resource{
			"*v1.ClusterRole": ClusterRoles, "*v1.ClusterRoleBinding": ClusterRoleBindings, "*v1.Role": Roles, "*v1.RoleBinding": RoleBindings,
		}[fmt.Sprintf("%T", o)]
		if err := indexers[resource].Add(o); err != nil {
			b.Fatal(err)
		}
	}
	return rbac.New(
		&rbac.RoleGetter{Lister: listers.NewRoleLister(indexers[Roles])},
		&rbac.RoleBindingLister{Lister: listers.NewRoleBindingLister(indexers[RoleBindings])},
		&rbac.ClusterRoleGetter{Lister: listers.NewClusterRoleLister(indexers[ClusterRoles])},
		&rbac.ClusterRoleBindingLister{Lister: listers.NewClusterRoleBindingLister(indexers[ClusterRoleBindings])},
	)
}

// BenchmarkAuthorize compares upstream's authorizer with the same one over an
// index, for a question that the last binding that is looked at allows, and for one
// that none does.
func BenchmarkAuthorize(b *testing.B) {
	questions := map[string]authorizer.AttributesRecord{"allow": {Verb: "get", Resource: "pods"}, "deny": {Verb: "delete", Resource: "pods"}}
	for _, n := range []int{100, 1_000, 10_000} {
		objects := grown(n)
		store := NewStore()
		feedsOf(store).add(b, objects...)
		authorizers := map[string]authorizer.Authorizer{"upstream": upstream(b, objects), "indexed": rbac.New(store, store, store, store)}
		for _, which := range []string{"upstream", "indexed"} {
			for _, answer := range []string{"allow", "deny"} {
				b.Run(fmt.Sprintf("%s/%s/bindings=%d", which, answer, n), func(b *testing.B) {
					question := questions[answer]
					question.User = &user.DefaultInfo{Name: "user-42", Groups: []string{"dev", "qa", user.AllAuthenticated}}
					question.ResourceRequest, question.APIVersion, question.Namespace, question.Name = true, "v1", "ns-42", "web"
					var attributes authorizer.Attributes = question
					b.ReportAllocs()
					for b.Loop() {
						var ctx context.Context = NewEvaluation(b.Context(), attributes)
						if decision, _, _ := authorizers[which].Authorize(ctx, attributes); (decision == authorizer.DecisionAllow) != (answer == "allow") {
							b.Fatalf("decision = %v", decision)
						}
					}
				})
			}
		}
	}
}
