package interest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/internal/follow"
)

// syncInterval is how often it is looked whether all was read.
const syncInterval = 10 * time.Millisecond

// Reader fills a hub from the Kubernetes API, with one reflector for each resource that
// some plugin acts by. They go on for ever, whatever the API does. Start starts their
// goroutines and Shutdown waits for their end. It runs as an informer factory does.
//
// The plugins read the same by informers, which say neither up to which change they
// have come nor whether they follow.
type Reader struct {
	hub        *Hub
	reflectors []*cache.Reflector
	running    sync.WaitGroup
}

// NewReader returns a reader that is not started yet.
func NewReader(hub *Hub, client kubernetes.Interface) *Reader {
	r := &Reader{hub: hub}
	registration := client.AdmissionregistrationV1()
	add(r, client, MutatingWebhooks, registration.MutatingWebhookConfigurations(), mutatingWebhookRules)
	add(r, client, ValidatingWebhooks, registration.ValidatingWebhookConfigurations(), validatingWebhookRules)
	add(r, client, MutatingPolicies, registration.MutatingAdmissionPolicies(), mutatingPolicyRules)
	add(r, client, ValidatingPolicies, registration.ValidatingAdmissionPolicies(), validatingPolicyRules)
	add(r, client, Quotas, client.CoreV1().ResourceQuotas(metav1.NamespaceAll), noRules)
	return r
}

// object is one of a resource.
type object interface {
	runtime.Object
	metav1.Object
}

// rulesOfObject returns an object's rules.
type rulesOfObject[T object] func(T) []*admissionv1.InterestRule

func add[T object, L runtime.Object](r *Reader, client kubernetes.Interface, resource Resource, source follow.Client[L], rules rulesOfObject[T]) {
	if !r.hub.static.reads[resource] {
		return
	}
	var example T
	into := &feed[T]{hub: r.hub, resource: resource, rules: rules}
	from := cache.ToListWatcherWithWatchListSemantics(follow.Source(source, into), client)
	r.reflectors = append(r.reflectors, follow.NewReflector(resource.String(), from, example, into))
}

// StartWithContext starts to read, until ctx ends.
func (r *Reader) StartWithContext(ctx context.Context) {
	for _, reflector := range r.reflectors {
		r.running.Go(func() { follow.Run(ctx, reflector) })
	}
}

// WaitForCacheSyncWithContext returns when all was read once, or with an error when
// ctx ends.
func (r *Reader) WaitForCacheSyncWithContext(ctx context.Context) cache.SyncResult {
	return cache.SyncResult{Err: wait.PollUntilContextCancel(ctx, syncInterval, true, func(context.Context) (bool, error) {
		return r.hub.Synced(), nil
	})}
}

// Shutdown waits for the end of what was started. Its context has to have ended.
func (r *Reader) Shutdown() { r.running.Wait() }

// feed is where a reflector puts what it reads of one resource.
type feed[T object] struct {
	hub      *Hub
	resource Resource
	rules    rulesOfObject[T]
}

var (
	_ cache.ReflectorStore         = (*feed[object])(nil)
	_ cache.ResourceVersionUpdater = (*feed[object])(nil)
	_ follow.Watches               = (*feed[object])(nil)
)

// Add adds an object.
func (f *feed[T]) Add(obj any) error { return f.Update(obj) }

// Update adds or replaces an object.
func (f *feed[T]) Update(obj any) error {
	o, err := f.read(obj)
	if err != nil {
		return err
	}
	f.hub.put(f.resource, keyOf(o), f.rules(o), positionOf(o.GetResourceVersion()))
	return nil
}

// Delete removes an object, which comes with the resourceVersion of its deletion.
func (f *feed[T]) Delete(obj any) error {
	o, err := f.read(obj)
	if err != nil {
		return err
	}
	f.hub.remove(f.resource, keyOf(o), positionOf(o.GetResourceVersion()))
	return nil
}

// Replace makes a list all that there is.
func (f *feed[T]) Replace(list []any, resourceVersion string) error {
	objects, newest := make(map[key][]*admissionv1.InterestRule, len(list)), uint64(0)
	for _, obj := range list {
		o, err := f.read(obj)
		if err != nil {
			return err
		}
		objects[keyOf(o)] = f.rules(o)
		newest = max(newest, positionOf(o.GetResourceVersion()))
	}
	f.hub.replace(f.resource, objects, positionOf(resourceVersion), newest)
	return nil
}

// Resync does nothing.
func (f *feed[T]) Resync() error { return nil }

// UpdateResourceVersion says up to where has been read; after an object, or by a
// bookmark.
func (f *feed[T]) UpdateResourceVersion(resourceVersion string) {
	f.hub.advance(f.resource, positionOf(resourceVersion))
}

// Opened implements follow.Watches.
func (f *feed[T]) Opened(everything bool) {
	f.hub.setWatch(f.resource, func(feed *feedState) { feed.open(everything, time.Now()) })
}

// Ended implements follow.Watches.
func (f *feed[T]) Ended() {
	f.hub.setWatch(f.resource, func(feed *feedState) { feed.end(time.Now()) })
}

func (f *feed[T]) read(obj any) (T, error) {
	o, ok := obj.(T)
	if !ok {
		return o, fmt.Errorf("got a %T among %s", obj, f.resource)
	}
	return o, nil
}

func keyOf(o metav1.Object) key { return key{o.GetNamespace(), o.GetName()} }

// positionOf reads a resourceVersion. Those of the Kubernetes API are numbers; what
// is none is before everything, so that nothing is taken for read that was not.
func positionOf(resourceVersion string) uint64 {
	position, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return position
}
