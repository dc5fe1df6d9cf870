package policy

import (
	"context"
	"errors"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/servetest"
)

// read has a store filled from an API, until the test ends.
func read(t *testing.T, api *apitest.Server) *Store {
	t.Helper()
	config, err := process.RESTConfig(api.Kubeconfig(t), "test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore()
	reader := NewReader(store, client)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		reader.Shutdown()
	})
	reader.StartWithContext(ctx)
	if result := reader.WaitForCacheSyncWithContext(t.Context()); result.Err != nil {
		t.Fatalf("WaitForCacheSync() = %v", result.Err)
	}
	return store
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	servetest.Eventually(t, func() error {
		if !holds() {
			return errors.New("not so: " + what)
		}
		return nil
	})
}

// TestReader reads an API, follows it, loses it, and finds it again with other
// objects.
func TestReader(t *testing.T) {
	one, two := role("a", "one", ""), role("b", "two", "")
	one.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	api := apitest.New(t, one, two, clusterRole("c", ""))
	store := read(t, api)
	eventually(t, "following", store.Following)
	if got, err := store.GetRole(t.Context(), "a", "one"); err != nil || got.ManagedFields != nil {
		t.Errorf("GetRole() = %v, %v, want a role without managed fields", got, err)
	}
	if got, want := store.Revision(), (Positions{3, 3, 3, 3}); got != want {
		t.Errorf("Revision() = %v, want %v", got, want)
	}

	subscription := store.Subscribe()
	defer subscription.Close()
	api.Delete(t, one)
	eventually(t, "the deletion was read", func() bool { return store.Revision()[Roles] == 4 })
	if update := next(t, subscription); len(update.Changes) != 1 || update.Changes[0] != (Change{"a", Positions{Roles: 4}}) {
		t.Errorf("Changes = %v, want one of role a", update.Changes)
	}

	api.Bookmark(t, &rbacv1.RoleBinding{})
	eventually(t, "the bookmark was read", func() bool { return store.Revision()[RoleBindings] == 5 })
	if update := next(t, subscription); len(update.Changes) != 0 {
		t.Errorf("Changes = %v after a bookmark, want none", update.Changes)
	}

	api.SetAvailable(false)
	eventually(t, "not following", func() bool { return !store.Following() })
	if _, err := store.GetRole(t.Context(), "b", "two"); err != nil {
		t.Errorf("GetRole() = %v while the API is away, want nil", err)
	}
	api.Delete(t, two)
	api.Apply(t, role("d", "four", ""))
	api.SetAvailable(true)
	eventually(t, "following again", store.Following)
	if err := store.Wait(t.Context(), Positions{Roles: 7}); err != nil {
		t.Error(err)
	}
	if _, err := store.GetRole(t.Context(), "b", "two"); err == nil {
		t.Error("GetRole() = nil for what was deleted meanwhile, want NotFound")
	}
	if _, err := store.GetRole(t.Context(), "d", "four"); err != nil {
		t.Errorf("GetRole() = %v for what was made meanwhile, want nil", err)
	}
	// The changes came as events, or in a list, which does not tell them one by one.
	update, err := subscription.Next()
	if err == nil && len(update.Changes) != 2 || err != nil && !errors.Is(err, ErrLost) {
		t.Errorf("Next() = %v, %v, want two changes or ErrLost", update, err)
	}
}

// TestRelist has an API that has forgotten what has changed while it was away.
func TestRelist(t *testing.T) {
	one, two := role("a", "one", ""), role("b", "two", "")
	api := apitest.New(t, one, two)
	store := read(t, api)
	eventually(t, "following", store.Following)
	subscription := store.Subscribe()
	defer subscription.Close()
	api.SetAvailable(false)
	eventually(t, "not following", func() bool { return !store.Following() })
	next(t, subscription)
	api.Delete(t, one)
	api.Forget()
	api.SetAvailable(true)
	eventually(t, "following again", store.Following)
	if err := store.Wait(t.Context(), Positions{3, 3, 3, 3}); err != nil {
		t.Error(err)
	}
	if update, err := subscription.Next(); !errors.Is(err, ErrLost) {
		t.Errorf("Next() = %v, %v, want ErrLost", update, err)
	}
}
