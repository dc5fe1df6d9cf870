package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

type authorizeStream = grpc.BidiStreamingClient[authzv1.AuthorizeStreamRequest, authzv1.AuthorizeStreamResponse]

func openStream(t testing.TB, authz authzv1.AuthorizationServiceClient) authorizeStream {
	t.Helper()
	stream, err := authz.AuthorizeStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// send asks questions about users, whose ids count from first.
func send(t testing.TB, stream authorizeStream, first uint64, timeout time.Duration, users ...string) {
	t.Helper()
	message := &authzv1.AuthorizeStreamRequest{}
	for i, name := range users {
		question := &authzv1.StreamQuestion{Id: first + uint64(i), Request: &authzv1.AuthorizeRequest{
			Attributes: &authzv1.Attributes{User: &authnv1.UserInfo{Name: name}, Verb: "get", Path: "/metrics"},
		}}
		if timeout > 0 {
			question.Timeout = durationpb.New(timeout)
		}
		message.Questions = append(message.Questions, question)
	}
	if err := stream.Send(message); err != nil {
		t.Fatalf("Send() = %v", err)
	}
}

// next returns the next message's answers, by id, in a line each.
func next(t testing.TB, stream authorizeStream) map[uint64]string {
	t.Helper()
	response, err := stream.Recv()
	if err != nil {
		t.Fatalf("Recv() = %v", err)
	}
	answers := map[uint64]string{}
	for _, answer := range response.GetAnswers() {
		result := answer.GetResult()
		if e := result.GetError(); e != nil {
			answers[answer.GetId()] = fmt.Sprint(codes.Code(e.GetCode()), ": ", e.GetMessage())
		} else {
			answers[answer.GetId()] = result.GetResponse().GetReason()
		}
	}
	return answers
}

// byName allows with the user's name as the reason. User slow waits until release is
// closed, and user bad is too much for it.
func byName(release <-chan struct{}) authorizer.AuthorizerFunc {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		switch name := a.GetUser().GetName(); name {
		case "slow":
			select {
			case <-release:
			case <-ctx.Done():
				return authorizer.DecisionNoOpinion, "", ctx.Err()
			}
		case "bad":
			panic("a user called bad")
		}
		return authorizer.DecisionAllow, a.GetUser().GetName(), nil
	}
}

// TestStreamCoalesces asks many questions at once: their answers come in fewer
// messages, and the end of the questions is the end of the stream.
func TestStreamCoalesces(t *testing.T) {
	for name, mayWait := range map[string]bool{"at once": false, "may wait": true} {
		t.Run(name, func(t *testing.T) {
			stream := openStream(t, stub(t, Config{Authorizer: byName(nil), MayWait: func() bool { return mayWait }}))
			users := make([]string, maxQuestions)
			for i := range users {
				users[i] = fmt.Sprint("user", i)
			}
			const rounds = 10
			for round := range uint64(rounds) {
				send(t, stream, round*maxQuestions, 0, users...)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			answers, messages := map[uint64]string{}, 0
			for len(answers) < rounds*maxQuestions {
				messages++
				for id, reason := range next(t, stream) {
					if _, twice := answers[id]; twice || reason != users[id%maxQuestions] {
						t.Fatalf("answer %d = %q, answered before: %v", id, reason, twice)
					}
					answers[id] = reason
				}
			}
			if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("Recv() = %v, want EOF", err)
			}
			t.Logf("%d answers in %d messages", len(answers), messages)
			if messages > len(answers)/2 {
				t.Errorf("%d answers came in %d messages", len(answers), messages)
			}
		})
	}
}

// TestStreamSlowQuestion has a question that waits: others are answered meanwhile,
// in time or not.
func TestStreamSlowQuestion(t *testing.T) {
	release := make(chan struct{})
	stream := openStream(t, stub(t, Config{Authorizer: byName(release)}))
	expect := func(id uint64, want string) {
		t.Helper()
		if got := next(t, stream); len(got) != 1 || got[id] != want {
			t.Errorf("answers = %v, want %d: %q", got, id, want)
		}
	}
	send(t, stream, 1, 0, "slow")
	send(t, stream, 2, 0, "jane")
	expect(2, "jane")
	send(t, stream, 3, 10*time.Millisecond, "slow")
	expect(3, "DeadlineExceeded: not enough time left at authz")
	send(t, stream, 4, 0, "bad")
	if got := next(t, stream)[4]; len(got) < len("Internal: internal error, request ") || got[:8] != "Internal" {
		t.Errorf("answer = %q, want an internal error", got)
	}
	close(release)
	expect(1, "slow")
}

