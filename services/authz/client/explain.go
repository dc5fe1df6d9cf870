package client

import (
	"context"
	"math"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// What Explain and WhoCan answer with.
type (
	// Explanation is a decision with the way to it.
	Explanation = convert.Explanation
	// Grant is the path from a subject to a rule.
	Grant = convert.Grant
	// ObjectName names an RBAC object.
	ObjectName = convert.ObjectName
	// NearMiss is a rule that falls short of an action in one respect.
	NearMiss = convert.NearMiss
	// Say is what the chain or one authorizer of it said.
	Say = convert.Say
	// Subjects are a page of those who may do something.
	Subjects = convert.Subjects
)

// WhoCanQuestion asks for a page of those who may do something.
type WhoCanQuestion struct {
	// Action is the action. Its user is left out.
	Action authorizer.Attributes
	// AtLeast is what the policy has to have seen.
	AtLeast Revision
	// PageSize is how many grants the page has at most: 500 if zero, 1,000 at most.
	PageSize int
	// PageToken is the NextPageToken of the page before. Empty for the first.
	PageToken string
}

// Explain asks for a decision by a policy that has seen atLeast, and for the way to
// it. An error means that nothing could be decided; IsCouldNotDecide is true for it.
func (c *Client) Explain(ctx context.Context, a authorizer.Attributes, atLeast Revision) (Explanation, error) {
	response, err := c.stub.Explain(ctx, &authzv1.ExplainRequest{
		Attributes:       convert.AttributesToProto(a),
		AtLeastAsFreshAs: atLeast.ToProto(),
	})
	if err != nil {
		return Explanation{}, rpcerr.FromStatus(err, hop)
	}
	explanation, err := convert.ExplanationFromProto(response)
	if err != nil {
		return Explanation{}, rpcerr.Internal(err)
	}
	return explanation, nil
}

// WhoCan asks for a page of the subjects that RBAC allows an action. An error means
// that there is no answer; IsCouldNotDecide is true for it.
func (c *Client) WhoCan(ctx context.Context, q WhoCanQuestion) (Subjects, error) {
	action := convert.AttributesToProto(q.Action)
	action.User = nil
	response, err := c.stub.WhoCan(ctx, &authzv1.WhoCanRequest{
		Attributes:       action,
		AtLeastAsFreshAs: q.AtLeast.ToProto(),
		PageSize:         int32(min(q.PageSize, math.MaxInt32)),
		PageToken:        q.PageToken,
	})
	if err != nil {
		return Subjects{}, rpcerr.FromStatus(err, hop)
	}
	subjects, err := convert.SubjectsFromProto(response)
	if err != nil {
		return Subjects{}, rpcerr.Internal(err)
	}
	return subjects, nil
}
