package revocations

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/serviceaccount"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

func revocation(uid string, version uint64, deleted bool) convert.Revocation {
	return convert.Revocation{Object: convert.Object{Resource: convert.Pods, UID: uid, ResourceVersion: version}, Deleted: deleted}
}

// take takes what there is, and fails if there is nothing to take.
func take(t *testing.T, s *Subscription) convert.Revocations {
	t.Helper()
	select {
	case <-s.Changed():
	default:
		t.Fatal("nothing has changed")
	}
	r, err := s.Take()
	if err != nil {
		t.Fatalf("Take() = %v, want no error", err)
	}
	return r
}

func TestHub(t *testing.T) {
	following := false
	clock := testingclock.NewFakePassiveClock(time.Now())
	hub := newHub(func() bool { return following }, clock)
	hub.Revoke(revocation("old", 1, true))
	clock.SetTime(clock.Now().Add(memory + time.Second))
	hub.Revoke(revocation("recent", 2, true))

	// Whoever comes late hears of what was of late.
	s, other := hub.Subscribe(), hub.Subscribe()
	defer other.Close()
	want := convert.Revocations{Revoked: []convert.Revocation{revocation("recent", 2, true)}}
	if diff := cmp.Diff(want, take(t, s)); diff != "" {
		t.Errorf("the first take (-want +got):\n%s", diff)
	}

	// What happens to one object again and again is told once.
	following = true
	hub.SetConfiguration("a")
	hub.SetConfiguration("b")
	for version := range uint64(5) {
		hub.Revoke(revocation("pod", 10-version, version == 2))
	}
	want = convert.Revocations{Revoked: []convert.Revocation{revocation("pod", 10, true)}, Configuration: "b", Following: true}
	if diff := cmp.Diff(want, take(t, s)); diff != "" {
		t.Errorf("the second take (-want +got):\n%s", diff)
	}
	hub.SetConfiguration("b")
	select {
	case <-s.Changed():
		t.Error("a configuration that is the same counts as a change")
	default:
	}
	if got := hub.Configuration(); got != "b" || !hub.Following() {
		t.Errorf("Configuration() = %q, Following() = %v, want b and true", got, hub.Following())
	}
	s.Close()
	hub.Revoke(revocation("later", 11, true))
	if got := len(take(t, other).Revoked); got != 3 {
		t.Errorf("the other subscription has %d revocations, want 3", got)
	}
}

// TestSlowSubscriber does not take what is there.
func TestSlowSubscriber(t *testing.T) {
	hub := NewHub(nil)
	s := hub.Subscribe()
	defer s.Close()
	for i := range maxRemembered {
		hub.Revoke(revocation(fmt.Sprint(i), 1, true))
	}
	seen := map[string]bool{}
	for len(seen) < maxRemembered {
		for _, revoked := range take(t, s).Revoked {
			seen[revoked.Object.UID] = true
		}
	}
	for i := range maxRemembered + 1 {
		hub.Revoke(revocation(fmt.Sprint("again-", i), 1, true))
	}
	if _, err := s.Take(); !errors.Is(err, ErrTooSlow) {
		t.Errorf("Take() = %v, want ErrTooSlow", err)
	}
}

