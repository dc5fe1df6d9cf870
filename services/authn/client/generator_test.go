package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
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
			if token != "" || err == nil || !strings.HasPrefix(err.Error(), c.want) || apierrors.IsServiceUnavailable(err) {
				t.Errorf("GenerateToken() = %q, %v, want the error %q", token, err, c.want)
			}
		})
	}
}

// tokenRequests is what upstream does of a TokenRequest, as far as the generator
// is concerned.
func tokenRequests(generator serviceaccount.TokenGenerator) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := generator.GenerateToken(r.Context(), &jwt.Claims{}, map[string]any{})
		if err != nil {
			responsewriters.ErrorNegotiated(apierrors.NewInternalError(fmt.Errorf("failed to generate token: %v", err)),
				scheme.Codecs, corev1.SchemeGroupVersion, w, r)
			return
		}
		w.Header().Set("X-From", "handler")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(token))
	})
}

func tokenRequest(t testing.TB, subresource string) *http.Request {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts/cart/token", strings.NewReader("{}"))
	return r.WithContext(genericapirequest.WithRequestInfo(t.Context(), &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIVersion: "v1", Namespace: "shop",
		Resource: "serviceaccounts", Name: "cart", Subresource: subresource,
	}))
}

func TestWithTokenRequests(t *testing.T) {
	for name, c := range map[string]struct {
		issue      error
		wantCode   int
		wantRetry  string
		wantReason metav1.StatusReason
	}{
		"signed":      {nil, http.StatusCreated, "", ""},
		"unavailable": {rpcerr.Draining("authn"), http.StatusServiceUnavailable, "1", metav1.StatusReasonServiceUnavailable},
		"slow":        {context.DeadlineExceeded, http.StatusServiceUnavailable, "1", metav1.StatusReasonServiceUnavailable},
		"refused":     {rpcerr.InvalidArgument("claims.sub", "is no name"), http.StatusInternalServerError, "", metav1.StatusReasonInternalError},
		"a bug":       {errors.New("secret detail"), http.StatusInternalServerError, "", metav1.StatusReasonInternalError},
	} {
		t.Run(name, func(t *testing.T) {
			_, conn := serveStub(t, &stub{issue: func(context.Context, *authnv1.IssueTokenRequest) (*authnv1.IssueTokenResponse, error) {
				return &authnv1.IssueTokenResponse{Token: "a.b.c"}, c.issue
			}})
			handler := client.WithTokenRequests(tokenRequests(client.NewTokenGenerator(conn)), scheme.Codecs)
			w := httptest.NewRecorder()
			w.Header().Set("Audit-Id", "kept")
			handler.ServeHTTP(w, tokenRequest(t, "token"))

			body := w.Body.String()
			if w.Code != c.wantCode || w.Header().Get("Retry-After") != c.wantRetry || w.Header().Get("Audit-Id") != "kept" {
				t.Errorf("the answer is %d with %v and %s, want %d with Retry-After %q", w.Code, w.Header(), body, c.wantCode, c.wantRetry)
			}
			if c.issue == nil {
				if body != "a.b.c" || w.Header().Get("X-From") != "handler" {
					t.Errorf("the answer is %s with %v, want the handler's", body, w.Header())
				}
				return
			}
			var status metav1.Status
			if err := json.Unmarshal([]byte(body), &status); err != nil {
				t.Fatalf("the answer is %s, want a Status: %v", body, err)
			}
			if status.Reason != c.wantReason || int(status.Code) != c.wantCode || strings.Contains(body, "secret detail") {
				t.Errorf("the answer is %s, want reason %s", body, c.wantReason)
			}
		})
	}
}

// TestWithTokenRequestsLeavesOthersAlone checks that other requests keep the
// writer that they came with.
func TestWithTokenRequestsLeavesOthersAlone(t *testing.T) {
	w := httptest.NewRecorder()
	client.WithTokenRequests(http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
		if got != http.ResponseWriter(w) {
			t.Errorf("the handler gets a %T, want the writer of the request", got)
		}
	}), scheme.Codecs).ServeHTTP(w, tokenRequest(t, "status"))
}

// TestGeneratorWithoutService is what a TokenRequest finds when nothing is there.
func TestGeneratorWithoutService(t *testing.T) {
	running, conn := serveStub(t, &stub{})
	if err := running.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	_, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), &jwt.Claims{}, map[string]any{})
	seconds, retry := apierrors.SuggestsClientDelay(err)
	if !apierrors.IsServiceUnavailable(err) || !retry || seconds != 1 {
		t.Errorf("GenerateToken() = %v, want a 503 with Retry-After 1", err)
	}
}
