package dial_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

func config() serve.Config {
	return serve.Config{
		Name: "authz",
		Policy: serve.Policy{
			servetest.EchoSayFullMethod:   serve.Peers(),
			servetest.EchoWatchFullMethod: serve.Peers(),
		},
	}
}

func register(echo *servetest.Echo) func(*serve.Server) {
	return func(s *serve.Server) {
		echo.Register(s)
		s.Health().Set("echo", true, "")
	}
}

// startReplica runs a replica on loopback. It counts its calls.
func startReplica(t *testing.T, pki *servetest.PKI, listener net.Listener, calls *atomic.Int32) *servetest.Running {
	t.Helper()
	cfg := config()
	cfg.Listener = listener
	return servetest.Start(t, pki, cfg, register(&servetest.Echo{Say: func(_ context.Context, text string) (string, error) {
		calls.Add(1)
		return text, nil
	}}))
}

// connect connects as the gateway to an endpoint on loopback.
func connect(t *testing.T, pki *servetest.PKI, endpoint string, change func(*dial.Config)) *dial.Conn {
	t.Helper()
	r := &servetest.Running{PKI: pki, Name: "authz", Address: endpoint}
	return r.Dial(t, pki.Process(t, "gateway"), change)
}

func waitReady(t *testing.T, conn *dial.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := conn.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady() = %v, want nil", err)
	}
}

func TestReplicasShareTheCalls(t *testing.T) {
	pki := servetest.NewPKI(t)
	var first, second atomic.Int32
	a := startReplica(t, pki, servetest.Listen(t), &first)
	b := startReplica(t, pki, servetest.Listen(t), &second)
	conn := connect(t, pki, a.Address+", "+b.Address, nil)
	servetest.Eventually(t, func() error {
		if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
			return err
		}
		if first.Load() == 0 || second.Load() == 0 {
			return fmt.Errorf("calls: %d and %d, want both to have some", first.Load(), second.Load())
		}
		return nil
	})
}

// dropper accepts connections through a real server's listener and can break
// them all, as a machine does that loses its power with calls under way.
type dropper struct {
	net.Listener
	conns chan net.Conn
}

func newDropper(t *testing.T) *dropper {
	t.Helper()
	return &dropper{Listener: servetest.Listen(t), conns: make(chan net.Conn, 100)}
}

func (d *dropper) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err == nil {
		d.conns <- conn
	}
	return conn, err
}

// die closes the listener and every connection.
func (d *dropper) die() {
	_ = d.Close()
	for {
		select {
		case conn := <-d.conns:
			_ = conn.Close()
		default:
			return
		}
	}
}

func TestAnotherReplicaAnswersWithinTheSameCall(t *testing.T) {
	for name, text := range map[string]string{
		"small": "hello",
		"large": strings.Repeat("hello", 1<<20), // far above what gRPC keeps by default
	} {
		t.Run(name, func(t *testing.T) { testAnotherReplicaAnswers(t, text) })
	}
}

func testAnotherReplicaAnswers(t *testing.T, text string) {
	t.Helper()
	pki := servetest.NewPKI(t)
	listener := newDropper(t)
	cfg := config()
	cfg.Listener = listener
	var died atomic.Bool
	dying := servetest.Start(t, pki, cfg, register(&servetest.Echo{Say: func(ctx context.Context, _ string) (string, error) {
		died.Store(true)
		listener.die() // in the middle of the call
		<-ctx.Done()
		return "", ctx.Err()
	}}))
	var calls atomic.Int32
	living := startReplica(t, pki, servetest.Listen(t), &calls)
	conn := connect(t, pki, dying.Address+","+living.Address, func(cfg *dial.Config) {
		cfg.SafeMethods = []string{servetest.EchoSayFullMethod}
	})
	waitReady(t, conn)
	servetest.Eventually(t, func() error {
		got, err := servetest.Say(t.Context(), conn, text)
		if err != nil || got != text {
			t.Fatalf("Say() = %d bytes, %v, want the same text from the replica that lives", len(got), err)
		}
		if !died.Load() {
			return errors.New("the other replica has not been called yet")
		}
		return nil
	})
	if err := dying.Stop(); err == nil {
		t.Error("Run() of the replica that died = nil, want an error")
	}
	for range 20 {
		if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
			t.Errorf("Say() after the death = %v, want nil", err)
		}
	}
}

