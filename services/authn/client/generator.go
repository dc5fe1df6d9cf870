package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// retryAfterSeconds is when a client should try again. The service is back as
// soon as a replica is.
const retryAfterSeconds = 1

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

// GenerateToken implements serviceaccount.TokenGenerator. While the service
// cannot be reached its error is a *apierrors.StatusError with code 503 and
// Retry-After. Upstream's TokenRequest makes a 500 of any error, whatever it is;
// see WithTokenRequests.
func (g *TokenGenerator) GenerateToken(ctx context.Context, claims *jwt.Claims, privateClaims any) (string, error) {
	encoded, err := convert.ToClaims(claims, privateClaims)
	if err != nil {
		return "", err
	}
	answer, err := g.authn.IssueToken(ctx, &authnv1.IssueTokenRequest{Claims: encoded})
	if err != nil {
		return "", failed(ctx, rpcerr.FromStatus(err, hop))
	}
	if answer.GetToken() == "" {
		return "", fmt.Errorf("%s issued an empty token", hop)
	}
	return answer.GetToken(), nil
}

// failed returns what may be said to whoever asked for the token: upstream quotes
// the error. What may not is logged. An outage is a 503, and is left where
// WithTokenRequests finds it.
func failed(ctx context.Context, err error) error {
	e, ok := rpcerr.As(err)
	if !ok {
		e = rpcerr.Internal(err)
	}
	klog.FromContext(ctx).Error(err, "Could not have a service-account token signed")
	switch e.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
	default:
		return errors.New(e.GRPCStatus().Message())
	}
	unavailable := newUnavailable("the service that signs tokens cannot be reached")
	if f, ok := ctx.Value(failureContextKey{}).(*failure); ok {
		f.err.Store(unavailable)
	}
	return unavailable
}

func newUnavailable(message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Message: message,
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
	}}
}

// failure is where GenerateToken leaves that the service could not be reached.
type failure struct {
	err atomic.Pointer[apierrors.StatusError]
}

type failureContextKey struct{}
