package policy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

func role(namespace, name, resourceVersion string) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: resourceVersion}}
}

func roleBinding(namespace, name, resourceVersion string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: resourceVersion},
		Subjects:   subjects,
	}
}

func clusterRole(name, resourceVersion string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: resourceVersion}}
}

func namedUser(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func namedGroup(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

// listAll lists everything that a store reads, at a resourceVersion.
func listAll(t *testing.T, f feeds, resourceVersion string, ofRoles ...any) {
	t.Helper()
	if err := errors.Join(
		f.clusterRoles.Replace(nil, resourceVersion), f.clusterRoleBindings.Replace(nil, resourceVersion),
		f.roles.Replace(ofRoles, resourceVersion), f.roleBindings.Replace(nil, resourceVersion),
	); err != nil {
		t.Fatal(err)
	}
}

func next(t *testing.T, s *Subscription) Update {
	t.Helper()
	update, err := s.Next()
	if err != nil {
		t.Fatalf("Next() = %v", err)
	}
	return update
}

// TestPositions has what each kind of news does to the positions, and what a
// subscriber is told.
func TestPositions(t *testing.T) {
	store := NewStore()
	into := feedsOf(store)
	if store.Synced() {
		t.Error("Synced() = true before anything was read")
	}
	listAll(t, into, "10", role("a", "r", "7"), role("b", "r", "8"), role("c", "r", "9"))
	if !store.Synced() {
		t.Error("Synced() = false, want true")
	}
	subscription := store.Subscribe()
	defer subscription.Close()
	for _, step := range []struct {
		name string
		do   func() error
		want Update
	}{
		{name: "nothing", do: func() error { return nil }, want: Update{Revision: Positions{10, 10, 10, 10}, Changed: Positions{0, 0, 9, 0}}},
		{
			name: "an object is added",
			do:   func() error { return into.roles.Add(role("a", "s", "12")) },
			want: Update{Revision: Positions{10, 10, 12, 10}, Changes: []Change{{"a", Positions{Roles: 12}}}, Changed: Positions{0, 0, 12, 0}},
		},
		{
			name: "an object changes", do: func() error { return into.clusterRoles.Update(clusterRole("c", "13")) },
			want: Update{Revision: Positions{13, 10, 12, 10}, Changes: []Change{{"", Positions{ClusterRoles: 13}}}, Changed: Positions{13, 0, 12, 0}},
		},
		{
			name: "an object is deleted", do: func() error { return into.roles.Delete(role("a", "s", "15")) },
			want: Update{Revision: Positions{13, 10, 15, 10}, Changes: []Change{{"a", Positions{Roles: 15}}}, Changed: Positions{13, 0, 15, 0}},
		},
		{
			name: "a bookmark",
			do: func() error {
				into.roleBindings.UpdateResourceVersion("16")
				return nil
			},
			want: Update{Revision: Positions{13, 10, 15, 16}, Changed: Positions{13, 0, 15, 0}},
		},
		{
			name: "what is known comes again",
			do: func() error {
				into.roleBindings.UpdateResourceVersion("11")
				return nil
			},
			want: Update{Revision: Positions{13, 10, 15, 16}, Changed: Positions{13, 0, 15, 0}},
		},
		{
			name: "the same list again",
			do: func() error {
				return errors.Join(
					into.roles.Replace([]any{role("b", "r", "8"), role("c", "r", "9"), role("a", "r", "7")}, "20"),
					into.roles.Resync(),
				)
			},
			want: Update{Revision: Positions{13, 10, 20, 16}, Changed: Positions{13, 0, 15, 0}},
		},
		{
			name: "several changes in two namespaces",
			do: func() error {
				return errors.Join(
					into.roles.Add(role("b", "s", "21")), into.roleBindings.Add(roleBinding("c", "s", "22")),
					into.roleBindings.Add(roleBinding("b", "s", "23")), into.roles.Delete(role("b", "s", "24")),
				)
			},
			want: Update{Revision: Positions{13, 10, 24, 23}, Changes: []Change{
				{"b", Positions{Roles: 24, RoleBindings: 23}}, {"c", Positions{RoleBindings: 22}},
			}, Changed: Positions{13, 0, 24, 23}},
		},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if woken := len(subscription.Wake()) == 1; woken != (step.want.Changes != nil) {
			t.Errorf("%s: woken = %v", step.name, woken)
		}
		got := next(t, subscription)
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		select {
		case <-subscription.Wake():
		default:
		}
	}
	if err := into.roles.Add(clusterRole("r", "30")); err == nil {
		t.Error("Add() of something else = nil, want an error")
	}
}

// TestLost has subscribers that cannot be told what has changed.
func TestLost(t *testing.T) {
	lost := func(what string, changed Positions, do func(feeds)) {
		t.Helper()
		store := NewStore()
		into := feedsOf(store)
		listAll(t, into, "100")
		subscription := store.Subscribe()
		do(into)
		if len(subscription.Wake()) != 1 {
			t.Errorf("%s: not woken", what)
		}
		for range 2 {
			if update, err := subscription.Next(); !errors.Is(err, ErrLost) {
				t.Errorf("%s: Next() = %v, %v, want ErrLost", what, update, err)
			}
		}
		if len(subscription.pending)+len(subscription.places) > 0 {
			t.Errorf("%s: %d changes are kept, want none", what, len(subscription.pending))
		}
		subscription.Close()
		if len(store.subscriptions) > 0 {
			t.Errorf("%s: the subscription is still there", what)
		}
		again := store.Subscribe()
		defer again.Close()
		if got := next(t, again).Changed; got != changed {
			t.Errorf("%s: Changed = %v, want %v", what, got, changed)
		}
	}
	lost("the API goes back", Positions{Roles: 70}, func(into feeds) {
		into.add(t, role("a", "r", "101"))
		listAll(t, into, "99", role("a", "r", "70"))
	})
	for what, list := range map[string][]any{
		"one is gone in another list":     {},
		"one has changed in another list": {role("a", "r", "102")},
		"one is new in another list":      {role("a", "r", "101"), role("b", "r", "102")},
	} {
		lost(what, Positions{Roles: 110}, func(into feeds) {
			into.add(t, role("a", "r", "101"))
			if err := into.roles.Replace(list, "110"); err != nil {
				t.Error(err)
			}
		})
	}
	lost("nobody comes for the changes", Positions{Roles: 101}, func(into feeds) {
		for i := range 2 * maxPending {
			into.add(t, role(fmt.Sprint("ns", i), "r", "101"))
		}
	})
}

// TestSlowSubscriber has many changes of few namespaces: few are kept.
func TestSlowSubscriber(t *testing.T) {
	store := NewStore()
	into := feedsOf(store)
	subscription := store.Subscribe()
	defer subscription.Close()
	for i := 1; i <= 30_000; i++ {
		into.add(t, role(fmt.Sprint("ns", i%3), "r", fmt.Sprint(i)))
	}
	want := []Change{{"ns1", Positions{Roles: 29_998}}, {"ns2", Positions{Roles: 29_999}}, {"ns0", Positions{Roles: 30_000}}}
	if diff := cmp.Diff(want, next(t, subscription).Changes); diff != "" {
		t.Errorf("Changes (-want +got):\n%s", diff)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := NewStore()
		into := feedsOf(store)
		listAll(t, into, "10")
		if err := store.Wait(t.Context(), Positions{10, 10, 10, 10}); err != nil {
			t.Errorf("Wait() = %v for what was read, want nil at once", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := store.Wait(ctx, Positions{Roles: 12}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait() = %v, want DeadlineExceeded", err)
		}
		done := make(chan error, 1)
		go func() { done <- store.Wait(t.Context(), Positions{Roles: 12, RoleBindings: 13}) }()
		for _, step := range []func(){
			func() { into.add(t, role("a", "r", "12")) },
			func() { into.roleBindings.UpdateResourceVersion("12") },
		} {
			step()
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("Wait() = %v too early", err)
			default:
			}
		}
		into.roleBindings.UpdateResourceVersion("14")
		if err := <-done; err != nil {
			t.Errorf("Wait() = %v, want nil", err)
		}
	})
}

// TestFirstSubject has bindings in which several subjects match: upstream's reason
// names the first.
func TestFirstSubject(t *testing.T) {
	store := NewStore()
	into := feedsOf(store)
	jane := &user.DefaultInfo{Name: "jane", Groups: []string{"dev", "ops", "dev"}}
	into.add(t,
		roleBinding("a", "2", "1", namedGroup("ops"), namedUser("jane"), namedGroup("dev")),
		roleBinding("a", "1", "2", namedUser("paul"), namedGroup("dev"), namedGroup("ops")),
		roleBinding("a", "3", "3", namedUser("paul")),
		roleBinding("b", "1", "4", namedUser("jane"), namedUser("jane")),
	)
	list := func(ctx context.Context, namespace string) []string {
		bindings, err := store.ListRoleBindings(ctx, namespace)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, binding := range bindings {
			line := binding.Namespace + "/" + binding.Name
			for _, s := range binding.Subjects {
				line += " " + s.Name
			}
			found = append(found, line)
		}
		return found
	}
	for _, tc := range []struct {
		name      string
		ctx       context.Context
		namespace string
		want      []string
	}{
		{"a user's", WithUser(t.Context(), jane), "a", []string{"a/1 dev", "a/2 ops"}},
		{"a user's, everywhere", WithUser(t.Context(), jane), "", []string{"a/1 dev", "a/2 ops", "b/1 jane"}},
		{"all", t.Context(), "a", []string{"a/1 paul dev ops", "a/2 ops jane dev", "a/3 paul"}},
		{"all, everywhere", t.Context(), "", []string{"a/1 paul dev ops", "a/2 ops jane dev", "a/3 paul", "b/1 jane jane"}},
	} {
		if diff := cmp.Diff(tc.want, list(tc.ctx, tc.namespace)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestNotFound(t *testing.T) {
	store := NewStore()
	_, roleErr := store.GetRole(t.Context(), "a", "r")
	_, clusterRoleErr := store.GetClusterRole(t.Context(), "c")
	for err, want := range map[error]string{
		roleErr:        `role.rbac.authorization.k8s.io "r" not found`,
		clusterRoleErr: `clusterrole.rbac.authorization.k8s.io "c" not found`,
	} {
		if !apierrors.IsNotFound(err) || err.Error() != want {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
}
