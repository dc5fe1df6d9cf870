package authntest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	jose "gopkg.in/go-jose/go-jose.v2"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/trigate/trigate/services/internal/servetest"
)

// Remote is a server on loopback that authenticators ask.
type Remote struct {
	// URL is the server's.
	URL string
	// CAFile verifies the server's certificate, and CAPEM is what is in it.
	CAFile string
	CAPEM  []byte
	// Server can be closed early.
	Server *httptest.Server
}

func newRemote(t testing.TB, handler http.Handler) *Remote {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	r := &Remote{
		URL:    server.URL,
		CAFile: filepath.Join(t.TempDir(), "ca.crt"),
		CAPEM:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		Server: server,
	}
	servetest.WriteFile(t, r.CAFile, r.CAPEM)
	return r
}

// NewIssuer starts an OpenID issuer that publishes a key under an ID.
func NewIssuer(t testing.TB, key Key, keyID string) *Remote {
	t.Helper()
	var issuer *Remote
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{
			"issuer":                                issuer.URL,
			"jwks_uri":                              issuer.URL + "/keys",
			"authorization_endpoint":                issuer.URL + "/auth",
			"token_endpoint":                        issuer.URL + "/token",
			"response_types_supported":              []string{"id_token"},
			"subject_types_supported":               []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
			{Key: key.Private.Public(), KeyID: keyID, Algorithm: "RS256", Use: "sig"},
		}})
	})
	issuer = newRemote(t, mux)
	return issuer
}

// NewWebhook starts a webhook that answers TokenReviews of v1, and writes the
// kubeconfig that names it.
func NewWebhook(t testing.TB, review func(authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus) (*Remote, string) {
	t.Helper()
	webhook := newRemote(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		asked.Status = review(asked.Spec)
		writeJSON(w, asked)
	}))
	kubeconfig := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	servetest.WriteFile(t, kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: webhook
  cluster: {server: %q, certificate-authority: %q}
users:
- name: authn
contexts:
- name: webhook
  context: {cluster: webhook, user: authn}
current-context: webhook
`, webhook.URL, webhook.CAFile))
	return webhook, kubeconfig
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	// The client sees a broken answer if this fails.
	_ = json.NewEncoder(w).Encode(value)
}
