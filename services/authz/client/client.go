// Package client is the authorization service as Kubernetes' interfaces: an
// authorizer.Authorizer and an authorizer.RuleResolver that ask it over gRPC.
package client

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// hop is the service's name in errors.
const hop = "authz"

// Client asks the authorization service. It is safe for concurrent use.
type Client struct {
	dial.Link
	stub authzv1.AuthorizationServiceClient
	// shared is nil if each question is a call of its own.
	shared *sharedStream
}

var (
	_ authorizer.Authorizer   = (*Client)(nil)
	_ authorizer.RuleResolver = (*Client)(nil)
)

// New returns a client that calls over conn, which the caller owns.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{Link: dial.Borrowed(hop, conn), stub: authzv1.NewAuthorizationServiceClient(conn)}
}

// Authorize asks for a decision. It answers what the service's chain said, word
// for word: an Allow with an error is an Allow, and an error that the chain
// gave is one for which IsCouldNotDecide is false.
//
// If nothing could be decided (no replica answered in time, the service has not
// synced, the answer cannot be read), it is DecisionNoOpinion with an error for
// which IsCouldNotDecide is true: neither allow nor answer 403 then. The
// deadline of ctx is honoured.
func (c *Client) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	answer, err := c.Decide(ctx, a, Revision{})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return answer.Decision, answer.Reason, answer.Err
}

// ask asks on the shared stream if there is one, else by a call. So that the span of a
// traced question is in its trace, that is a call of its own, too.
func (c *Client) ask(ctx context.Context, request *authzv1.AuthorizeRequest) (*authzv1.AuthorizeResponse, error) {
	if c.shared != nil && !dial.Traced(ctx) {
		ctx, cancel := WithReserve(ctx)
		defer cancel()
		response, err := c.shared.ask(ctx, request)
		if !errors.Is(err, errNoStream) {
			return response, err
		}
	}
	return c.stub.Authorize(ctx, request)
}

// ConditionsAwareAuthorize is not conditions-aware, as upstream's own remote
// authorizer is not: it returns what Authorize does.
func (c *Client) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(c.Authorize(ctx, a))
}

// EvaluateConditions fails closed, as upstream's own remote authorizer does.
func (c *Client) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor asks for the rules that apply to a user in a namespace. An error for
// which IsCouldNotDecide is false came with the rules, as the service's chain
// gave it. Any other means that there is no answer; the rules are then marked
// incomplete.
func (c *Client) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return c.ListRules(ctx, u, namespace, Revision{})
}

// ListRules is RulesFor by a policy that has seen atLeast.
func (c *Client) ListRules(ctx context.Context, u user.Info, namespace string, atLeast Revision) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	request := convert.RulesRequestToProto(u, namespace)
	request.AtLeastAsFreshAs = atLeast.ToProto()
	response, err := c.stub.ListRules(ctx, request)
	if err != nil {
		return nil, nil, true, rpcerr.FromStatus(err, hop)
	}
	rules, err := convert.RulesFromProto(response)
	if err != nil {
		return nil, nil, true, rpcerr.Internal(err)
	}
	return rules.Resource, rules.NonResource, rules.Incomplete, rules.Err
}

// IsCouldNotDecide reports whether an error of this package says that nothing
// could be decided. Any other error came with a decision.
func IsCouldNotDecide(err error) bool { return rpcerr.IsCouldNotDecide(err) }

// WithReserve bounds the wait for an answer so that there is time left to tell the
// caller that none came: as a call's own deadline is bounded.
func WithReserve(ctx context.Context) (context.Context, context.CancelFunc) {
	return dial.WithReserve(ctx, authorizeBudget)
}

// CouldNotDecide returns the error for a question that was given up, for which
// IsCouldNotDecide is true.
func CouldNotDecide(err error) error { return rpcerr.FromStatus(err, hop) }
