package interceptor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/trigate/trigate/services/internal/interceptor"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

const method = "/trigate.test.v1.EchoService/Say"

// modes are the two forms of a layer. Each runs a handler with one message.
var modes = map[string]func(context.Context, interceptor.Interceptor, func(context.Context) error) error{
	"unary": func(ctx context.Context, layer interceptor.Interceptor, handler func(context.Context) error) error {
		response, err := layer.Unary(ctx, "message", &grpc.UnaryServerInfo{FullMethod: method},
			func(ctx context.Context, _ any) (any, error) { return "response", handler(ctx) })
		if err != nil && response != nil {
			return errors.New("a response came with an error")
		}
		return err
	},
	"stream": func(ctx context.Context, layer interceptor.Interceptor, handler func(context.Context) error) error {
		return layer.Stream(nil, &serverStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method},
			func(_ any, stream grpc.ServerStream) error {
				var message string
				if err := stream.RecvMsg(&message); err != nil {
					return err
				}
				return handler(stream.Context())
			})
	},
}

// serverStream is a stream over which one message comes.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(message any) error {
	*message.(*string) = "message"
	return nil
}

// inEachMode runs a subtest for each form of a layer.
func inEachMode(t *testing.T, test func(t *testing.T, run func(context.Context, interceptor.Interceptor, func(context.Context) error) error)) {
	t.Helper()
	for name, run := range modes {
		t.Run(name, func(t *testing.T) { test(t, run) })
	}
}

type runFunc = func(context.Context, interceptor.Interceptor, func(context.Context) error) error

func TestServerOptionsRefusesHalfALayer(t *testing.T) {
	whole := interceptor.Recover()
	for name, tc := range map[string]struct {
		layers []interceptor.Interceptor
		want   string
	}{
		"both forms": {layers: []interceptor.Interceptor{whole, interceptor.Log()}},
		"no unary":   {[]interceptor.Interceptor{{Name: "half", Stream: whole.Stream}}, "half has no unary form"},
		"no stream":  {[]interceptor.Interceptor{{Name: "half", Unary: whole.Unary}}, "half has no stream form"},
		"twice":      {[]interceptor.Interceptor{whole, whole}, "recover is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := interceptor.ServerOptions(tc.layers...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ServerOptions() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	inEachMode(t, func(t *testing.T, run runFunc) {
		registry := prometheus.NewPedanticRegistry()
		layer, err := interceptor.Metrics(registry)
		if err != nil {
			t.Fatalf("Metrics() = %v, want nil", err)
		}
		again, err := interceptor.Metrics(registry)
		if err != nil {
			t.Fatalf("Metrics() for a second server = %v, want nil", err)
		}
		if err := run(t.Context(), layer, func(context.Context) error { return nil }); err != nil {
			t.Errorf("call = %v, want nil", err)
		}
		denied := rpcerr.PermissionDenied("no")
		if err := run(t.Context(), again, func(context.Context) error { return denied }); !errors.Is(err, denied) {
			t.Errorf("call = %v, want %v", err, denied)
		}
		want := `
			# HELP trigate_grpc_server_handled_total Calls that were answered, by method and gRPC status code.
			# TYPE trigate_grpc_server_handled_total counter
			trigate_grpc_server_handled_total{code="OK",method="` + method + `"} 1
			trigate_grpc_server_handled_total{code="PermissionDenied",method="` + method + `"} 1
		`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "trigate_grpc_server_handled_total"); err != nil {
			t.Error(err)
		}
		if got := testutil.CollectAndCount(registry, "trigate_grpc_server_handling_seconds"); got != 1 {
			t.Errorf("handling_seconds has %d series, want 1", got)
		}
	})
}

// logOf returns a context with a logger of all levels, and what it has logged.
func logOf(t *testing.T) (context.Context, func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(10)))
	underlier, ok := logger.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the logger has no buffer")
	}
	return klog.NewContext(t.Context(), logger), func() string { return underlier.GetBuffer().String() }
}

func TestLog(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		wantCode codes.Code
		wantLog  []string
	}{
		"success":        {nil, codes.OK, []string{"INFO Handled gRPC call", `code="OK"`}},
		"caller's fault": {rpcerr.InvalidArgument("f", "bad"), codes.InvalidArgument, []string{"INFO Refused gRPC call", `reason="f: bad"`}},
		"our fault":      {errors.New("driver"), codes.Internal, []string{"ERROR Could not answer gRPC call", `err="driver"`}},
		"a panic": {
			rpcerr.Internal(&interceptor.PanicError{Value: "oops", Stack: []byte("goroutine 1")}), codes.Internal,
			[]string{"ERROR Could not answer gRPC call", "panic: oops", "stack", "goroutine 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, run runFunc) {
				ctx, logged := logOf(t)
				ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(interceptor.AuditIDKey, "audit-1\n"))
				err := run(ctx, interceptor.Log(), func(ctx context.Context) error {
					if got := interceptor.AuditIDFrom(ctx); got != "audit-1" {
						t.Errorf("AuditIDFrom() = %q, want audit-1", got)
					}
					if got, _ := audit.AuditIDFrom(ctx); got != "audit-1" {
						t.Errorf("audit.AuditIDFrom() = %q, want audit-1", got)
					}
					klog.FromContext(ctx).Info("In the handler")
					return tc.err
				})
				if status.Code(err) != tc.wantCode {
					t.Errorf("code = %v, want %v", status.Code(err), tc.wantCode)
				}
				lines := strings.SplitN(strings.TrimSpace(logged()), "\n", 2)
				if len(lines) != 2 || !strings.Contains(lines[0], "In the handler") || !strings.Contains(lines[0], `auditID="audit-1"`) {
					t.Fatalf("log = %q, want the handler's line with the audit ID, and one more", lines)
				}
				for _, want := range append(tc.wantLog, `auditID="audit-1"`, `method="`+method+`"`) {
					if !strings.Contains(lines[1], want) {
						t.Errorf("log line %q has no %q", lines[1], want)
					}
				}
				if strings.Contains(logged(), "message") || strings.Contains(logged(), "response") {
					t.Errorf("log %q has contents of the call", logged())
				}
			})
		})
	}
}

