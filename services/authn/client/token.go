package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/warning"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Token asks the service about tokens. It answers as kube-apiserver's own union
// of token authenticators would, and is safe for concurrent use.
type Token struct {
	authn authnv1.AuthenticationServiceClient
}

var _ authenticator.Token = (*Token)(nil)

// NewToken returns a Token that calls over conn.
func NewToken(conn grpc.ClientConnInterface) *Token {
	return &Token{authn: authnv1.NewAuthenticationServiceClient(conn)}
}

// errOtherAudiences is an answer that no authenticator gives.
var errOtherAudiences = errors.New("the token is good for none of the audiences that were asked about")

// Verdict is what the service says of a token: who its bearer is, what belongs into the
// request's context, and how long all of it holds.
type Verdict = convert.Verdict

// Object is an object that an identity hangs on.
type Object = convert.Object

// Lifetime says how long a verdict holds.
type Lifetime = convert.Lifetime

// AuthenticateToken implements authenticator.Token. The audiences are those of
// ctx, or else the API's. Warnings and audit annotations that belong to a good
// token go to where ctx collects them. An error is the reason of a refusal, or one
// for which IsCouldNotDecide holds.
func (t *Token) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	verdict, err := t.Judge(ctx, token)
	if err != nil {
		return nil, false, err
	}
	return Apply(ctx, verdict)
}

// Apply returns what authenticator.Token does with a verdict, and adds its warnings and
// audit annotations to where ctx collects them.
func Apply(ctx context.Context, verdict Verdict) (*authenticator.Response, bool, error) {
	if verdict.Refusal != "" {
		return nil, false, errors.New(verdict.Refusal)
	}
	if verdict.Response == nil {
		return nil, false, nil
	}
	for _, text := range verdict.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	audit.AddAuditAnnotationsMap(ctx, verdict.Annotations)
	return verdict.Response, true, nil
}

// Judge asks the service about a token. The audiences are those of ctx, or else the
// API's. For an error IsCouldNotDecide holds.
func (t *Token) Judge(ctx context.Context, token string) (Verdict, error) {
	audiences, limited := authenticator.AudiencesFrom(ctx)
	if token == "" || len(token) > convert.MaxTokenBytes || limited && len(audiences) == 0 {
		// No token is like the first two. The last is good for nobody, whereas no
		// audiences in a message stand for the API's.
		return Verdict{}, nil
	}
	answer, err := t.authn.AuthenticateToken(ctx, convert.ToTokenRequest(token, audiences))
	if err != nil {
		return Verdict{}, rpcerr.FromStatus(err, hop)
	}
	verdict, err := convert.FromTokenResponse(answer)
	if err == nil && verdict.Response != nil && limited && len(audiences.Intersect(verdict.Response.Audiences)) == 0 {
		err = errOtherAudiences
	}
	if err != nil {
		return Verdict{}, rpcerr.Internal(fmt.Errorf("reading the answer of %s: %w", hop, err))
	}
	return verdict, nil
}
