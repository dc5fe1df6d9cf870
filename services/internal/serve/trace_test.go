package serve_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

var errNoSpan = errors.New("the service has no span yet")

// newProvider returns a provider that keeps the spans of every trace, and where.
func newProvider(t *testing.T) (*sdktrace.TracerProvider, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
	})
	return provider, spans
}

func TestCallsJoinTheTraceOfTheirRequest(t *testing.T) {
	serverProvider, serverSpans := newProvider(t)
	clientProvider, clientSpans := newProvider(t)
	cfg := config()
	cfg.TracerProvider = serverProvider
	r := servetest.Start(t, servetest.NewPKI(t), cfg, func(s *serve.Server) { (&servetest.Echo{}).Register(s) })
	tracing := func(c *dial.Config) { c.TracerProvider = clientProvider }
	gateway := r.Dial(t, r.PKI.Process(t, "gateway"), tracing)
	person := r.Dial(t, r.PKI.User(t, "ann", "system:masters"), nil)
	r.Server.Health().Set("echo", true, "")
	for _, conn := range []*dial.Conn{gateway, person} {
		if err := conn.WaitReady(t.Context()); err != nil {
			t.Fatalf("WaitReady() = %v", err)
		}
	}
	const traceID, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	header := func(flags string) string { return "00-" + traceID + "-" + parent + "-" + flags }
	request := func(ctx context.Context, flags string) context.Context {
		return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": header(flags)})
	}
	say := func(ctx context.Context, conn *dial.Conn) (client, server tracetest.SpanStubs) {
		t.Helper()
		clientSpans.Reset()
		serverSpans.Reset()
		if _, err := servetest.Say(ctx, conn, "a secret word"); err != nil {
			t.Fatalf("Say() = %v", err)
		}
		return clientSpans.GetSpans(), serverSpans.GetSpans()
	}

	// The server's span may end after its answer has come.
	client, _ := say(request(t.Context(), "01"), gateway)
	if len(client) != 1 || client[0].SpanContext.TraceID().String() != traceID || client[0].Parent.SpanID().String() != parent {
		t.Fatalf("the gateway's spans = %+v, want one below the request's", client)
	}
	servetest.Eventually(t, func() error {
		if len(serverSpans.GetSpans()) == 0 {
			return errNoSpan
		}
		return nil
	})
	server := serverSpans.GetSpans()
	if len(server) != 1 || server[0].Parent.SpanID() != client[0].SpanContext.SpanID() || server[0].SpanContext.TraceID().String() != traceID {
		t.Errorf("the service's spans = %+v, want one below the gateway's", server)
	}
	for _, span := range slices.Concat(client, server) {
		for _, attribute := range span.Attributes {
			if attribute.Value.String() == "a secret word" {
				t.Errorf("span %s has the message in %s", span.Name, attribute.Key)
			}
		}
	}

	for name, tc := range map[string]struct {
		ctx  context.Context
		conn *dial.Conn
	}{
		"no trace":                       {t.Context(), gateway},
		"a trace that is not kept":       {request(t.Context(), "00"), gateway},
		"a person who wants a trace":     {metadata.AppendToOutgoingContext(t.Context(), "traceparent", header("01")), person},
		"a process, not kept, said so":   {metadata.AppendToOutgoingContext(t.Context(), "traceparent", header("00")), gateway},
		"a process with a bad header":    {metadata.AppendToOutgoingContext(t.Context(), "traceparent", "01"), gateway},
		"a span context without a trace": {trace.ContextWithSpanContext(t.Context(), trace.SpanContext{}), gateway},
	} {
		client, server := say(tc.ctx, tc.conn)
		// A second call that is traced comes after whatever the first has left.
		if _, err := servetest.Say(request(t.Context(), "01"), gateway, "x"); err != nil {
			t.Fatalf("Say() = %v", err)
		}
		if len(client) != 0 {
			t.Errorf("%s: the caller's spans = %+v, want none", name, client)
		}
		for _, span := range slices.Concat(server, serverSpans.GetSpans()) {
			if span.Parent.SpanID().String() == parent || !span.Parent.IsValid() {
				t.Errorf("%s: the service has a span %+v, want none", name, span)
			}
		}
	}
}