// counter counts the connections that it accepts.
type counter struct {
	net.Listener
	accepted atomic.Int32
}

func (c *counter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted.Add(1)
	}
	return conn, err
}

func TestNoCallFailsWhenConnectionsAgeOut(t *testing.T) {
	listener := &counter{Listener: servetest.Listen(t)}
	cfg := config()
	cfg.Listener, cfg.MaxConnectionAge = listener, 50*time.Millisecond
	r := servetest.Start(t, servetest.NewPKI(t), cfg, register(&servetest.Echo{}))
	conn := r.DialReady(t, "gateway") // and nothing is safe to retry
	for listener.accepted.Load() < 5 {
		if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
			t.Fatalf("Say() over connection %d = %v, want nil", listener.accepted.Load(), err)
		}
	}
}

func TestRetriesAreForSafeMethodsAndUnavailable(t *testing.T) {
	for name, tc := range map[string]struct {
		safe      []string
		err       error
		wantCalls int32
		wantErr   bool
	}{
		"safe":                     {[]string{servetest.EchoSayFullMethod}, rpcerr.NotSynced("authz", "roles"), 3, false},
		"not safe":                 {nil, rpcerr.NotSynced("authz", "roles"), 1, true},
		"another method is safe":   {[]string{servetest.EchoWatchFullMethod}, rpcerr.NotSynced("authz", "roles"), 1, true},
		"safe, but a fault":        {[]string{servetest.EchoSayFullMethod}, rpcerr.Internal(nil), 1, true},
		"safe, but out of time":    {[]string{servetest.EchoSayFullMethod}, rpcerr.DeadlineExceeded("authz", nil), 1, true},
		"safe, but not acceptable": {[]string{servetest.EchoSayFullMethod}, rpcerr.InvalidArgument("f", "bad"), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{Say: func(_ context.Context, text string) (string, error) {
				if calls.Add(1) < 3 {
					return "", tc.err
				}
				return text, nil
			}}))
			conn := r.Dial(t, r.PKI.Process(t, "gateway"), func(cfg *dial.Config) { cfg.SafeMethods = tc.safe })
			waitReady(t, conn)
			_, err := servetest.Say(t.Context(), conn, "hello")
			if (err != nil) != tc.wantErr || calls.Load() != tc.wantCalls {
				t.Errorf("Say() = %v after %d calls, want an error: %v, calls: %d", err, calls.Load(), tc.wantErr, tc.wantCalls)
			}
			if err != nil && status.Code(err) != status.Code(tc.err) {
				t.Errorf("code = %v, want %v", status.Code(err), status.Code(tc.err))
			}
		})
	}
}

func TestAnOutageAnswersAtOnce(t *testing.T) {
	pki := servetest.NewPKI(t)
	listener := servetest.Listen(t)
	endpoint := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatalf("Close() = %v", err)
	}
	for name, safe := range map[string][]string{"safe": {servetest.EchoSayFullMethod}, "not safe": nil} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, pki, endpoint, func(cfg *dial.Config) { cfg.SafeMethods = safe })
			start := time.Now()
			_, err := servetest.Say(t.Context(), conn, "hello")
			e, ok := rpcerr.As(err)
			if !ok || e.Reason != rpcerr.ReasonPeerUnreachable || e.Hop != "authz" {
				t.Errorf("Say() = %v, want that authz is unreachable", err)
			}
			if elapsed := time.Since(start); elapsed > 5*time.Second {
				t.Errorf("Say() took %s, want an answer at once", elapsed)
			}
			// While it tries once more, the connection has no reason to tell.
			servetest.Eventually(t, func() error {
				if err := conn.Ready(); err == nil || !strings.Contains(err.Error(), endpoint) || !strings.Contains(err.Error(), "refused") {
					return fmt.Errorf("Ready() = %v, want an error with the endpoint and the reason", err)
				}
				return nil
			})
		})
	}
}

func TestAServiceThatComesLate(t *testing.T) {
	pki := servetest.NewPKI(t)
	listener := servetest.Listen(t)
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatalf("Close() = %v", err)
	}
	conn := connect(t, pki, address, nil)
	servetest.Eventually(t, func() error {
		if _, err := servetest.Say(t.Context(), conn, "hello"); status.Code(err) != codes.Unavailable {
			return fmt.Errorf("Say() = %v, want Unavailable", err)
		}
		return nil
	})
	// It comes, goes and comes again, at the same address.
	for range 2 {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatalf("listening again: %v", err)
		}
		var calls atomic.Int32
		r := startReplica(t, pki, listener, &calls)
		waitReady(t, conn)
		if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
			t.Errorf("Say() = %v, want nil", err)
		}
		if err := r.Stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		servetest.Eventually(t, func() error {
			if conn.Ready() == nil {
				return errors.New("ready without a server")
			}
			return nil
		})
	}
}

