package chain

import (
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"
)

// handlerFactory is an informer factory that remembers the event handlers which
// upstream's authorizers register. An informer has synced when its cache is
// filled; the graph that the Node authorizer decides by is filled by handlers,
// and until they are done it says no to nodes that may.
//
// It covers the API groups that the Node authorizer reads by handlers. The
// others go to the factory as they are.
type handlerFactory struct {
	informers.SharedInformerFactory

	// mu guards registrations.
	mu            sync.Mutex
	registrations []cache.ResourceEventHandlerRegistration
}

var _ informers.SharedInformerFactory = (*handlerFactory)(nil)

// Core returns the informers of the core group.
func (f *handlerFactory) Core() core.Interface { return core.New(f, metav1.NamespaceAll, nil) }

// Storage returns the informers of storage.k8s.io.
func (f *handlerFactory) Storage() storage.Interface { return storage.New(f, metav1.NamespaceAll, nil) }

// Resource returns the informers of resource.k8s.io.
func (f *handlerFactory) Resource() resource.Interface {
	return resource.New(f, metav1.NamespaceAll, nil)
}

// Certificates returns the informers of certificates.k8s.io.
func (f *handlerFactory) Certificates() certificates.Interface {
	return certificates.New(f, metav1.NamespaceAll, nil)
}

// InformerFor returns the factory's informer for a type.
func (f *handlerFactory) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return handlerInformer{SharedIndexInformer: f.SharedInformerFactory.InformerFor(obj, newFunc), factory: f}
}

func (f *handlerFactory) remember(registration cache.ResourceEventHandlerRegistration, err error) (cache.ResourceEventHandlerRegistration, error) {
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registrations = append(f.registrations, registration)
	return registration, nil
}

func (f *handlerFactory) synced() []cache.InformerSynced {
	f.mu.Lock()
	defer f.mu.Unlock()
	registrations := slices.Clone(f.registrations)
	synced := make([]cache.InformerSynced, 0, len(registrations))
	for _, registration := range registrations {
		synced = append(synced, registration.HasSynced)
	}
	return synced
}

// handlerInformer has its event handlers remembered.
type handlerInformer struct {
	cache.SharedIndexInformer
	factory *handlerFactory
}

// AddEventHandler registers a handler.
func (i handlerInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.factory.remember(i.SharedIndexInformer.AddEventHandler(handler))
}

// AddEventHandlerWithResyncPeriod registers a handler.
func (i handlerInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resyncPeriod time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.factory.remember(i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler, resyncPeriod))
}

// AddEventHandlerWithOptions registers a handler.
func (i handlerInformer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.factory.remember(i.SharedIndexInformer.AddEventHandlerWithOptions(handler, options))
}
