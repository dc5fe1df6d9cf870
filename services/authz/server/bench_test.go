package server

import (
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/apitest"
)

// grown returns a policy with a cluster role binding and a role binding for each of
// n/2 users.
func grown(n int) []runtime.Object {
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	objects := []runtime.Object{&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"configmaps", "pods"}},
	}}}
	for i := range n / 2 {
		name := fmt.Sprint("user-", i)
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
		objects = append(objects,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "none"}, Subjects: subjects},
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns-", i%100), Name: name}, RoleRef: ref, Subjects: subjects})
	}
	return objects
}

// BenchmarkAnswer has the service answer without a network: the message is read, the
// chain decides, and the answer is a message again. A batch is timed by the question.
func BenchmarkAnswer(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		s := newServer(b, withRBAC(b, apitest.New(b, grown(n)...)))
		question := &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{
			User: &authnv1.UserInfo{Name: "user-42", Groups: []string{"dev", "qa", user.AllAuthenticated}},
			Verb: "get", ResourceRequest: true, Namespace: "ns-42", ApiVersion: "v1", Resource: "pods", Name: "web",
		}}
		batch := &authzv1.BatchAuthorizeRequest{}
		for range maxQuestions {
			batch.Questions = append(batch.Questions, question)
		}
		b.Run(fmt.Sprintf("Authorize/bindings=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				response, err := s.Authorize(b.Context(), question)
				if err != nil || response.GetDecision() != authzv1.Decision_DECISION_ALLOW {
					b.Fatal(response, err)
				}
			}
		})
		b.Run(fmt.Sprintf("BatchAuthorize/bindings=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.BatchAuthorize(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*maxQuestions), "ns/question")
		})
	}
}
