package policy

import (
	"math/rand/v2"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/trigate/trigate/services/authz/rbactest"
)

// TestViewEquivalence asks 100,000 random questions by views of random worlds, and wants
// upstream's answers over all bindings; and that they depend on what they depend on when
// they are asked without a view.
func TestViewEquivalence(t *testing.T) {
	const worlds, users, questions = 50, 20, 100
	remembered := 0
	for seed := range uint64(worlds) {
		rng := rand.New(rand.NewPCG(seed, 9))
		w := rbactest.Random(rng)
		store := NewStore()
		into := feedsOf(store)
		into.add(t, w.Objects()...)
		upstream, got := rbac.New(w, w, w, w), NewAuthorizer(store)
		for range users {
			who := w.Question(rng).User
			view := store.View(who)
			for range questions {
				question := w.Question(rng)
				question.User = who
				want := ask(t.Context(), upstream, question)
				e := view.NewEvaluation(t.Context(), question)
				if answer := ask(e, got, question); answer != want {
					t.Fatalf("seed %d: %+v:\n got %+v\nwant %+v", seed, question, answer, want)
				}
				plain := NewEvaluation(t.Context(), question)
				ask(plain, got, question)
				if e.NameMattered() != plain.NameMattered() {
					t.Fatalf("seed %d: %+v: NameMattered() = %v, want %v", seed, question, e.NameMattered(), plain.NameMattered())
				}
				if want.decision == authorizer.DecisionAllow && e.NamespaceMattered() != plain.NamespaceMattered() {
					t.Fatalf("seed %d: %+v: NamespaceMattered() = %v, want %v", seed, question, e.NamespaceMattered(), plain.NamespaceMattered())
				}
			}
			for _, s := range view.namespaces {
				if s == nil {
					continue
				}
				for _, g := range s.grants {
					if g.answer != nil {
						remembered++
					}
				}
			}
			for _, change := range w.Mutate(rng) {
				if change.Deleted {
					into.remove(t, change.Object)
				} else {
					into.add(t, change.Object)
				}
			}
		}
	}
	if remembered < worlds*users {
		t.Errorf("%d bindings were remembered, which is too few to show anything", remembered)
	}
}

// TestViewStays changes the policy under a view: what it says is what was in force when it
// was taken, also of what nobody has asked before, and a later view has the change.
func TestViewStays(t *testing.T) {
	jane, paul := &user.DefaultInfo{Name: "jane"}, &user.DefaultInfo{Name: "paul"}
	role := func(name, resource string) *rbacv1.Role {
		return &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}},
		}
	}
	bind := func(name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
		}
	}
	store := NewStore()
	into := feedsOf(store)
	into.add(t, role("pods", "pods"), bind("pods"), role("later", "secrets"))
	deciding := NewAuthorizer(store)
	may := func(view *View, who user.Info, resource string) bool {
		question := authorizer.AttributesRecord{User: who, Verb: "get", Namespace: "ns", APIVersion: "v1", Resource: resource, ResourceRequest: true}
		decision, _, err := deciding.Authorize(view.NewEvaluation(t.Context(), question), question)
		if err != nil {
			t.Fatal(err)
		}
		return decision == authorizer.DecisionAllow
	}
	wants := func(what string, view *View, who user.Info, pods, secrets, nodes bool) {
		t.Helper()
		for resource, want := range map[string]bool{"pods": pods, "secrets": secrets, "nodes": nodes} {
			if got := may(view, who, resource); got != want {
				t.Errorf("%s: %s may get %s = %v, want %v", what, who.GetName(), resource, got, want)
			}
		}
	}
	refusing, allowing := store.View(jane), store.View(jane)
	for range 2 { // The second question takes them.
		may(refusing, jane, "nodes")
		may(allowing, jane, "pods")
	}
	into.add(t, bind("later"), role("all", "*"), bind("all"))
	wants("before there was more", allowing, jane, true, false, false)
	wants("as it is", store.View(jane), jane, true, true, true)
	into.remove(t, bind("all"))
	into.remove(t, bind("pods"))
	into.remove(t, role("pods", "pods"))
	wants("before there was less", refusing, jane, true, false, false)
	wants("as it is then", store.View(jane), jane, false, true, false)
	wants("another user", refusing, paul, false, false, false)
}
