package server

import (
	"context"
	"time"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// heartbeat is how often a subscriber hears something at least.
const heartbeat = time.Second

// WatchRevocations tells of revocations until the caller goes away.
func (s *Server) WatchRevocations(_ *authnv1.WatchRevocationsRequest, stream authnv1.AuthenticationService_WatchRevocationsServer) error {
	if s.cfg.Revocations == nil {
		return rpcerr.FailedPrecondition("revocations are not watched")
	}
	subscription := s.cfg.Revocations.Subscribe()
	defer subscription.Close()
	// What has been revoked of late comes in the message after the first.
	first := convert.Revocations{Configuration: s.cfg.Revocations.Configuration(), Following: s.cfg.Revocations.Following()}
	if err := stream.Send(convert.ToRevocations(first)); err != nil {
		return err
	}
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-subscription.Changed():
		case <-ticker.C:
		}
		news, err := subscription.Take()
		if err != nil {
			return rpcerr.ResourceExhausted("%v", err)
		}
		if err := stream.Send(convert.ToRevocations(news)); err != nil {
			return err
		}
	}
}
