package identities

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/core"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

const (
	// silence is for how long nothing may come from a stream that is alive. The service
	// says something every second.
	silence = 5 * time.Second
	// settle is for how long a stream has to be up before verdicts are kept. What happened
	// before it began another replica may not have seen yet.
	settle = time.Second
	// watchBackoff and watchMaxBackoff bound the pause between two streams.
	watchBackoff    = 50 * time.Millisecond
	watchMaxBackoff = time.Second
)

// errSilent ends a stream on which nothing is said any more.
var errSilent = errors.New("the stream is silent")

// state is what the stream said last. It does not change.
type state struct {
	// generation counts the times that the service began to be followed: what was kept in
	// another one is not served.
	generation uint64
	// began is when this one did.
	began         time.Time
	heard         time.Time
	configuration string
}

func (s *state) settled(now time.Time) bool { return now.Sub(s.began) >= settle }

// stream is where the service's stream stands.
type stream struct {
	// mu makes one step of looking and storing.
	mu          sync.Mutex
	generations uint64
	// state is nil while the service is not followed.
	state atomic.Pointer[state]
}

// live returns the state of a stream that can be trusted, or nil.
func (s *stream) live(now time.Time) *state {
	state := s.state.Load()
	if state == nil || now.Sub(state.heard) >= silence {
		return nil
	}
	return state
}

// hear takes note of a message, and returns whether all that is kept has become worthless.
func (s *stream) hear(configuration string, following bool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.state.Load()
	if !following {
		s.state.Store(nil)
		return old != nil
	}
	current := &state{heard: now, configuration: configuration}
	if old == nil || now.Sub(old.heard) >= silence {
		s.generations++
		current.began, current.generation = now, s.generations
		s.state.Store(current)
		return true
	}
	current.began, current.generation = old.began, old.generation
	s.state.Store(current)
	return old.configuration != configuration
}

// Resources are those whose writes have to be told to Observe.
func Resources() []schema.GroupResource {
	return []schema.GroupResource{
		core.Resource("serviceaccounts"), core.Resource("secrets"), core.Resource("pods"), core.Resource("nodes"),
	}
}

// Observe takes note of a write through this gateway that etcd has acknowledged: from now
// on no verdict is served that hangs on an object which is gone, or that has not seen it
// being deleted or its token changed. The object has the resourceVersion of the write.
func (c *Cache) Observe(_ schema.GroupResource, object runtime.Object, deleted bool) {
	accessor, err := meta.Accessor(object)
	if err != nil || accessor.GetUID() == "" {
		return // A corrupt object was deleted unread, which no verdict hangs on.
	}
	if !deleted && accessor.GetDeletionTimestamp() == nil && !hasToken(object) {
		return
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	if err != nil && !deleted {
		return
	}
	c.revoke(string(accessor.GetUID()), tombstone{deleted: deleted, version: version})
}

// hasToken tells whether an object is a secret that upstream reads tokens from.
func hasToken(object runtime.Object) bool {
	secret, ok := object.(*core.Secret)
	return ok && (secret.Type == core.SecretTypeServiceAccountToken || secret.Type == core.SecretTypeBootstrapToken)
}

func (c *Cache) revoke(uid string, stone tombstone) {
	stone = c.tombstones.add(uid, stone)
	killed := 0
	for _, s := range c.shards {
		killed += s.kill(uid, stone)
	}
	c.metrics.revoked.Add(float64(killed))
}

// Run follows the service until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	backoff := wait.Backoff{Duration: watchBackoff, Factor: 2, Jitter: 0.2, Steps: 6, Cap: watchMaxBackoff}
	pause := backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := c.follow(ctx)
		c.hear("", false)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Asking authn about each token until its stream is back", "reason", err)
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
	err := c.service.WatchRevocations(ctx, func(news authnclient.Revocations) {
		watchdog.Reset(silence)
		for _, revoked := range news.Revoked {
			c.revoke(revoked.Object.UID, tombstone{deleted: revoked.Deleted, version: revoked.Object.ResourceVersion})
		}
		c.hear(news.Configuration, news.Following)
	})
	return errors.Join(err, context.Cause(ctx))
}

// hear takes note of what the stream says of the service.
func (c *Cache) hear(configuration string, following bool) {
	if !c.stream.hear(configuration, following, c.clock.Now()) {
		return
	}
	// None of it would be served; the memory is to be free.
	for _, s := range c.shards {
		s.purge()
	}
}
