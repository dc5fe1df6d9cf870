package decisions

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// entryOverhead is about what an entry costs besides its strings, in bytes.
const entryOverhead = 256

// entry is a decision that is kept. It does not change.
type entry struct {
	key      string
	decision authorizer.Decision
	reason   string
	revision authzclient.Revision
	epoch    uint64
	// scope is nil if the decision holds in any namespace.
	scope *scope
}

func (e *entry) bytes() int64 { return int64(entryOverhead + len(e.key) + len(e.reason)) }

// shard is a part of the cache with a lock of its own. When it is full, what has not
// been used for longest goes first.
type shard struct {
	mu sync.Mutex
	// lru is by the key's hash. Of two keys with the same hash, the later is kept.
	lru      *simplelru.LRU[uint64, *entry]
	bytes    int64
	maxBytes int64
	// dropped are entries that have left while mu is held.
	dropped []*entry

	hits, misses uint64
}

func newShard(maxEntries int, maxBytes int64) (*shard, error) {
	s := &shard{maxBytes: maxBytes}
	lru, err := simplelru.NewLRU(maxEntries, func(_ uint64, e *entry) {
		s.bytes -= e.bytes()
		s.dropped = append(s.dropped, e)
	})
	if err != nil {
		return nil, err
	}
	s.lru = lru
	return s, nil
}

// get returns the entry with a key. The caller holds mu.
func (s *shard) get(hash uint64, key []byte) *entry {
	if e, ok := s.lru.Get(hash); ok && e.key == string(key) {
		return e
	}
	return nil
}

// add keeps an entry and returns those that had to leave for it, the entry itself
// among them if it is too large.
func (s *shard) add(hash uint64, e *entry) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lru.Remove(hash) // Add would replace it without telling.
	s.bytes += e.bytes()
	s.lru.Add(hash, e)
	for s.bytes > s.maxBytes {
		s.lru.RemoveOldest()
	}
	return s.take()
}

// sweep removes the entries that stale is true for, and returns them.
func (s *shard) sweep(stale func(*entry) bool) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hash := range s.lru.Keys() {
		if e, ok := s.lru.Peek(hash); ok && stale(e) {
			s.lru.Remove(hash)
		}
	}
	return s.take()
}

func (s *shard) take() []*entry {
	dropped := s.dropped
	s.dropped = nil
	return dropped
}

// size returns what the shard holds and has counted.
func (s *shard) size() (entries int, bytes int64, hits, misses uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lru.Len(), s.bytes, s.hits, s.misses
}
