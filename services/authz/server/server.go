// Package server answers the RPCs of trigate.authz.v1: each handler decodes the
// question, asks a Kubernetes interface, and encodes what it said.
package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/explain"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
)

// hop is the service's name in errors.
const hop = "authz"

// Config is what New needs.
type Config struct {
	// Authorizer decides. If it is the service's own chain, the answers say what
	// each authorizer of it said.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists rules.
	Rules authorizer.RuleResolver
	// Synced reports whether all that is decided from has been read. Until then
	// nothing is decided. Nil: always.
	Synced func() bool
	// Policy is what is decided from, as far as that is RBAC. Nil: nothing is.
	Policy *policy.Store
	// Explainer explains what Authorizer decides. Nil: nothing is explained.
	Explainer *explain.Explainer
	// MayWait reports whether the authorizer may have to wait for somebody else. Nil:
	// always.
	MayWait func() bool
	// Configuration returns the digest of the authorizers' configuration, and a
	// channel that is closed when it is another one. Nil: it never changes.
	Configuration func() (string, <-chan struct{})
	// Registerer gets the metrics of decisions. Nil: they go nowhere.
	Registerer prometheus.Registerer
}

// Server implements trigate.authz.v1's AuthorizationService. It is safe for
// concurrent use.
type Server struct {
	authzv1.UnimplementedAuthorizationServiceServer
	cfg      Config
	metrics  *metrics
	memories memories
}

var _ authzv1.AuthorizationServiceServer = (*Server)(nil)

// New returns a server, which the caller registers. It fails if its metrics cannot
// be registered.
func New(cfg Config) (*Server, error) {
	if cfg.Synced == nil {
		cfg.Synced = func() bool { return true }
	}
	if cfg.MayWait == nil {
		cfg.MayWait = func() bool { return true }
	}
	if cfg.Configuration == nil {
		cfg.Configuration = func() (string, <-chan struct{}) { return "", nil }
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	m, err := newMetrics(cfg.Registerer, cfg.Policy)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, metrics: m}, nil
}

// Policy has the rule of each method. The other services ask for decisions on
// their own callers, and admission for policies whose expressions ask what a
// user may do.
func Policy() serve.Policy {
	deciding := serve.Peers(serve.PeerAuthn, serve.PeerAdmission)
	return serve.Policy{
		authzv1.AuthorizationService_Authorize_FullMethodName:           deciding,
		authzv1.AuthorizationService_BatchAuthorize_FullMethodName:      deciding,
		authzv1.AuthorizationService_AuthorizeStream_FullMethodName:     deciding,
		authzv1.AuthorizationService_WatchPolicyRevision_FullMethodName: serve.Peers(),
		authzv1.AuthorizationService_Explain_FullMethodName:             serve.Peers(),
		authzv1.AuthorizationService_WhoCan_FullMethodName:              serve.Peers(),
		authzv1.AuthorizationService_ListRules_FullMethodName:           serve.Peers(),
	}
}

// Authorize decides one question.
func (s *Server) Authorize(ctx context.Context, request *authzv1.AuthorizeRequest) (*authzv1.AuthorizeResponse, error) {
	return s.decide(ctx, request, patience)
}

// ListRules returns a user's rules.
func (s *Server) ListRules(ctx context.Context, request *authzv1.ListRulesRequest) (*authzv1.ListRulesResponse, error) {
	user, namespace, err := convert.RulesRequestFromProto(request)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx, request.GetAtLeastAsFreshAs()); err != nil {
		return nil, err
	}
	var rules convert.Rules
	rules.Resource, rules.NonResource, rules.Incomplete, rules.Err = s.cfg.Rules.RulesFor(ctx, user, namespace)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return convert.RulesToProto(rules), nil
}

func (s *Server) ready() error {
	if !s.cfg.Synced() {
		return rpcerr.NotSynced(hop, "its informers have not read everything yet")
	}
	return nil
}

// CallerAuthorizer returns the authorizer for the service's own callers: the
// service's, which decides nothing before it has synced.
func (s *Server) CallerAuthorizer() authorizer.UnconditionalAuthorizer { return callerAuthorizer{s} }

type callerAuthorizer struct{ server *Server }

// Authorize decides what a caller may call.
func (a callerAuthorizer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := a.server.ready(); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return a.server.cfg.Authorizer.Authorize(ctx, attributes)
}
