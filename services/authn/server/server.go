// Package server has the gRPC handlers of the authentication service: decode,
// ask kube-apiserver's own code, encode.
package server

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/chain"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/authn/internal/revocations"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
)

// Policy says who may call which method. A gateway may call all of them. The
// other services ask who calls them; they issue no tokens.
func Policy() serve.Policy {
	return serve.Policy{
		authnv1.AuthenticationService_AuthenticateToken_FullMethodName: serve.Peers(serve.PeerAuthz, serve.PeerAdmission),
		authnv1.AuthenticationService_IssueToken_FullMethodName:        serve.Peers(),
		authnv1.AuthenticationService_ListPublicKeys_FullMethodName:    serve.Peers(serve.PeerAuthz, serve.PeerAdmission),
		authnv1.AuthenticationService_WatchRevocations_FullMethodName:  serve.Peers(),
	}
}

// Keys are the keys of service-account tokens.
type Keys interface {
	serviceaccount.TokenGenerator
	// Published returns all verification keys in their order, and since when they
	// are in force.
	Published(ctx context.Context) ([]serviceaccount.PublicKey, time.Time)
	// GetCacheAgeMaxSeconds returns for how long callers may keep those.
	GetCacheAgeMaxSeconds() int
	// Issuer returns the `iss` of generated tokens.
	Issuer() string
}

// Config is what New needs.
type Config struct {
	// Tokens are the token authenticators. An *rpcerr.Error is passed on; any
	// other error is a refusal, unless the call has ended.
	Tokens authenticator.Token
	// Keys sign and verify service-account tokens.
	Keys Keys
	// Revocations tells of what ends identities. Nil: of nothing, and no verdict may be
	// kept.
	Revocations *revocations.Hub
	// MaxTokenLifetime is how long a token may be valid that IssueToken signs. 0:
	// as long as kube-apiserver's API allows.
	MaxTokenLifetime time.Duration
}

// Server answers the calls of AuthenticationService.
type Server struct {
	authnv1.UnimplementedAuthenticationServiceServer
	cfg Config
}

var _ authnv1.AuthenticationServiceServer = (*Server)(nil)

// maxTokenLifetime is the longest that kube-apiserver accepts in a TokenRequest.
const maxTokenLifetime = (1 << 32) * time.Second

// New returns the handlers.
func New(cfg Config) *Server {
	if cfg.MaxTokenLifetime == 0 {
		cfg.MaxTokenLifetime = maxTokenLifetime
	}
	return &Server{cfg: cfg}
}

// AuthenticateToken tells who the bearer of a token is.
func (s *Server) AuthenticateToken(ctx context.Context, request *authnv1.AuthenticateTokenRequest) (*authnv1.AuthenticateTokenResponse, error) {
	token, audiences, err := convert.FromTokenRequest(request)
	if err != nil {
		return nil, err
	}
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	verdict, err := s.judge(ctx, token)
	if err != nil {
		return nil, err
	}
	return convert.ToTokenResponse(verdict), nil
}

// standing says what a verdict that is about to be made will be worth: with which
// configuration it is made, and whether it may be kept. It has to be called before.
func (s *Server) standing() (string, bool) {
	if s.cfg.Revocations == nil {
		return "", false
	}
	return s.cfg.Revocations.Configuration(), s.cfg.Revocations.Following()
}

