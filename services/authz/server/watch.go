package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// watchInterval is how often a watch is told at least where the policy is. The proto
// promises a second, and clients give up after five.
const watchInterval = time.Second

// WatchPolicyRevision tells of changes until the caller goes.
func (s *Server) WatchPolicyRevision(_ *authzv1.WatchPolicyRevisionRequest, stream grpc.ServerStreamingServer[authzv1.WatchPolicyRevisionResponse]) error {
	if err := s.ready(); err != nil {
		return err
	}
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	w := watcher{server: s}
	var wake <-chan struct{}
	if s.cfg.Policy != nil {
		w.subscription = s.cfg.Policy.Subscribe()
		defer w.subscription.Close()
		wake = w.subscription.Wake()
	}
	return w.run(stream.Context(), wake, stream.Send)
}

// watcher is one watch.
type watcher struct {
	server *Server
	// subscription is nil if nothing is decided by a policy.
	subscription *policy.Subscription
}

func (w watcher) run(ctx context.Context, wake <-chan struct{}, send func(*authzv1.WatchPolicyRevisionResponse) error) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for first := true; ; first = false {
		configuration, replaced := w.server.cfg.Configuration()
		message, err := w.next()
		if err != nil {
			return err
		}
		message.Configuration = configuration
		if first {
			message.Changes = nil // the caller starts from the revision
		}
		if err := send(message); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		case <-replaced:
		case <-ticker.C:
		}
	}
}

// next returns what has happened since the last call.
func (w watcher) next() (*authzv1.WatchPolicyRevisionResponse, error) {
	if w.subscription == nil {
		return &authzv1.WatchPolicyRevisionResponse{Revision: &authzv1.PolicyRevision{}, Following: true}, nil
	}
	update, err := w.subscription.Next()
	if err != nil {
		// A new stream begins anew.
		return nil, rpcerr.NotSynced(hop, err.Error())
	}
	message := &authzv1.WatchPolicyRevisionResponse{
		Revision: positionsToProto(update.Revision), Changed: positionsToProto(update.Changed), Following: update.Following,
	}
	for _, change := range update.Changes {
		message.Changes = append(message.Changes, &authzv1.PolicyChange{
			Namespace: change.Namespace, Revision: positionsToProto(change.Revision),
		})
	}
	return message, nil
}
