package decisions

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/trigate/trigate/services/authz/authztest"
	authzclient "github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/authz/rbactest"
)

// cuttable is the real service, whose stream of changes the test can cut, and only it.
type cuttable struct {
	*authzclient.Client
	// cuts ends the stream that is open, and open has an element when one may be.
	cuts, open chan struct{}
}

func (c *cuttable) WatchPolicy(ctx context.Context, handle func(authzclient.PolicyUpdate)) error {
	select {
	case <-c.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // It ends with the stream.
		select {
		case <-c.cuts:
			cancel()
		case <-ctx.Done():
		}
	}()
	return c.Client.WatchPolicy(ctx, handle)
}

// TestCutStream wants a stream that is cut, while the service goes on to answer, to
// show in the next decision, and what was kept not to be of use when it is back.
func TestCutStream(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	world := rbactest.Random(rng)
	service := &cuttable{
		Client: authztest.Start(t, world.Objects()...).Client(t),
		cuts:   make(chan struct{}), open: make(chan struct{}, 1),
	}
	service.open <- struct{}{}
	cache := followService(t, service)
	q := questionOf(world, rng)
	ask := func() (bypassed, misses, hits uint64) {
		b, m, h := cache.requests()
		if got, want := answerOf(cache, &q), answerOf(upstream(t, world), &q); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		bypassed, misses, hits = cache.requests()
		return bypassed - b, misses - m, hits - h
	}
	if _, misses, _ := ask(); misses != 1 {
		t.Error("the first question was not asked of the service")
	}
	if _, _, hits := ask(); hits != 1 {
		t.Error("the second question was asked of the service")
	}
	service.cuts <- struct{}{}
	eventually(t, func() bool { return !cache.policy.live() })
	for range 3 {
		if bypassed, _, _ := ask(); bypassed != 1 {
			t.Error("a question without a stream was answered from the cache")
		}
	}
	service.open <- struct{}{}
	eventually(t, cache.policy.live)
	if _, misses, _ := ask(); misses != 1 {
		t.Error("what was kept before the stream was cut is still served")
	}
	if _, _, hits := ask(); hits != 1 {
		t.Error("nothing is kept since the stream is back")
	}
}
