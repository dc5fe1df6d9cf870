package servetest

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/serve"
)

// stopTimeout is how long a server of a test may take to stop, and a
// connection to become ready. It is only reached when something hangs.
const stopTimeout = 30 * time.Second

// Running is a server under test.
type Running struct {
	// Server is the server.
	Server *serve.Server
	// PKI has issued the server's certificate.
	PKI *PKI
	// Name is the server's short name ("authz").
	Name string
	// Address is where the server listens.
	Address string

	dialer func(context.Context, string) (net.Conn, error)
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	// stopped is whether the test itself has called Stop.
	stopped atomic.Bool
}

// Start runs a server named by cfg.Name with certificates of pki, on a
// listener in memory if cfg has none, until the test ends or Stop is called.
// What cfg leaves open is filled: TLS files, and the listener. The register
// function registers the services and sets the health.
func Start(t testing.TB, pki *PKI, cfg serve.Config, register func(*serve.Server), tasks ...serve.Task) *Running {
	t.Helper()
	r := &Running{PKI: pki, Name: cfg.Name, done: make(chan struct{})}
	if cfg.CertFile == "" {
		cert := pki.Process(t, cfg.Name)
		cfg.CertFile, cfg.KeyFile = cert.CertFile, cert.KeyFile
	}
	if cfg.PeerCAFile == "" {
		cfg.PeerCAFile = pki.Gates.File
	}
	if cfg.ClientCAFile == "" {
		cfg.ClientCAFile = pki.Cluster.File
	}
	if cfg.Listener == nil {
		listener := bufconn.Listen(1 << 20)
		cfg.Listener = listener
		r.dialer = func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
		r.Address = "passthrough:///" + cfg.Name
	} else {
		r.Address = cfg.Listener.Addr().String()
	}
	server, err := serve.New(cfg)
	if err != nil {
		t.Fatalf("serve.New: %v", err)
	}
	r.Server = server
	register(server)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.cancel = cancel
	go func() { // Stop waits for it.
		defer close(r.done)
		r.err = server.Run(ctx, tasks...)
	}()
	t.Cleanup(func() {
		if r.stopped.Load() {
			return // the test has seen the error
		}
		if err := r.Stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return r
}

// Stop ends the server and returns what its Run returned. It can be called
// again.
func (r *Running) Stop() error {
	r.stopped.Store(true)
	r.cancel()
	select {
	case <-r.done:
		return r.err
	case <-time.After(stopTimeout):
		return errors.New("the server does not stop")
	}
}

// BeginStop tells the server to end, and does not wait for it.
func (r *Running) BeginStop() { r.cancel() }

// Done is closed when the server has ended.
func (r *Running) Done() <-chan struct{} { return r.done }

// Dial connects to the server with a certificate, which may be the zero Cert,
// until the test ends. The change function, if there is one, changes the
// connection's configuration.
func (r *Running) Dial(t testing.TB, cert Cert, change func(*dial.Config)) *dial.Conn {
	t.Helper()
	cfg := dial.Config{
		Name:       r.Name,
		Endpoint:   r.Address,
		ServerName: "trigate-" + r.Name,
		CAFile:     r.PKI.Gates.File,
		CertFile:   cert.CertFile,
		KeyFile:    cert.KeyFile,
		Dialer:     r.dialer,
	}
	if change != nil {
		change(&cfg)
	}
	conn, err := dial.New(cfg)
	if err != nil {
		t.Fatalf("dial.New: %v", err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	return conn
}

// DialReady is Dial as one of Trigate's processes ("gateway"), and waits until
// the server is SERVING.
func (r *Running) DialReady(t testing.TB, process string) *dial.Conn {
	t.Helper()
	conn := r.Dial(t, r.PKI.Process(t, process), nil)
	AwaitReady(t, conn)
	return conn
}

// Listen opens a listener on a free port of the loopback interface.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening on loopback: %v", err)
	}
	return listener
}

// Eventually polls until check returns nil, and fails the test with its last
// error if it does not within half a minute.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.After(stopTimeout)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("still after %s: %v", stopTimeout, err)
		case <-ticker.C:
		}
	}
}
