package stage

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
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

// doubtObserver is told of a write of one object that failed, when it is not known
// whether it took effect all the same. Once it cannot any more, newest returns the
// resourceVersion of the last object of the resource that was written, if it exists
// still. Observers do not wait.
type doubtObserver func(resource schema.GroupResource, newest func(context.Context) (uint64, error))

// writeObservers are called in their order for writes of their resource.
type writeObservers map[schema.GroupResource]*resourceObservers

type resourceObservers struct {
	writes []writeObserver
	doubts []doubtObserver
}

// add has observer called for writes of resources.
func (o writeObservers) add(observer writeObserver, resources ...schema.GroupResource) {
	for _, resource := range resources {
		of := o.of(resource)
		of.writes = append(of.writes, observer)
	}
}

// addDoubts has observer called for doubtful writes of resources, which deletions never
// are.
func (o writeObservers) addDoubts(observer doubtObserver, resources ...schema.GroupResource) {
	for _, resource := range resources {
		of := o.of(resource)
		of.doubts = append(of.doubts, observer)
	}
}

func (o writeObservers) of(resource schema.GroupResource) *resourceObservers {
	if o[resource] == nil {
		o[resource] = &resourceObservers{}
	}
	return o[resource]
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
	if observers := o.observers[resource]; err == nil && observers != nil {
		options.Decorator = observedDecorator(options.Decorator, resource, observers)
	}
	return options, err
}

func observedDecorator(next genericregistry.StorageDecorator, resource schema.GroupResource, observers *resourceObservers) genericregistry.StorageDecorator {
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
		newest := func(ctx context.Context) (uint64, error) { return newestIn(ctx, inner, prefix, newList()) }
		return &observedStorage{Interface: inner, resource: resource, observers: observers, newest: newest}, destroy, nil
	}
}

// newestIn returns the largest resourceVersion of an object that there is now.
func newestIn(ctx context.Context, storage kubestorage.Interface, prefix string, list runtime.Object) (uint64, error) {
	options := kubestorage.ListOptions{Predicate: kubestorage.Everything, Recursive: true}
	if err := storage.GetList(ctx, prefix, options, list); err != nil {
		return 0, err
	}
	newest := uint64(0)
	err := meta.EachListItem(list, func(object runtime.Object) error {
		version, err := storage.Versioner().ObjectResourceVersion(object)
		newest = max(newest, version)
		return err
	})
	return newest, err
}

// observedStorage tells of each write that succeeded. One whose outcome is not known
// has not been acknowledged; it is told of as a doubt.
type observedStorage struct {
	kubestorage.Interface
	resource  schema.GroupResource
	observers *resourceObservers
	newest    func(context.Context) (uint64, error)
}

// Create implements storage.Interface.
func (s *observedStorage) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	err := s.Interface.Create(ctx, key, object, out, ttl)
	s.tell(out, err)
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
	var refused error
	err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
		func(input runtime.Object, meta kubestorage.ResponseMeta) (output runtime.Object, ttl *uint64, err error) {
			output, ttl, refused = update(input, meta)
			return output, ttl, refused
		}, cached)
	if err != nil && errors.Is(err, refused) {
		return err // It was not tried.
	}
	s.tell(out, err)
	return err
}

// tell tells of a write with this outcome.
func (s *observedStorage) tell(out runtime.Object, err error) {
	switch {
	case err == nil:
		s.observe(out, false)
	case kubestorage.IsExist(err), kubestorage.IsNotFound(err), kubestorage.IsConflict(err), kubestorage.IsInvalidObj(err):
		// etcd has said no.
	default:
		for _, doubt := range s.observers.doubts {
			doubt(s.resource, s.newest)
		}
	}
}

func (s *observedStorage) observe(object runtime.Object, deleted bool) {
	for _, observe := range s.observers.writes {
		observe(s.resource, object, deleted)
	}
}
