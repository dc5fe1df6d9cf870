// Package keys holds the keys of service-account tokens: one that signs, and all
// that verify. They follow their files without a restart.
//
// A rotation takes three steps, each of which leaves all files usable: add the
// new public key to the verification keys; wait until relying parties have read
// it (CacheAge); replace the signing key. The old public key goes when the last
// token that it verifies has expired.
package keys

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

const (
	// CacheAge is how long relying parties may keep the verification keys: it is
	// what upstream's static keys tell them.
	CacheAge = time.Hour
	// pollInterval is how often the files are looked at on a file system that
	// does not tell of changes.
	pollInterval = 10 * time.Second
)

// Config is what Load needs.
type Config struct {
	// Issuer is the `iss` of signed tokens.
	Issuer string
	// SigningKeyFile has the private key that signs, PEM.
	SigningKeyFile string
	// VerificationKeyFiles have the public keys that verify, or private keys of
	// which the public half does. The signing key's must be among them.
	VerificationKeyFiles []string
	// Registerer gets the metrics. Nil: they go nowhere.
	Registerer prometheus.Registerer
}

// Keys are the keys as their files have them, or as they were when they were
// last usable. They are safe for concurrent use. Watch makes them follow.
type Keys struct {
	cfg     Config
	reloads *prometheus.CounterVec

	// mu guards what follows.
	mu        sync.Mutex
	contents  [][]byte // what was looked at last, usable or not
	current   *set
	listeners []serviceaccount.Listener
}

// set is one usable content of all files.
type set struct {
	generator serviceaccount.TokenGenerator
	public    serviceaccount.PublicKeysGetter
	since     time.Time
}

var (
	_ serviceaccount.PublicKeysGetter = (*Keys)(nil)
	_ serviceaccount.TokenGenerator   = (*Keys)(nil)
)

// VerificationKeyError is an error about the verification keys, and not the key
// that signs.
type VerificationKeyError struct {
	// File has the keys.
	File string
	// Err is why it cannot be used.
	Err error
}

// Error names the file and says why.
func (e *VerificationKeyError) Error() string {
	return fmt.Sprintf("reading service-account verification keys %s: %v", e.File, e.Err)
}

// Unwrap returns why.
func (e *VerificationKeyError) Unwrap() error { return e.Err }

// Load reads the keys. An error names the file, and never holds what is in it.
func Load(cfg Config) (*Keys, error) {
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	k := &Keys{cfg: cfg, reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "trigate_authn_service_account_key_reloads_total",
		Help: "Changes of the service-account key files that were noticed, by whether they could be used.",
	}, []string{"status"})}
	if err := cfg.Registerer.Register(k.reloads); err != nil {
		return nil, fmt.Errorf("registering key metrics: %w", err)
	}
	contents, err := k.read()
	if err != nil {
		return nil, err
	}
	current, err := k.parse(contents)
	if err != nil {
		return nil, err
	}
	k.contents, k.current = contents, current
	return k, nil
}

// files returns the signing key's file and those of the verification keys.
func (k *Keys) files() []string {
	return append([]string{k.cfg.SigningKeyFile}, k.cfg.VerificationKeyFiles...)
}

func (k *Keys) read() ([][]byte, error) {
	var contents [][]byte
	for i, path := range k.files() {
		content, err := os.ReadFile(path)
		switch {
		case err != nil && i == 0:
			return nil, fmt.Errorf("reading service-account signing key: %w", err)
		case err != nil:
			return nil, &VerificationKeyError{File: path, Err: err}
		}
		contents = append(contents, content)
	}
	return contents, nil
}

