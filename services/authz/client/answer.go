package client

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Reuse says which other questions an answer is good for, until a later change of
// the policy concerns them: of the same user name and groups, and the same verb, API
// group, resource and subresource, or the same path.
type Reuse int

const (
	// ReuseNever is for answers that may not be kept.
	ReuseNever Reuse = iota
	// ReuseSameName is for the same namespace and name.
	ReuseSameName
	// ReuseAnyName is for the same namespace and any name.
	ReuseAnyName
	// ReuseAnyNamespace is for any namespace, or none, and any name. Only a change
	// of cluster roles or their bindings ends it.
	ReuseAnyNamespace
)

// Answer is a decision with what a cache has to know of it.
type Answer struct {
	// Decision, Reason and Err are what the service's chain said, word for word.
	Decision authorizer.Decision
	Reason   string
	Err      error
	// Revision is the policy that the decision has seen, at least.
	Revision Revision
	// Reuse says which other questions the answer is good for.
	Reuse Reuse
	// Configuration is a digest of the authorizers' configuration.
	Configuration string
}

// Decide asks for a decision by a policy that has seen atLeast. An error means that
// nothing could be decided; IsCouldNotDecide is true for it.
func (c *Client) Decide(ctx context.Context, a authorizer.Attributes, atLeast Revision) (Answer, error) {
	response, err := c.ask(ctx, &authzv1.AuthorizeRequest{
		Attributes:       convert.AttributesToProto(a),
		AtLeastAsFreshAs: atLeast.ToProto(),
	})
	if err != nil {
		return Answer{}, rpcerr.FromStatus(err, hop)
	}
	return answerFromProto(response)
}

func answerFromProto(m *authzv1.AuthorizeResponse) (Answer, error) {
	say, err := convert.SayFromProto(m)
	if err != nil {
		return Answer{}, rpcerr.Internal(err)
	}
	return Answer{
		Decision:      say.Decision,
		Reason:        say.Reason,
		Err:           say.Err,
		Revision:      RevisionFromProto(m.GetRevision()),
		Reuse:         reuseFromProto(m.GetReuse()),
		Configuration: m.GetConfiguration(),
	}, nil
}

// reuseFromProto takes what it does not know for never.
func reuseFromProto(reuse authzv1.Reuse) Reuse {
	switch reuse {
	case authzv1.Reuse_REUSE_SAME_NAME:
		return ReuseSameName
	case authzv1.Reuse_REUSE_ANY_NAME:
		return ReuseAnyName
	case authzv1.Reuse_REUSE_ANY_NAMESPACE:
		return ReuseAnyNamespace
	}
	return ReuseNever
}
