package explain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/rbactest"
)

// inRandomWorlds calls check with random questions in random worlds, the same ones
// each time.
func inRandomWorlds(t *testing.T, check func(*testing.T, *memory, *Explainer, *rand.Rand, authorizer.AttributesRecord)) {
	t.Helper()
	const worlds, questions = 150, 40
	for seed := range uint64(worlds) {
		rng := rand.New(rand.NewPCG(seed, 7))
		world := rbactest.Random(rng)
		policy := newMemory(world.Objects()...)
		e := newExplainer(t, Config{RBAC: policy})
		for range questions {
			check(t, policy, e, rng, world.Question(rng))
			if t.Failed() {
				t.Fatalf("in world %d", seed)
			}
		}
	}
}

// TestExplainIsWhatIsDecided wants a grant if and only if the authorizer allows,
// with the authorizer's reason; near misses that are near; and the errors that the
// authorizer gives.
func TestExplainIsWhatIsDecided(t *testing.T) {
	allowed, near := 0, 0
	inRandomWorlds(t, func(t *testing.T, policy *memory, e *Explainer, _ *rand.Rand, question authorizer.AttributesRecord) {
		decision, reason, err := policy.authorizer().Authorize(t.Context(), question)
		got, explainErr := e.find(t.Context(), question)
		if err != nil || explainErr != nil {
			t.Fatalf("Authorize() = %v, find() = %v, want nil", err, explainErr)
		}
		if (got.grant != nil) != (decision == authorizer.DecisionAllow) || !got.agrees(convert.Say{Decision: decision, Reason: reason}) {
			t.Fatalf("%+v: grant = %v, reason = %q; the authorizer says %v, %q", question, got.grant, got.reason, decision, reason)
		}
		if got.grant != nil {
			allowed++
			if len(got.nearMisses) > 0 || got.reason != reason {
				t.Errorf("%+v: near misses = %v, reason = %q, want none, %q", question, misses(got.nearMisses), got.reason, reason)
			}
			checkGrant(t, policy, question, *got.grant)
			return
		}
		if (reason == "") != (len(got.errors) == 0) {
			t.Errorf("%+v: errors = %q, the authorizer's reason is %q", question, got.errors, reason)
		}
		for _, text := range got.errors {
			if !strings.Contains(reason, text) {
				t.Errorf("%+v: error %q is not in the authorizer's reason %q", question, text, reason)
			}
		}
		for _, miss := range got.nearMisses {
			near++
			checkNear(t, policy, question, miss)
		}
	})
	t.Logf("%d questions were allowed, %d rules near", allowed, near)
	if allowed < 500 || near < 500 {
		t.Error("too few to tell")
	}
}

// checkGrant wants the grant to be there: the binding alone allows the action to its
// subject alone, and the role's rule is the first that does.
func checkGrant(t *testing.T, policy *memory, question authorizer.AttributesRecord, g convert.Grant) {
	t.Helper()
	b := find(policy, g.Binding)
	rules, err := newExplainer(t, Config{RBAC: policy}).resolver(b).GetRoleReferenceRules(t.Context(), b.roleRef(), b.namespace())
	if err != nil || g.RuleIndex >= len(rules) || !rbac.RuleAllows(question, &rules[g.RuleIndex]) || rbac.RulesAllow(question, rules[:g.RuleIndex]...) {
		t.Errorf("%+v: rule %d of %v, %v is not the first that allows it", question, g.RuleIndex, rules, err)
		return
	}
	if diff := cmp.Diff(rules[g.RuleIndex], g.Rule); diff != "" {
		t.Errorf("%+v: rule (-want +got):\n%s", question, diff)
	}
	alone := b.withSubject(g.Subject)
	if question.User == nil {
		question.User = standIn(g)
	}
	if decision, _, _ := rbac.New(policy, alone, policy, alone).Authorize(t.Context(), question); decision != authorizer.DecisionAllow {
		t.Errorf("%+v: %s does not allow it", question, wayBy(g))
	}
}

// checkNear asks what the near misses have, and wants it allowed.
func checkNear(t *testing.T, policy *memory, question authorizer.AttributesRecord, miss convert.NearMiss) {
	t.Helper()
	asked, rule := question, miss.Grant.Rule
	switch miss.Dimension {
	case authzv1.Dimension_DIMENSION_VERB:
		question.Verb = rule.Verbs[0]
	case authzv1.Dimension_DIMENSION_NAME:
		question.Name = rule.ResourceNames[0]
	case authzv1.Dimension_DIMENSION_NAMESPACE:
		question.Namespace = miss.Grant.Binding.Namespace
	case authzv1.Dimension_DIMENSION_API_GROUP:
		question.APIGroup = rule.APIGroups[0]
	case authzv1.Dimension_DIMENSION_RESOURCE:
		kind, subresource, _ := strings.Cut(rule.Resources[0], "/")
		question.Subresource = subresource
		if kind != "*" {
			question.Resource = kind
		}
	case authzv1.Dimension_DIMENSION_PATH:
		question.Path = strings.TrimRight(rule.NonResourceURLs[0], "*")
	default:
		t.Errorf("%+v: dimension = %v", asked, miss.Dimension)
	}
	if decision, _, _ := policy.authorizer().Authorize(t.Context(), question); decision != authorizer.DecisionAllow {
		t.Errorf("%+v: %v of %s is off, but %+v is not allowed either", asked, miss.Dimension, wayBy(miss.Grant), question)
	}
}

func find(policy *memory, name convert.ObjectName) binding {
	all := append(ofClusterRoleBindings(policy.clusterRoleBindings), ofRoleBindings(policy.roleBindings)...)
	return all[slices.IndexFunc(all, func(b binding) bool { return b.name() == name })]
}