// judge asks the authenticators, and gathers what they leave in the context. What
// they leave with a refusal is dropped, as kube-apiserver's token cache does.
func (s *Server) judge(ctx context.Context, token string) (convert.Verdict, error) {
	ctx = audit.WithAuditContext(ctx)
	annotated := audit.AuditContextFrom(ctx)
	// The caller's own token, if it showed one, may have left annotations.
	callers := annotated.GetEventAnnotations()
	warnings := &recorder{}
	configuration, following := s.standing()
	ctx, lifetime := chain.WithLifetime(ctx)
	response, ok, err := s.cfg.Tokens.AuthenticateToken(warning.WithWarningRecorder(ctx, warnings), token)

	var verdict convert.Verdict
	switch {
	case err != nil && ctx.Err() != nil:
		return convert.Verdict{}, ctx.Err()
	case isUndecided(err):
		return convert.Verdict{}, err
	case err != nil:
		verdict.Refusal = withoutToken(err.Error(), token)
	case ok && (response == nil || response.User == nil):
		return convert.Verdict{}, rpcerr.Internal(fmt.Errorf("an authenticator knows the token of nobody"))
	case ok:
		verdict.Response = response
		verdict.Warnings = warnings.texts()
		verdict.Annotations = annotated.GetEventAnnotations()
		maps.DeleteFunc(verdict.Annotations, func(key, _ string) bool {
			_, is := callers[key]
			return is
		})
		verdict.Lifetime = *lifetime
		verdict.Lifetime.Configuration = configuration
		if !following {
			verdict.Lifetime.KeepUntil = time.Time{}
		}
	}
	return verdict, nil
}

// isUndecided tells our own error, which is no verdict, from upstream's, which
// are: that a webhook timed out, for one, refuses the token in kube-apiserver.
func isUndecided(err error) bool {
	_, is := rpcerr.As(err)
	return is
}

// minSecretBytes is from which length on a token is taken out of texts. A shorter
// one is no secret, and is found in texts by accident.
const minSecretBytes = 8

// withoutToken takes a token out of what an authenticator says about it: a
// webhook, for one, may answer with anything.
func withoutToken(text, token string) string {
	if len(token) < minSecretBytes {
		return text
	}
	quoted := strconv.Quote(token)
	for _, secret := range []string{token, quoted[1 : len(quoted)-1]} {
		text = strings.ReplaceAll(text, secret, "[token]")
	}
	return text
}

// recorder keeps the warnings that authenticators have for the client.
type recorder struct {
	// mu guards recorded.
	mu       sync.Mutex
	recorded []string
}

var _ warning.Recorder = (*recorder)(nil)

// AddWarning implements warning.Recorder. Upstream's authenticators name no
// agent.
func (r *recorder) AddWarning(_, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = append(r.recorded, text)
}

func (r *recorder) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recorded
}

// IssueToken signs a service-account token.
func (s *Server) IssueToken(ctx context.Context, request *authnv1.IssueTokenRequest) (*authnv1.IssueTokenResponse, error) {
	claims, err := convert.FromClaims(request.GetClaims())
	if err != nil {
		return nil, err
	}
	if claims.Lifetime() > s.cfg.MaxTokenLifetime {
		return nil, rpcerr.InvalidArgument("claims.exp", "is more than %s after iat", s.cfg.MaxTokenLifetime)
	}
	token, err := s.cfg.Keys.GenerateToken(ctx, claims.Registered(), claims.Private())
	if err != nil {
		return nil, rpcerr.Internal(fmt.Errorf("signing a token: %w", err))
	}
	return &authnv1.IssueTokenResponse{Token: token}, nil
}

// ListPublicKeys returns the keys that verify service-account tokens.
func (s *Server) ListPublicKeys(ctx context.Context, _ *authnv1.ListPublicKeysRequest) (*authnv1.ListPublicKeysResponse, error) {
	keys, since := s.cfg.Keys.Published(ctx)
	messages := make([]*authnv1.PublicKey, len(keys))
	for i, key := range keys {
		var err error
		if messages[i], err = convert.ToPublicKey(key.KeyID, key.PublicKey, key.ExcludeFromOIDCDiscovery); err != nil {
			return nil, rpcerr.Internal(err)
		}
	}
	return &authnv1.ListPublicKeysResponse{
		Keys:          messages,
		DataTimestamp: timestamppb.New(since),
		MaxAge:        durationpb.New(time.Duration(s.cfg.Keys.GetCacheAgeMaxSeconds()) * time.Second),
		Issuer:        s.cfg.Keys.Issuer(),
	}, nil
}
