package client

import (
	"context"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

type policyKey struct{}

// WithPolicy has plugins that ask the authorization gate be answered by a policy that
// has seen revision: what the caller knows of is in force for them too.
func WithPolicy(ctx context.Context, revision authzclient.Revision) context.Context {
	return context.WithValue(ctx, policyKey{}, revision)
}

func policyOf(ctx context.Context) *authzv1.PolicyRevision {
	revision, _ := ctx.Value(policyKey{}).(authzclient.Revision)
	return revision.ToProto()
}