func TestLogMasksAndNamesTheRequest(t *testing.T) {
	ctx, logged := logOf(t)
	err := modes["unary"](ctx, interceptor.Log(), func(context.Context) error { return errors.New("driver") })
	e, ok := rpcerr.As(rpcerr.FromStatus(err, ""))
	if !ok || e.RequestID == "" || strings.Contains(err.Error(), "driver") {
		t.Fatalf("err = %v, want a masked one with a request id", err)
	}
	if !strings.Contains(logged(), e.RequestID) {
		t.Errorf("log %q has no %s", logged(), e.RequestID)
	}
}

func TestCleanAuditID(t *testing.T) {
	for id, want := range map[string]string{
		"":                       "",
		" \n\x00é":               "",
		"a b\r\nc":               "abc",
		strings.Repeat("x", 100): strings.Repeat("x", 64),
	} {
		if got := interceptor.CleanAuditID(id); got != want {
			t.Errorf("CleanAuditID(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestRecover(t *testing.T) {
	inEachMode(t, func(t *testing.T, run runFunc) {
		err := run(t.Context(), interceptor.Recover(), func(context.Context) error { panic("oops") })
		if status.Code(err) != codes.Internal {
			t.Errorf("code = %v, want Internal", status.Code(err))
		}
		var p *interceptor.PanicError
		if !errors.As(err, &p) || p.Value != "oops" || !strings.Contains(string(p.Stack), "TestRecover") {
			t.Errorf("err = %#v, want the panic with its stack", err)
		}
	})
}

func TestDeadline(t *testing.T) {
	const budget = 5 * time.Second
	layer := interceptor.Deadline("authz", map[string]time.Duration{method: budget})
	for name, tc := range map[string]struct {
		// left is what the caller gives; 0 is no deadline.
		left time.Duration
		// want is what the handler has; 0 is that it must not be called.
		want time.Duration
	}{
		"no deadline: the budget":        {0, budget},
		"the caller's, less the reserve": {time.Second, time.Second - interceptor.Reserve},
		"longer than the budget":         {time.Minute, time.Minute - interceptor.Reserve},
		"nothing but the reserve left":   {interceptor.Reserve, 0},
		"too late":                       {-time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inEachModeInBubble(t, func(t *testing.T, run runFunc) {
				ctx := t.Context()
				if tc.left != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.left)
					defer cancel()
				}
				start := time.Now()
				err := run(ctx, layer, func(ctx context.Context) error {
					if tc.want == 0 {
						t.Error("the handler was called")
					}
					<-ctx.Done()
					if got := time.Since(start); got != tc.want {
						t.Errorf("the handler had %s, want %s", got, tc.want)
					}
					return ctx.Err()
				})
				e, ok := rpcerr.As(err)
				if !ok || e.Reason != rpcerr.ReasonDeadlineExceeded || e.Hop != "authz" {
					t.Errorf("err = %v, want a deadline exceeded at authz", err)
				}
				if tc.want == 0 && time.Since(start) != 0 {
					t.Errorf("refused after %s, want at once", time.Since(start))
				}
			})
		})
	}
}

// inEachModeInBubble is inEachMode with a clock that only moves when all wait.
func inEachModeInBubble(t *testing.T, test func(t *testing.T, run runFunc)) {
	t.Helper()
	inEachMode(t, func(t *testing.T, run runFunc) {
		synctest.Test(t, func(t *testing.T) { test(t, run) })
	})
}

func TestDeadlineWithoutABudget(t *testing.T) {
	for name, want := range map[string]bool{"unary": true, "stream": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := modes[name](t.Context(), interceptor.Deadline("authz", nil), func(ctx context.Context) error {
					if deadline, ok := ctx.Deadline(); ok != want || ok && time.Until(deadline) != interceptor.DefaultBudget {
						t.Errorf("Deadline() = %v, %v, want one of %s: %v", deadline, ok, interceptor.DefaultBudget, want)
					}
					return nil
				})
				if err != nil {
					t.Errorf("call = %v, want nil", err)
				}
			})
		})
	}
}

