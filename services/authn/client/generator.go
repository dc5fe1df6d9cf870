package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// TokenGenerator has the service sign service-account tokens. It is safe for
// concurrent use.
type TokenGenerator struct {
	authn authnv1.AuthenticationServiceClient
}

var _ serviceaccount.TokenGenerator = (*TokenGenerator)(nil)

// NewTokenGenerator returns a TokenGenerator that calls over conn.
func NewTokenGenerator(conn grpc.ClientConnInterface) *TokenGenerator {
	return &TokenGenerator{authn: authnv1.NewAuthenticationServiceClient(conn)}
}

// GenerateToken implements serviceaccount.TokenGenerator. An error for which
// IsCouldNotDecide holds means that the service could not be asked: upstream's
// TokenRequest makes a 500 of it, with the words of the error, and a gateway has to
// make a 503 of that. Any other error is a refusal, and its words are for whoever
// asked.
func (g *TokenGenerator) GenerateToken(ctx context.Context, claims *jwt.Claims, privateClaims any) (string, error) {
	encoded, err := convert.ToClaims(claims, privateClaims)
	if err != nil {
		return "", err
	}
	answer, err := g.authn.IssueToken(ctx, &authnv1.IssueTokenRequest{Claims: encoded})
	if err != nil {
		return "", failed(rpcerr.FromStatus(err, hop))
	}
	if answer.GetToken() == "" {
		return "", fmt.Errorf("%s issued an empty token", hop)
	}
	return answer.GetToken(), nil
}

// failed tells an outage from a refusal.
func failed(err error) error {
	e, ok := rpcerr.As(err)
	if !ok {
		return err
	}
	switch e.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Canceled:
		return e
	}
	return errors.New(e.GRPCStatus().Message())
}
