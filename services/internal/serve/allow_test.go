package serve_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// tokens knows jane, and a gate that does not answer.
var tokens = authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
	switch token {
	case "jane":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
	case "root":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	case "outage":
		return nil, false, rpcerr.PeerUnreachable("authn", errors.New("connection refused"))
	case "expired":
		return nil, false, errors.New("token expired")
	}
	return nil, false, nil
})

// people may call if their name is jane and they are authenticated.
var people = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case a.GetVerb() != "post" || a.IsResourceRequest() || a.GetPath() != servetest.EchoSayFullMethod:
		return authorizer.DecisionDeny, "asked about something else", nil
	case a.GetUser().GetName() == "jane" && fmt.Sprint(a.GetUser().GetGroups()) == "[system:authenticated]":
		return authorizer.DecisionAllow, "", errors.New("one of the bindings is broken")
	case a.GetUser().GetName() == "outage":
		return authorizer.DecisionNoOpinion, "", errors.New("webhook down")
	}
	return authorizer.DecisionNoOpinion, "no binding", nil
})

func TestWhoMayCall(t *testing.T) {
	pki := servetest.NewPKI(t)
	impostor := servetest.NewPKI(t)
	for name, tc := range map[string]struct {
		cert       servetest.Cert
		token      string
		tokens     authenticator.Token
		authorizer authorizer.UnconditionalAuthorizer
		wantCode   codes.Code
		wantText   string
		wantCaller serve.Caller
	}{
		"the gateway":    {cert: pki.Process(t, "gateway"), wantCaller: serve.Caller{Peer: serve.PeerGateway}},
		"a peer by row":  {cert: pki.Process(t, "admission"), wantCaller: serve.Caller{Peer: serve.PeerAdmission}},
		"a peer, no row": {cert: pki.Process(t, "authn"), wantCode: codes.PermissionDenied, wantText: "system:trigate:authn may not call"},
		"a stranger of the gates CA": {
			cert:     pki.Gates.Issue(t, servetest.Subject{CommonName: "stranger"}),
			wantCode: codes.PermissionDenied, wantText: "stranger may not call",
		},
		"the gates CA makes no users": {
			cert:     pki.Gates.Issue(t, servetest.Subject{CommonName: "root", Organizations: []string{user.SystemPrivilegedGroup}}),
			wantCode: codes.PermissionDenied,
		},
		"a user with a peer's name": {
			cert:     pki.User(t, serve.PeerGateway),
			wantCode: codes.PermissionDenied, wantText: `user "system:trigate:gateway" may not post to`,
		},
		"another CA": {cert: impostor.Process(t, "gateway"), wantCode: codes.Unavailable},
		"an expired certificate": {
			cert:     pki.Gates.Issue(t, servetest.Subject{CommonName: serve.PeerGateway, NotAfter: time.Now().Add(-time.Hour)}),
			wantCode: codes.Unavailable,
		},
		"nobody":             {wantCode: codes.Unauthenticated},
		"a user, no gates":   {cert: pki.User(t, "jane"), wantCode: codes.PermissionDenied, wantText: `user "jane"`},
		"an allowed user":    {cert: pki.User(t, "jane"), authorizer: people, wantCaller: serve.Caller{User: &user.DefaultInfo{Name: "jane"}}},
		"a denied user":      {cert: pki.User(t, "joe"), authorizer: people, wantCode: codes.PermissionDenied, wantText: "no binding"},
		"system:masters":     {cert: pki.User(t, "root", user.SystemPrivilegedGroup), wantCaller: serve.Caller{User: &user.DefaultInfo{Name: "root"}}},
		"authz unreachable":  {cert: pki.User(t, "outage"), authorizer: people, wantCode: codes.Unavailable, wantText: "authz is unreachable"},
		"a nameless user":    {cert: pki.User(t, ""), wantCode: codes.Unauthenticated},
		"a token":            {token: "jane", tokens: tokens, authorizer: people, wantCaller: serve.Caller{User: &user.DefaultInfo{Name: "jane"}}},
		"a master's token":   {token: "root", tokens: tokens, wantCaller: serve.Caller{User: &user.DefaultInfo{Name: "root"}}},
		"an unknown token":   {token: "unknown", tokens: tokens, authorizer: people, wantCode: codes.Unauthenticated},
		"an expired token":   {token: "expired", tokens: tokens, authorizer: people, wantCode: codes.Unauthenticated},
		"authn unreachable":  {token: "outage", tokens: tokens, authorizer: people, wantCode: codes.Unavailable, wantText: "authn is unreachable"},
		"no token gate":      {token: "jane", authorizer: people, wantCode: codes.Unauthenticated},
		"a peer and a token": {cert: pki.Process(t, "authn"), token: "jane", tokens: tokens, authorizer: people, wantCaller: serve.Caller{User: &user.DefaultInfo{Name: "jane"}}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			cfg.Tokens, cfg.Authorizer = tc.tokens, tc.authorizer
			var caller serve.Caller
			r := servetest.Start(t, pki, cfg, register(&servetest.Echo{Say: func(ctx context.Context, text string) (string, error) {
				caller, _ = serve.CallerFrom(ctx)
				return text, nil
			}}))
			ctx := t.Context()
			if tc.token != "" {
				ctx = withToken(ctx, tc.token)
			}
			got, err := servetest.Say(ctx, r.Dial(t, tc.cert, nil), "hello")
			if status.Code(err) != tc.wantCode || !strings.Contains(fmt.Sprint(err), tc.wantText) {
				t.Fatalf("Say() = %v, want %v with %q", err, tc.wantCode, tc.wantText)
			}
			if err == nil && got != "hello" {
				t.Errorf("Say() = %q, want hello", got)
			}
			if caller.Peer != tc.wantCaller.Peer || nameOf(caller.User) != nameOf(tc.wantCaller.User) {
				t.Errorf("CallerFrom() = %+v, want %+v", caller, tc.wantCaller)
			}
		})
	}
}

func nameOf(u user.Info) string {
	if u == nil {
		return ""
	}
	return u.GetName()
}
