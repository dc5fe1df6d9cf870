package serve

import (
	"context"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/trigate/trigate/services/internal/mtls"
)

// traceParentKey is W3C's header, as gRPC metadata.
const traceParentKey = "traceparent"

// newTracer returns what makes spans of the calls that belong to a trace.
func newTracer(provider trace.TracerProvider) stats.Handler {
	return &tracer{Handler: otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(provider),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	)}
}

// tracer traces the calls of Trigate's own processes that say that they are traced.
// Whether a request is, is the gateway's to decide: people who call the service
// cannot have it make spans.
type tracer struct{ stats.Handler }

// TagRPC implements stats.Handler.
func (t *tracer) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	parents := metadata.ValueFromIncomingContext(ctx, traceParentKey)
	if len(parents) == 0 {
		return ctx
	}
	if identity, _ := mtls.FromContext(ctx); identity.Peer == "" {
		return ctx
	}
	parent := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceParentKey: parents[0]})
	if !trace.SpanContextFromContext(parent).IsSampled() {
		return ctx
	}
	return t.Handler.TagRPC(ctx, info)
}

// HandleRPC implements stats.Handler.
func (t *tracer) HandleRPC(ctx context.Context, event stats.RPCStats) {
	// There is a span where TagRPC has begun one.
	if trace.SpanContextFromContext(ctx).IsValid() {
		t.Handler.HandleRPC(ctx, event)
	}
}