// TestHandler has what informers tell.
func TestHandler(t *testing.T) {
	deletion := metav1.Now()
	meta := func(change func(*metav1.ObjectMeta)) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "shop", Name: "n", UID: "uid", ResourceVersion: "7"}
		if change != nil {
			change(&m)
		}
		return m
	}
	deleting := func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &deletion }
	secret := func(kind corev1.SecretType, token string, change func(*metav1.ObjectMeta)) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: meta(change), Type: kind, Data: map[string][]byte{"token": []byte(token)}}
	}
	labelled := func(key string) func(*metav1.ObjectMeta) {
		return func(m *metav1.ObjectMeta) { m.Labels = map[string]string{key: "2026-01-01"} }
	}
	pod := &corev1.Pod{ObjectMeta: meta(nil)}
	object := convert.Object{Namespace: "shop", Name: "n", UID: "uid", ResourceVersion: 7}
	for name, c := range map[string]struct {
		old, current any
		want         []convert.Revocation
	}{
		"changed":             {pod, pod, nil},
		"being deleted":       {pod, &corev1.Pod{ObjectMeta: meta(deleting)}, []convert.Revocation{{Object: object}}},
		"still being deleted": {&corev1.Pod{ObjectMeta: meta(deleting)}, &corev1.Pod{ObjectMeta: meta(deleting)}, nil},
		"another one":         {pod, &corev1.Pod{ObjectMeta: meta(func(m *metav1.ObjectMeta) { m.UID = types.UID("new") })}, []convert.Revocation{{Object: object, Deleted: true}}},
		"legacy token":        {secret(corev1.SecretTypeServiceAccountToken, "a", nil), secret(corev1.SecretTypeServiceAccountToken, "b", nil), []convert.Revocation{{Object: object}}},
		"bootstrap token":     {secret(bootstrapapi.SecretTypeBootstrapToken, "a", nil), secret(bootstrapapi.SecretTypeBootstrapToken, "b", nil), []convert.Revocation{{Object: object}}},
		"other secret":        {secret(corev1.SecretTypeOpaque, "a", nil), secret(corev1.SecretTypeOpaque, "b", nil), nil},
		"legacy token used":   {secret(corev1.SecretTypeServiceAccountToken, "a", nil), secret(corev1.SecretTypeServiceAccountToken, "a", labelled(serviceaccount.LastUsedLabelKey)), nil},
		"legacy token barred": {secret(corev1.SecretTypeServiceAccountToken, "a", nil), secret(corev1.SecretTypeServiceAccountToken, "a", labelled(serviceaccount.InvalidSinceLabelKey)), []convert.Revocation{{Object: object}}},
		"deleted":             {pod, nil, []convert.Revocation{{Object: object, Deleted: true}}},
		"deleted unseen":      {cache.DeletedFinalStateUnknown{Key: "shop/n", Obj: pod}, nil, []convert.Revocation{{Object: object, Deleted: true}}},
		"no object":           {"x", nil, nil},
		"no objects":          {"x", "y", nil},
	} {
		t.Run(name, func(t *testing.T) {
			hub := NewHub(nil)
			s := hub.Subscribe()
			defer s.Close()
			handler := hub.handler(convert.Pods)
			handler.OnAdd(c.old, false)
			if c.current == nil {
				handler.OnDelete(c.old)
			} else {
				handler.OnUpdate(c.old, c.current)
			}
			for i := range c.want {
				c.want[i].Object.Resource = convert.Pods
			}
			got, err := s.Take()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.Revoked, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("revoked (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWatch deletes one object of each resource.
func TestWatch(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "n", UID: "x"}
	kubernetes := fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: meta}, &corev1.Secret{ObjectMeta: meta},
		&corev1.Pod{ObjectMeta: meta}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "x"}})
	factory := informers.NewSharedInformerFactory(kubernetes, 0)
	hub := NewHub(nil)
	if err := hub.Watch(factory); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	defer func() { stop(); factory.Shutdown() }()
	factory.WaitForCacheSyncWithContext(ctx)
	s := hub.Subscribe()
	defer s.Close()
	core := kubernetes.CoreV1()
	for resource, remove := range map[string]func() error{
		convert.ServiceAccounts: func() error {
			return core.ServiceAccounts("shop").Delete(t.Context(), "n", metav1.DeleteOptions{})
		},
		convert.Secrets: func() error { return core.Secrets("shop").Delete(t.Context(), "n", metav1.DeleteOptions{}) },
		convert.Pods:    func() error { return core.Pods("shop").Delete(t.Context(), "n", metav1.DeleteOptions{}) },
		convert.Nodes:   func() error { return core.Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}) },
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Changed():
		case <-time.After(30 * time.Second):
			t.Fatalf("nobody tells of the deletion in %s", resource)
		}
		news, err := s.Take()
		if err != nil || len(news.Revoked) != 1 || news.Revoked[0].Object.Resource != resource || !news.Revoked[0].Deleted {
			t.Errorf("Take() = %+v, %v, want the deletion in %s", news, err, resource)
		}
	}
}
