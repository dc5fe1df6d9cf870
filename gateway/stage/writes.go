package stage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// writeObserver is told of a write of one object that etcd has acknowledged, before
// the client is: what it does then is in force for the client's next request. The
// object is an internal version and carries the resourceVersion of the write, also if
// the write deleted it. Observers neither keep nor change the object, and do not wait.
type writeObserver func(resource schema.GroupResource, object runtime.Object, deleted bool)

// writeObservers are called in their order for writes of their resource.
type writeObservers map[schema.GroupResource][]writeObserver

// add has observer called for writes of resources.
func (o writeObservers) add(observer writeObserver, resources ...schema.GroupResource) {
	for _, resource := range resources {
		o[resource] = append(o[resource], observer)
	}
}

// observedOptions makes the storage of observed resources tell of its writes. It is
// below everything that writes: requests of every verb, deletions of collections, and
// the loopback client.
type observedOptions struct {
	genericregistry.RESTOptionsGetter
	observers writeObservers
}

// GetRESTOptions implements genericregistry.RESTOptionsGetter.
func (o observedOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (genericregistry.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if observers := o.observers[resource]; err == nil && len(observers) > 0 {
		options.Decorator = observedDecorator(options.Decorator, func(object runtime.Object, deleted bool) {
			for _, observe := range observers {
				observe(resource, object, deleted)
			}
		})
	}
	return options, err
}

func observedDecorator(next genericregistry.StorageDecorator, observe func(object runtime.Object, deleted bool)) genericregistry.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource,
		prefix string,
		key func(runtime.Object) (string, error),
		newObject, newList func() runtime.Object,
		attributes kubestorage.AttrFunc,
		trigger kubestorage.IndexerFuncs,
		indexers *cache.Indexers,
	) (kubestorage.Interface, factory.DestroyFunc, error) {
		inner, destroy, err := next(config, prefix, key, newObject, newList, attributes, trigger, indexers)
		if err != nil {
			return nil, nil, err
		}
		return &observedStorage{Interface: inner, observe: observe}, destroy, nil
	}
}

// observedStorage tells of each write that succeeded. One whose outcome is not known
// has not been acknowledged, and is not told of.
type observedStorage struct {
	kubestorage.Interface
	observe func(object runtime.Object, deleted bool)
}

// Create implements storage.Interface.
func (s *observedStorage) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	err := s.Interface.Create(ctx, key, object, out, ttl)
	if err == nil {
		s.observe(out, false)
	}
	return err
}

// Delete implements storage.Interface. Upstream's etcd storage decodes the deleted
// object with the revision of its deletion.
func (s *observedStorage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *kubestorage.Preconditions,
	validate kubestorage.ValidateObjectFunc, cached runtime.Object, options kubestorage.DeleteOptions,
) error {
	err := s.Interface.Delete(ctx, key, out, preconditions, validate, cached, options)
	if err == nil {
		s.observe(out, true)
	}
	return err
}

// GuaranteedUpdate implements storage.Interface.
func (s *observedStorage) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *kubestorage.Preconditions, update kubestorage.UpdateFunc, cached runtime.Object,
) error {
	err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
	if err == nil {
		s.observe(out, false)
	}
	return err
}
