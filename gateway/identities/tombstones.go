package identities

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

const (
	// tombstoneTTL is for how long a revocation is remembered: no replica of the service
	// is that far behind.
	tombstoneTTL = 10 * time.Minute
	// maxTombstones bounds them; the oldest go first.
	maxTombstones = 65536
)

// fate is what tombstones say of a verdict.
type fate int

const (
	// alive: nothing that the verdict hangs on has been revoked since.
	alive fate = iota
	// behind: an object has changed that the verdict saw before.
	behind
	// dead: an object is gone.
	dead
)

// tombstone says that an object is gone, or has changed so that a verdict has to have seen
// it at a resourceVersion.
type tombstone struct {
	deleted bool
	version uint64
}

// of returns what the tombstone of an object says of a verdict that hangs on it.
func (t tombstone) of(dependencies []authnclient.Object, uid string) fate {
	worst := alive
	for _, object := range dependencies {
		switch {
		case object.UID != uid:
		case t.deleted:
			return dead
		case object.ResourceVersion < t.version:
			worst = behind
		}
	}
	return worst
}

// tombstones are those of all objects that have been revoked of late.
type tombstones struct {
	// mu makes one step of looking and adding.
	mu sync.Mutex
	// byUID has a tombstone for a uid.
	byUID *cache.LRUExpireCache
}

func newTombstones(clock clock.PassiveClock) *tombstones {
	return &tombstones{byUID: cache.NewLRUExpireCacheWithClock(maxTombstones, clock)}
}

// add remembers a revocation, and returns all that is known of the object then.
func (t *tombstones) add(uid string, stone tombstone) tombstone {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.get(uid); ok {
		stone = tombstone{deleted: known.deleted || stone.deleted, version: max(known.version, stone.version)}
	}
	t.byUID.Add(uid, stone, tombstoneTTL)
	return stone
}

func (t *tombstones) get(uid string) (tombstone, bool) {
	known, ok := t.byUID.Get(uid)
	stone, is := known.(tombstone)
	return stone, ok && is
}

// check returns what is known of a verdict that hangs on these objects.
func (t *tombstones) check(dependencies []authnclient.Object) fate {
	worst := alive
	for _, object := range dependencies {
		if stone, ok := t.get(object.UID); ok {
			worst = max(worst, stone.of(dependencies, object.UID))
		}
	}
	return worst
}