// parse makes a set of the contents of files().
func (k *Keys) parse(contents [][]byte) (*set, error) {
	signing, err := keyutil.ParsePrivateKeyPEM(contents[0])
	if err != nil {
		return nil, fmt.Errorf("reading service-account signing key %s: %w", k.cfg.SigningKeyFile, err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(k.cfg.Issuer, signing)
	if err != nil {
		return nil, fmt.Errorf("reading service-account signing key %s: %w", k.cfg.SigningKeyFile, err)
	}
	var verification []any
	for i, content := range contents[1:] {
		public, err := keyutil.ParsePublicKeysPEM(content)
		if err != nil {
			return nil, &VerificationKeyError{File: k.cfg.VerificationKeyFiles[i], Err: err}
		}
		verification = append(verification, public...)
	}
	if !verifies(verification, signing) {
		return nil, fmt.Errorf("the public half of service-account signing key %s is not among the verification keys %v: its tokens would be refused",
			k.cfg.SigningKeyFile, k.cfg.VerificationKeyFiles)
	}
	public, err := serviceaccount.StaticPublicKeysGetter(verification)
	if err != nil {
		return nil, fmt.Errorf("reading service-account verification keys: %w", err)
	}
	return &set{generator: generator, public: public, since: time.Now()}, nil
}

// verifies returns whether the public half of the signing key is among the
// verification keys.
func verifies(verification []any, signing any) bool {
	private, ok := signing.(interface{ Public() crypto.PublicKey })
	if !ok {
		return false
	}
	return slices.ContainsFunc(verification, func(key any) bool {
		public, ok := key.(interface{ Equal(crypto.PublicKey) bool })
		return ok && public.Equal(private.Public())
	})
}

// Watch makes the keys follow their files until ctx ends. It returns when its
// goroutines have ended, with an error only if ctx has not.
func (k *Keys) Watch(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	// Directories, since a rotation may replace the files, or a link above them.
	var dirs []string
	for _, path := range k.files() {
		dirs = append(dirs, filepath.Dir(path))
	}
	slices.Sort(dirs)
	var group errgroup.Group
	for _, dir := range slices.Compact(dirs) {
		group.Go(func() error {
			filesystem.WatchUntil(ctx, pollInterval, dir, func() { k.reload(logger) }, func(err error) {
				logger.Error(err, "Watching service-account keys; they are polled instead", "directory", dir, "interval", pollInterval)
			})
			return nil
		})
	}
	return group.Wait()
}

// reload puts new contents of the files into force, or keeps the old ones and
// says why, once for each new content.
func (k *Keys) reload(logger klog.Logger) {
	changed, listeners, err := k.update()
	switch {
	case !changed:
		return
	case err != nil:
		k.reloads.WithLabelValues("failure").Inc()
		logger.Error(err, "Keeping the service-account keys' last usable content")
		return
	}
	k.reloads.WithLabelValues("success").Inc()
	logger.Info("Reloaded service-account keys", "verificationKeys", len(k.GetPublicKeys(context.Background(), "")))
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// update returns whether the files have changed since the last look, who wants
// to know, and why the new content cannot be used.
func (k *Keys) update() (bool, []serviceaccount.Listener, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	contents, err := k.read()
	if err != nil {
		if k.contents == nil {
			return false, nil, nil // and has been said
		}
		k.contents = nil
		return true, nil, err
	}
	if slices.EqualFunc(contents, k.contents, bytes.Equal) {
		return false, nil, nil
	}
	k.contents = contents
	parsed, err := k.parse(contents)
	if err != nil {
		return true, nil, err
	}
	k.current = parsed
	return true, slices.Clone(k.listeners), nil
}

func (k *Keys) get() *set {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// AddListener has a listener told when the keys have changed.
func (k *Keys) AddListener(listener serviceaccount.Listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listeners = append(k.listeners, listener)
}

// GetCacheAgeMaxSeconds returns CacheAge.
func (k *Keys) GetCacheAgeMaxSeconds() int { return int(CacheAge / time.Second) }

// GetPublicKeys returns the verification keys of that id, or all of them in the
// order of their files for no id.
func (k *Keys) GetPublicKeys(ctx context.Context, keyID string) []serviceaccount.PublicKey {
	return k.get().public.GetPublicKeys(ctx, keyID)
}

// Published returns all verification keys, and since when they are in force.
func (k *Keys) Published(ctx context.Context) ([]serviceaccount.PublicKey, time.Time) {
	current := k.get()
	return current.public.GetPublicKeys(ctx, ""), current.since
}

// Issuer is the `iss` of signed tokens.
func (k *Keys) Issuer() string { return k.cfg.Issuer }

// errNoClaims is a programmer's mistake.
var errNoClaims = errors.New("no claims to sign")

// GenerateToken signs a token with the key that is in force.
func (k *Keys) GenerateToken(ctx context.Context, claims *jwt.Claims, privateClaims any) (string, error) {
	if claims == nil {
		return "", errNoClaims
	}
	return k.get().generator.GenerateToken(ctx, claims, privateClaims)
}
