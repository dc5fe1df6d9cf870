package client

import (
	"context"
	"errors"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

// stalled is a service whose streams answer nothing, as one does whose webhook hangs.
type stalled struct {
	authzv1.UnimplementedAuthorizationServiceServer
	received chan int
}

func (s *stalled) AuthorizeStream(stream grpc.BidiStreamingServer[authzv1.AuthorizeStreamRequest, authzv1.AuthorizeStreamResponse]) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		s.received <- len(message.GetQuestions())
	}
}

func (s *stalled) Authorize(context.Context, *authzv1.AuthorizeRequest) (*authzv1.AuthorizeResponse, error) {
	return &authzv1.AuthorizeResponse{Decision: authzv1.Decision_DECISION_ALLOW, Reason: "by a call"}, nil
}

// TestGivenUpQuestions fills the stream with questions whose callers have gone: the
// next one does not wait behind them.
func TestGivenUpQuestions(t *testing.T) {
	service := &stalled{received: make(chan int, 2*maxOpen)}
	running := servetest.Start(t, servetest.NewPKI(t), serve.Config{Name: "authz", Policy: serve.Policy{
		authzv1.AuthorizationService_Authorize_FullMethodName:       serve.Peers(),
		authzv1.AuthorizationService_AuthorizeStream_FullMethodName: serve.Peers(),
		// The others are not called.
		authzv1.AuthorizationService_BatchAuthorize_FullMethodName:      serve.Peers(),
		authzv1.AuthorizationService_WatchPolicyRevision_FullMethodName: serve.Peers(),
		authzv1.AuthorizationService_Explain_FullMethodName:             serve.Peers(),
		authzv1.AuthorizationService_WhoCan_FullMethodName:              serve.Peers(),
		authzv1.AuthorizationService_ListRules_FullMethodName:           serve.Peers(),
	}}, func(s *serve.Server) {
		authzv1.RegisterAuthorizationServiceServer(s, service)
		s.Health().Set("test", true, "")
	})
	c := New(running.DialReady(t, "gateway"))
	c.shared = newSharedStream(c.stub)
	defer c.shared.close()
	question := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Path: "/metrics"}
	servetest.Eventually(t, func() error {
		if c.shared.get() == nil {
			return errors.New("there is no stream")
		}
		return nil
	})

	ctx, giveUp := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range maxOpen {
		callers.Go(func() {
			if _, _, err := c.Authorize(ctx, question); !IsCouldNotDecide(err) {
				t.Errorf("Authorize() = %v from who gave up, want that nothing could be decided", err)
			}
		})
	}
	for received := 0; received < maxOpen; {
		received += <-service.received
	}
	giveUp()
	callers.Wait()
	if _, reason, err := c.Authorize(t.Context(), question); reason != "by a call" || err != nil {
		t.Errorf("Authorize() = %q, %v, want an answer by a call", reason, err)
	}
}
