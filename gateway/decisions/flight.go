package decisions

import (
	"context"
	"sync"
)

// flights are the questions under way, by all that their answers have to meet. It is
// safe for concurrent use.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight
}

// flight is a question under way, which several may wait for.
type flight struct {
	// done is closed when the outcome is there.
	done    chan struct{}
	outcome outcome
	cancel  context.CancelFunc
	// waiting counts those who have joined and not left. flights.mu guards it.
	waiting int
}

// join returns the flight with a key, and has the question decided if there is none.
// The caller leaves it.
//
// The others still want the answer when the request that asked first has gone away, so
// it is not the end of the flight. That the last of them has is: a slow service does
// not cost those anything who give up.
func (f *flights) join(ctx context.Context, key string, decide func(context.Context) outcome) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if under, ok := f.byKey[key]; ok {
		under.waiting++
		return under
	}
	shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), flightTimeout)
	begun := &flight{done: make(chan struct{}), cancel: cancel, waiting: 1}
	if f.byKey == nil {
		f.byKey = map[string]*flight{}
	}
	f.byKey[key] = begun
	go func() { // It ends with its context, and is waited for as long as somebody asks.
		defer cancel()
		begun.outcome = decide(shared)
		f.mu.Lock()
		f.forgetLocked(key, begun)
		f.mu.Unlock()
		close(begun.done)
	}()
	return begun
}

// leave takes back a join.
func (f *flights) leave(key string, left *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if left.waiting--; left.waiting == 0 {
		left.cancel()
		f.forgetLocked(key, left)
	}
}

// forgetLocked has nobody join the flight any more.
func (f *flights) forgetLocked(key string, over *flight) {
	if f.byKey[key] == over {
		delete(f.byKey, key)
	}
}
