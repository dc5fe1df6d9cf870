package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

const (
	// questionTimeout bounds a question that names no smaller limit. It is
	// kube-apiserver's own bound of a request.
	questionTimeout = time.Minute
	// maxWaiting bounds the questions of one stream that wait for something at once. A
	// caller that has more is not read from until one of them has its answer.
	maxWaiting = 1_000
	// maxUnsent is how many answers a caller can leave unread before its questions are
	// not read any more.
	maxUnsent = 4_096
	// maxAnswers and maxAnswerBytes bound one message with answers; the latter is far
	// below what clients accept.
	maxAnswers, maxAnswerBytes = 1_000, 1 << 20
)

// AuthorizeStream decides questions as they come, until the caller sends no more.
func (s *Server) AuthorizeStream(stream grpc.BidiStreamingServer[authzv1.AuthorizeStreamRequest, authzv1.AuthorizeStreamResponse]) error {
	if err := s.ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	d := &dialogue{
		server: s, stream: stream,
		slots: make(chan struct{}, maxWaiting), ready: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	received := make(chan error, 1)
	// It ends when the stream has: this method returns, and Recv fails.
	go func() { received <- d.receive(ctx) }()
	for {
		select {
		case <-d.ready:
			if err := d.flush(); err != nil {
				return err
			}
		case err := <-received:
			if err != nil {
				return err
			}
			return d.flush()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// dialogue is one stream of questions and answers. One goroutine receives questions,
// and answers what can be answered at once; a question that may have to wait has one
// of its own. Another sends what has been answered by then in as few messages as
// possible.
type dialogue struct {
	server *Server
	stream grpc.BidiStreamingServer[authzv1.AuthorizeStreamRequest, authzv1.AuthorizeStreamResponse]
	// slots has an element for each question that waits, and waiting counts them.
	slots   chan struct{}
	waiting sync.WaitGroup
	// ready has an element when there are answers, and room when they were sent.
	ready, room chan struct{}

	// mu guards answers.
	mu      sync.Mutex
	answers []*authzv1.StreamAnswer
}

// receive returns nil when the caller sends no more and all that it has asked is
// answered.
func (d *dialogue) receive(ctx context.Context) error {
	for {
		request, err := d.stream.Recv()
		if errors.Is(err, io.EOF) {
			d.waiting.Wait()
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkCount(len(request.GetQuestions())); err != nil {
			return err
		}
		if !d.hasRoom(ctx) {
			return ctx.Err()
		}
		d.take(ctx, request.GetQuestions())
	}
}

// take answers questions, or has them answered.
func (d *dialogue) take(ctx context.Context, questions []*authzv1.StreamQuestion) {
	answers := make([]*authzv1.StreamAnswer, 0, len(questions))
	for _, question := range questions {
		if d.server.mayWait(question.GetRequest()) {
			d.takeSlow(ctx, question)
			continue
		}
		answers = append(answers, d.answer(ctx, question, 0))
	}
	d.put(answers...)
}

// takeSlow has a question answered that may have to wait.
func (d *dialogue) takeSlow(ctx context.Context, question *authzv1.StreamQuestion) {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	// It ends with ctx at the latest; receive waits for it while the caller does.
	d.waiting.Go(func() {
		defer func() { <-d.slots }()
		ctx, cancel := context.WithTimeout(ctx, timeoutOf(question))
		defer cancel()
		d.put(d.answer(ctx, question, patience))
	})
}

func (d *dialogue) answer(ctx context.Context, question *authzv1.StreamQuestion, patience time.Duration) *authzv1.StreamAnswer {
	return &authzv1.StreamAnswer{Id: question.GetId(), Result: d.server.result(ctx, question, patience)}
}

func timeoutOf(question *authzv1.StreamQuestion) time.Duration {
	if timeout := question.GetTimeout().AsDuration(); timeout != 0 {
		return min(timeout, questionTimeout)
	}
	return questionTimeout
}

// hasRoom waits until the caller has read enough of its answers. It returns false
// if the stream ends before.
func (d *dialogue) hasRoom(ctx context.Context) bool {
	for {
		d.mu.Lock()
		unsent := len(d.answers)
		d.mu.Unlock()
		if unsent < maxUnsent {
			return true
		}
		select {
		case <-d.room:
		case <-ctx.Done():
			return false
		}
	}
}

func (d *dialogue) put(answers ...*authzv1.StreamAnswer) {
	if len(answers) == 0 {
		return
	}
	d.mu.Lock()
	d.answers = append(d.answers, answers...)
	d.mu.Unlock()
	signal(d.ready)
}

// flush sends what has been answered.
func (d *dialogue) flush() error {
	d.mu.Lock()
	answers := d.answers
	d.answers = nil
	d.mu.Unlock()
	signal(d.room)
	for len(answers) > 0 {
		n := messageOf(answers)
		if err := d.stream.Send(&authzv1.AuthorizeStreamResponse{Answers: answers[:n]}); err != nil {
			return err
		}
		answers = answers[n:]
	}
	return nil
}

// messageOf returns how many answers fit into one message.
func messageOf(answers []*authzv1.StreamAnswer) int {
	bytes := 0
	for n, answer := range answers {
		// The texts are all that may be long; each authorizer repeats its part of them.
		response := answer.GetResult().GetResponse()
		bytes += 2*(len(response.GetReason())+len(response.GetError())) + len(answer.GetResult().GetError().GetMessage())
		if n == maxAnswers || n > 0 && bytes > maxAnswerBytes {
			return n
		}
	}
	return len(answers)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is known already
	}
}
