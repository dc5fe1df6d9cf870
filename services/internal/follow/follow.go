// Package follow keeps a copy of a resource of the Kubernetes API: a reflector that goes
// on for ever, whatever the API does, and that tells whether changes come in as they
// happen. client-go's informers tell neither that nor up to which change their readers
// have come.
package follow

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// retryMin and retryMax bound how long an API that has gone is left alone. They
	// are far below client-go's, since nobody may trust the copy until it is back, and a
	// refused connection costs next to nothing.
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
	// retryReset is after which time without a failure the next one is the first.
	retryReset = 10 * time.Second
	// retryLogInterval is how often the log says why a resource cannot be read.
	retryLogInterval = 10 * time.Second
)

// Client is a typed client of one resource.
type Client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Watches is told of the watches of a resource. Its methods are called by the
// reflector's goroutine.
type Watches interface {
	// Opened says that a watch is open. If everything is true, it begins with all
	// objects, and the copy is of the past until they have come.
	Opened(everything bool)
	// Ended says that the watch has ended, for whatever reason, and before another is
	// opened.
	Ended()
}

// Source returns one resource of the API with its watches seen.
func Source[L runtime.Object](client Client[L], seen Watches) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, options)
			if err != nil {
				return nil, err
			}
			seen.Opened(options.SendInitialEvents != nil && *options.SendInitialEvents)
			return &seenWatch{Interface: w, stopped: sync.OnceFunc(seen.Ended)}, nil
		},
	}
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

// NewReflector returns a reflector that is to be run by Run. Name is the resource's, for
// the log.
func NewReflector(name string, from cache.ListerWatcher, example any, into cache.ReflectorStore) *cache.Reflector {
	return cache.NewReflectorWithOptions(from, example, into, cache.ReflectorOptions{Name: name, Backoff: retries()})
}

func retries() *wait.Backoff {
	return &wait.Backoff{Duration: retryMin, Cap: retryMax, Factor: 2, Jitter: 0.5, Steps: 10}
}

// Run has a reflector read as long as ctx goes. The reflector's own loop would log each
// attempt.
func Run(ctx context.Context, reflector *cache.Reflector) {
	logger := klog.FromContext(ctx)
	var logged time.Time
	// It ends with ctx only.
	_ = retries().DelayWithReset(clock.RealClock{}, retryReset).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := reflector.ListAndWatchWithContext(ctx)
		if err != nil && ctx.Err() == nil && time.Since(logged) >= retryLogInterval {
			logged = time.Now()
			logger.Info("Cannot read what is followed, trying again", "resource", reflector.Name(), "reason", err.Error())
		}
		return false, nil
	})
}
