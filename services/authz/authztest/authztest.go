// Package authztest runs the authorization service in the process of a test, over
// mutual TLS and with a Kubernetes API that the test fills. Production code does not
// import it.
package authztest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trigate/trigate/services/authz/app"
	"github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/servetest"
)

// stopTimeout is only reached when something hangs.
const stopTimeout = 30 * time.Second

// Service is the whole service but for its command, with one replica. Its methods are
// not safe for concurrent use, but for Apply and Delete.
type Service struct {
	mu      sync.Mutex // held from a write until its revision is known
	api     *apitest.Server
	pki     *servetest.PKI
	args    []string
	address string
	stop    func()
}

// Start starts the service with the authorizer RBAC and these objects to read. It runs
// until the test ends.
func Start(t testing.TB, objects ...runtime.Object) *Service {
	t.Helper()
	s := &Service{api: apitest.New(t, objects...), pki: servetest.NewPKI(t), address: "127.0.0.1:0"}
	s.args = append(s.pki.TLSFlags(t, "authz"), "--authorization-mode=RBAC", "--kubeconfig="+s.api.Kubeconfig(t))
	s.run(t)
	t.Cleanup(func() { s.stop() })
	return s
}

// Restart stops the service and starts it again, at the same address.
func (s *Service) Restart(t testing.TB) {
	t.Helper()
	s.stop()
	s.run(t)
}

func (s *Service) run(t testing.TB) {
	t.Helper()
	config, err := app.NewConfig(s.options(t))
	if err != nil {
		t.Fatalf("configuring authz: %v", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.WithoutCancel(t.Context()), "tcp", s.address)
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	s.address = listener.Addr().String()
	config.Serve.Listener = listener
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, config.Complete()) }() // stop waits for it.
	s.stop = func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("running authz: %v", err)
			}
		case <-time.After(stopTimeout):
			t.Error("authz does not stop")
		}
	}
}

func (s *Service) options(t testing.TB) app.CompletedOptions {
	t.Helper()
	options := app.NewOptions()
	servetest.ParseFlags(t, options.AddFlags, s.args...)
	completed := options.Complete()
	if err := errors.Join(completed.Validate()...); err != nil {
		t.Fatalf("the flags of authz: %v", err)
	}
	return completed
}

// Peer says where the service is, and how the gateway proves to it who it is.
func (s *Service) Peer(t testing.TB) client.Config {
	t.Helper()
	cert := s.pki.Process(t, "gateway")
	return client.Config{Endpoint: s.address, CAFile: s.pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile}
}

// Client returns a client as the gateway has it, when the service is SERVING.
func (s *Service) Client(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.Dial(s.Peer(t))
	if err != nil {
		t.Fatalf("dialling authz: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	servetest.AwaitReady(t, c)
	return c
}

// Conn returns a connection as the gateway has it, to make a client of that asks each
// question by a call.
func (s *Service) Conn(t testing.TB) grpc.ClientConnInterface {
	t.Helper()
	conn, err := Dial(s.Peer(t))
	if err != nil {
		t.Fatalf("dialling authz: %v", err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("closing the connection: %v", err)
		}
	})
	return conn
}

// Conn is a connection to the service, which the caller closes.
type Conn interface {
	grpc.ClientConnInterface
	Close() error
}

// Dial returns a connection as Service.Conn does, also in another process than the
// service's.
func Dial(peer client.Config) (Conn, error) { return dial.NewPeer(peer, client.Service()) }

// Apply writes an object to the Kubernetes API, and returns the revision of the write.
func (s *Service) Apply(t testing.TB, object runtime.Object) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.api.Apply(t, object)
	return s.api.Revision()
}

// Delete deletes an object, and returns the revision of the deletion.
func (s *Service) Delete(t testing.TB, object runtime.Object) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.api.Delete(t, object)
	return s.api.Revision()
}