func TestDeadlineKeepsTheHopBehind(t *testing.T) {
	inEachMode(t, func(t *testing.T, run runFunc) {
		err := run(t.Context(), interceptor.Deadline("authz", nil), func(context.Context) error {
			return rpcerr.DeadlineExceeded("authn", context.DeadlineExceeded)
		})
		if e, ok := rpcerr.As(err); !ok || e.Hop != "authn" {
			t.Errorf("err = %v, want a deadline exceeded at authn", err)
		}
	})
}

func TestDrainEndsStreamsOnly(t *testing.T) {
	draining, drain := context.WithCancel(t.Context())
	defer drain()
	layer := interceptor.Drain("authz", draining)
	err := modes["stream"](t.Context(), layer, func(ctx context.Context) error {
		drain()
		<-ctx.Done()
		return ctx.Err()
	})
	if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonDraining || e.Hop != "authz" {
		t.Errorf("stream = %v, want that authz is draining", err)
	}
	if err := modes["stream"](t.Context(), layer, func(context.Context) error { return nil }); err != nil {
		t.Errorf("a stream that ends well = %v, want nil", err)
	}
	if err := modes["unary"](t.Context(), layer, func(ctx context.Context) error { return ctx.Err() }); err != nil {
		t.Errorf("a unary call while draining = %v, want nil", err)
	}
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		validate  func(any) error
		wantField string
		wantCode  codes.Code
	}{
		"no validator": {},
		"good":         {validate: func(any) error { return nil }},
		"bad field":    {func(any) error { return rpcerr.InvalidArgument("user", "is missing") }, "user", codes.InvalidArgument},
		"plain error":  {func(any) error { return errors.New("bad") }, "", codes.InvalidArgument},
		"of another type": {
			interceptor.ValidatorOf(func(int) error { return nil }), "", codes.Internal,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, run runFunc) {
				validators := map[string]interceptor.Validator{}
				if tc.validate != nil {
					validators[method] = tc.validate
				}
				called := false
				err := run(t.Context(), interceptor.Validate(validators), func(context.Context) error {
					called = true
					return nil
				})
				if status.Code(err) != tc.wantCode || called != (tc.wantCode == codes.OK) {
					t.Errorf("err = %v, handler called: %v, want %v", err, called, tc.wantCode)
				}
				if e, ok := rpcerr.As(err); ok && e.Field != tc.wantField {
					t.Errorf("field = %q, want %q", e.Field, tc.wantField)
				}
			})
		})
	}
}

func TestPolicyMissing(t *testing.T) {
	policy := interceptor.Policy{"/a.A/One": interceptor.Open()}
	services := map[string]grpc.ServiceInfo{
		"a.A": {Methods: []grpc.MethodInfo{{Name: "Two"}, {Name: "One"}}},
		"b.B": {Methods: []grpc.MethodInfo{{Name: "Three"}}},
	}
	if got := strings.Join(policy.Missing(services), " "); got != "/a.A/Two /b.B/Three" {
		t.Errorf("Missing() = %q, want /a.A/Two /b.B/Three", got)
	}
}

func TestLogQuestion(t *testing.T) {
	for name, tc := range map[string]struct {
		auditID string
		err     error
		wantID  string
		wantLog []string
	}{
		"answered":            {"audit-2", nil, "audit-2", []string{"INFO Answered question", `code="OK"`}},
		"refused":             {"audit\n-2", rpcerr.InvalidArgument("f", "bad"), "audit-2", []string{"INFO Refused question", `reason="f: bad"`}},
		"failed":              {"audit-2", errors.New("driver"), "audit-2", []string{"ERROR Could not answer question", `err="driver"`}},
		"one that says no ID": {"", nil, "audit-1", []string{"INFO Answered question"}},
		"a long ID":           {strings.Repeat("x", 100), nil, strings.Repeat("x", 64), []string{"INFO Answered question"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, logged := logOf(t)
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(interceptor.AuditIDKey, "audit-1"))
			err := modes["stream"](ctx, interceptor.Log(), func(ctx context.Context) error {
				question := interceptor.WithQuestion(ctx, tc.auditID)
				if got := interceptor.AuditIDFrom(question); got != tc.wantID {
					t.Errorf("AuditIDFrom() = %q, want %q", got, tc.wantID)
				}
				if got, _ := audit.AuditIDFrom(question); string(got) != tc.wantID {
					t.Errorf("audit.AuditIDFrom() = %q, want %q", got, tc.wantID)
				}
				seen := interceptor.LogQuestion(ctx, tc.auditID, tc.err, time.Second)
				if want := rpcerr.ToStatus(tc.err, tc.wantID); seen.Code() != want.Code() || seen.Message() != want.Message() {
					t.Errorf("LogQuestion() = %v, want %v", seen, want)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			line, _, _ := strings.Cut(logged(), "\n")
			for _, want := range append(tc.wantLog, `auditID="`+tc.wantID+`"`, `method="`) {
				if strings.Count(line, want) != 1 {
					t.Errorf("log line %q has not one %q", line, want)
				}
			}
		})
	}
}
