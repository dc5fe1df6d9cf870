package policy

import "errors"

// maxPending bounds what is kept for a subscriber that does not come for it. It is
// about the largest number of namespaces that a cluster is made for.
const maxPending = 10_000

// ErrLost says that a subscriber cannot be told what has changed, and has to begin
// anew.
var ErrLost = errors.New("the changes of the policy cannot be told any more")

// Subscription tells one subscriber of each change. It is for one goroutine.
type Subscription struct {
	store *Store
	wake  chan struct{}

	// What follows is guarded by the store's lock. Pending has one entry for each
	// namespace, in the order of their first changes, and places where.
	pending []Change
	places  map[string]int
	lost    bool
}

// Update says where the policy is.
type Update struct {
	// Revision is up to what has been read. Each change up to it is in this update or
	// was in one before.
	Revision Positions
	// Changes are the changes since the update before, one for each namespace.
	Changes []Change
	// Changed has the last change of each resource that is known.
	Changed Positions
	// Following is whether changes come in as they happen.
	Following bool
}

// Subscribe returns a subscription for changes from now on, which the caller
// closes.
func (s *Store) Subscribe() *Subscription {
	subscription := &Subscription{store: s, wake: make(chan struct{}, 1), places: map[string]int{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscriptions[subscription] = struct{}{}
	return subscription
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	delete(s.store.subscriptions, s)
}

// Wake returns a channel that has an element when there is something to tell.
func (s *Subscription) Wake() <-chan struct{} { return s.wake }

// Next returns what has happened since the last call. The error is ErrLost, and
// stays.
func (s *Subscription) Next() (Update, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if s.lost {
		return Update{}, ErrLost
	}
	update := Update{Revision: s.store.Revision(), Changes: s.pending, Changed: s.store.changed, Following: s.store.followingLocked()}
	s.pending = nil
	clear(s.places)
	return update, nil
}

func (s *Subscription) addLocked(namespace string, resource Resource, position uint64) {
	place, ok := s.places[namespace]
	switch {
	case ok:
	case len(s.pending) == maxPending || s.lost:
		s.loseLocked()
		return
	default:
		place = len(s.pending)
		s.pending, s.places[namespace] = append(s.pending, Change{Namespace: namespace}), place
	}
	revision := &s.pending[place].Revision[resource]
	*revision = max(*revision, position)
	s.wakeLocked()
}

func (s *Subscription) loseLocked() {
	s.pending, s.lost = nil, true
	clear(s.places)
	s.wakeLocked()
}

func (s *Subscription) wakeLocked() {
	select {
	case s.wake <- struct{}{}:
	default: // it is to wake up already
	}
}
