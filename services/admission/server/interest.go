package server

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/interest"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// interestInterval is how often a watch hears at least that it goes on. Clients give up
// after four of them.
const interestInterval = 500 * time.Millisecond

// WatchInterest tells what plugins could act on until the caller goes.
func (s *Server) WatchInterest(_ *admissionv1.WatchInterestRequest, stream grpc.ServerStreamingServer[admissionv1.WatchInterestResponse]) error {
	if s.cfg.Interest == nil {
		return status.Error(codes.Unimplemented, "interest is not known here")
	}
	if !s.cfg.Synced() {
		return rpcerr.NotSynced(Name, "its informers have not read everything yet")
	}
	wake, end := s.cfg.Interest.Subscribe()
	defer end()
	ticker := time.NewTicker(interestInterval)
	defer ticker.Stop()
	for told := uint64(0); ; {
		update := s.cfg.Interest.Current()
		message := &admissionv1.WatchInterestResponse{
			Position: positionsToProto(update.Position), Changed: positionsToProto(update.Changed), Following: update.Following,
		}
		if update.Version != told {
			message.Interest, told = update.Interest, update.Version
		}
		if err := stream.Send(message); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-wake:
		case <-ticker.C:
		}
	}
}

func positionsToProto(p interest.Positions) *admissionv1.InterestPositions {
	return &admissionv1.InterestPositions{
		MutatingWebhookConfigurations:   p[interest.MutatingWebhooks],
		ValidatingWebhookConfigurations: p[interest.ValidatingWebhooks],
		MutatingAdmissionPolicies:       p[interest.MutatingPolicies],
		ValidatingAdmissionPolicies:     p[interest.ValidatingPolicies],
		ResourceQuotas:                  p[interest.Quotas],
	}
}
