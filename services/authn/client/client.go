// Package client has the interfaces of Kubernetes that the authentication service
// implements, over its stub: authenticator.Token, serviceaccount.TokenGenerator
// and serviceaccount.PublicKeysGetter. A gateway imports this and nothing else of
// the service.
//
// A verdict on a token is not an error for which IsCouldNotDecide holds. Such an
// error means that nothing is known of the token: its bearer must neither become
// anonymous nor get a 401.
package client

import (
	"context"
	"time"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// hop is the service's name in errors.
const hop = "authn"

// Budgets of the methods.
const (
	// authenticateBudget is how long upstream lets token authenticators take that
	// ask a webhook.
	authenticateBudget = 30 * time.Second
	// keysBudget is for what needs nobody else.
	keysBudget = 10 * time.Second
)

// Config says where the service is, and how the caller proves to it who it is.
type Config = dial.Peer

// Conn is a connection to all replicas of the service.
type Conn = dial.Conn

// Status is how a connection is.
type Status = dial.Status

// Service returns what a connection to the service has to know of it.
func Service() dial.Service {
	return dial.Service{
		Name:       hop,
		ServerName: "trigate-authn",
		Budgets: map[string]time.Duration{
			authnv1.AuthenticationService_AuthenticateToken_FullMethodName: authenticateBudget,
			authnv1.AuthenticationService_IssueToken_FullMethodName:        keysBudget,
			authnv1.AuthenticationService_ListPublicKeys_FullMethodName:    keysBudget,
		},
		SafeMethods: []string{
			authnv1.AuthenticationService_AuthenticateToken_FullMethodName,
			authnv1.AuthenticationService_IssueToken_FullMethodName,
			authnv1.AuthenticationService_ListPublicKeys_FullMethodName,
		},
	}
}

// Dial makes a connection, without waiting for the service. The caller closes it.
func Dial(cfg Config) (*Conn, error) { return dial.NewPeer(cfg, Service()) }

// IsCouldNotDecide returns whether an error of this package says that nothing
// could be decided, rather than that a token was refused.
func IsCouldNotDecide(err error) bool { return rpcerr.IsCouldNotDecide(err) }

// WithReserve bounds the wait for a verdict so that there is time left to tell the
// caller that none came: as a call's own deadline is bounded.
func WithReserve(ctx context.Context) (context.Context, context.CancelFunc) {
	return dial.WithReserve(ctx, authenticateBudget)
}

// CouldNotDecide returns the error for a question that was given up, for which
// IsCouldNotDecide holds.
func CouldNotDecide(err error) error { return rpcerr.FromStatus(err, hop) }

// Behind returns the error for a service that has not seen yet what is known already. For
// it IsCouldNotDecide holds.
func Behind() error { return rpcerr.NotSynced(hop, "it has not seen the latest writes yet") }
