// Package identities keeps the authentication service's verdicts on tokens in the gateway
// for as long as nothing that they hang on changes, and never longer.
//
// A verdict names the objects that it hangs on, as the service saw them. Their changes
// become known in two ways: by the gateway's own writes, before they are acknowledged, and
// by the service's stream. Both kill what is kept at once, and are remembered for a while:
// a verdict that comes from the service afterwards, and does not know of them yet, is not
// served. So a token whose service account, secret, pod or node was deleted through this
// gateway is refused from the very next request on, and through another gateway as soon as
// the stream tells. While there is no stream, the service is asked about every token.
//
// A refusal is never kept, and neither is a token: what is kept is found by a hash with a
// key that no one else has.
package identities

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"

	"github.com/trigate/trigate/gateway/internal/flight"
	authnclient "github.com/trigate/trigate/services/authn/client"
)

const (
	// DefaultMaxEntries is what kube-apiserver's own cache of tokens holds: more than
	// there are nodes and namespaces in the largest clusters.
	DefaultMaxEntries = 32768
	// DefaultMaxBytes is far more than that many identities take that are not unusual.
	DefaultMaxBytes = 64 << 20

	// shards is how many locks the cache has. A power of two.
	shards = 32
	// flightTimeout bounds a question that others may have joined, and which therefore
	// does not end with the request that asked it. It is kube-apiserver's own.
	flightTimeout = 30 * time.Second
	// joinable is for how long others may join a question. A replica that hangs would
	// otherwise hold up all who show the token, whom another one could answer.
	joinable = time.Second
	// maxBehind is for how long a service is asked again that has not seen yet what is
	// known here.
	maxBehind = time.Second
)

// refreshBackoff is the pause before a service is asked again.
var refreshBackoff = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 100 * time.Millisecond}

// errRevoked is upstream's refusal of a token whose bound object is gone.
var errRevoked = errors.New("service account token has been invalidated")

// Service judges tokens. It is the authentication service's client.
type Service interface {
	// Judge returns the verdict on a token, for the audiences of ctx. An error means that
	// nothing could be decided.
	Judge(ctx context.Context, token string) (authnclient.Verdict, error)
	// WatchRevocations hands each message to handle until the stream ends.
	WatchRevocations(ctx context.Context, handle func(authnclient.Revocations)) error
}

// Config is what New needs.
type Config struct {
	// Service is asked what the cache cannot answer.
	Service Service
	// MaxEntries and MaxBytes bound what is kept; bytes are counted by the strings'
	// lengths.
	MaxEntries int
	MaxBytes   int64

	clock clock.PassiveClock
}

// Cache authenticates tokens. It is safe for concurrent use. Until Run has a stream it
// asks about every token.
type Cache struct {
	service    Service
	clock      clock.PassiveClock
	hashes     sync.Pool
	stream     stream
	tombstones *tombstones
	shards     []*shard
	flights    flight.Group[judged]
	metrics    *metrics
}

var _ authenticator.Token = (*Cache)(nil)

// New returns an empty cache.
func New(cfg Config) (*Cache, error) {
	if cfg.MaxEntries <= 0 || cfg.MaxBytes <= 0 {
		return nil, errors.New("the bounds of the cache must be positive")
	}
	if cfg.clock == nil {
		cfg.clock = clock.RealClock{}
	}
	secret := make([]byte, sha256.Size)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	c := &Cache{
		service:    cfg.Service,
		clock:      cfg.clock,
		hashes:     sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }},
		tombstones: newTombstones(cfg.clock),
		flights:    flight.Group[judged]{Timeout: flightTimeout, Joinable: joinable},
		metrics:    newMetrics(),
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

// AuthenticateToken returns a verdict that was good after every revocation which was known
// to this gateway when it was called. An error is the reason of a refusal, or one for which
// authnclient.IsCouldNotDecide holds.
func (c *Cache) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	done := c.metrics.authenticating()
	k := c.keyOf(ctx, token)
	if verdict, ok := c.kept(k); ok {
		done(true)
		return authnclient.Apply(ctx, verdict)
	}
	defer done(false)
	defer c.metrics.waiting()()
	verdict, err := c.ask(ctx, k, token)
	if err != nil {
		return nil, false, err
	}
	return authnclient.Apply(ctx, verdict)
}

// key is that of a token and the audiences that were asked about.
type key [sha256.Size]byte

