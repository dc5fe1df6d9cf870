package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/internal/interceptor"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

// newChain returns a chain of these modes, which need no informers.
func newChain(t *testing.T, modes ...string) *chain.Chain {
	t.Helper()
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = modes
	upstream, err := options.ToAuthorizationConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.New(t.Context(), chain.Config{Upstream: *upstream, ServerID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// stub serves cfg over mutual TLS, and returns a stub as the gateway.
func stub(t *testing.T, cfg Config) authzv1.AuthorizationServiceClient {
	t.Helper()
	handlers := newServer(t, cfg)
	running := servetest.Start(t, servetest.NewPKI(t),
		serve.Config{Name: "authz", Policy: Policy(), Authorizer: handlers.CallerAuthorizer()},
		func(s *serve.Server) {
			authzv1.RegisterAuthorizationServiceServer(s, handlers)
			s.Health().Set("test", true, "")
		})
	return authzv1.NewAuthorizationServiceClient(running.DialReady(t, "gateway"))
}

func newServer(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatalf("New() = %v, want nil", err)
	}
	return s
}

func request(groups ...string) *authzv1.AuthorizeRequest {
	return &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{
		User: &authnv1.UserInfo{Name: "jane", Groups: groups}, Verb: "get", Path: "/metrics",
	}}
}

func TestAuthorize(t *testing.T) {
	denying := newChain(t, "AlwaysDeny")
	digest, _ := denying.Configuration()
	for name, tc := range map[string]struct {
		groups []string
		want   *authzv1.AuthorizeResponse
	}{
		"no opinion": {want: &authzv1.AuthorizeResponse{
			Decision: authzv1.Decision_DECISION_NO_OPINION,
			Reason:   "alwaysdeny: Everything is forbidden.",
			Authorizers: []*authzv1.AuthorizerDecision{
				{Name: "alwaysdeny", Decision: authzv1.Decision_DECISION_NO_OPINION, Reason: "Everything is forbidden."},
			},
			Revision: &authzv1.PolicyRevision{}, Reuse: authzv1.Reuse_REUSE_ANY_NAMESPACE, Configuration: digest,
		}},
		"allow": {groups: []string{user.SystemPrivilegedGroup}, want: &authzv1.AuthorizeResponse{
			Decision: authzv1.Decision_DECISION_ALLOW,
			Authorizers: []*authzv1.AuthorizerDecision{
				{Name: "kubernetes.io/system-privileged-group", Decision: authzv1.Decision_DECISION_ALLOW},
			},
			Revision: &authzv1.PolicyRevision{}, Reuse: authzv1.Reuse_REUSE_ANY_NAMESPACE, Configuration: digest,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := stub(t, Config{Authorizer: denying, Rules: denying}).Authorize(t.Context(), request(tc.groups...))
			if err != nil {
				t.Fatalf("Authorize() = %v, want nil", err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("Authorize() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInvalidArguments(t *testing.T) {
	denying := newChain(t, "AlwaysDeny")
	authz := stub(t, Config{Authorizer: denying, Rules: denying})
	_, authorizeErr := authz.Authorize(t.Context(), &authzv1.AuthorizeRequest{})
	_, userErr := authz.Authorize(t.Context(), &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{Verb: "get"}})
	_, rulesErr := authz.ListRules(t.Context(), &authzv1.ListRulesRequest{Namespace: "ns"})
	for field, err := range map[string]error{"attributes": authorizeErr, "attributes.user": userErr, "user": rulesErr} {
		e, ok := rpcerr.As(err)
		if !ok || e.Code() != codes.InvalidArgument || e.Field != field {
			t.Errorf("err = %v, want an invalid %s", err, field)
		}
	}
}

// TestNotSynced asks a service that has not read everything: it decides
// nothing, neither for its peers nor on its own callers.
func TestNotSynced(t *testing.T) {
	var synced atomic.Bool
	allowing := newChain(t, "AlwaysAllow")
	cfg := Config{Authorizer: allowing, Rules: allowing, Synced: synced.Load}
	authz := stub(t, cfg)
	questions := &authzv1.BatchAuthorizeRequest{Questions: []*authzv1.AuthorizeRequest{request()}}
	ask := func() (error, error, error) {
		_, authorizeErr := authz.Authorize(t.Context(), request())
		_, batchErr := authz.BatchAuthorize(t.Context(), questions)
		if status.Code(batchErr) != status.Code(authorizeErr) {
			t.Errorf("BatchAuthorize() = %v, want as Authorize() = %v", batchErr, authorizeErr)
		}
		_, rulesErr := authz.ListRules(t.Context(), &authzv1.ListRulesRequest{User: &authnv1.UserInfo{Name: "jane"}})
		decision, _, callerErr := newServer(t, cfg).CallerAuthorizer().Authorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}})
		if allowed := decision == authorizer.DecisionAllow; allowed != synced.Load() {
			t.Errorf("a caller is allowed: %v, synced: %v", allowed, synced.Load())
		}
		return authorizeErr, rulesErr, callerErr
	}
	authorizeErr, rulesErr, callerErr := ask()
	for what, err := range map[string]error{"Authorize": authorizeErr, "ListRules": rulesErr, "a caller": callerErr} {
		if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonNotSynced || status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want Unavailable since not synced", what, err)
		}
	}
	synced.Store(true)
	if authorizeErr, rulesErr, callerErr := ask(); errors.Join(authorizeErr, rulesErr, callerErr) != nil {
		t.Errorf("after the sync: %v, %v, %v, want nil", authorizeErr, rulesErr, callerErr)
	}
}

// TestDeadline has an authorizer that takes too long. What it says then is not
// passed on.
func TestDeadline(t *testing.T) {
	slow := authorizer.AuthorizerFunc(func(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
		<-ctx.Done()
		return authorizer.DecisionNoOpinion, "too late", ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*interceptor.Reserve)
	defer cancel()
	response, err := stub(t, Config{Authorizer: slow}).Authorize(ctx, request())
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("Authorize() = %v, %v, want DeadlineExceeded", response, err)
	}
}
