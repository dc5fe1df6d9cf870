package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

// config is that of a service named authz which the admission service may call.
func config() serve.Config {
	return serve.Config{
		Name: "authz",
		Policy: serve.Policy{
			servetest.EchoSayFullMethod:   serve.Peers(serve.PeerAdmission),
			servetest.EchoWatchFullMethod: serve.Peers(),
		},
	}
}

// register registers an echo service that is ready.
func register(echo *servetest.Echo) func(*serve.Server) {
	return func(s *serve.Server) {
		echo.Register(s)
		s.Health().Set("echo", true, "")
	}
}

func TestServerOfAnotherCAIsRefused(t *testing.T) {
	r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{}))
	other := servetest.NewPKI(t)
	for name, change := range map[string]func(*dial.Config){
		"another CA":   func(cfg *dial.Config) { cfg.CAFile = other.Gates.File },
		"another name": func(cfg *dial.Config) { cfg.ServerName = "trigate-authn" },
	} {
		t.Run(name, func(t *testing.T) {
			conn := r.Dial(t, r.PKI.Process(t, "gateway"), change)
			_, err := servetest.Say(t.Context(), conn, "secret")
			if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonPeerUnreachable || !strings.Contains(err.Error(), "x509") {
				t.Errorf("Say() = %v, want authz unreachable for its certificate", err)
			}
		})
	}
}

func TestMethodsWithoutARow(t *testing.T) {
	pki := servetest.NewPKI(t)
	cfg := config()
	delete(cfg.Policy, servetest.EchoWatchFullMethod)
	cert := pki.Process(t, "authz")
	cfg.CertFile, cfg.KeyFile, cfg.PeerCAFile = cert.CertFile, cert.KeyFile, pki.Gates.File
	s, err := serve.New(cfg)
	if err != nil {
		t.Fatalf("New() = %v, want nil", err)
	}
	(&servetest.Echo{}).Register(s)
	if err := s.CheckPolicy(); err == nil || !strings.Contains(err.Error(), servetest.EchoWatchFullMethod) {
		t.Errorf("CheckPolicy() = %v, want an error with %s", err, servetest.EchoWatchFullMethod)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), servetest.EchoWatchFullMethod) {
		t.Errorf("Run() = %v, want an error with %s", err, servetest.EchoWatchFullMethod)
	}
}

func TestOpenServices(t *testing.T) {
	for name, reflection := range map[string]bool{"with reflection": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			cfg.DisableReflection = !reflection
			r := servetest.Start(t, servetest.NewPKI(t), cfg, register(&servetest.Echo{}))
			conn := r.Dial(t, servetest.Cert{}, nil)
			for _, service := range []string{"", servetest.EchoService} {
				health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
				if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
					t.Errorf("Check(%q) = %v, %v, want SERVING", service, health, err)
				}
			}
			stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatalf("ServerReflectionInfo() = %v, want nil", err)
			}
			request := &reflectionpb.ServerReflectionRequest{
				MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
			}
			if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("Send() = %v, want nil", err)
			}
			_, err = stream.Recv()
			if want := map[bool]codes.Code{true: codes.OK, false: codes.Unimplemented}[reflection]; status.Code(err) != want {
				t.Errorf("reflection = %v, want %v", err, want)
			}
			if err := stream.CloseSend(); err != nil {
				t.Errorf("CloseSend() = %v, want nil", err)
			}
		})
	}
}

func TestPanicIsMasked(t *testing.T) {
	r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{
		Say: func(_ context.Context, text string) (string, error) {
			if text == "panic" {
				panic("a secret")
			}
			return text, nil
		},
		Watch: func(context.Context, string, func(string) error) error { panic("a secret") },
	}))
	conn := r.DialReady(t, "gateway")
	expect := func(err error) {
		t.Helper()
		e, ok := rpcerr.As(err)
		if !ok || e.Reason != rpcerr.ReasonInternal || e.RequestID == "" || strings.Contains(err.Error(), "secret") {
			t.Errorf("err = %v, want a masked one", err)
		}
	}
	_, err := servetest.Say(t.Context(), conn, "panic")
	expect(err)
	receive, err := servetest.Watch(t.Context(), conn, "panic")
	if err != nil {
		t.Fatalf("Watch() = %v, want nil", err)
	}
	_, err = receive()
	expect(err)
	if _, err := servetest.Say(t.Context(), conn, "hello"); err != nil {
		t.Errorf("the call after a panic = %v, want nil", err)
	}
}

