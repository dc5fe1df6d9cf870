package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

func rule(verbs, groups, resources []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, ResourceNames: names}
}

func words(words ...string) []string { return words }

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func roleRef(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}

func clusterRoleBinding(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: roleRef(role), Subjects: subjects}
}

func roleBinding(namespace, name, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, RoleRef: roleRef(role), Subjects: subjects}
}

func userSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// TestNearestFirst has one rule short in each respect, the nearest last.
func TestNearestFirst(t *testing.T) {
	jane := userSubject("jane")
	policy := newMemory(
		clusterRole("all",
			rule(words("get"), words("apps"), words("daemonsets")),
			rule(words("get"), words("extensions"), words("deployments")),
			rule(words("get"), words("apps"), words("deployments/scale")),
			rule(words("get"), words("apps"), words("deployments"), "db"),
			rule(words("list", "create"), words("apps"), words("deployments")),
			// Short in two respects, or in all.
			rule(words("list"), words("apps"), words("daemonsets")),
			rbacv1.PolicyRule{Verbs: words("get"), NonResourceURLs: words("*")},
			rbacv1.PolicyRule{},
		),
		clusterRole("elsewhere",
			rule(words("get"), words("apps"), words("deployments"), "web"),
			rule(words("list"), words("apps"), words("deployments")),
		),
		clusterRoleBinding("all", "all", jane),
		roleBinding("b", "elsewhere", "elsewhere", jane),
		roleBinding("a", "elsewhere", "elsewhere", jane),
		roleBinding("a", "others", "elsewhere", userSubject("paul")),
		roleBinding("a", "gone", "gone", jane),
	)
	got, err := newExplainer(t, Config{RBAC: policy}).Explain(t.Context(), resource(person("jane"), "get", "deployments.apps:web", "ns"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"VERB ClusterRoleBinding all > ClusterRole all #4",
		"NAME ClusterRoleBinding all > ClusterRole all #3",
		"NAMESPACE RoleBinding a/elsewhere > ClusterRole elsewhere #0",
		"NAMESPACE RoleBinding b/elsewhere > ClusterRole elsewhere #0",
		"RESOURCE ClusterRoleBinding all > ClusterRole all #2",
		"API_GROUP ClusterRoleBinding all > ClusterRole all #1",
		"RESOURCE ClusterRoleBinding all > ClusterRole all #0",
	}
	if diff := cmp.Diff(want, misses(got.NearMisses)); diff != "" {
		t.Errorf("near misses (-want +got):\n%s", diff)
	}
	if len(got.Errors) > 0 {
		t.Errorf("errors = %q, want none: they are in other namespaces", got.Errors)
	}
}

func TestNearestPaths(t *testing.T) {
	policy := newMemory(
		clusterRole("paths",
			rbacv1.PolicyRule{Verbs: words("get"), NonResourceURLs: words("/logs/*")},
			rbacv1.PolicyRule{Verbs: words("post"), NonResourceURLs: words("/metrics")},
			// About resources, however near its verb is.
			rule(words("get"), words("*"), words("*")),
		),
		roleBinding("ns", "paths", "paths", userSubject("jane")),
		clusterRoleBinding("paths", "paths", userSubject("jane")),
	)
	got, err := newExplainer(t, Config{RBAC: policy}).Explain(t.Context(), path(person("jane"), "get", "/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"VERB ClusterRoleBinding paths > ClusterRole paths #1", "PATH ClusterRoleBinding paths > ClusterRole paths #0"}
	if diff := cmp.Diff(want, misses(got.NearMisses)); diff != "" {
		t.Errorf("near misses (-want +got):\n%s", diff)
	}
}

func TestNearMissesAreBounded(t *testing.T) {
	objects := []runtime.Object{clusterRole("r", rule(words("list"), words(""), words("pods")), rule(words("get"), words(""), words("services")))}
	for i := range 80 {
		objects = append(objects, clusterRoleBinding(fmt.Sprintf("b%02d", i), "r", userSubject("jane")))
	}
	got, err := newExplainer(t, Config{RBAC: newMemory(objects...)}).Explain(t.Context(), resource(person("jane"), "get", "pods:p", "ns"))
	if err != nil {
		t.Fatal(err)
	}
	all := misses(got.NearMisses)
	if len(all) != maxNearMisses || all[79] != "VERB ClusterRoleBinding b79 > ClusterRole r #0" || all[99] != "RESOURCE ClusterRoleBinding b19 > ClusterRole r #1" {
		t.Errorf("%d near misses: %q, want %d, the 80 nearest first", len(all), all, maxNearMisses)
	}
}

// TestErrors wants the roles that are not there, each once, for what is allowed and
// what is not.
func TestErrors(t *testing.T) {
	jane := userSubject("jane")
	policy := newMemory(
		clusterRole("get", rule(words("get"), words(""), words("pods"))),
		clusterRoleBinding("a", "get", jane),
		clusterRoleBinding("b", "gone", jane),
		clusterRoleBinding("c", "gone", jane),
		clusterRoleBinding("d", "of-others", userSubject("paul")),
		roleBinding("ns", "e", "gone-too", jane),
		roleBinding("other", "f", "gone-elsewhere", jane),
	)
	e := newExplainer(t, Config{RBAC: policy})
	want := []string{`clusterrole.rbac.authorization.k8s.io "gone" not found`, `clusterrole.rbac.authorization.k8s.io "gone-too" not found`}
	for _, verb := range []string{"get", "delete"} {
		got, err := e.Explain(t.Context(), resource(person("jane"), verb, "pods:p", "ns"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Errors); diff != "" {
			t.Errorf("%s: errors (-want +got):\n%s", verb, diff)
		}
	}
	got, err := e.WhoCan(t.Context(), Question{Action: resource(nil, "get", "pods:p", "ns")})
	if err != nil {
		t.Fatal(err)
	}
	want = slices.Insert(want, 1, `clusterrole.rbac.authorization.k8s.io "of-others" not found`)
	if diff := cmp.Diff(want, got.Errors); diff != "" {
		t.Errorf("who can: errors (-want +got):\n%s", diff)
	}
}

func TestListingErrors(t *testing.T) {
	policy := newMemory(clusterRole("get", rule(words("get"), words(""), words("pods"))))
	policy.listing = errors.New("not today")
	e := newExplainer(t, Config{RBAC: policy})
	question := resource(person("jane"), "get", "pods:p", "ns")
	finding, err := e.Explain(t.Context(), question)
	if err != nil || !slices.Equal(finding.Errors, words("not today")) {
		t.Errorf("Explain() = %+v, %v, want the error of listing", finding, err)
	}
	subjects, err := e.WhoCan(t.Context(), Question{Action: question})
	if err != nil || !slices.Equal(subjects.Errors, words("not today")) {
		t.Errorf("WhoCan() = %+v, %v, want the error of listing", subjects, err)
	}
}

func TestWithoutRBAC(t *testing.T) {
	e := newExplainer(t, Config{})
	question := resource(person("jane"), "get", "pods:p", "ns")
	if got, err := e.Explain(t.Context(), question); err != nil || got.Grant != nil || len(got.NearMisses)+len(got.Errors) > 0 {
		t.Errorf("Explain() = %+v, %v, want nothing", got, err)
	}
	if got, err := e.WhoCan(t.Context(), Question{Action: question}); err != nil || len(got.Grants)+len(got.Errors) > 0 {
		t.Errorf("WhoCan() = %+v, %v, want nobody", got, err)
	}
}

func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := newExplainer(t, Config{RBAC: newMemory(clusterRoleBinding("b", "r"), roleBinding("other", "b", "r"))})
	for _, namespace := range words("ns", "other") {
		question := resource(person("jane"), "get", "pods:p", namespace)
		if got, err := e.Explain(ctx, question); !errors.Is(err, context.Canceled) {
			t.Errorf("Explain() = %v, %v, want %v", got, err, context.Canceled)
		}
		if got, err := e.WhoCan(ctx, Question{Action: question}); !errors.Is(err, context.Canceled) {
			t.Errorf("WhoCan() = %v, %v, want %v", got, err, context.Canceled)
		}
	}
}

// TestWithUser has the policy know whom an explanation is about. WhoCan is about
// everybody.
func TestWithUser(t *testing.T) {
	var asked []string
	e := newExplainer(t, Config{RBAC: newMemory(), WithUser: func(ctx context.Context, u user.Info) context.Context {
		asked = append(asked, u.GetName())
		return ctx
	}})
	question := resource(person("jane"), "get", "pods:p", "ns")
	_, explainErr := e.Explain(t.Context(), question)
	_, whoCanErr := e.WhoCan(t.Context(), Question{Action: question})
	if err := errors.Join(explainErr, whoCanErr); err != nil || !slices.Equal(asked, words("jane")) {
		t.Errorf("users = %q, %v, want one", asked, err)
	}
}

func TestAgrees(t *testing.T) {
	granted := &Finding{Grant: &convert.Grant{}, Reason: "RBAC: a"}
	for name, tc := range map[string]struct {
		finding *Finding
		said    convert.Say
		want    bool
	}{
		"both allow":               {granted, convert.Say{Decision: authorizer.DecisionAllow, Reason: "RBAC: a"}, true},
		"by another binding":       {granted, convert.Say{Decision: authorizer.DecisionAllow, Reason: "RBAC: b"}, false},
		"only the finding allows":  {granted, convert.Say{Decision: authorizer.DecisionNoOpinion}, false},
		"only the decision allows": {&Finding{}, convert.Say{Decision: authorizer.DecisionAllow, Reason: "RBAC: a"}, false},
		"neither allows":           {&Finding{}, convert.Say{Decision: authorizer.DecisionNoOpinion, Reason: "RBAC: not found"}, true},
	} {
		if got := tc.finding.Agrees(tc.said); got != tc.want {
			t.Errorf("%s: Agrees() = %v, want %v", name, got, tc.want)
		}
	}
}
