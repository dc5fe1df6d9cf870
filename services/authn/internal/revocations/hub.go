// Package revocations tells the gateways at once of what ends an identity: it watches
// the objects that tokens hang on, and hands each change to every subscriber.
package revocations

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/trigate/trigate/services/authn/internal/convert"
)

const (
	// memory is for how long revocations are remembered: as long as the longest verdict
	// is kept. By it a gateway learns what happened between two of its streams, which
	// another replica may not know yet.
	memory = 10 * time.Minute
	// maxRemembered bounds that, and what waits for a subscriber.
	maxRemembered = 65536
	// maxTaken bounds a message.
	maxTaken = 4096
)

// ErrTooSlow ends a subscription whose subscriber has fallen behind so far that it has
// to begin anew.
var ErrTooSlow = errors.New("too many revocations wait for the subscriber")

// Hub hands revocations to all subscribers. It is safe for concurrent use.
type Hub struct {
	// following is whether changes are seen as they happen.
	following func() bool

	// mu guards what follows.
	mu            sync.Mutex
	configuration string
	subscriptions map[*Subscription]struct{}
	// recent has a convert.Revocation for the uid of its object.
	recent *cache.LRUExpireCache
}

// NewHub returns a hub without revocations. The following function says whether the
// objects are watched at the moment; nil is always.
func NewHub(following func() bool) *Hub { return newHub(following, clock.RealClock{}) }

func newHub(following func() bool, clock clock.PassiveClock) *Hub {
	if following == nil {
		following = func() bool { return true }
	}
	return &Hub{
		following:     following,
		subscriptions: map[*Subscription]struct{}{},
		recent:        cache.NewLRUExpireCacheWithClock(maxRemembered, clock),
	}
}

// Following returns whether the service sees changes as they happen.
func (h *Hub) Following() bool { return h.following() }

// Configuration returns the digest of the authenticators in force.
func (h *Hub) Configuration() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.configuration
}

// SetConfiguration says that other authenticators are in force.
func (h *Hub) SetConfiguration(digest string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.configuration == digest {
		return
	}
	h.configuration = digest
	for s := range h.subscriptions {
		s.wake()
	}
}

// Revoke tells every subscriber.
func (h *Hub) Revoke(revoked convert.Revocation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uid := revoked.Object.UID
	if known, ok := h.recent.Get(uid); ok {
		revoked = merge(known.(convert.Revocation), revoked)
	}
	h.recent.Add(uid, revoked, memory)
	for s := range h.subscriptions {
		s.add(revoked)
	}
}

// merge joins two revocations of one object, which nothing brings back.
func merge(a, b convert.Revocation) convert.Revocation {
	if a.Object.ResourceVersion > b.Object.ResourceVersion {
		a, b = b, a
	}
	b.Deleted = a.Deleted || b.Deleted
	return b
}

// Subscribe returns a subscription that begins with what has been revoked of late. The
// caller closes it.
func (h *Hub) Subscribe() *Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &Subscription{hub: h, woken: make(chan struct{}, 1), pending: map[string]convert.Revocation{}}
	for _, uid := range h.recent.Keys() {
		if revoked, ok := h.recent.Get(uid); ok {
			s.add(revoked.(convert.Revocation))
		}
	}
	h.subscriptions[s] = struct{}{}
	return s
}

// Subscription is what waits for one subscriber.
type Subscription struct {
	hub   *Hub
	woken chan struct{}

	// What follows is guarded by the hub's mu. pending has what has not been taken yet,
	// by the object's uid, so that it grows with the objects and not with their changes.
	pending map[string]convert.Revocation
	tooSlow bool
}

// Changed has a value when there is something to take.
func (s *Subscription) Changed() <-chan struct{} { return s.woken }

// Take returns where the service is, and what has been revoked since the last Take, or a
// part of it: Changed has a value then. The error is ErrTooSlow.
func (s *Subscription) Take() (convert.Revocations, error) {
	following := s.hub.following()
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.tooSlow {
		return convert.Revocations{}, ErrTooSlow
	}
	r := convert.Revocations{Configuration: s.hub.configuration, Following: following}
	for uid, revoked := range s.pending {
		if len(r.Revoked) == maxTaken {
			s.wake()
			break
		}
		r.Revoked = append(r.Revoked, revoked)
		delete(s.pending, uid)
	}
	return r, nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subscriptions, s)
}

func (s *Subscription) add(revoked convert.Revocation) {
	if len(s.pending) >= maxRemembered {
		s.tooSlow = true
		s.pending = map[string]convert.Revocation{}
	}
	s.pending[revoked.Object.UID] = revoked
	s.wake()
}

func (s *Subscription) wake() {
	select {
	case s.woken <- struct{}{}:
	default: // it is awake already
	}
}
