package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/audit"

	"github.com/trigate/trigate/services/internal/interceptor"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Reserve is the least that a caller keeps of its deadline, so that it can still
// answer when the called service runs out of time.
const Reserve = interceptor.Reserve

const (
	// reserveShare is which part of the time left a caller keeps, and maxReserve the
	// most. An API server cuts a request off that is still being answered at its
	// deadline, and then the client has no answer at all; on a busy machine Reserve
	// alone would often not do.
	reserveShare = 10
	maxReserve   = time.Second
)

// ReserveOf returns what a caller keeps of the time left until its deadline.
func ReserveOf(left time.Duration) time.Duration {
	return max(Reserve, min(left/reserveShare, maxReserve))
}

// DefaultBudget is the longest deadline of a unary method without a budget.
const DefaultBudget = interceptor.DefaultBudget

// durationBuckets reach from a cached decision to a slow admission webhook.
var durationBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// layers are what every call passes: its time is taken, it gets its deadline
// and the request's audit ID, and its error becomes an *rpcerr.Error.
type layers struct {
	hop     string
	budgets map[string]time.Duration
	seconds *prometheus.HistogramVec
}

func newLayers(cfg Config) (*layers, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "trigate_grpc_client_handling_seconds",
		Help:    "Time from the start of a call to its answer, with its retries, by method and gRPC status code; of a stream, to its end.",
		Buckets: durationBuckets,
	}, []string{"method", "code"})
	if err := cfg.Registerer.Register(seconds); err != nil {
		// The process' other connections count in the same metric.
		var already prometheus.AlreadyRegisteredError
		if !errors.As(err, &already) {
			return nil, fmt.Errorf("registering gRPC client metrics: %w", err)
		}
		existing, ok := already.ExistingCollector.(*prometheus.HistogramVec)
		if !ok {
			return nil, fmt.Errorf("registering gRPC client metrics: %w", err)
		}
		seconds = existing
	}
	return &layers{hop: cfg.Name, budgets: cfg.Budgets, seconds: seconds}, nil
}

func (l *layers) unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	start := time.Now()
	err := func() error {
		budget, ok := l.budgets[method]
		if !ok {
			budget = DefaultBudget
		}
		ctx, cancel := WithReserve(ctx, budget)
		defer cancel()
		if err := l.expired(ctx); err != nil {
			return err
		}
		return rpcerr.FromStatus(invoker(withAuditID(ctx), method, request, reply, cc, opts...), l.hop)
	}()
	l.observe(method, start, err)
	return err
}

// WithReserve gives a call the smaller of the caller's deadline less the reserve, and
// its budget.
func WithReserve(ctx context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	deadline := time.Now().Add(budget)
	if callers, ok := ctx.Deadline(); ok {
		if callers = callers.Add(-ReserveOf(time.Until(callers))); callers.Before(deadline) {
			deadline = callers
		}
	}
	return context.WithDeadline(ctx, deadline)
}

// expired refuses a call that there is no time for.
func (l *layers) expired(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= 0 && !errors.Is(ctx.Err(), context.Canceled) {
		return rpcerr.DeadlineExceeded(l.hop, nil)
	}
	return nil
}

func (l *layers) observe(method string, start time.Time, err error) {
	l.seconds.WithLabelValues(method, status.Code(err).String()).Observe(time.Since(start).Seconds())
}

func (l *layers) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	start := time.Now()
	cancel := context.CancelFunc(func() {})
	if budget, ok := l.budgets[method]; ok {
		ctx, cancel = WithReserve(ctx, budget)
		if err := l.expired(ctx); err != nil {
			cancel()
			l.observe(method, start, err)
			return nil, err
		}
	}
	cs, err := streamer(withAuditID(ctx), desc, cc, method, opts...)
	if err != nil {
		cancel()
		err = rpcerr.FromStatus(err, l.hop)
		l.observe(method, start, err)
		return nil, err
	}
	s := &clientStream{ClientStream: cs, hop: l.hop}
	s.end = func(err error) {
		cancel()
		l.observe(method, start, err)
	}
	return s, nil
}

// clientStream turns the stream's errors into *rpcerr.Error, and sees its end.
type clientStream struct {
	grpc.ClientStream
	hop  string
	once sync.Once
	end  func(error)
}

// RecvMsg receives a message, or returns io.EOF at the end of the stream.
func (s *clientStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		s.once.Do(func() { s.end(nil) })
		return err
	}
	err = rpcerr.FromStatus(err, s.hop)
	s.once.Do(func() { s.end(err) })
	return err
}

// SendMsg sends a message. It returns io.EOF if the stream has ended; RecvMsg
// then says why.
func (s *clientStream) SendMsg(message any) error {
	err := s.ClientStream.SendMsg(message)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return rpcerr.FromStatus(err, s.hop)
}

// withAuditID sends the audit ID of the Kubernetes request along, for the logs
// of the services.
func withAuditID(ctx context.Context) context.Context {
	id := AuditID(ctx)
	if id == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, interceptor.AuditIDKey, id)
}

// AuditID returns the audit ID of the Kubernetes request whose context it is as it
// travels to a service, or "". Calls have it by themselves; a question on a stream of
// many has to say it.
func AuditID(ctx context.Context) string {
	id, _ := audit.AuditIDFrom(ctx)
	return interceptor.CleanAuditID(string(id))
}
