package stage

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubestorage "k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// TestDoubtfulWrites wants a write that may have taken effect to be told of as a doubt,
// and none that etcd has refused or that was never sent.
func TestDoubtfulWrites(t *testing.T) {
	doubts := 0
	var newest func(context.Context) (uint64, error)
	observers := writeObservers{}
	observers.addDoubts(func(_ schema.GroupResource, about func(context.Context) (uint64, error)) {
		doubts++
		newest = about
	}, api.Resource("configmaps"))
	store := observedConfigMaps(t, startEtcd(t), observers)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	object := func(name string) *api.ConfigMap {
		return &api.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
	}
	create := func(ctx context.Context, name string) error {
		return store.Create(ctx, "/configmaps/ns/"+name, object(name), &api.ConfigMap{}, 0)
	}
	update := func(ctx context.Context, name string, err error) error {
		change := func(o runtime.Object, _ kubestorage.ResponseMeta) (runtime.Object, *uint64, error) {
			o.(*api.ConfigMap).Labels = map[string]string{"a": "b"}
			return o, nil, err
		}
		return store.GuaranteedUpdate(ctx, "/configmaps/ns/"+name, &api.ConfigMap{}, false, nil, change, nil)
	}
	if err := create(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		err   error
		doubt bool
	}{
		{"creating what there is", create(t.Context(), "a"), false},
		{"updating what there is not", update(t.Context(), "b", nil), false},
		{"an update that is refused", update(t.Context(), "a", errors.New("refused")), false},
	} {
		if test.err == nil || doubts > 0 {
			t.Errorf("%s: got %v with %d doubts, want an error without any", test.name, test.err, doubts)
		}
	}
	if err := create(over, "c"); err == nil || doubts != 1 {
		t.Errorf("a creation whose client has gone: got %v with %d doubts, want an error and 1", err, doubts)
	}
	if err := update(over, "a", nil); err == nil || doubts != 2 {
		t.Errorf("an update whose client has gone: got %v with %d doubts, want an error and 2", err, doubts)
	}
	var last api.ConfigMap
	if err := store.Create(t.Context(), "/configmaps/other/d", object("d"), &last, 0); err != nil {
		t.Fatal(err)
	}
	if version, err := newest(t.Context()); err != nil || fmt.Sprint(version) != last.ResourceVersion {
		t.Errorf("the newest object is at %d, %v, want %s", version, err, last.ResourceVersion)
	}
}
