package interest

import (
	"strconv"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	corev1informers "k8s.io/client-go/informers/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Namespaces knows the labels of namespaces by the gateway's informer, from whose like
// upstream's plugins have them. It is safe for concurrent use.
type Namespaces struct {
	lister corev1listers.NamespaceLister
	synced func() bool
	// seen is the largest resourceVersion in the informer's store, and floor that of a
	// write through this gateway. That the store has all up to seen holds since watches
	// come in order and client-go replaces the store as a whole (its gate AtomicFIFO).
	seen, floor atomic.Uint64
}

// NewNamespaces returns the namespaces of an informer, which is not running yet.
func NewNamespaces(informer corev1informers.NamespaceInformer) (*Namespaces, error) {
	n := &Namespaces{lister: informer.Lister()}
	// Handlers are told of what the store has already.
	registration, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    n.see,
		UpdateFunc: func(_, object any) { n.see(object) },
		DeleteFunc: n.see,
	})
	if err != nil {
		return nil, err
	}
	n.synced = registration.HasSynced
	return n, nil
}

func (n *Namespaces) see(object any) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		// Deleted while nobody watched. If it was the last one written here, labels cannot be
		// told until the next write of a namespace.
		return
	}
	if version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64); err == nil {
		raiseTo(&n.seen, version)
	}
}

// written takes note of a write through this gateway, before it is acknowledged.
func (n *Namespaces) written(version uint64) { raiseTo(&n.floor, version) }

// mayHaveLabel returns whether a namespace has a label whose key begins with prefix, or it
// cannot be told: the informer has not read everything, or not yet what this gateway has
// written, or does not know the namespace.
func (n *Namespaces) mayHaveLabel(namespace, prefix string) bool {
	if !n.synced() || n.seen.Load() < n.floor.Load() {
		return true
	}
	object, err := n.lister.Get(namespace)
	if err != nil {
		return true
	}
	for key := range object.Labels {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func raiseTo(position *atomic.Uint64, version uint64) {
	for {
		old := position.Load()
		if old >= version || position.CompareAndSwap(old, version) {
			return
		}
	}
}
