package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

const (
	// refreshInterval is how old the keys may be. An operator waits for far longer
	// between publishing a key and signing with it.
	refreshInterval = 10 * time.Second
	// firstInterval is how often the service is asked until it has answered once.
	firstInterval = 500 * time.Millisecond
)

// PublicKeys are the keys that verify service-account tokens, as the service had
// them a moment ago. There are none until Run has reached the service once. It is
// safe for concurrent use.
type PublicKeys struct {
	authn authnv1.AuthenticationServiceClient

	// mu guards what follows.
	mu        sync.Mutex
	answer    *authnv1.ListPublicKeysResponse
	keys      []serviceaccount.PublicKey
	maxAge    time.Duration
	listeners []serviceaccount.Listener
}

var _ serviceaccount.PublicKeysGetter = (*PublicKeys)(nil)

// NewPublicKeys returns PublicKeys that call over conn.
func NewPublicKeys(conn grpc.ClientConnInterface) *PublicKeys {
	return &PublicKeys{authn: authnv1.NewAuthenticationServiceClient(conn)}
}

// Run fetches the keys, and again and again until ctx ends. While the service
// cannot be reached the last keys stay.
func (p *PublicKeys) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	reached := true
	for {
		err := p.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && reached {
			logger.Info("Keeping the service-account verification keys while they cannot be fetched", "reason", err.Error())
		}
		reached = err == nil

		interval := refreshInterval
		if !p.Fetched() {
			interval = firstInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// Fetched returns whether the service has been reached once.
func (p *PublicKeys) Fetched() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answer != nil
}

func (p *PublicKeys) refresh(ctx context.Context) error {
	answer, err := p.authn.ListPublicKeys(ctx, &authnv1.ListPublicKeysRequest{})
	if err != nil {
		return rpcerr.FromStatus(err, hop)
	}
	keys := make([]serviceaccount.PublicKey, len(answer.GetKeys()))
	for i, m := range answer.GetKeys() {
		key, err := convert.FromPublicKey(m)
		if err != nil {
			return fmt.Errorf("reading the answer of %s: %w", hop, err)
		}
		keys[i] = serviceaccount.PublicKey{KeyID: m.GetKeyId(), PublicKey: key, ExcludeFromOIDCDiscovery: m.GetExcludedFromOidcDiscovery()}
	}
	// Replicas read their files at different times.
	answer.DataTimestamp = nil

	for _, listener := range p.replace(answer, keys) {
		listener.Enqueue()
	}
	return nil
}

// replace puts new keys into force, and returns who wants to know of it.
func (p *PublicKeys) replace(answer *authnv1.ListPublicKeysResponse, keys []serviceaccount.PublicKey) []serviceaccount.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	if proto.Equal(answer, p.answer) {
		return nil
	}
	p.answer, p.keys, p.maxAge = answer, keys, answer.GetMaxAge().AsDuration()
	return slices.Clone(p.listeners)
}

// AddListener has a listener told when the keys have changed, but for keys that
// are there already. Listeners may call all methods.
func (p *PublicKeys) AddListener(listener serviceaccount.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners = append(p.listeners, listener)
}

// GetCacheAgeMaxSeconds returns for how long relying parties may keep the keys.
func (p *PublicKeys) GetCacheAgeMaxSeconds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.maxAge / time.Second)
}

// GetPublicKeys returns the keys of that id, or all of them for no id. It does
// not call the service.
func (p *PublicKeys) GetPublicKeys(_ context.Context, keyIDHint string) []serviceaccount.PublicKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []serviceaccount.PublicKey
	for _, key := range p.keys {
		if keyIDHint == "" || key.KeyID == keyIDHint {
			keys = append(keys, key)
		}
	}
	return keys
}
