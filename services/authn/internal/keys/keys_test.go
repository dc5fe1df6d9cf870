package keys_test

import (
	"context"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/authn/internal/keys"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

func load(t testing.TB, signing string, verification ...string) (*keys.Keys, error) {
	t.Helper()
	return keys.Load(keys.Config{Issuer: "https://issuer.example.com", SigningKeyFile: signing, VerificationKeyFiles: verification})
}

// generate signs a token, and returns the ID of the key that it names.
func generate(t testing.TB, k *keys.Keys) (token, keyID string) {
	t.Helper()
	token, err := k.GenerateToken(t.Context(), &jwt.Claims{Subject: "x"}, map[string]any{})
	if err != nil {
		t.Fatalf("GenerateToken() = %v, want no error", err)
	}
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		t.Fatalf("parsing the token: %v", err)
	}
	return token, parsed.Headers[0].KeyID
}

func TestKeysSignAndVerify(t *testing.T) {
	other := authntest.NewRSAKey(t)
	for name, key := range map[string]authntest.Key{
		"RSA":   authntest.NewRSAKey(t),
		"P-256": authntest.NewECDSAKey(t, elliptic.P256()),
		"P-384": authntest.NewECDSAKey(t, elliptic.P384()),
		"P-521": authntest.NewECDSAKey(t, elliptic.P521()),
	} {
		for verification, file := range map[string]string{"public": key.PublicFile, "private": key.PrivateFile} {
			t.Run(name+"/"+verification, func(t *testing.T) {
				k, err := load(t, key.PrivateFile, other.PublicFile, file)
				if err != nil {
					t.Fatalf("Load() = %v, want no error", err)
				}
				token, keyID := generate(t, k)
				verifying := k.GetPublicKeys(t.Context(), keyID)
				if len(verifying) != 1 {
					t.Fatalf("GetPublicKeys(%s) = %v, want one key", keyID, verifying)
				}
				parsed, err := jwt.ParseSigned(token)
				if err != nil {
					t.Fatal(err)
				}
				var claims jwt.Claims
				if err := parsed.Claims(verifying[0].PublicKey, &claims); err != nil {
					t.Errorf("verifying the token: %v", err)
				}
				if claims.Issuer != "https://issuer.example.com" || k.Issuer() != claims.Issuer {
					t.Errorf("issuer of the token is %q, of the keys %q", claims.Issuer, k.Issuer())
				}
				all, since := k.Published(t.Context())
				if len(all) != 2 || all[1].KeyID != keyID || time.Since(since) > time.Minute {
					t.Errorf("Published() = %v, %v, want two keys in the order of their files", all, since)
				}
			})
		}
	}
}

func TestLoadRefusals(t *testing.T) {
	key, other := authntest.NewRSAKey(t), authntest.NewRSAKey(t)
	write := func(content []byte) string {
		path := filepath.Join(t.TempDir(), "file")
		servetest.WriteFile(t, path, content)
		return path
	}
	garbage := write([]byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"))
	missing := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		signing      string
		verification []string
		want         string
		isAboutKeys  bool
	}{
		"no signing key":         {missing, []string{key.PublicFile}, missing, false},
		"signing key garbage":    {garbage, []string{key.PublicFile}, garbage, false},
		"signing key public":     {key.PublicFile, []string{key.PublicFile}, key.PublicFile, false},
		"signing key ed25519":    {write(newEd25519(t)), []string{key.PublicFile}, "ed25519", false},
		"no verification key":    {key.PrivateFile, []string{key.PublicFile, missing}, missing, true},
		"verification garbage":   {key.PrivateFile, []string{key.PublicFile, garbage}, garbage, true},
		"verification empty":     {key.PrivateFile, []string{write(nil)}, "data does not contain any valid", true},
		"keys that do not match": {key.PrivateFile, []string{other.PublicFile}, "is not among the verification keys", false},
		"no verification keys":   {key.PrivateFile, nil, "is not among the verification keys", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, c.signing, c.verification...)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Load() = %v, want one line with %q", err, c.want)
			}
			if e := (*keys.VerificationKeyError)(nil); errors.As(err, &e) != c.isAboutKeys {
				t.Errorf("Load() = %v, want a VerificationKeyError: %v", err, c.isAboutKeys)
			}
			if err != nil && strings.Contains(err.Error(), "c2VjcmV0") {
				t.Errorf("Load() = %v, which has the key", err)
			}
		})
	}
}

func newEd25519(t testing.TB) []byte {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

type listener chan struct{}

func (l listener) Enqueue() { l <- struct{}{} }

// watched are keys that follow their files.
type watched struct {
	*keys.Keys
	signing, verification string
	changed               listener
	registry              *prometheus.Registry
}

// watch loads keys from files of their own and has them follow.
func watch(t *testing.T, key authntest.Key) *watched {
	t.Helper()
	dir := t.TempDir()
	w := &watched{
		signing:      filepath.Join(dir, "signing", "sa.key"),
		verification: filepath.Join(dir, "verification", "sa.pub"),
		changed:      make(listener, 10),
		registry:     prometheus.NewRegistry(),
	}
	for path, content := range map[string][]byte{w.signing: key.PrivatePEM, w.verification: key.PublicPEM} {
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		servetest.WriteFile(t, path, content)
	}
	var err error
	w.Keys, err = keys.Load(keys.Config{
		Issuer: "i", SigningKeyFile: w.signing, VerificationKeyFiles: []string{w.verification}, Registerer: w.registry,
	})
	if err != nil {
		t.Fatalf("Load() = %v, want no error", err)
	}
	w.AddListener(w.changed)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Watch(ctx) }() // waited for below
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Watch() = %v, want nil", err)
		}
	})
	return w
}

