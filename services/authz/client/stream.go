package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/dial"
)

const (
	// maxQuestions is how many questions travel in one message at most.
	maxQuestions = 128
	// maxOpen is how many questions are open on a stream at most, those included whose
	// callers have gone: the service has no more of them wait at once, and those behind
	// them would wait with them. What is too many is asked by calls, which also go to
	// other replicas.
	maxOpen = 1_000
	// reopenPause is the shortest time between two attempts to open a stream.
	reopenPause = 100 * time.Millisecond
)

// errNoStream says that a question has to be asked another way: there is no
// stream, or it ended before the answer came.
var errNoStream = errors.New("no stream")

// sharedStream asks the questions of many callers on one stream, which costs a
// fraction of a call for each. There is a stream while there is a replica; a
// question that is open when the stream breaks is asked again by a call, which goes
// to another replica.
type sharedStream struct {
	stub authzv1.AuthorizationServiceClient

	mu      sync.Mutex
	current *openStream // nil: none
	opening bool
	opened  time.Time
	closed  bool
	// ctx is the life of the streams.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newSharedStream(stub authzv1.AuthorizationServiceClient) *sharedStream {
	ctx, cancel := context.WithCancel(context.Background())
	return &sharedStream{stub: stub, ctx: ctx, cancel: cancel}
}

// close ends the stream and waits until nothing of it is left.
func (s *sharedStream) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// ask returns errNoStream if the question has to be asked another way.
func (s *sharedStream) ask(ctx context.Context, request *authzv1.AuthorizeRequest) (*authzv1.AuthorizeResponse, error) {
	stream := s.get()
	if stream == nil {
		return nil, errNoStream
	}
	return stream.ask(ctx, request)
}

// get returns the stream that is open. If there is none, one is opened in the
// background, so that no question waits for a connection.
func (s *sharedStream) get() *openStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil || s.closed || s.opening || time.Since(s.opened) < reopenPause {
		return s.current
	}
	s.opening, s.opened = true, time.Now()
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.run()
	}()
	return nil
}

// run opens a stream and serves it until it ends.
func (s *sharedStream) run() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	calls, err := s.stub.AuthorizeStream(ctx)
	stream := newOpenStream()
	s.mu.Lock()
	s.opening = false
	if err == nil {
		s.current = stream
	}
	s.mu.Unlock()
	if err != nil {
		return // Calls say why.
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer cancel() // ends receive
		stream.send(ctx, calls)
	}()
	stream.receive(calls)
	cancel()
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	stream.end()
}

// openStream is one stream with its open questions.
type openStream struct {
	// queue has room for all open questions.
	queue chan *authzv1.StreamQuestion
	// done is closed when the stream has ended.
	done chan struct{}

	mu     sync.Mutex
	lastID uint64
	// open has the questions that are not answered yet.
	open map[uint64]chan<- *authzv1.AuthorizeResult
}

func newOpenStream() *openStream {
	return &openStream{
		queue: make(chan *authzv1.StreamQuestion, maxOpen),
		done:  make(chan struct{}),
		open:  map[uint64]chan<- *authzv1.AuthorizeResult{},
	}
}

func (s *openStream) end() { close(s.done) }

func (s *openStream) ask(ctx context.Context, request *authzv1.AuthorizeRequest) (*authzv1.AuthorizeResponse, error) {
	timeout := authorizeBudget
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	answer := make(chan *authzv1.AuthorizeResult, 1)
	question := &authzv1.StreamQuestion{Request: request, Timeout: durationpb.New(timeout), AuditId: dial.AuditID(ctx)}
	if !s.enter(question, answer) {
		return nil, errNoStream
	}
	select {
	case result := <-answer:
		return resultOf(result)
	case <-s.done:
		return nil, errNoStream
	case <-ctx.Done():
		// It stays open: the service answers it at the end of its time, if not before.
		return nil, ctx.Err()
	}
}

// enter puts a question into the queue, unless too many are open.
func (s *openStream) enter(question *authzv1.StreamQuestion, answer chan<- *authzv1.AuthorizeResult) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxOpen {
		return false
	}
	s.lastID++
	question.Id = s.lastID
	select {
	case s.queue <- question:
		s.open[question.Id] = answer
		return true
	default:
		return false
	}
}

// send puts the questions that have queued up into one message, and the next ones
// into the next.
func (s *openStream) send(ctx context.Context, calls authzv1.AuthorizationService_AuthorizeStreamClient) {
	for {
		message := &authzv1.AuthorizeStreamRequest{}
		select {
		case question := <-s.queue:
			message.Questions = append(message.Questions, question)
		case <-ctx.Done():
			return
		}
		for more := true; more && len(message.Questions) < maxQuestions; {
			select {
			case question := <-s.queue:
				message.Questions = append(message.Questions, question)
			default:
				more = false
			}
		}
		if calls.Send(message) != nil {
			return // receive learns why, which concerns nobody.
		}
	}
}

func (s *openStream) receive(calls authzv1.AuthorizationService_AuthorizeStreamClient) {
	for {
		message, err := calls.Recv()
		if err != nil {
			return
		}
		s.mu.Lock()
		for _, answer := range message.GetAnswers() {
			// One that came twice is dropped: the channel takes one.
			if asked, ok := s.open[answer.GetId()]; ok {
				asked <- answer.GetResult()
				delete(s.open, answer.GetId())
			}
		}
		s.mu.Unlock()
	}
}

// resultOf returns errNoStream for what another replica may be able to decide.
func resultOf(result *authzv1.AuthorizeResult) (*authzv1.AuthorizeResponse, error) {
	if response := result.GetResponse(); response != nil {
		return response, nil
	}
	code := codes.Code(result.GetError().GetCode())
	switch code {
	case codes.OK:
		return nil, status.Error(codes.Internal, "an answer without a decision")
	case codes.Unavailable:
		return nil, errNoStream
	}
	return nil, status.Error(code, result.GetError().GetMessage())
}
