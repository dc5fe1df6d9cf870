package app

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trigate/trigate/services/internal/servetest"
)

// TestQuotaOfManyWriters has many goroutines ask at once for more than a quota has. As
// many as it has are let pass, and not one more. It is one of the tests that are run
// with the race detector.
func TestQuotaOfManyWriters(t *testing.T) {
	servetest.CheckLeaks(t)
	const writers, tries, limit = 64, 3, 100
	hard := corev1.ResourceList{"count/secrets": *resource.NewQuantity(limit, resource.DecimalSI)}
	world := newCluster([]runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crowded"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}},
		&corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "quota", Namespace: "crowded", ResourceVersion: "1"},
			Spec:       corev1.ResourceQuotaSpec{Hard: hard},
			Status:     corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{"count/secrets": *resource.NewQuantity(0, resource.DecimalSI)}},
		},
	}, nil)
	keepVersions(world.kubernetes.(clientset).Clientset)
	service := start(t, world, nobodyMay())

	create := func(name string) error {
		attributes := admission.NewAttributesRecord(
			&core.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "crowded"}}, nil,
			schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, "crowded", name,
			schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "",
			admission.Create, &metav1.CreateOptions{}, false, somebody)
		if err := service.Admit(t.Context(), attributes, nil); err != nil {
			return err
		}
		return service.Validate(t.Context(), attributes, nil)
	}
	var allowed, refused atomic.Int32
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			for try := range tries {
				switch err := create(fmt.Sprintf("s-%d-%d", writer, try)); {
				case err == nil:
					allowed.Add(1)
				case strings.Contains(err.Error(), "exceeded quota: quota"):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := allowed.Load(); got != limit {
		t.Errorf("%d writes were let pass, want %d", got, limit)
	}
	if got, want := refused.Load(), int32(writers*tries-limit); got != want {
		t.Errorf("%d writes were refused, want %d", got, want)
	}
	quota, err := world.kubernetes.CoreV1().ResourceQuotas("crowded").Get(t.Context(), "quota", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if used := quota.Status.Used["count/secrets"]; used.Value() != limit {
		t.Errorf("the quota says that %s are used, want %d", used.String(), limit)
	}
}

// keepVersions has quotas of a fake be updated as the API does it: not from an old
// version, and to a new one. By versions the plugin knows what it has seen of them.
func keepVersions(fake *kubefake.Clientset) {
	var mu sync.Mutex // makes one step of the reactor's several
	fake.PrependReactor("update", "resourcequotas", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		quota := action.(clienttesting.UpdateAction).GetObject().(*corev1.ResourceQuota).DeepCopy()
		stored, err := fake.Tracker().Get(action.GetResource(), quota.Namespace, quota.Name)
		if err != nil {
			return true, nil, err
		}
		version := stored.(*corev1.ResourceQuota).ResourceVersion
		if quota.ResourceVersion != version {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), quota.Name, errors.New("it has changed"))
		}
		number, err := strconv.Atoi(version)
		if err != nil {
			return true, nil, err
		}
		quota.ResourceVersion = strconv.Itoa(number + 1)
		return true, quota, fake.Tracker().Update(action.GetResource(), quota, quota.Namespace)
	})
}
