package policy

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/trigate/trigate/services/authz/rbactest"
)

// feeds are where reflectors put objects.
type feeds struct {
	clusterRoles        *feed[*rbacv1.ClusterRole]
	clusterRoleBindings *feed[*rbacv1.ClusterRoleBinding]
	roles               *feed[*rbacv1.Role]
	roleBindings        *feed[*rbacv1.RoleBinding]
}

func feedsOf(s *Store) feeds {
	return feeds{
		clusterRoles:        &feed[*rbacv1.ClusterRole]{store: s, resource: ClusterRoles, index: &s.clusterRoles},
		clusterRoleBindings: &feed[*rbacv1.ClusterRoleBinding]{store: s, resource: ClusterRoleBindings, index: &s.clusterRoleBindings},
		roles:               &feed[*rbacv1.Role]{store: s, resource: Roles, index: &s.roles},
		roleBindings:        &feed[*rbacv1.RoleBinding]{store: s, resource: RoleBindings, index: &s.roleBindings},
	}
}

// of returns the feed of an object, and a copy of the object.
func (f feeds) of(t testing.TB, o runtime.Object) (interface {
	Add(any) error
	Update(any) error
	Delete(any) error
}, runtime.Object,
) {
	t.Helper()
	copied := o.DeepCopyObject()
	switch o.(type) {
	case *rbacv1.ClusterRole:
		return f.clusterRoles, copied
	case *rbacv1.ClusterRoleBinding:
		return f.clusterRoleBindings, copied
	case *rbacv1.Role:
		return f.roles, copied
	case *rbacv1.RoleBinding:
		return f.roleBindings, copied
	}
	t.Fatalf("%T is nothing of RBAC", o)
	return nil, nil
}

func (f feeds) add(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	for _, o := range objects {
		into, copied := f.of(t, o)
		if err := into.Add(copied); err != nil {
			t.Fatal(err)
		}
	}
}

func (f feeds) remove(t testing.TB, o runtime.Object) {
	t.Helper()
	from, copied := f.of(t, o)
	if err := from.Delete(copied); err != nil {
		t.Fatal(err)
	}
}