func TestAReplicaThatIsNotServingIsPassedOver(t *testing.T) {
	pki := servetest.NewPKI(t)
	var syncing, serving atomic.Int32
	a := startReplica(t, pki, servetest.Listen(t), &syncing)
	a.Server.Health().Set("echo", false, "not synced")
	b := startReplica(t, pki, servetest.Listen(t), &serving)
	conn := connect(t, pki, a.Address+","+b.Address, nil)
	waitReady(t, conn)
	for range 20 {
		if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
			t.Fatalf("Say() = %v, want nil", err)
		}
	}
	if got := syncing.Load(); got != 0 {
		t.Errorf("the replica that is not SERVING had %d calls, want 0", got)
	}
	a.Server.Health().Set("echo", true, "")
	servetest.Eventually(t, func() error {
		if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
			return err
		}
		if syncing.Load() == 0 {
			return errors.New("the replica has no calls, though it is SERVING now")
		}
		return nil
	})
}

func TestDeadlines(t *testing.T) {
	const budget = time.Hour
	for name, tc := range map[string]struct {
		// left is what the caller has; 0 is no deadline.
		left time.Duration
		want time.Duration
	}{
		"the budget":            {0, budget},
		"the budget is smaller": {3 * time.Hour, budget},
		"the caller's":          {30 * time.Minute, 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var got time.Duration
			r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{Say: func(ctx context.Context, _ string) (string, error) {
				deadline, _ := ctx.Deadline()
				got = time.Until(deadline)
				return "", nil
			}}))
			conn := r.Dial(t, r.PKI.Process(t, "gateway"), func(cfg *dial.Config) {
				cfg.Budgets = map[string]time.Duration{servetest.EchoSayFullMethod: budget}
			})
			waitReady(t, conn)
			ctx := t.Context()
			if tc.left > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tc.left)
				defer cancel()
			}
			if _, err := servetest.Say(ctx, conn, ""); err != nil {
				t.Fatalf("Say() = %v, want nil", err)
			}
			if got.Round(time.Minute) != tc.want || got >= tc.want {
				t.Errorf("the handler had %s, want a little less than %s", got, tc.want)
			}
		})
	}
}

func TestTooLittleTimeIsRefusedWithoutACall(t *testing.T) {
	var calls atomic.Int32
	r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{Say: func(context.Context, string) (string, error) {
		calls.Add(1)
		return "", nil
	}}))
	conn := r.DialReady(t, "gateway")
	ctx, cancel := context.WithTimeout(t.Context(), dial.Reserve)
	defer cancel()
	_, err := servetest.Say(ctx, conn, "")
	if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonDeadlineExceeded || e.Hop != "authz" || calls.Load() != 0 {
		t.Errorf("Say() = %v after %d calls, want a deadline exceeded at authz without one", err, calls.Load())
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := servetest.Say(ctx, conn, ""); status.Code(err) != codes.Canceled {
		t.Errorf("Say() of a caller who left = %v, want Canceled", err)
	}
}

