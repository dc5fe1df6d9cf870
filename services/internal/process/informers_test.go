package process

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:          name,
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
}

// TestInformersWaitForTheAPI starts the informers of a service whose API comes
// late, and then has more to do than its caches.
func TestInformersWaitForTheAPI(t *testing.T) {
	api := apitest.New(t, namespace("one"))
	api.SetAvailable(false)
	config, err := RESTConfig(api.Kubeconfig(t), "trigate-test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	factory := NewInformerFactory(client)
	namespaces := factory.Core().V1().Namespaces().Lister()
	var more atomic.Bool
	informers := NewInformers(InformersConfig{
		API:       client.Discovery().RESTClient(),
		Factories: []InformerFactory{factory},
		Synced:    []cache.InformerSynced{more.Load},
	})
	var task serve.Task
	running := servetest.Start(t, servetest.NewPKI(t), serve.Config{Name: "test"},
		func(s *serve.Server) { task = informers.Task(s.Health()) },
		serve.Task{Name: "informers", Run: func(ctx context.Context) error { return task.Run(ctx) }})

	if informers.Synced() || running.Server.Health().Ready() == nil {
		t.Errorf("synced = %v, ready = %v without an API, want neither", informers.Synced(), running.Server.Health().Ready())
	}
	api.SetAvailable(true)
	servetest.Eventually(t, func() error {
		got, err := namespaces.Get("one")
		if err == nil && got.ManagedFields != nil {
			t.Errorf("managed fields = %v, want none", got.ManagedFields)
		}
		return err
	})
	if informers.Synced() || running.Server.Health().Ready() == nil {
		t.Errorf("synced = %v, ready = %v before all is synced, want neither", informers.Synced(), running.Server.Health().Ready())
	}
	more.Store(true)
	servetest.Eventually(t, running.Server.Health().Ready)
	if !informers.Synced() {
		t.Error("synced = false, want true")
	}

	api.Apply(t, namespace("two"))
	api.Delete(t, namespace("one"))
	servetest.Eventually(t, func() error {
		_, err := namespaces.Get("two")
		if _, gone := namespaces.Get("one"); gone == nil {
			err = errors.Join(err, errors.New("namespace one is still there"))
		}
		return err
	})
}
