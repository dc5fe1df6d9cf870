package client_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/oauth2-proxy/mockoidc"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/internal/servetest"
)

// provider is an OpenID provider on loopback, over TLS. It goes down and comes back at the
// same address.
type provider struct {
	ca      *servetest.CA
	tls     *tls.Config
	address string
	http    *http.Client

	// mu keeps the provider's handlers apart from its rotation.
	mu     sync.Mutex
	keys   *mockoidc.Keypair
	server *mockoidc.MockOIDC
}

func newProvider(t *testing.T, name string) *provider {
	t.Helper()
	p := &provider{ca: servetest.NewCA(t, name)}
	cert := p.ca.Issue(t, servetest.Subject{CommonName: name})
	pair, err := tls.X509KeyPair(cert.CertPEM, cert.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	p.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.ca.PEM)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	p.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	p.rotate(t)
	listener := servetest.Listen(t)
	p.address = listener.Addr().String()
	p.serve(t, listener)
	t.Cleanup(func() { p.down(t) })
	return p
}

// up has the provider come back.
func (p *provider) up(t *testing.T) {
	t.Helper()
	p.serve(t, listenAgain(t, p.address))
}

func (p *provider) serve(t *testing.T, listener net.Listener) {
	t.Helper()
	var err error
	if p.server, err = mockoidc.NewServer(p.keys.PrivateKey); err != nil {
		t.Fatal(err)
	}
	p.server.ClientID = "kubernetes"
	err = p.server.AddMiddleware(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.mu.Lock()
			defer p.mu.Unlock()
			next.ServeHTTP(w, r)
		})
	})
	if err := errors.Join(err, p.server.Start(tls.NewListener(listener, p.tls), p.tls)); err != nil {
		t.Fatal(err)
	}
}

// down has the provider go.
func (p *provider) down(t *testing.T) {
	t.Helper()
	if p.server == nil {
		return
	}
	if err := p.server.Server.Close(); err != nil {
		t.Errorf("closing a provider: %v", err)
	}
	p.server = nil
}

// rotate gives the provider another key, in place of the one that it has.
func (p *provider) rotate(t *testing.T) {
	t.Helper()
	keys, err := mockoidc.RandomKeypair(2048)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = keys
	if p.server != nil {
		p.server.Keypair = keys
	}
}

// login has a user log in, and returns the ID token.
func (p *provider) login(t *testing.T, user string) string {
	t.Helper()
	p.server.QueueUser(&mockoidc.MockUser{Subject: user, Groups: []string{"engineers", "größe"}})
	query := url.Values{
		"client_id": {p.server.ClientID}, "response_type": {"code"}, "scope": {"openid groups"},
		"state": {"s"}, "redirect_uri": {"https://app.example.com/callback"},
	}
	redirect := p.send(t, http.MethodGet, p.server.AuthorizationEndpoint()+"?"+query.Encode(), nil)
	back, err := redirect.Location()
	if err != nil {
		t.Fatalf("logging in: %s: %v", redirect.Status, err)
	}
	answer := p.send(t, http.MethodPost, p.server.TokenEndpoint(), url.Values{
		"client_id": {p.server.ClientID}, "client_secret": {p.server.ClientSecret},
		"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")},
	})
	var tokens struct {
		IDToken string `json:"id_token"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&tokens); err != nil || tokens.IDToken == "" {
		t.Fatalf("getting a token: %s, %v", answer.Status, err)
	}
	return tokens.IDToken
}

func (p *provider) send(t *testing.T, method, address string, form url.Values) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address+queryOf(form), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := p.http.Do(request)
	if err != nil {
		t.Fatalf("asking the provider: %v", err)
	}
	t.Cleanup(func() { _ = response.Body.Close() }) // it has been read
	return response
}

// queryOf writes a form as a query, which the provider reads as well.
func queryOf(form url.Values) string {
	if len(form) == 0 {
		return ""
	}
	return "?" + form.Encode()
}

// TestOpenIDProviders has two providers, one of which is down at the start, that rotate
// their keys and go down. In each situation the service says what the stock chain says.
func TestOpenIDProviders(t *testing.T) {
	blue, green := newProvider(t, "blue"), newProvider(t, "green")
	config := filepath.Join(t.TempDir(), "authentication.yaml")
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"
	for name, p := range map[string]*provider{"blue": blue, "green": green} {
		content += fmt.Sprintf("- issuer: {url: %q, audiences: [kubernetes], certificateAuthority: %q}\n"+
			"  claimMappings:\n    username: {claim: sub, prefix: '%s:'}\n    groups: {claim: groups, prefix: '%s:'}\n"+
			"    extra: [{key: example.com/who, valueExpression: claims.sub}]\n", p.server.Issuer(), p.ca.PEM, name, name)
	}
	servetest.WriteFile(t, config, []byte(content))
	s := newSetup(t)
	s.change = func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = config }
	ofGreen := green.login(t, "jane")
	green.down(t)

	stock := newStock(t, s)
	ours := gatewayChain(client.NewToken(newService(t, s).connect(t)))
	// both wants the same from both. A user means that the token is to be good.
	both := func(what, token, user string) error {
		want := ask(t.Context(), stock, headerRequest, token, nil)
		got := ask(t.Context(), ours, headerRequest, token, nil)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("%s: the answer differs from stock (-stock +ours):\n%s", what, diff)
		}
		if want.OK != (user != "") || want.OK && want.User.GetName() != user {
			return fmt.Errorf("%s: stock says %+v, want user %q", what, want, user)
		}
		return nil
	}
	check := func(what, token, user string) {
		t.Helper()
		if err := both(what, token, user); err != nil {
			t.Error(err)
		}
	}
	await := func(what, token, user string) {
		t.Helper()
		servetest.Eventually(t, func() error { return both(what, token, user) })
	}

	ofBlue := blue.login(t, "jane")
	await("one provider is up", ofBlue, "blue:jane")
	check("the other is down at the start", ofGreen, "")
	green.up(t)
	await("the other has come", ofGreen, "green:jane")
	check("the first, still", ofBlue, "blue:jane")

	blue.rotate(t)
	newKey := blue.login(t, "joe")
	await("a new key", newKey, "blue:joe")
	check("the other provider does not know it", green.login(t, "joe"), "green:joe")

	blue.down(t)
	check("a provider is down later", newKey, "blue:joe")
	check("the other is not", ofGreen, "green:jane")
	blue.rotate(t)
	blue.up(t)
	newest := blue.login(t, "jim")
	blue.down(t)
	if want, got := ask(t.Context(), stock, headerRequest, newest, nil), ask(t.Context(), ours, headerRequest, newest, nil); want.OK || got.OK {
		t.Errorf("a key that nobody could fetch: stock says %v, ours %v, want refusals", want, got)
	}
	blue.up(t)
	await("a provider is back with a new key", newest, "blue:jim")
}