func TestTheAuditIDTravels(t *testing.T) {
	answer := func(ctx context.Context) string { return serve.AuditIDFrom(ctx) }
	r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{
		Say: func(ctx context.Context, _ string) (string, error) { return answer(ctx), nil },
		Watch: func(ctx context.Context, _ string, send func(string) error) error {
			return send(answer(ctx))
		},
	}))
	conn := r.DialReady(t, "gateway")
	ctx := audit.WithAuditContext(t.Context())
	audit.WithAuditID(ctx, types.UID("audit-7\r\nevil: é"))
	const want = "audit-7evil:"
	if got, err := servetest.Say(ctx, conn, ""); err != nil || got != want {
		t.Errorf("audit ID of a unary call = %q, %v, want %q", got, err, want)
	}
	receive, err := servetest.Watch(ctx, conn, "")
	if err != nil {
		t.Fatalf("Watch() = %v, want nil", err)
	}
	if got, err := receive(); err != nil || got != want {
		t.Errorf("audit ID of a stream = %q, %v, want %q", got, err, want)
	}
	if got, err := servetest.Say(t.Context(), conn, ""); err != nil || len(got) != 36 {
		t.Errorf("audit ID of a call without one = %q, %v, want a new one", got, err)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{Say: func(_ context.Context, text string) (string, error) {
		if text == "bad" {
			return "", rpcerr.InvalidArgument("value", "is bad")
		}
		return text, nil
	}}))
	withRegistry := func(cfg *dial.Config) { cfg.Registerer = registry }
	conn := r.Dial(t, r.PKI.Process(t, "gateway"), withRegistry)
	other := r.Dial(t, r.PKI.Process(t, "gateway"), withRegistry)
	waitReady(t, conn)
	waitReady(t, other)
	if _, err := servetest.Say(t.Context(), conn, "good"); err != nil {
		t.Errorf("Say() = %v, want nil", err)
	}
	if _, err := servetest.Say(t.Context(), other, "bad"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Say() = %v, want InvalidArgument", err)
	}
	receive, err := servetest.Watch(t.Context(), conn, "x")
	if err != nil {
		t.Fatalf("Watch() = %v, want nil", err)
	}
	for err == nil {
		_, err = receive()
	}
	if got := testutil.CollectAndCount(registry, "trigate_grpc_client_handling_seconds"); got != 3 {
		t.Errorf("handling_seconds has %d series, want 3: Say OK, Say InvalidArgument, Watch OK", got)
	}
}

func TestCheckEndpoint(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"127.0.0.1:7441":             true,
		"[::1]:7441":                 true,
		"authn.trigate.svc:7441":     true,
		"dns:///authn.trigate:7441":  true,
		"unix:///run/authn.sock":     true,
		"127.0.0.1:7441,[::1]:7441":  true,
		"127.0.0.1:7441, authn:7441": true,
		"":                           false,
		"authn":                      false,
		":7441":                      false,
		"authn:":                     false,
		"127.0.0.1:7441,":            false,
		"127.0.0.1:7441,authn":       false,
		"dns:///bad\x7fname:7441":    false,
		"https://authn.trigate:7441": false,
	} {
		if err := dial.CheckEndpoint(endpoint); (err == nil) != want {
			t.Errorf("CheckEndpoint(%q) = %v, want it to be good: %v", endpoint, err, want)
		}
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	pki := servetest.NewPKI(t)
	cert := pki.Process(t, "gateway")
	for name, tc := range map[string]struct {
		change func(*dial.Config)
		want   string
	}{
		"endpoint":    {func(cfg *dial.Config) { cfg.Endpoint = "nowhere" }, `"nowhere"`},
		"CA":          {func(cfg *dial.Config) { cfg.CAFile = "/no/such" }, "/no/such"},
		"certificate": {func(cfg *dial.Config) { cfg.CertFile = "/no/such" }, "/no/such"},
		"key":         {func(cfg *dial.Config) { cfg.KeyFile = "" }, cert.CertFile},
		"server name": {func(cfg *dial.Config) { cfg.ServerName = "" }, "authz"},
		"safe method": {func(cfg *dial.Config) { cfg.SafeMethods = []string{"Say"} }, `"Say"`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := dial.Config{
				Name: "authz", Endpoint: "127.0.0.1:1", ServerName: "trigate-authz",
				CAFile: pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
			}
			tc.change(&cfg)
			if _, err := dial.New(cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New() = %v, want an error with %s", err, tc.want)
			}
		})
	}
}

func TestSafeMethods(t *testing.T) {
	safe := dial.SafeMethods(
		authnv1.File_trigate_authn_v1_authentication_proto.Services().Get(0),
		healthpb.File_grpc_health_v1_health_proto.Services().Get(0), // marks nothing
	)
	for method, want := range map[string]bool{
		authnv1.AuthenticationService_AuthenticateToken_FullMethodName: true,
		healthpb.Health_Check_FullMethodName:                           false,
	} {
		if got := slices.Contains(safe, method); got != want {
			t.Errorf("SafeMethods() has %s: %v, want %v", method, got, want)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	pki := servetest.NewPKI(b)
	r := servetest.Start(b, pki, config(), register(&servetest.Echo{}))
	conn := r.DialReady(b, "gateway")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := servetest.Say(b.Context(), conn, "hello"); err != nil {
			b.Fatal(err)
		}
	}
}
