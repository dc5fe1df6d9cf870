// Package decisions keeps the authorization service's decisions in the gateway for as
// long as no change of the policy concerns them, and never longer.
//
// A decision carries the revision of the policy that it has seen. Changes become known
// in two ways: by the gateway's own writes, before they are acknowledged, and by the
// service's stream. A kept decision that has not seen a change which concerns it is
// not served, and a question asks for an answer that has seen every change that is
// known. So a write through this gateway is in force for the very next request
// through it, and one through another gateway as soon as the stream tells. While
// there is no stream, every question is asked.
package decisions

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/gateway/internal/flight"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

const (
	// shards is how many locks the cache has. A power of two.
	shards = 64
	// stackKey is how long a key may be without being built on the heap, in bytes.
	stackKey = 512
	// flightTimeout bounds a question that others may have joined, and which
	// therefore does not end with the request that asked it. It is kube-apiserver's
	// own bound of a request.
	flightTimeout = time.Minute
)

// Service decides. It is the authorization service's client.
type Service interface {
	// Decide decides by a policy that has seen atLeast. An error means that nothing
	// could be decided.
	Decide(ctx context.Context, a authorizer.Attributes, atLeast authzclient.Revision) (authzclient.Answer, error)
	// WatchPolicy hands each change of the policy to handle until the stream ends.
	WatchPolicy(ctx context.Context, handle func(authzclient.PolicyUpdate)) error
}

// Config is what New needs.
type Config struct {
	// Service is asked what the cache cannot answer.
	Service Service
	// MaxEntries and MaxBytes bound what is kept; bytes are counted by the strings'
	// lengths. Either 0: nothing is kept.
	MaxEntries int
	MaxBytes   int64
}

// Cache is an authorizer that keeps the service's decisions. It is safe for
// concurrent use. Until Run has a stream it asks every question.
type Cache struct {
	service Service
	policy  *policy
	seed    maphash.Seed
	// shards is empty if nothing is kept.
	shards  []*shard
	flights flight.Group[outcome]
	sweeps  chan struct{}
	counts  counts
}

var _ authorizer.Authorizer = (*Cache)(nil)

// New returns an empty cache.
func New(cfg Config) (*Cache, error) {
	c := &Cache{
		service: cfg.Service,
		policy:  newPolicy(),
		seed:    maphash.MakeSeed(),
		flights: flight.Group[outcome]{Timeout: flightTimeout},
		sweeps:  make(chan struct{}, 1),
	}
	if cfg.MaxEntries < 0 || cfg.MaxBytes < 0 {
		return nil, errors.New("the bounds of the cache must not be negative")
	}
	if cfg.MaxEntries == 0 || cfg.MaxBytes == 0 {
		return c, nil
	}
	for range shards {
		s, err := newShard(max(1, cfg.MaxEntries/shards), max(1, cfg.MaxBytes/shards))
		if err != nil {
			return nil, err
		}
		c.shards = append(c.shards, s)
	}
	return c, nil
}

// Authorize returns a decision that has seen every change of the policy which was
// known to this gateway when it was called, and at least all of its own writes that
// had been acknowledged. An error for which authzclient.IsCouldNotDecide is true
// means that nothing could be decided; any other came with the decision.
func (c *Cache) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if len(c.shards) == 0 || a.GetUser() == nil {
		return c.ask(ctx, a)
	}
	var buffer [stackKey]byte
	k := appendKeys(buffer[:0], a)
	if e := c.lookup(k); e != nil {
		return e.decision, e.reason, nil
	}
	return c.ask(ctx, a)
}

// ConditionsAwareAuthorize is not conditions-aware, as upstream's own remote
// authorizer is not: it returns what Authorize does.
func (c *Cache) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(c.Authorize(ctx, a))
}

// EvaluateConditions fails closed, as upstream's own remote authorizer does.
func (c *Cache) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// Known returns the changes that are known, which an answer has to have seen.
func (c *Cache) Known() authzclient.Revision { return c.policy.ask().atLeast }

// lookup returns a kept decision that may be served, or nil.
func (c *Cache) lookup(k keys) *entry {
	if !c.policy.live() {
		c.counts.bypassed.Add(1)
		return nil
	}
	hash := c.hash(k, authzclient.ReuseAnyNamespace, 0)
	s := c.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, reuse := range widestFirst {
		if reuse != authzclient.ReuseAnyNamespace {
			hash = c.hash(k, reuse, hash)
		}
		if e := s.get(hash, k.of(reuse)); e != nil && c.policy.covers(e.epoch, &e.revision, e.scope) {
			s.hits++
			return e
		}
	}
	s.misses++
	return nil
}

// widestFirst are the keys that a question has, in the order in which their hashes
// follow from each other.
var widestFirst = [...]authzclient.Reuse{authzclient.ReuseAnyNamespace, authzclient.ReuseAnyName, authzclient.ReuseSameName}

// hash returns the hash of a key, given that of the next wider one: it looks only at
// what the key has on top. Keys with the same hash are told apart by themselves.
func (c *Cache) hash(k keys, reuse authzclient.Reuse, wider uint64) uint64 {
	return wider*31 + maphash.Bytes(c.seed, k.beyond(reuse))
}

// shard returns where all decisions on a question are, by the hash of its key for any
// namespace.
func (c *Cache) shard(hash uint64) *shard { return c.shards[hash%shards] }
