package policy

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// retryMin and retryMax bound how long an API that has gone is left alone. They
	// are far below client-go's, since decisions are not kept until it is back, and a
	// refused connection costs next to nothing.
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
	// retryReset is after which time without a failure the next one is the first.
	retryReset = 10 * time.Second
	// retryLogInterval is how often the log says why a resource cannot be read.
	retryLogInterval = 10 * time.Second
	// syncInterval is how often it is looked whether all was read.
	syncInterval = 10 * time.Millisecond
)

// Reader fills a store from the Kubernetes API, with one reflector for each
// resource. They go on for ever, whatever the API does. Start starts their
// goroutines and Shutdown waits for their end. It runs as an informer factory does.
type Reader struct {
	store      *Store
	reflectors []*cache.Reflector
	running    sync.WaitGroup
}

// NewReader returns a reader that is not started yet.
func NewReader(store *Store, client kubernetes.Interface) *Reader {
	rbac, all := client.RbacV1(), metav1.NamespaceAll
	from := func(resource Resource, source *cache.ListWatch) cache.ListerWatcher {
		return cache.ToListWatcherWithWatchListSemantics(store.observe(resource, source), client)
	}
	return &Reader{store: store, reflectors: []*cache.Reflector{
		newReflector(store, ClusterRoles, &store.clusterRoles, from(ClusterRoles, source(rbac.ClusterRoles()))),
		newReflector(store, ClusterRoleBindings, &store.clusterRoleBindings, from(ClusterRoleBindings, source(rbac.ClusterRoleBindings()))),
		newReflector(store, Roles, &store.roles, from(Roles, source(rbac.Roles(all)))),
		newReflector(store, RoleBindings, &store.roleBindings, from(RoleBindings, source(rbac.RoleBindings(all)))),
	}}
}

func newReflector[T object](store *Store, resource Resource, index index[T], from cache.ListerWatcher) *cache.Reflector {
	var example T
	into := &feed[T]{store: store, resource: resource, index: index}
	return cache.NewReflectorWithOptions(from, example, into, cache.ReflectorOptions{Name: resource.String(), Backoff: retries()})
}

// source is one resource of the API.
func source[L runtime.Object](client interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
},
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: client.Watch,
	}
}

// observe returns the source of a resource with its watches seen.
func (s *Store) observe(resource Resource, source *cache.ListWatch) *cache.ListWatch {
	open := source.WatchFuncWithContext
	source.WatchFuncWithContext = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		w, err := open(ctx, options)
		if err != nil {
			return nil, err
		}
		everything := options.SendInitialEvents != nil && *options.SendInitialEvents
		s.setFeed(resource, func(feed *feedState) {
			feed.watching, feed.current = true, feed.current && !everything
		})
		return &seenWatch{Interface: w, stopped: sync.OnceFunc(func() {
			s.setFeed(resource, func(feed *feedState) { feed.watching = false })
		})}, nil
	}
	return source
}

// seenWatch is a watch whose end is seen: a reflector stops it as soon as it has
// ended, for whatever reason, and before it opens another.
type seenWatch struct {
	watch.Interface
	stopped func()
}

// Stop ends the watch.
func (w *seenWatch) Stop() {
	w.stopped()
	w.Interface.Stop()
}

func retries() *wait.Backoff {
	return &wait.Backoff{Duration: retryMin, Cap: retryMax, Factor: 2, Jitter: 0.5, Steps: 10}
}

// StartWithContext starts to read, until ctx ends.
func (r *Reader) StartWithContext(ctx context.Context) {
	for _, reflector := range r.reflectors {
		r.running.Go(func() { follow(ctx, reflector) })
	}
}

// follow has a reflector read as long as ctx goes. Its own loop would log each
// attempt.
func follow(ctx context.Context, reflector *cache.Reflector) {
	logger := klog.FromContext(ctx)
	var logged time.Time
	// It ends with ctx only.
	_ = retries().DelayWithReset(clock.RealClock{}, retryReset).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := reflector.ListAndWatchWithContext(ctx)
		if err != nil && ctx.Err() == nil && time.Since(logged) >= retryLogInterval {
			logged = time.Now()
			logger.Info("Cannot read the policy, trying again", "resource", reflector.Name(), "reason", err.Error())
		}
		return false, nil
	})
}

// WaitForCacheSyncWithContext returns when all was read once, or with an error when
// ctx ends.
func (r *Reader) WaitForCacheSyncWithContext(ctx context.Context) cache.SyncResult {
	return cache.SyncResult{Err: wait.PollUntilContextCancel(ctx, syncInterval, true, func(context.Context) (bool, error) {
		return r.store.Synced(), nil
	})}
}

// Shutdown waits for the end of what was started. Its context has to have ended.
func (r *Reader) Shutdown() { r.running.Wait() }