// standIn is a user for whom a grant's subject stands, and no other does.
func standIn(g convert.Grant) user.Info {
	switch g.Subject.Kind {
	case rbacv1.UserKind:
		return &user.DefaultInfo{Name: g.Subject.Name}
	case rbacv1.GroupKind:
		return &user.DefaultInfo{Name: "somebody", Groups: []string{g.Subject.Name}}
	case rbacv1.ServiceAccountKind:
		namespace := g.Subject.Namespace
		if namespace == "" {
			namespace = g.Binding.Namespace
		}
		return &user.DefaultInfo{Name: serviceaccount.MakeUsername(namespace, g.Subject.Name)}
	}
	return &user.DefaultInfo{Name: "somebody"}
}

// TestWhoCanIsWhatIsDecided wants WhoCan to list exactly those whom the authorizer
// allows the action, of all users, groups and service accounts that the world has.
func TestWhoCanIsWhatIsDecided(t *testing.T) {
	allowed := 0
	inRandomWorlds(t, func(t *testing.T, policy *memory, e *Explainer, _ *rand.Rand, question authorizer.AttributesRecord) {
		question.User = nil
		got, err := e.WhoCan(t.Context(), Question{Action: question})
		if err != nil {
			t.Fatalf("WhoCan() = %v", err)
		}
		listed := map[string]bool{}
		for _, g := range got.Grants {
			listed[key(standIn(g))] = true
			checkGrant(t, policy, question, g)
		}
		for _, one := range everybody(policy) {
			question.User = one
			decision, _, _ := policy.authorizer().Authorize(t.Context(), question)
			if listed[key(one)] != (decision == authorizer.DecisionAllow) {
				t.Errorf("%+v: listed = %v, the authorizer says %v", question, listed[key(one)], decision)
			}
			if decision == authorizer.DecisionAllow {
				allowed++
			}
		}
		compareSubjects(t, policy, question, got)
	})
	t.Logf("%d subjects were allowed", allowed)
	if allowed < 5000 {
		t.Error("too few to tell")
	}
}

// everybody returns a stand-in for each subject of each binding.
func everybody(policy *memory) []user.Info {
	seen := map[string]bool{}
	var all []user.Info
	for _, b := range append(ofClusterRoleBindings(policy.clusterRoleBindings), ofRoleBindings(policy.roleBindings)...) {
		for _, subject := range b.subjects() {
			one := standIn(convert.Grant{Subject: subject, Binding: b.name()})
			if !seen[key(one)] {
				seen[key(one)] = true
				all = append(all, one)
			}
		}
	}
	return all
}

func key(u user.Info) string { return fmt.Sprintf("%q %q", u.GetName(), u.GetGroups()) }

// compareSubjects wants the subjects that upstream's own evaluator finds, without
// those that stand for nobody, and its errors.
func compareSubjects(t *testing.T, policy *memory, question authorizer.AttributesRecord, got *convert.Subjects) {
	t.Helper()
	found, err := rbac.NewSubjectAccessEvaluator(policy, policy, policy, policy, "").AllowedSubjects(t.Context(), question)
	want, have := map[rbacv1.Subject]bool{}, map[rbacv1.Subject]bool{}
	// The first is system:masters, who need no binding.
	for _, subject := range found[1:] {
		want[subject] = true
	}
	for _, g := range got.Grants {
		have[g.Subject] = true
	}
	for subject := range want {
		ofNobody := subject.Kind == "Robot" || subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == ""
		if ofNobody && !have[subject] {
			delete(want, subject)
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%+v: subjects (-upstream +got):\n%s", question, diff)
	}
	if (err != nil) != (len(got.Errors) > 0) {
		t.Errorf("%+v: errors = %q, upstream's is %v", question, got.Errors, err)
	}
}

// TestPages wants pages of any size to be the whole list, with every grant once.
func TestPages(t *testing.T) {
	turned := 0
	inRandomWorlds(t, func(t *testing.T, _ *memory, e *Explainer, rng *rand.Rand, question authorizer.AttributesRecord) {
		whole, err := e.WhoCan(t.Context(), Question{Action: question})
		if err != nil || whole.NextPageToken != "" {
			t.Fatalf("WhoCan() = %+v, %v, want one page", whole, err)
		}
		size := 1 + rng.IntN(5)
		var grants []convert.Grant
		errs := map[string]bool{}
		for token := ""; ; turned++ {
			page, err := e.WhoCan(t.Context(), Question{Action: question, PageSize: size, PageToken: token})
			if err != nil {
				t.Fatalf("WhoCan() = %v", err)
			}
			grants = append(grants, page.Grants...)
			for _, text := range page.Errors {
				errs[text] = true
			}
			if token = page.NextPageToken; token == "" {
				break
			}
			if len(page.Grants) != size {
				t.Errorf("a page of %d has %d grants, and another follows", size, len(page.Grants))
			}
		}
		if diff := cmp.Diff(whole.Grants, grants); diff != "" {
			t.Errorf("all pages of %d (-whole +pages):\n%s", size, diff)
		}
		for _, text := range whole.Errors {
			if !errs[text] {
				t.Errorf("error %q is on no page", text)
			}
		}
		seen := map[string]bool{}
		for _, g := range grants {
			if at := strings.Join([]string{wayBy(g), g.Subject.APIGroup}, "\n"); seen[at] {
				t.Errorf("%s is there twice", wayBy(g))
			} else {
				seen[at] = true
			}
		}
	})
	if turned < 1000 {
		t.Errorf("%d pages were turned, too few to tell", turned)
	}
}
