// Package admissiontest runs the admission service in the process of a test, over mutual
// TLS and with a Kubernetes API that the test fills. Production code does not import it.
package admissiontest

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trigate/trigate/services/admission/app"
	"github.com/trigate/trigate/services/admission/client"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/servetest"
)

// stopTimeout is only reached when something hangs.
const stopTimeout = 30 * time.Second

// API is a Kubernetes API, which any number of services read.
type API struct{ server *apitest.Server }

// NewAPI returns an API with these objects, which runs until the test ends.
func NewAPI(t testing.TB, objects ...runtime.Object) *API {
	t.Helper()
	return &API{apitest.New(t, objects...)}
}

// Apply writes an object, and returns the revision of the write.
func (a *API) Apply(t testing.TB, object runtime.Object) string {
	t.Helper()
	a.server.Apply(t, object)
	return a.server.Revision()
}

// Delete deletes an object.
func (a *API) Delete(t testing.TB, object runtime.Object) {
	t.Helper()
	a.server.Delete(t, object)
}

// SetAvailable says whether the API answers. While it does not, it ends its watches.
func (a *API) SetAvailable(available bool) { a.server.SetAvailable(available) }

// Service is the whole service but for its command, with one replica. Nobody answers
// what its plugins ask of the authorization gate.
type Service struct {
	pki     *servetest.PKI
	options app.CompletedOptions
	address string
	stop    func()
}

// Start starts a service that reads api, with more flags. It runs until the test ends.
func Start(t testing.TB, api *API, flags ...string) *Service {
	t.Helper()
	s := &Service{pki: servetest.NewPKI(t), address: "127.0.0.1:0"}
	options := app.NewOptions()
	servetest.ParseFlags(t, options.AddFlags, append(append(s.pki.TLSFlags(t, "admission"),
		"--kubeconfig="+api.server.Kubeconfig(t), "--authz-endpoint=127.0.0.1:1"), flags...)...)
	s.options = options.Complete()
	if err := errors.Join(s.options.Validate()...); err != nil {
		t.Fatalf("the flags of admission: %v", err)
	}
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
	config, err := app.NewConfig(s.options)
	if err != nil {
		t.Fatalf("configuring admission: %v", err)
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
				t.Errorf("running admission: %v", err)
			}
		case <-time.After(stopTimeout):
			t.Error("admission does not stop")
		}
	}
}

// Client returns a client as the gateway has it, when the service is SERVING.
func (s *Service) Client(t testing.TB) *client.Client {
	t.Helper()
	cert := s.pki.Process(t, "gateway")
	c, err := client.Dial(client.Config{
		Endpoint: s.address, CAFile: s.pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
	})
	if err != nil {
		t.Fatalf("dialling admission: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	servetest.AwaitReady(t, c)
	return c
}