func TestDeadlineOfACallWithoutOne(t *testing.T) {
	cfg := config()
	cfg.Budgets = map[string]time.Duration{servetest.EchoSayFullMethod: time.Hour}
	r := servetest.Start(t, servetest.NewPKI(t), cfg, register(&servetest.Echo{Say: func(ctx context.Context, _ string) (string, error) {
		deadline, _ := ctx.Deadline()
		return time.Until(deadline).Round(time.Minute).String(), nil
	}}))
	// Package dial itself never sends a unary call without a deadline.
	conn := r.DialReady(t, "gateway")
	got, err := servetest.Say(t.Context(), withoutDeadline{conn}, "")
	if err != nil || got != "1h0m0s" {
		t.Errorf("the handler had %q, %v, want the budget of 1h0m0s", got, err)
	}
}

// withoutDeadline calls unary methods as streams, which get no deadline.
type withoutDeadline struct{ grpc.ClientConnInterface }

func (c withoutDeadline) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{StreamName: "Say"}, method, opts...)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(args); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if err := stream.RecvMsg(reply); err != nil {
		return err
	}
	return nil
}

func TestLargeMessages(t *testing.T) {
	cfg := config()
	cfg.MaxMessageBytes = 8 << 20
	r := servetest.Start(t, servetest.NewPKI(t), cfg, register(&servetest.Echo{}))
	conn := r.DialReady(t, "gateway")
	if _, err := servetest.Say(t.Context(), conn, strings.Repeat("x", 7<<20)); err != nil {
		t.Errorf("7 MiB = %v, want nil", err)
	}
	if _, err := servetest.Say(t.Context(), conn, strings.Repeat("x", 9<<20)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("9 MiB = %v, want ResourceExhausted", err)
	}
}

