package dial

import (
	"context"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
)

// Traced reports whether what ctx belongs to is in a trace that is kept.
func Traced(ctx context.Context) bool {
	return trace.SpanContextFromContext(ctx).IsSampled()
}

// newTracer returns what has the calls of traced requests make spans and send on
// their traceparent. Baggage stays here: the service has no use for it. Spans have
// the method, its address and its code, and no message.
func newTracer(provider trace.TracerProvider) stats.Handler {
	return &tracer{Handler: otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(provider),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	)}
}

// tracer leaves alone what belongs to no trace: the streams that stay open, health,
// and all requests but those that are sampled. It costs them next to nothing.
type tracer struct{ stats.Handler }

// TagRPC implements stats.Handler.
func (t *tracer) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if !Traced(ctx) {
		return ctx
	}
	return t.Handler.TagRPC(ctx, info)
}

// HandleRPC implements stats.Handler.
func (t *tracer) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if Traced(ctx) {
		t.Handler.HandleRPC(ctx, event)
	}
}
