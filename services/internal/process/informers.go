package process

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/trigate/trigate/services/internal/serve"
)

// InformersPart is the name of informers in a service's health.
const InformersPart = "informers"

const (
	// resyncPeriod is kube-apiserver's for its own informers.
	resyncPeriod = 10 * time.Minute
	// probeInterval is how often an API that does not answer is asked again. It
	// is short, since a service's readiness waits for it, and a refused
	// connection costs next to nothing.
	probeInterval = 200 * time.Millisecond
	// probeTimeout bounds one such question.
	probeTimeout = 5 * time.Second
	// probeLogInterval is how often the log says what is being waited for.
	probeLogInterval = 10 * time.Second
)

// NewInformerFactory returns a factory as kube-apiserver has it for itself.
// Its objects have no managed fields, which no gate reads.
func NewInformerFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, resyncPeriod,
		informers.WithTransform(trimManagedFields))
}

// WatchScheduledPods has a factory's informer of pods read only those that are assigned
// to a node. It is called before anything else asks the factory for that informer.
func WatchScheduledPods(factory informers.SharedInformerFactory) {
	factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			func(options *metav1.ListOptions) {
				options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
			})
	})
}

func trimManagedFields(obj any) (any, error) {
	// What is no object (a tombstone, say) has nothing to trim.
	if accessor, err := meta.Accessor(obj); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}

// InformerFactory is what Informers runs: a factory of client-go or of a
// generated clientset.
type InformerFactory interface {
	StartWithContext(ctx context.Context)
	WaitForCacheSyncWithContext(ctx context.Context) cache.SyncResult
	Shutdown()
}

// InformersConfig is what NewInformers needs.
type InformersConfig struct {
	// API is the Kubernetes API that the informers read. They start as soon as
	// it answers. Nil: at once.
	API rest.Interface
	// Factories have all the informers that the service uses.
	Factories []InformerFactory
	// Synced are what else has to be true before the service is ready, such as
	// event handlers that have seen every object. They are polled.
	Synced []cache.InformerSynced
}

// Informers runs informers as one task of a service's server and as one part
// of its health. They wait for an API that is not there, for as long as it
// takes, and the log says so. The task owns their goroutines, and has ended
// all of them when it returns.
type Informers struct {
	cfg    InformersConfig
	synced atomic.Bool
}

// NewInformers returns informers that are not started yet: all that uses a
// factory has to ask for its informers before the task runs.
func NewInformers(cfg InformersConfig) *Informers { return &Informers{cfg: cfg} }

// Synced returns whether every informer has read all of its objects once.
func (i *Informers) Synced() bool { return i.synced.Load() }

// Task returns the task that starts the informers and reports to health when
// they have synced.
func (i *Informers) Task(health *serve.Health) serve.Task {
	health.Set(InformersPart, false, "the Kubernetes API has not answered yet")
	return serve.Task{Name: InformersPart, Run: func(ctx context.Context) error {
		i.run(ctx, health)
		return nil
	}}
}

func (i *Informers) run(ctx context.Context, health *serve.Health) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, factory := range i.cfg.Factories {
			factory.Shutdown()
		}
	}()
	if i.cfg.API != nil && !waitForAPI(ctx, i.cfg.API) {
		return
	}
	health.Set(InformersPart, false, "not synced yet")
	for _, factory := range i.cfg.Factories {
		factory.StartWithContext(ctx)
	}
	for _, factory := range i.cfg.Factories {
		if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
			return
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), i.cfg.Synced...) {
		return
	}
	i.synced.Store(true)
	health.Set(InformersPart, true, "")
	<-ctx.Done()
}

// waitForAPI returns true when the API answers, and false when ctx ends. A
// reflector would wait too, but ever longer from one attempt to the next.
func waitForAPI(ctx context.Context, api rest.Interface) bool {
	logger := klog.FromContext(ctx)
	var logged time.Time
	for {
		err := probe(ctx, api)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if time.Since(logged) >= probeLogInterval {
			logged = time.Now()
			logger.Info("Waiting for the Kubernetes API", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(probeInterval):
		}
	}
}

// probe returns an error while the API cannot be reached, or is not ready to
// be asked anything. What a caller may ask is not its question.
func probe(ctx context.Context, api rest.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var code int
	err := api.Get().AbsPath("/livez/ping").MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	if code != 0 && code < http.StatusInternalServerError {
		return nil
	}
	return err
}
