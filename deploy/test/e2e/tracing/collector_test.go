package tracing

import (
	"context"
	"encoding/hex"
	"net"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// span is one span that a process has sent.
type span struct {
	process string
	name    string
	kind    tracev1.Span_SpanKind
	// trace, id and parent are as in a traceparent.
	trace, id, parent string
	// text is the whole span as the process has sent it.
	text string
}

// collector takes spans by OTLP over gRPC. It is safe for concurrent use.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans []span
}

// startCollector serves until the end of the test.
func startCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: listener.Addr().String()}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }() // the cleanup waits for it
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("the collector: %v", err)
		}
	})
	return c
}

// Export implements the collector's service.
func (c *collector) Export(_ context.Context, request *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		process := attribute(resource.GetResource().GetAttributes(), "service.name")
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, span{
					process: process, name: s.GetName(), kind: s.GetKind(), text: s.String(),
					trace:  hex.EncodeToString(s.GetTraceId()),
					id:     hex.EncodeToString(s.GetSpanId()),
					parent: hex.EncodeToString(s.GetParentSpanId()),
				})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// all returns what was sent so far.
func (c *collector) all() []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]span(nil), c.spans...)
}

// inTrace returns the spans of one trace by their id.
func (c *collector) inTrace(trace string) map[string]span {
	spans := map[string]span{}
	for _, s := range c.all() {
		if s.trace == trace {
			spans[s.id] = s
		}
	}
	return spans
}

func attribute(attributes []*commonv1.KeyValue, key string) string {
	for _, a := range attributes {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}
