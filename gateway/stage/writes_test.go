package stage

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/server/v3/embed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the scheme of what is stored
	"k8s.io/kubernetes/pkg/apis/rbac"
)

// TestObservedStorage writes to a real etcd, and wants each write that succeeded to be
// told with its revision, that of a deletion too, and no other.
func TestObservedStorage(t *testing.T) {
	var seen []string
	observers := writeObservers{}
	observers.add(func(resource schema.GroupResource, object runtime.Object, deleted bool) {
		configMap := object.(*api.ConfigMap)
		seen = append(seen, fmt.Sprintf("%s %s %s %v", resource, configMap.Name, configMap.ResourceVersion, deleted))
	}, api.Resource("configmaps"))
	store := observedConfigMaps(t, startEtcd(t), observers)
	ctx, key := t.Context(), "/configmaps/ns/a"

	created, updated, deleted := &api.ConfigMap{}, &api.ConfigMap{}, &api.ConfigMap{}
	object := &api.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"}}
	if err := store.Create(ctx, key, object, created, 0); err != nil {
		t.Fatal(err)
	}
	if err := store.Create(ctx, key, object, &api.ConfigMap{}, 0); err == nil {
		t.Error("creating it again = nil, want an error")
	}
	label := func(object runtime.Object, _ kubestorage.ResponseMeta) (runtime.Object, *uint64, error) {
		object.(*api.ConfigMap).Labels = map[string]string{"a": "b"}
		return object, nil, nil
	}
	if err := store.GuaranteedUpdate(ctx, key, updated, false, nil, label, nil); err != nil {
		t.Fatal(err)
	}
	remove := func() error {
		return store.Delete(ctx, key, deleted, nil, kubestorage.ValidateAllObjectFunc, nil, kubestorage.DeleteOptions{})
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err == nil {
		t.Error("deleting it again = nil, want an error")
	}
	want := []string{
		"configmaps a " + created.ResourceVersion + " false",
		"configmaps a " + updated.ResourceVersion + " false",
		"configmaps a " + deleted.ResourceVersion + " true",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	current, err := store.GetCurrentResourceVersion(context.WithoutCancel(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if deleted.ResourceVersion != fmt.Sprint(current) {
		t.Errorf("the deletion has the resourceVersion %s, want etcd's %d", deleted.ResourceVersion, current)
	}
}

// TestUnobservedResource wants the storage of others to be left alone.
func TestUnobservedResource(t *testing.T) {
	observers := writeObservers{}
	observers.add(func(schema.GroupResource, runtime.Object, bool) {}, rbac.Resource("roles"))
	if _, ok := observedConfigMaps(t, startEtcd(t), observers).(*observedStorage); ok {
		t.Error("the storage of configmaps is observed, want that of roles alone")
	}
}

// observedConfigMaps is the storage that a registry of configmaps would get.
func observedConfigMaps(t *testing.T, server string, observers writeObservers) kubestorage.Interface {
	t.Helper()
	config := etcdAt(server)
	config.Codec = legacyscheme.Codecs.LegacyCodec(schema.GroupVersion{Version: "v1"})
	getter := observedOptions{
		RESTOptionsGetter: genericregistry.RESTOptions{
			StorageConfig: config.ForResource(api.Resource("configmaps")),
			Decorator:     genericregistry.UndecoratedStorage,
		},
		observers: observers,
	}
	options, err := getter.GetRESTOptions(api.Resource("configmaps"), nil)
	if err != nil {
		t.Fatal(err)
	}
	store, destroy, err := options.Decorator(options.StorageConfig, "/configmaps", nil,
		func() runtime.Object { return &api.ConfigMap{} }, func() runtime.Object { return &api.ConfigMapList{} }, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return store
}

// startEtcd starts an etcd that ends with the test, and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	clients := freeURL(t)
	server, err := embed.StartEtcd(etcdConfig(t, clients))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	return clients.String()
}

// etcdConfig is an etcd for one test.
func etcdConfig(t *testing.T, clients url.URL) *embed.Config {
	t.Helper()
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.UnsafeNoFsync = t.TempDir(), "error", true
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	config.ListenPeerUrls = nil // it has no other members
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	return config
}