// replace hands the whole world over, as lists do.
func (f feeds) replace(t testing.TB, w *rbactest.World, resourceVersion string) {
	t.Helper()
	var lists [resourceCount][]any
	for _, o := range w.Objects() {
		copied := o.DeepCopyObject()
		switch copied.(type) {
		case *rbacv1.ClusterRole:
			lists[ClusterRoles] = append(lists[ClusterRoles], copied)
		case *rbacv1.ClusterRoleBinding:
			lists[ClusterRoleBindings] = append(lists[ClusterRoleBindings], copied)
		case *rbacv1.Role:
			lists[Roles] = append(lists[Roles], copied)
		case *rbacv1.RoleBinding:
			lists[RoleBindings] = append(lists[RoleBindings], copied)
		}
	}
	for _, err := range []error{
		f.clusterRoles.Replace(lists[ClusterRoles], resourceVersion),
		f.clusterRoleBindings.Replace(lists[ClusterRoleBindings], resourceVersion),
		f.roles.Replace(lists[Roles], resourceVersion),
		f.roleBindings.Replace(lists[RoleBindings], resourceVersion),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// said is an answer, as far as it can be seen.
type said struct {
	decision authorizer.Decision
	reason   string
	err      error
}

func ask(ctx context.Context, a authorizer.Authorizer, question authorizer.Attributes) said {
	decision, reason, err := a.Authorize(ctx, question)
	return said{decision, reason, err}
}

// TestEquivalence asks upstream's authorizer over an index and over all bindings
// 100,000 random questions of random worlds, which change meanwhile, and wants the
// same answers. What an answer is said not to depend on is changed, too.
func TestEquivalence(t *testing.T) {
	const worlds, rounds, questions = 100, 20, 50
	var allowed, widened, anywhere int
	for seed := range uint64(worlds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := rbactest.Random(rng)
		store := NewStore()
		into := feedsOf(store)
		if seed%2 == 0 {
			into.add(t, w.Objects()...)
		} else {
			into.replace(t, w, "1000")
		}
		want, got := rbac.New(w, w, w, w), rbac.New(store, store, store, store)
		for range rounds {
			for range questions {
				question := w.Question(rng)
				expected := ask(t.Context(), want, question)
				e := NewEvaluation(t.Context(), question)
				if answer := ask(e, got, question); answer != expected {
					t.Fatalf("seed %d: %+v:\n got %+v\nwant %+v", seed, question, answer, expected)
				}
				if expected.decision == authorizer.DecisionAllow {
					allowed++
				}
				if e.NameMattered() {
					continue
				}
				widened++
				anyNamespace := expected.decision == authorizer.DecisionAllow && !e.NamespaceMattered()
				if anyNamespace {
					anywhere++
				}
				for range 3 {
					elsewhere := rbactest.Elsewhere(rng, question, anyNamespace)
					if other := ask(t.Context(), want, elsewhere); other != expected {
						t.Fatalf("seed %d: %+v says\n%+v and %+v says\n%+v, and was said not to depend on what differs",
							seed, question, expected, elsewhere, other)
					}
				}
			}
			for range 3 {
				for _, change := range w.Mutate(rng) {
					if change.Deleted {
						into.remove(t, change.Object)
					} else {
						into.add(t, change.Object)
					}
				}
			}
		}
	}
	t.Logf("%d questions: %d allowed, %d for any name, %d of them in any namespace", worlds*rounds*questions, allowed, widened, anywhere)
	if total := worlds * rounds * questions; allowed < total/10 || widened < total/10 || widened > total*99/100 || anywhere < total/50 {
		t.Error("the questions are too one-sided to show anything")
	}
}

// TestUnfiltered lists what upstream's listers would.
func TestUnfiltered(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	w := rbactest.Random(rng)
	store := NewStore()
	feedsOf(store).add(t, w.Objects()...)
	want, got := rbac.New(w, w, w, w), rbac.New(store, store, store, store)
	for range 2000 {
		question := w.Question(rng)
		if answer, expected := ask(t.Context(), got, question), ask(t.Context(), want, question); answer != expected {
			t.Fatalf("%+v:\n got %+v\nwant %+v", question, answer, expected)
		}
	}
}

// TestMemory removes everything, and wants nothing left.
func TestMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	w := rbactest.Random(rng)
	store := NewStore()
	into := feedsOf(store)
	sizes := func() [8]int {
		return [8]int{
			len(store.clusterRoles.byKey), len(store.roles.byKey),
			len(store.clusterRoleBindings.byKey), len(store.clusterRoleBindings.bySubject), len(store.clusterRoleBindings.namespaces),
			len(store.roleBindings.byKey), len(store.roleBindings.bySubject), len(store.roleBindings.namespaces),
		}
	}
	into.add(t, w.Objects()...)
	for range 500 {
		for _, change := range w.Mutate(rng) {
			if change.Deleted {
				into.remove(t, change.Object)
			} else {
				into.add(t, change.Object)
			}
		}
	}
	for i, size := range sizes() {
		if size == 0 {
			t.Errorf("size %d = 0, want some", i)
		}
	}
	for _, o := range w.Objects() {
		into.remove(t, o)
		into.remove(t, o) // a second time does nothing
	}
	if got := sizes(); got != [8]int{} {
		t.Errorf("sizes after all was deleted = %v, want none", got)
	}
	into.add(t, w.Objects()...)
	into.replace(t, &rbactest.World{}, strconv.FormatUint(w.Revision(), 10))
	if got := sizes(); got != [8]int{} {
		t.Errorf("sizes after all was replaced by nothing = %v, want none", got)
	}
}
