package app

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/metadata"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

// TestCallers has each kind of caller call each method.
func TestCallers(t *testing.T) {
	const (
		ok              rpcerr.Reason = ""
		denied                        = rpcerr.ReasonPermissionDenied
		unauthenticated               = rpcerr.ReasonUnauthenticated
		unavailable                   = rpcerr.ReasonPeerUnreachable
	)
	api := apitest.New(t,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ask"}, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"post"}, NonResourceURLs: []string{authzv1.AuthorizationService_Authorize_FullMethodName},
		}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "ask"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ask"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "asker"}},
		})
	tokens := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		switch token {
		case "asker", "jane":
			return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, true, nil
		case "down":
			return nil, false, rpcerr.PeerUnreachable("authn", errors.New("down"))
		}
		return nil, false, errors.New("no such token")
	})
	s := start(t, func(c *Config) { c.Tokens = tokens }, "--authorization-mode=RBAC", "--kubeconfig="+api.Kubeconfig(t))
	s.gateway(t) // waits until the service is ready

	for name, tc := range map[string]struct {
		cert  servetest.Cert
		token string
		// wantAuthorize and wantListRules are why a call is refused.
		wantAuthorize, wantListRules rpcerr.Reason
	}{
		"gateway":             {cert: s.pki.Process(t, "gateway"), wantAuthorize: ok, wantListRules: ok},
		"authn":               {cert: s.pki.Process(t, "authn"), wantAuthorize: ok, wantListRules: denied},
		"admission":           {cert: s.pki.Process(t, "admission"), wantAuthorize: ok, wantListRules: denied},
		"authz":               {cert: s.pki.Process(t, "authz"), wantAuthorize: denied, wantListRules: denied},
		"masters":             {cert: s.pki.User(t, "root", user.SystemPrivilegedGroup), wantAuthorize: ok, wantListRules: ok},
		"a user with a right": {cert: s.pki.User(t, "asker"), wantAuthorize: ok, wantListRules: denied},
		"a user":              {cert: s.pki.User(t, "jane"), wantAuthorize: denied, wantListRules: denied},
		"a user with the gateway's name": {
			cert:          s.pki.User(t, "system:trigate:gateway"),
			wantAuthorize: denied, wantListRules: denied,
		},
		"a token with a right":  {token: "asker", wantAuthorize: ok, wantListRules: denied},
		"a token":               {token: "jane", wantAuthorize: denied, wantListRules: denied},
		"a bad token":           {token: "nope", wantAuthorize: unauthenticated, wantListRules: unauthenticated},
		"a token without authn": {token: "down", wantAuthorize: unavailable, wantListRules: unavailable},
		"nobody":                {wantAuthorize: unauthenticated, wantListRules: unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.dial(t, tc.cert)
			waitReady(t, c)
			ctx := t.Context()
			if tc.token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tc.token)
			}
			_, _, authorizeErr := c.Authorize(ctx, getPod)
			_, _, _, rulesErr := c.RulesFor(ctx, getPod.User, "ns")
			if got := reasonOf(authorizeErr); got != tc.wantAuthorize {
				t.Errorf("Authorize() = %v, want %q", authorizeErr, tc.wantAuthorize)
			}
			if got := reasonOf(rulesErr); got != tc.wantListRules {
				t.Errorf("RulesFor() = %v, want %q", rulesErr, tc.wantListRules)
			}
		})
	}
}

func reasonOf(err error) rpcerr.Reason {
	if e, ok := rpcerr.As(err); ok {
		return e.Reason
	}
	return ""
}
