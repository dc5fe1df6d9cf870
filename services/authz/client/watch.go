package client

import (
	"context"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// PolicyUpdate is one message of WatchPolicy.
type PolicyUpdate struct {
	// Revision is what the service decides by now.
	Revision Revision
	// Changes are what has changed since the message before.
	Changes []PolicyChange
	// Changed has the last change of each resource that the service knows of.
	Changed Revision
	// Configuration is a digest of the authorizers' configuration.
	Configuration string
	// Following is true if the service sees changes as they happen.
	Following bool
}

// PolicyChange says what a change of the policy concerns.
type PolicyChange struct {
	// Namespace is where roles or bindings have changed. Empty: cluster-wide.
	Namespace string
	// Revision has the resourceVersions of the resources that have changed.
	Revision Revision
}

// WatchPolicy hands each change of the policy to handle, in order, as soon as the
// service decides by it. The first update says where the service is; one comes
// every second at least. It returns, with a reason, when the stream or ctx ends;
// updates may have been lost then.
func (c *Client) WatchPolicy(ctx context.Context, handle func(PolicyUpdate)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream if handle panics
	stream, err := c.stub.WatchPolicyRevision(ctx, &authzv1.WatchPolicyRevisionRequest{})
	if err != nil {
		return rpcerr.FromStatus(err, hop)
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		handle(policyUpdateFromProto(message))
	}
}

func policyUpdateFromProto(m *authzv1.WatchPolicyRevisionResponse) PolicyUpdate {
	update := PolicyUpdate{
		Revision:      RevisionFromProto(m.GetRevision()),
		Changed:       RevisionFromProto(m.GetChanged()),
		Configuration: m.GetConfiguration(),
		Following:     m.GetFollowing(),
	}
	for _, change := range m.GetChanges() {
		update.Changes = append(update.Changes, PolicyChange{
			Namespace: change.GetNamespace(),
			Revision:  RevisionFromProto(change.GetRevision()),
		})
	}
	return update
}