// TestStreamMessages sends messages that are too large or empty.
func TestStreamMessages(t *testing.T) {
	authz := stub(t, Config{Authorizer: byName(nil)})
	stream := openStream(t, authz)
	if err := stream.Send(&authzv1.AuthorizeStreamRequest{}); err != nil {
		t.Fatal(err)
	}
	send(t, stream, 0, 0, make([]string, maxQuestions+1)...)
	_, err := stream.Recv()
	_, batchErr := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{Questions: make([]*authzv1.AuthorizeRequest, maxQuestions+1)})
	for _, err := range []error{err, batchErr} {
		if e, ok := rpcerr.As(rpcerr.FromStatus(err, hop)); !ok || e.Code() != codes.InvalidArgument || e.Field != "questions" {
			t.Errorf("err = %v, want invalid questions", err)
		}
	}
	empty, err := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{})
	if err != nil || len(empty.GetResults()) != 0 {
		t.Errorf("BatchAuthorize() = %v, %v without questions, want no results", empty, err)
	}
}

// TestBatchInParallel has questions that wait for each other.
func TestBatchInParallel(t *testing.T) {
	release := make(chan struct{})
	releasing := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "releaser" {
			close(release)
		}
		return byName(release)(ctx, a)
	})
	about := func(name string) *authzv1.AuthorizeRequest {
		return &authzv1.AuthorizeRequest{Attributes: &authzv1.Attributes{User: &authnv1.UserInfo{Name: name}, Verb: "get", Path: "/"}}
	}
	response, err := stub(t, Config{Authorizer: releasing}).BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{
		Questions: []*authzv1.AuthorizeRequest{about("slow"), about("bad"), about("releaser")},
	})
	if err != nil {
		t.Fatal(err)
	}
	results := response.GetResults()
	if results[0].GetResponse().GetReason() != "slow" || results[1].GetError().GetCode() != int32(codes.Internal) || results[2].GetResponse().GetReason() != "releaser" {
		t.Errorf("BatchAuthorize() = %v", results)
	}
}

// TestStreamFreshness has questions that wait for the policy, and others that do
// not.
func TestStreamFreshness(t *testing.T) {
	api := apitest.New(t, binding("ns", "one")...)
	stream := openStream(t, stub(t, withRBAC(t, api)))
	ask := func(id uint64, request *authzv1.AuthorizeRequest) {
		t.Helper()
		if err := stream.Send(&authzv1.AuthorizeStreamRequest{Questions: []*authzv1.StreamQuestion{{Id: id, Request: request}}}); err != nil {
			t.Fatal(err)
		}
	}
	ask(1, getPods("other", 3))
	ask(2, getPods("ns", 2))
	if got := next(t, stream); got[2] == "" {
		t.Errorf("answers = %v, want the one that need not wait", got)
	}
	api.Apply(t, binding("other", "one")...)
	if got := next(t, stream); len(got) != 1 {
		t.Errorf("answers = %v, want the one that waited", got)
	}
	ask(3, getPods("ns", 100))
	want := "Unavailable: authz is not synced: it has not read the policy as far as the question asks for"
	if got := next(t, stream)[3]; got != want {
		t.Errorf("answer = %q, want %q", got, want)
	}
}

// TestDrain stops the server while streams are open, with a question that waits: it
// does not wait for their callers.
func TestDrain(t *testing.T) {
	handlers := newServer(t, Config{Authorizer: byName(nil)})
	running := servetest.Start(t, servetest.NewPKI(t), serve.Config{Name: "authz", Policy: Policy(), ShutdownTimeout: time.Hour},
		func(s *serve.Server) {
			authzv1.RegisterAuthorizationServiceServer(s, handlers)
			s.Health().Set("test", true, "")
		})
	authz := authzv1.NewAuthorizationServiceClient(running.DialReady(t, "gateway"))
	watching, _ := watch(t, authz)
	stream := openStream(t, authz)
	send(t, stream, 1, 0, "jane", "slow")
	next(t, stream)
	running.BeginStop()
	_, streamErr := stream.Recv()
	var watchErr error
	for watchErr == nil {
		_, watchErr = watching.Recv()
	}
	for _, err := range []error{streamErr, watchErr} {
		if e, ok := rpcerr.As(rpcerr.FromStatus(err, hop)); !ok || e.Reason != rpcerr.ReasonDraining || status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want draining", err)
		}
	}
	if err := running.Stop(); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
}
