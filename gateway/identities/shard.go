package identities

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

const (
	// entryOverhead is about what an entry costs besides its strings, in bytes.
	entryOverhead = 768
	// stringOverhead is about what a string costs besides its bytes.
	stringOverhead = 16
	// maxKeep is for how long a verdict is kept at most, whatever the service says.
	maxKeep = 10 * time.Minute
)

// entry is a good verdict that is kept. It does not change.
type entry struct {
	key        key
	verdict    authnclient.Verdict
	until      time.Time
	generation uint64
	bytes      int64
}

func newEntry(k key, verdict authnclient.Verdict, generation uint64, now time.Time) *entry {
	e := &entry{key: k, verdict: copied(verdict), until: verdict.Lifetime.KeepUntil, generation: generation, bytes: entryOverhead}
	if longest := now.Add(maxKeep); longest.Before(e.until) {
		e.until = longest
	}
	count := func(texts ...string) {
		for _, text := range texts {
			e.bytes += int64(len(text) + stringOverhead)
		}
	}
	u := verdict.Response.User
	count(u.GetName(), u.GetUID())
	count(u.GetGroups()...)
	for name, values := range u.GetExtra() {
		count(name)
		count(values...)
	}
	count(verdict.Response.Audiences...)
	count(verdict.Warnings...)
	for name, value := range verdict.Annotations {
		count(name, value)
	}
	for _, object := range verdict.Lifetime.Dependencies {
		count(object.Resource, object.Namespace, object.Name, object.UID)
	}
	return e
}

// servable tells whether the verdict may be served now.
func (e *entry) servable(state *state, now time.Time) bool {
	return e.generation == state.generation && e.verdict.Lifetime.Configuration == state.configuration && now.Before(e.until)
}

// copied returns a verdict that shares nothing that its receiver could change.
func copied(verdict authnclient.Verdict) authnclient.Verdict {
	if verdict.Response == nil {
		return verdict
	}
	u := verdict.Response.User
	identity := &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: slices.Clone(u.GetGroups())}
	if extra := u.GetExtra(); extra != nil {
		identity.Extra = make(map[string][]string, len(extra))
		for name, values := range extra {
			identity.Extra[name] = slices.Clone(values)
		}
	}
	verdict.Response = &authenticator.Response{User: identity, Audiences: slices.Clone(verdict.Response.Audiences)}
	verdict.Annotations = maps.Clone(verdict.Annotations)
	return verdict
}

// shard is a part of the cache with a lock of its own. When it is full, what has not been
// used for longest goes first.
type shard struct {
	mu  sync.Mutex
	lru *simplelru.LRU[key, *entry]
	// dependents has the keys of the entries that hang on an object, by its uid.
	dependents map[string]map[key]struct{}
	bytes      int64
	maxBytes   int64
}

func newShard(maxEntries int, maxBytes int64) (*shard, error) {
	s := &shard{maxBytes: maxBytes, dependents: map[string]map[key]struct{}{}}
	lru, err := simplelru.NewLRU(maxEntries, func(_ key, e *entry) { s.removed(e) })
	if err != nil {
		return nil, err
	}
	s.lru = lru
	return s, nil
}

// removed is called with the lock held.
func (s *shard) removed(e *entry) {
	s.bytes -= e.bytes
	for _, object := range e.verdict.Lifetime.Dependencies {
		keys := s.dependents[object.UID]
		delete(keys, e.key)
		if len(keys) == 0 {
			delete(s.dependents, object.UID)
		}
	}
}

// get returns the entry with a key, or nil.
func (s *shard) get(k key) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _ := s.lru.Get(k)
	return e
}

// add keeps an entry if allowed says so, which is called with the lock held. One that is
// too large for the shard is not kept.
func (s *shard) add(e *entry, allowed func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.bytes > s.maxBytes || !allowed() {
		return
	}
	s.lru.Remove(e.key) // Add would replace it without telling.
	s.bytes += e.bytes
	for _, object := range e.verdict.Lifetime.Dependencies {
		if s.dependents[object.UID] == nil {
			s.dependents[object.UID] = map[key]struct{}{}
		}
		s.dependents[object.UID][e.key] = struct{}{}
	}
	s.lru.Add(e.key, e)
	for s.bytes > s.maxBytes {
		s.lru.RemoveOldest()
	}
}

// kill removes the entries that hang on an object and have not seen it at a
// resourceVersion, and returns how many there were.
func (s *shard) kill(uid string, stone tombstone) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	killed := 0
	for k := range s.dependents[uid] {
		if e, ok := s.lru.Peek(k); ok && stone.of(e.verdict.Lifetime.Dependencies, uid) != alive {
			s.lru.Remove(k)
			killed++
		}
	}
	return killed
}

// purge removes everything.
func (s *shard) purge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lru.Purge()
}

// size returns what the shard holds.
func (s *shard) size() (int, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lru.Len(), s.bytes
}
