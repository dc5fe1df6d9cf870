package decisions

import (
	"context"
	"errors"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/rbac"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

const (
	// watchBackoff and watchMaxBackoff bound the pause between two streams.
	watchBackoff    = 50 * time.Millisecond
	watchMaxBackoff = time.Second
	// sweepPause is the shortest time between two sweeps.
	sweepPause = time.Second
)

// errSilent ends a stream on which nothing is said any more.
var errSilent = errors.New("the stream is silent")

// Resources are those whose writes have to be told to Observe.
func Resources() []schema.GroupResource {
	return []schema.GroupResource{
		rbac.Resource("clusterroles"), rbac.Resource("clusterrolebindings"),
		rbac.Resource("roles"), rbac.Resource("rolebindings"),
	}
}

// Observe takes note of a write through this gateway that etcd has acknowledged: no
// decision is served after it that has not seen it. The object has the
// resourceVersion of the write, also if the write deleted it.
func (c *Cache) Observe(resource schema.GroupResource, object runtime.Object, _ bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return // No RBAC object is without metadata.
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	if err != nil {
		// A corrupt object was deleted unread, which no decision had seen.
		return
	}
	change := authzclient.PolicyChange{Namespace: accessor.GetNamespace()}
	switch resource.Resource {
	case "clusterroles":
		change.Revision.ClusterRoles = version
	case "clusterrolebindings":
		change.Revision.ClusterRoleBindings = version
	case "roles":
		change.Revision.Roles = version
	case "rolebindings":
		change.Revision.RoleBindings = version
	}
	c.change(change)
}

func (c *Cache) change(change authzclient.PolicyChange) {
	if c.policy.change(change) {
		c.counts.changes.Add(1)
		c.sweepSoon()
	}
}

// Run follows the policy until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	defer c.policy.lose()
	go c.sweepUntil(ctx)
	backoff := wait.Backoff{Duration: watchBackoff, Factor: 2, Jitter: 0.2, Steps: 6, Cap: watchMaxBackoff}
	pause := backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := c.follow(ctx)
		c.policy.lose()
		c.sweepSoon()
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Asking authz each question until its stream is back", "reason", err)
		if time.Since(began) > watchMaxBackoff {
			pause = backoff
		}
		select {
		case <-time.After(pause.Step()):
		case <-ctx.Done():
		}
	}
}

// follow serves one stream until it ends or falls silent.
func (c *Cache) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	first := true
	err := c.service.WatchPolicy(ctx, func(update authzclient.PolicyUpdate) {
		watchdog.Reset(silence)
		if first {
			first = false
			c.policy.begin(update)
			c.counts.streams.Add(1)
			return
		}
		c.update(update)
	})
	return errors.Join(err, context.Cause(ctx))
}

func (c *Cache) update(update authzclient.PolicyUpdate) {
	for _, change := range update.Changes {
		c.change(change)
	}
	other, again := c.policy.configure(update.Configuration), c.policy.hear(update)
	if other || again {
		c.sweepSoon()
	}
}

func (c *Cache) sweepSoon() {
	select {
	case c.sweeps <- struct{}{}:
	default: // One is due already.
	}
}

// sweepUntil lets go of the memory of decisions that will not be served any more.
func (c *Cache) sweepUntil(ctx context.Context) {
	for {
		select {
		case <-c.sweeps:
		case <-ctx.Done():
			return
		}
		for _, s := range c.shards {
			dropped := s.sweep(func(e *entry) bool { return !c.policy.covers(e.epoch, &e.revision, e.scope) })
			c.counts.invalidated.Add(uint64(len(dropped)))
			c.release(dropped)
		}
		select {
		case <-time.After(sweepPause):
		case <-ctx.Done():
			return
		}
	}
}