func (c *Cache) keyOf(ctx context.Context, token string) key {
	mac, _ := c.hashes.Get().(hash.Hash)
	defer c.hashes.Put(mac)
	mac.Reset()
	audiences, limited := authenticator.AudiencesFrom(ctx)
	// With the lengths in front no two questions look alike.
	var numbers [9]byte
	binary.BigEndian.PutUint64(numbers[:], uint64(len(audiences)))
	if limited {
		numbers[8] = 1
	}
	_, _ = mac.Write(numbers[:]) // It never fails.
	for _, text := range append([]string{token}, audiences...) {
		binary.BigEndian.PutUint64(numbers[:], uint64(len(text)))
		_, _ = mac.Write(numbers[:8])
		_, _ = mac.Write([]byte(text))
	}
	var k key
	mac.Sum(k[:0])
	return k
}

func (c *Cache) shardOf(k key) *shard { return c.shards[k[0]%shards] }

// kept returns a copy of a verdict that may be served.
func (c *Cache) kept(k key) (authnclient.Verdict, bool) {
	now := c.clock.Now()
	state := c.stream.live(now)
	if state == nil {
		return authnclient.Verdict{}, false
	}
	e := c.shardOf(k).get(k)
	if e == nil || !e.servable(state, now) {
		return authnclient.Verdict{}, false
	}
	return copied(e.verdict), true
}

// ask returns a copy of a verdict that has seen every revocation which is known when it
// returns, and asks again for a while if the service has not.
func (c *Cache) ask(ctx context.Context, k key, token string) (authnclient.Verdict, error) {
	ctx, cancel := authnclient.WithReserve(ctx)
	defer cancel()
	pause := refreshBackoff
	var giveUp <-chan time.Time
	for {
		verdict, err := c.fly(ctx, k, token)
		if err != nil {
			return authnclient.Verdict{}, err
		}
		switch c.tombstones.check(verdict.Lifetime.Dependencies) {
		case alive:
			return copied(verdict), nil
		case dead:
			return authnclient.Verdict{Refusal: errRevoked.Error()}, nil
		}
		if giveUp == nil {
			timer := time.NewTimer(maxBehind)
			defer timer.Stop()
			giveUp = timer.C
		}
		select {
		case <-time.After(pause.Step()):
		case <-giveUp:
			return authnclient.Verdict{}, authnclient.Behind()
		case <-ctx.Done():
			return authnclient.Verdict{}, authnclient.Behind()
		}
	}
}

// judged is what comes of a question.
type judged struct {
	verdict authnclient.Verdict
	err     error
}

// fly asks the service, once for all who ask the same at the same time.
func (c *Cache) fly(ctx context.Context, k key, token string) (authnclient.Verdict, error) {
	answered, err := c.flights.Do(ctx, string(k[:]), func(shared context.Context) judged {
		verdict, err := c.judge(shared, k, token)
		return judged{verdict: verdict, err: err}
	})
	if err != nil {
		return authnclient.Verdict{}, authnclient.CouldNotDecide(err)
	}
	return answered.verdict, answered.err
}

// judge asks the service, and keeps a good verdict if it may.
func (c *Cache) judge(ctx context.Context, k key, token string) (verdict authnclient.Verdict, err error) {
	fetched := c.metrics.fetching()
	defer func() {
		// Outside of any request nobody else would keep the process alive.
		if r := recover(); r != nil {
			err = authnclient.CouldNotDecide(fmt.Errorf("authenticating a token: panic: %v", r))
		}
		fetched(err == nil)
	}()
	before := c.stream.live(c.clock.Now())
	if verdict, err = c.service.Judge(ctx, token); err != nil {
		return authnclient.Verdict{}, err
	}
	c.keep(before, k, verdict)
	return verdict, nil
}

// keep keeps a good verdict that was asked for while the stream was in some state, unless
// anything is in the way.
func (c *Cache) keep(before *state, k key, verdict authnclient.Verdict) {
	if verdict.Response == nil || verdict.Lifetime.KeepUntil.IsZero() || before == nil {
		return
	}
	if slices.ContainsFunc(verdict.Lifetime.Dependencies, func(o authnclient.Object) bool { return o.UID == "" }) {
		return // Nobody could tell of its end.
	}
	now := c.clock.Now()
	e := newEntry(k, verdict, before.generation, now)
	if state := c.stream.live(now); state == nil || !state.settled(now) || !e.servable(state, now) {
		return
	}
	// A revocation leaves its tombstone first and then looks at the shards: either it is
	// seen here, or it will find the entry.
	c.shardOf(k).add(e, func() bool { return c.tombstones.check(verdict.Lifetime.Dependencies) == alive })
}
