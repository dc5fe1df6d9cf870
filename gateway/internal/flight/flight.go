// Package flight has questions that several ask at the same time asked once.
package flight

import (
	"context"
	"sync"
	"time"
)

// Group are the questions under way, by key. Its fields are set before it is used; it
// is then safe for concurrent use.
type Group[V any] struct {
	// Timeout bounds a question, which does not end with the request that asked it.
	Timeout time.Duration
	// Joinable is for how long others may join a question. 0: until it is answered.
	Joinable time.Duration

	mu    sync.Mutex
	byKey map[string]*call[V]
}

// call is a question under way, which several may wait for.
type call[V any] struct {
	// done is closed when the answer is there.
	done   chan struct{}
	answer V
	cancel context.CancelFunc
	// waiting counts those who have joined and not left. Group.mu guards it.
	waiting int
}

// Do returns what ask returns, or that of the same question of somebody else that is
// under way, or ctx's error when ctx ends. What ask gets has ctx's values, and another
// end: the others still want the answer when the request that asked first has gone
// away. When the last of them has, it ends too: a slow service does not cost those
// anything who give up.
func (g *Group[V]) Do(ctx context.Context, key string, ask func(context.Context) V) (V, error) {
	joined := g.join(ctx, key, ask)
	defer g.leave(key, joined)
	select {
	case <-joined.done:
		return joined.answer, nil
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

// Waiting counts the callers who wait for an answer that others can still join.
func (g *Group[V]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	callers := 0
	for _, under := range g.byKey {
		callers += under.waiting
	}
	return callers
}

// join returns the call with a key, and begins it if there is none. The caller leaves
// it.
func (g *Group[V]) join(ctx context.Context, key string, ask func(context.Context) V) *call[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if under, ok := g.byKey[key]; ok {
		under.waiting++
		return under
	}
	shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.Timeout)
	begun := &call[V]{done: make(chan struct{}), cancel: cancel, waiting: 1}
	if g.byKey == nil {
		g.byKey = map[string]*call[V]{}
	}
	g.byKey[key] = begun
	go func() { // It ends with its context, and is waited for as long as somebody asks.
		defer cancel()
		if g.Joinable > 0 {
			defer time.AfterFunc(g.Joinable, func() { g.forget(key, begun) }).Stop()
		}
		begun.answer = ask(shared)
		g.forget(key, begun)
		close(begun.done)
	}()
	return begun
}

// leave takes back a join.
func (g *Group[V]) leave(key string, left *call[V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left.waiting--; left.waiting == 0 {
		left.cancel()
		g.forgetLocked(key, left)
	}
}

// forget has nobody join the call any more.
func (g *Group[V]) forget(key string, over *call[V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetLocked(key, over)
}

func (g *Group[V]) forgetLocked(key string, over *call[V]) {
	if g.byKey[key] == over {
		delete(g.byKey, key)
	}
}
