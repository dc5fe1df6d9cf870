package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// TestGeneratorParity has claims that upstream makes signed by upstream's
// generator in process, and by the service: the tokens have to be the same to the
// last bit.
func TestGeneratorParity(t *testing.T) {
	s := newSetup(t)
	stock, err := serviceaccount.JWTTokenGenerator(issuer, s.key.Private)
	if err != nil {
		t.Fatal(err)
	}
	conn := newService(t, s).connect(t)
	ours, tokens := client.NewTokenGenerator(conn), client.NewToken(conn)

	account := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid-of-cart"}}
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cart-0", UID: "uid-of-cart-0"}}
	secret := &core.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound", UID: "uid-of-bound"}}
	node := &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-of-node-1"}}
	const year = 365 * 24 * 60 * 60
	for name, c := range map[string]struct {
		pod        *core.Pod
		secret     *core.Secret
		node       *core.Node
		expiration int64
		warnAfter  int64
		audiences  []string
	}{
		"plain":                  {expiration: 600, audiences: []string{issuer}},
		"several audiences":      {expiration: 600, audiences: []string{issuer, "<b>&\u2028", "名前"}},
		"pod":                    {pod: pod, expiration: 3607, warnAfter: 3607, audiences: []string{issuer}},
		"pod and node":           {pod: pod, node: node, expiration: year, warnAfter: 3607, audiences: []string{issuer}},
		"pod and a missing node": {pod: pod, node: &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, expiration: 600, audiences: []string{issuer}},
		"secret":                 {secret: secret, expiration: 600, audiences: []string{issuer}},
		"node":                   {node: node, expiration: 1 << 32, audiences: []string{issuer}},
	} {
		t.Run(name, func(t *testing.T) {
			public, private, err := serviceaccount.Claims(account, c.pod, c.secret, c.node, nil, nil, c.expiration, c.warnAfter, c.audiences, nil)
			if err != nil {
				t.Fatalf("serviceaccount.Claims: %v", err)
			}
			want, err := stock.GenerateToken(t.Context(), public, private)
			if err != nil {
				t.Fatalf("upstream's GenerateToken: %v", err)
			}
			got, err := ours.GenerateToken(t.Context(), public, private)
			if err != nil {
				t.Fatalf("GenerateToken() = %v, want no error", err)
			}
			if got != want {
				t.Errorf("GenerateToken() =\n%s, want\n%s", got, want)
			}
			if _, ok, err := tokens.AuthenticateToken(t.Context(), got); !ok {
				t.Errorf("AuthenticateToken() of that = %v, %v, want true", ok, err)
			}
		})
	}
}

func TestGeneratorRefusals(t *testing.T) {
	generator := client.NewTokenGenerator(newService(t, newSetup(t)).connect(t))
	account := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u"}}
	for name, c := range map[string]struct {
		change func(*jwt.Claims)
		want   string
	}{
		"a user":         {func(c *jwt.Claims) { c.Subject = "admin" }, "claims.sub: is no service account's name"},
		"an issuer":      {func(c *jwt.Claims) { c.Issuer = "https://evil.example.com" }, "claims.iss: is set by the service"},
		"no audience":    {func(c *jwt.Claims) { c.Audience = nil }, "claims.aud: is missing"},
		"beyond 2^32 s":  {func(c *jwt.Claims) { *c.Expiry += 1 << 32 }, "claims.exp: is more than"},
		"private number": {func(c *jwt.Claims) { c.IssuedAt = nil }, "claims.iat: is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			public, private, err := serviceaccount.Claims(account, nil, nil, nil, nil, nil, 600, 0, []string{"a"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.change(public)
			token, err := generator.GenerateToken(t.Context(), public, private)
			if token != "" || err == nil || !strings.HasPrefix(err.Error(), c.want) || client.IsCouldNotDecide(err) {
				t.Errorf("GenerateToken() = %q, %v, want the error %q", token, err, c.want)
			}
		})
	}
}

func TestGeneratorFailures(t *testing.T) {
	for name, c := range map[string]struct {
		issue       error
		undecided   bool
		wantMessage string
	}{
		"draining":  {rpcerr.Draining("authn"), true, "authn is shutting down"},
		"slow":      {context.DeadlineExceeded, true, "not enough time left at authn"},
		"refused":   {rpcerr.InvalidArgument("claims.sub", "is no name"), false, "claims.sub: is no name"},
		"a bug":     {errors.New("secret detail"), false, "internal error"},
		"no answer": {nil, false, "authn issued an empty token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, conn := serveStub(t, &stub{issue: func(context.Context, *authnv1.IssueTokenRequest) (*authnv1.IssueTokenResponse, error) {
				return &authnv1.IssueTokenResponse{}, c.issue
			}})
			token, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), &jwt.Claims{}, map[string]any{})
			if token != "" || err == nil || client.IsCouldNotDecide(err) != c.undecided {
				t.Fatalf("GenerateToken() = %q, %v, want an error, could not decide: %v", token, err, c.undecided)
			}
			if !strings.HasPrefix(err.Error(), c.wantMessage) || strings.Contains(err.Error(), "secret detail") {
				t.Errorf("GenerateToken() = %v, want %q", err, c.wantMessage)
			}
		})
	}
}

// TestGeneratorWithoutService is what a TokenRequest finds when nothing is there.
func TestGeneratorWithoutService(t *testing.T) {
	running, conn := serveStub(t, &stub{})
	if err := running.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	_, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), &jwt.Claims{}, map[string]any{})
	if !client.IsCouldNotDecide(err) {
		t.Errorf("GenerateToken() = %v, want an error for which IsCouldNotDecide holds", err)
	}
}