func (w *watched) awaitChange(t testing.TB) {
	t.Helper()
	select {
	case <-w.changed:
	case <-time.After(30 * time.Second):
		t.Fatal("the listener was not told of a change")
	}
}

// reloads returns how many changes could and could not be used.
func (w *watched) reloads(t testing.TB) (succeeded, failed int) {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == "success" {
				succeeded = int(m.GetCounter().GetValue())
			} else {
				failed = int(m.GetCounter().GetValue())
			}
		}
	}
	return succeeded, failed
}

func TestRotation(t *testing.T) {
	first, second := authntest.NewRSAKey(t), authntest.NewECDSAKey(t, elliptic.P256())
	w := watch(t, first)
	oldToken, oldID := generate(t, w.Keys)

	// Publish, then sign, then retire: at each step what was signed verifies.
	servetest.WriteFile(t, w.verification, append(append([]byte{}, second.PublicPEM...), first.PublicPEM...))
	w.awaitChange(t)
	if got := w.GetPublicKeys(t.Context(), ""); len(got) != 2 {
		t.Fatalf("GetPublicKeys() = %v, want two keys", got)
	}
	if _, id := generate(t, w.Keys); id != oldID {
		t.Errorf("tokens are signed by %s before the signing key has changed, want %s", id, oldID)
	}

	servetest.WriteFile(t, w.signing, second.PrivatePEM)
	w.awaitChange(t)
	_, newID := generate(t, w.Keys)
	if newID == oldID {
		t.Errorf("tokens are signed by %s after the signing key has changed", newID)
	}
	verify(t, w.GetPublicKeys(t.Context(), oldID), oldToken)

	servetest.WriteFile(t, w.verification, second.PublicPEM)
	w.awaitChange(t)
	if got := w.GetPublicKeys(t.Context(), oldID); len(got) != 0 {
		t.Errorf("GetPublicKeys(%s) = %v after its file is gone, want none", oldID, got)
	}
	if succeeded, failed := w.reloads(t); succeeded != 3 || failed != 0 {
		t.Errorf("reloads are %d good and %d bad, want 3 and 0", succeeded, failed)
	}
}

func verify(t testing.TB, with []serviceaccount.PublicKey, token string) {
	t.Helper()
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		t.Fatal(err)
	}
	if len(with) != 1 {
		t.Fatalf("there are %d keys for the token, want 1", len(with))
	}
	if err := parsed.Claims(with[0].PublicKey, &jwt.Claims{}); err != nil {
		t.Errorf("verifying the token: %v", err)
	}
}

func TestUnusableFilesLeaveTheKeysInForce(t *testing.T) {
	key, other := authntest.NewRSAKey(t), authntest.NewRSAKey(t)
	for name, spoil := range map[string]func(t *testing.T, w *watched){
		"signing key garbage":     func(t *testing.T, w *watched) { servetest.WriteFile(t, w.signing, []byte("x")) },
		"signing key of another":  func(t *testing.T, w *watched) { servetest.WriteFile(t, w.signing, other.PrivatePEM) },
		"verification keys empty": func(t *testing.T, w *watched) { servetest.WriteFile(t, w.verification, nil) },
		"verification of another": func(t *testing.T, w *watched) { servetest.WriteFile(t, w.verification, other.PublicPEM) },
		"signing key removed": func(t *testing.T, w *watched) {
			if err := os.Remove(w.signing); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, key)
			_, id := generate(t, w.Keys)
			spoil(t, w)
			servetest.Eventually(t, func() error {
				if succeeded, failed := w.reloads(t); succeeded != 0 || failed != 1 {
					return fmt.Errorf("reloads are %d good and %d bad, want 0 and 1", succeeded, failed)
				}
				return nil
			})
			if _, got := generate(t, w.Keys); got != id || len(w.GetPublicKeys(t.Context(), id)) != 1 {
				t.Errorf("tokens are signed by %s, want %s, and verified as before", got, id)
			}

			// Both files of another key, one after the other, heal it.
			servetest.WriteFile(t, w.signing, other.PrivatePEM)
			servetest.WriteFile(t, w.verification, other.PublicPEM)
			w.awaitChange(t)
			servetest.Eventually(t, func() error {
				if _, got := generate(t, w.Keys); got == id {
					return fmt.Errorf("tokens are still signed by %s", got)
				}
				return nil
			})
		})
	}
}

func TestMetricsPassLint(t *testing.T) {
	key := authntest.NewRSAKey(t)
	w := watch(t, key)
	servetest.WriteFile(t, w.verification, append(append([]byte{}, key.PublicPEM...), '\n'))
	w.awaitChange(t)
	problems, err := testutil.GatherAndLint(w.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v", problems, err)
	}
}