func TestHealthIsTheAndOfItsParts(t *testing.T) {
	cfg := config()
	cfg.Parts = []string{"roles", "bindings"}
	metricsListener := servetest.Listen(t)
	cfg.MetricsListener = metricsListener
	registry := prometheus.NewRegistry()
	cfg.Registerer, cfg.Gatherer = registry, registry
	r := servetest.Start(t, servetest.NewPKI(t), cfg, func(s *serve.Server) { (&servetest.Echo{}).Register(s) })
	conn := r.Dial(t, r.PKI.Process(t, "gateway"), nil)
	health := r.Server.Health()
	expect := func(want healthpb.HealthCheckResponse_ServingStatus, wantReport ...string) {
		t.Helper()
		if err := health.Ready(); (err == nil) != (want == healthpb.HealthCheckResponse_SERVING) {
			t.Errorf("Ready() = %v, want %v", err, want)
		}
		code, body := get(t, "http://"+metricsListener.Addr().String()+"/readyz")
		if (code == http.StatusOK) != (want == healthpb.HealthCheckResponse_SERVING) {
			t.Errorf("/readyz = %d, want %v", code, want)
		}
		for _, line := range wantReport {
			if !strings.Contains(body, line) {
				t.Errorf("/readyz = %q, want a line %q", body, line)
			}
		}
	}
	expect(healthpb.HealthCheckResponse_NOT_SERVING, "[-]roles failed: not ready yet", "[-]bindings failed")
	servetest.Eventually(t, func() error {
		if err := conn.Ready(); err == nil || !strings.Contains(err.Error(), "NOT_SERVING") {
			return fmt.Errorf("Ready() = %v, want NOT_SERVING", err)
		}
		return nil
	})
	health.Set("roles", true, "")
	expect(healthpb.HealthCheckResponse_NOT_SERVING, "[+]roles ok", "[-]bindings failed")
	health.Set("bindings", true, "")
	expect(healthpb.HealthCheckResponse_SERVING, "[+]roles ok", "[+]bindings ok", "readyz check passed")
	if err := conn.WaitReady(t.Context()); err != nil {
		t.Errorf("WaitReady() = %v, want nil", err)
	}
	health.Set("roles", false, "the watch broke")
	expect(healthpb.HealthCheckResponse_NOT_SERVING, "[-]roles failed: the watch broke")
	health.Set("roles", true, "")

	health.Set("roles", false, "the watch broke")
	for _, path := range []string{"/livez", "/healthz"} {
		if code, body := get(t, "http://"+metricsListener.Addr().String()+path); code != http.StatusOK || body != "ok" {
			t.Errorf("%s of a server that is not ready = %d %q, want 200 ok", path, code, body)
		}
	}
	health.Set("roles", true, "")
	if _, err := servetest.Say(t.Context(), r.DialReady(t, "gateway"), "x"); err != nil {
		t.Errorf("Say() = %v, want nil", err)
	}
	if _, body := get(t, "http://"+metricsListener.Addr().String()+"/metrics"); !strings.Contains(body, "trigate_grpc_server_handled_total") {
		t.Errorf("/metrics = %q, want trigate_grpc_server_handled_total", body)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatalf("NewRequest(%s) = %v", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("GET %s = %v", url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("GET %s = %v", url, err)
	}
	return response.StatusCode, string(body)
}

func TestDrain(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	taskEnded := make(chan struct{})
	r := servetest.Start(t, servetest.NewPKI(t), config(), register(&servetest.Echo{
		Say: func(ctx context.Context, text string) (string, error) {
			close(started)
			select {
			case <-release:
			case <-ctx.Done():
				return "", ctx.Err()
			}
			select {
			case <-taskEnded:
				return "", errors.New("the task ended before the call")
			default:
			}
			return text, nil
		},
		Watch: func(ctx context.Context, _ string, send func(string) error) error {
			if err := send("open"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}), serve.Task{Name: "informers", Run: func(ctx context.Context) error {
		<-ctx.Done()
		close(taskEnded)
		return ctx.Err()
	}})
	conn := r.DialReady(t, "gateway")
	receive, err := servetest.Watch(t.Context(), conn, "")
	if err != nil {
		t.Fatalf("Watch() = %v, want nil", err)
	}
	if _, err := receive(); err != nil {
		t.Fatalf("first message = %v, want nil", err)
	}
	type result struct {
		text string
		err  error
	}
	said := make(chan result, 1)
	go func() {
		text, err := servetest.Say(t.Context(), conn, "last words")
		said <- result{text, err}
	}()
	<-started
	r.BeginStop()

	// The watch is told to go elsewhere, the call under way is left to finish.
	if _, err := receive(); err == nil {
		t.Error("the watch goes on while the server drains")
	} else if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonDraining {
		t.Errorf("the watch ended with %v, want that authz is draining", err)
	}
	if err := r.Server.Health().Ready(); err == nil {
		t.Error("Ready() while draining = nil, want an error")
	}
	r.Server.Health().Set("echo", true, "late")
	if err := r.Server.Health().Ready(); err == nil {
		t.Error("Ready() after a late Set = nil, want an error")
	}
	select {
	case <-r.Done():
		t.Fatal("Run() returned before the last call")
	case <-taskEnded:
		t.Fatal("the task ended before the last call")
	default:
	}
	close(release)
	if got := <-said; got.err != nil || got.text != "last words" {
		t.Errorf("the call under way = %q, %v, want its answer", got.text, got.err)
	}
	if err := r.Stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestShutdownDelay(t *testing.T) {
	cfg := config()
	cfg.ShutdownDelay = time.Hour // cut short by the failing task
	fail := make(chan struct{})
	r := servetest.Start(t, servetest.NewPKI(t), cfg, register(&servetest.Echo{}),
		serve.Task{Name: "informers", Run: func(ctx context.Context) error {
			select {
			case <-fail:
				return nil
			case <-ctx.Done():
				return nil
			}
		}}, serve.Task{Name: "watchdog", Run: func(context.Context) error {
			<-fail
			return errors.New("bitten")
		}})
	conn := r.DialReady(t, "gateway")
	r.BeginStop()
	servetest.Eventually(t, func() error {
		if conn.Ready() == nil {
			return errors.New("the client still thinks the server is SERVING")
		}
		return nil
	})
	// The listener is there still, for who has not noticed yet.
	late := r.Dial(t, servetest.Cert{}, nil)
	servetest.Eventually(t, func() error {
		if err := late.Ready(); err == nil || !strings.Contains(err.Error(), "NOT_SERVING") {
			return fmt.Errorf("Ready() of a new connection = %v, want NOT_SERVING", err)
		}
		return nil
	})
	select {
	case <-r.Done():
		t.Fatal("Run() returned within the delay")
	default:
	}
	close(fail)
	if err := r.Stop(); err == nil || err.Error() != "watchdog: bitten" {
		t.Errorf("Run() = %v, want watchdog: bitten", err)
	}
}

func TestShutdownIsBounded(t *testing.T) {
	cfg := config()
	cfg.ShutdownTimeout = 10 * time.Millisecond
	started := make(chan struct{})
	r := servetest.Start(t, servetest.NewPKI(t), cfg, register(&servetest.Echo{Say: func(ctx context.Context, _ string) (string, error) {
		close(started)
		<-ctx.Done() // ends when the connection is torn down
		return "", ctx.Err()
	}}))
	conn := r.DialReady(t, "gateway")
	ended := make(chan error, 1)
	go func() {
		_, err := servetest.Say(t.Context(), conn, "")
		ended <- err
	}()
	<-started
	if err := r.Stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if err := <-ended; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("the call that was cut off = %v, want Unavailable", err)
	}
}

func TestCertificatesAreReloadedWhileServing(t *testing.T) {
	pki, next := servetest.NewPKI(t), servetest.NewPKI(t)
	cfg := config()
	serving := pki.Process(t, "authz")
	cfg.CertFile, cfg.KeyFile = serving.CertFile, serving.KeyFile
	registry := prometheus.NewPedanticRegistry()
	cfg.Registerer = registry
	r := servetest.Start(t, pki, cfg, register(&servetest.Echo{}))
	old := r.DialReady(t, "gateway")
	client := pki.Process(t, "gateway")

	say := func(caFile string, cert servetest.Cert) error {
		conn := r.Dial(t, cert, func(cfg *dial.Config) { cfg.CAFile = caFile })
		_, err := servetest.Say(t.Context(), conn, "hello")
		return err
	}
	if err := say(pki.Gates.File, client); err != nil {
		t.Fatalf("Say() before = %v, want nil", err)
	}
	nextServing, nextClient := next.Process(t, "authz"), next.Process(t, "gateway")
	servetest.WriteFile(t, serving.CertFile, nextServing.CertPEM)
	servetest.WriteFile(t, serving.KeyFile, nextServing.KeyPEM)
	if err := say(next.Gates.File, client); err != nil {
		t.Errorf("Say() to the new certificate = %v, want nil", err)
	}
	if err := say(pki.Gates.File, client); status.Code(err) != codes.Unavailable {
		t.Errorf("Say() to the old certificate = %v, want Unavailable", err)
	}
	if err := say(next.Gates.File, nextClient); status.Code(err) != codes.Unavailable {
		t.Errorf("Say() by the new CA = %v, want Unavailable: it is not trusted yet", err)
	}
	servetest.WriteFile(t, pki.Gates.File, next.Gates.PEM)
	if err := say(next.Gates.File, nextClient); err != nil {
		t.Errorf("Say() by the new CA = %v, want nil", err)
	}
	if err := say(next.Gates.File, client); status.Code(err) != codes.Unavailable {
		t.Errorf("Say() by the old CA = %v, want Unavailable", err)
	}
	servetest.WriteFile(t, serving.CertFile, []byte("nonsense"))
	if err := say(next.Gates.File, nextClient); err != nil {
		t.Errorf("Say() after a bad file = %v, want nil", err)
	}
	want := `
		# HELP trigate_tls_file_usable 1 if what the TLS file holds now is in force, 0 if it is unusable and older content is.
		# TYPE trigate_tls_file_usable gauge
		trigate_tls_file_usable{file="client-ca",service="authz"} 1
		trigate_tls_file_usable{file="peer-ca",service="authz"} 1
		trigate_tls_file_usable{file="serving",service="authz"} 0
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "trigate_tls_file_usable"); err != nil {
		t.Error(err)
	}
	if _, err := servetest.Say(t.Context(), old, "hello"); err != nil {
		t.Errorf("Say() over the old connection = %v, want nil", err)
	}
}

func TestRunAfterTheEnd(t *testing.T) {
	pki := servetest.NewPKI(t)
	cfg := config()
	cert := pki.Process(t, "authz")
	cfg.CertFile, cfg.KeyFile, cfg.PeerCAFile = cert.CertFile, cert.KeyFile, pki.Gates.File
	cfg.Listener = servetest.Listen(t)
	s, err := serve.New(cfg)
	if err != nil {
		t.Fatalf("New() = %v, want nil", err)
	}
	(&servetest.Echo{}).Register(s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestRunNamesAnAddressInUse(t *testing.T) {
	taken := servetest.Listen(t)
	t.Cleanup(func() { _ = taken.Close() })
	pki := servetest.NewPKI(t)
	cert := pki.Process(t, "authz")
	s, err := serve.New(serve.Config{
		Name: "authz", CertFile: cert.CertFile, KeyFile: cert.KeyFile, PeerCAFile: pki.Gates.File,
		ListenAddress: taken.Addr().String(),
	})
	if err != nil {
		t.Fatalf("New() = %v, want nil", err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "--listen-address: ") {
		t.Errorf("Run() = %v, want an error that starts with --listen-address", err)
	}
}

func TestNewNamesTheFile(t *testing.T) {
	pki := servetest.NewPKI(t)
	cert := pki.Process(t, "authz")
	for name, change := range map[string]func(*serve.Config){
		"certificate": func(cfg *serve.Config) { cfg.CertFile = "/no/such" },
		"key":         func(cfg *serve.Config) { cfg.KeyFile = "/no/such" },
		"peer CA":     func(cfg *serve.Config) { cfg.PeerCAFile = "/no/such" },
		"client CA":   func(cfg *serve.Config) { cfg.ClientCAFile = "/no/such" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := serve.Config{Name: "authz", CertFile: cert.CertFile, KeyFile: cert.KeyFile, PeerCAFile: pki.Gates.File}
			change(&cfg)
			if _, err := serve.New(cfg); err == nil || !strings.Contains(err.Error(), "/no/such") {
				t.Errorf("New() = %v, want an error with /no/such", err)
			}
		})
	}
}
