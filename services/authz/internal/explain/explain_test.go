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
	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
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
	got, err := newExplainer(t, Config{RBAC: policy}).find(t.Context(), resource(person("jane"), "get", "deployments.apps:web", "ns"))
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
	if diff := cmp.Diff(want, misses(got.nearMisses)); diff != "" {
		t.Errorf("near misses (-want +got):\n%s", diff)
	}
	if len(got.errors) > 0 {
		t.Errorf("errors = %q, want none: they are in other namespaces", got.errors)
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
	got, err := newExplainer(t, Config{RBAC: policy}).find(t.Context(), path(person("jane"), "get", "/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"VERB ClusterRoleBinding paths > ClusterRole paths #1", "PATH ClusterRoleBinding paths > ClusterRole paths #0"}
	if diff := cmp.Diff(want, misses(got.nearMisses)); diff != "" {
		t.Errorf("near misses (-want +got):\n%s", diff)
	}
}

func TestNearMissesAreBounded(t *testing.T) {
	objects := []runtime.Object{clusterRole("r", rule(words("list"), words(""), words("pods")), rule(words("get"), words(""), words("services")))}
	for i := range 80 {
		objects = append(objects, clusterRoleBinding(fmt.Sprintf("b%02d", i), "r", userSubject("jane")))
	}
	got, err := newExplainer(t, Config{RBAC: newMemory(objects...)}).find(t.Context(), resource(person("jane"), "get", "pods:p", "ns"))
	if err != nil {
		t.Fatal(err)
	}
	all := misses(got.nearMisses)
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
		got, err := e.find(t.Context(), resource(person("jane"), verb, "pods:p", "ns"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.errors); diff != "" {
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
	found, err := e.find(t.Context(), question)
	if err != nil || !slices.Equal(found.errors, words("not today")) {
		t.Errorf("find() = %+v, %v, want the error of listing", found, err)
	}
	subjects, err := e.WhoCan(t.Context(), Question{Action: question})
	if err != nil || !slices.Equal(subjects.Errors, words("not today")) {
		t.Errorf("WhoCan() = %+v, %v, want the error of listing", subjects, err)
	}
}

func TestWithoutRBAC(t *testing.T) {
	e := newExplainer(t, Config{})
	question := resource(person("jane"), "get", "pods:p", "ns")
	if got, err := e.find(t.Context(), question); err != nil || got.grant != nil || len(got.nearMisses)+len(got.errors) > 0 {
		t.Errorf("find() = %+v, %v, want nothing", got, err)
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
		if got, err := e.find(ctx, question); !errors.Is(err, context.Canceled) {
			t.Errorf("find() = %v, %v, want %v", got, err, context.Canceled)
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
	_, explainErr := e.find(t.Context(), question)
	_, whoCanErr := e.WhoCan(t.Context(), Question{Action: question})
	if err := errors.Join(explainErr, whoCanErr); err != nil || !slices.Equal(asked, words("jane")) {
		t.Errorf("users = %q, %v, want one", asked, err)
	}
}

// TestExplain puts what the authorizers said and what is found together.
func TestExplain(t *testing.T) {
	e := newExplainer(t, Config{
		RBAC: newMemory(
			clusterRole("get", rule(words("get"), words(""), words("pods"))),
			clusterRoleBinding("b", "get", userSubject("jane")),
		),
		Authorizers: func() []authzconfig.AuthorizerConfiguration { return chain },
	})
	const allow, deny, noOpinion = authorizer.DecisionAllow, authorizer.DecisionDeny, authorizer.DecisionNoOpinion
	const reason = `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "get" to User "jane"`
	const theWay, near = "ClusterRoleBinding b > ClusterRole get #0 by User jane", "VERB ClusterRoleBinding b > ClusterRole get #0"
	for name, tc := range map[string]struct {
		verb      string
		said      []convert.Say
		grant     string
		decidedBy string
		misses    []string
		err       error
	}{
		"RBAC allows": {verb: "get", said: []convert.Say{{Name: "node", Decision: noOpinion}, {Name: "rbac", Decision: allow, Reason: reason}}, grant: theWay},
		"RBAC would allow, but another did": {
			verb: "get", said: []convert.Say{{Name: "hook.example.com", Decision: allow}}, decidedBy: `webhook "hook.example.com" allows it`,
		},
		"RBAC would allow, but another refused": {
			verb: "get", said: []convert.Say{{Name: "hook.example.com", Decision: deny}}, decidedBy: `webhook "hook.example.com" refuses it`,
		},
		"nobody allows": {verb: "list", said: []convert.Say{{Name: "node", Decision: noOpinion}, {Name: "rbac", Decision: noOpinion}}, misses: words(near)},
		"another refuses, after RBAC": {
			verb: "list", said: []convert.Say{{Name: "rbac", Decision: noOpinion}, {Name: "hook.example.com", Decision: deny}},
			decidedBy: `webhook "hook.example.com" refuses it`, misses: words(near),
		},
		"another allows, after RBAC": {
			verb: "list", said: []convert.Say{{Name: "rbac", Decision: noOpinion}, {Name: "alwaysallow", Decision: allow}},
			decidedBy: "AlwaysAllow allows everything",
		},
		"the binding has come": {verb: "get", said: []convert.Say{{Name: "rbac", Decision: noOpinion}}, err: ErrPolicyChanged},
		"the binding has gone": {verb: "list", said: []convert.Say{{Name: "rbac", Decision: allow, Reason: reason}}, err: ErrPolicyChanged},
		"another binding":      {verb: "get", said: []convert.Say{{Name: "rbac", Decision: allow, Reason: "RBAC: allowed by another"}}, err: ErrPolicyChanged},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := e.Explain(t.Context(), resource(person("jane"), tc.verb, "pods:p", "ns"), tc.said)
			if !errors.Is(err, tc.err) {
				t.Fatalf("Explain() = %v, want %v", err, tc.err)
			}
			if err != nil {
				return
			}
			var grant string
			if got.Grant != nil {
				grant = wayBy(*got.Grant)
			}
			if grant != tc.grant || got.DecidedBy != tc.decidedBy || !slices.Equal(misses(got.NearMisses), tc.misses) {
				t.Errorf("Explain() = %q, %q, %q, want %q, %q, %q", grant, got.DecidedBy, misses(got.NearMisses), tc.grant, tc.decidedBy, tc.misses)
			}
		})
	}
}
