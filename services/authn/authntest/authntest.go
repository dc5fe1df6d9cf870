// Package authntest runs the authentication service in the process of a test, over
// mutual TLS and with a Kubernetes API that the test fills. Production code does not
// import it.
package authntest

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/app"
	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/servetest"
)

// Issuer is the `iss` of service-account tokens, and the audience of the Kubernetes API.
const Issuer = "https://issuer.example.com"

// Service is the whole service but for its command, with one replica.
type Service struct {
	// PublicKeyFile has the key that verifies the tokens of Issue.
	PublicKeyFile string

	api     *apitest.Server
	pki     *servetest.PKI
	address string
}

// Start starts the service with static tokens, in the format of --token-auth-file, and
// these objects to read. It runs until the test ends.
func Start(t testing.TB, tokens string, objects ...runtime.Object) *Service {
	t.Helper()
	key := authntest.NewRSAKey(t)
	s := &Service{PublicKeyFile: key.PublicFile, api: apitest.New(t, objects...), pki: servetest.NewPKI(t)}
	args := append(s.pki.TLSFlags(t, "authn"),
		"--kubeconfig="+s.api.Kubeconfig(t),
		"--service-account-signing-key-file="+key.PrivateFile,
		"--service-account-key-file="+key.PublicFile,
		"--service-account-issuer="+Issuer,
	)
	if tokens != "" {
		file := filepath.Join(t.TempDir(), "tokens.csv")
		servetest.WriteFile(t, file, []byte(tokens))
		args = append(args, "--token-auth-file="+file)
	}
	options := app.NewOptions()
	servetest.ParseFlags(t, options.AddFlags, args...)
	completed := options.Complete()
	if err := errors.Join(completed.Validate()...); err != nil {
		t.Fatalf("the flags of authn: %v", err)
	}
	config, err := app.NewConfig(completed)
	if err != nil {
		t.Fatalf("configuring authn: %v", err)
	}
	// Several services may run in the process of a test.
	registry := prometheus.NewRegistry()
	config.Serve.Registerer, config.Serve.Gatherer = registry, registry
	config.Serve.Listener = servetest.Listen(t)
	s.address = config.Serve.Listener.Addr().String()
	servetest.Go(t, func(ctx context.Context) error { return app.Run(ctx, config.Complete()) })
	return s
}

// Conn returns a connection as the gateway has it, when the service is SERVING.
func (s *Service) Conn(t testing.TB) *client.Conn {
	t.Helper()
	cert := s.pki.Process(t, "gateway")
	conn, err := client.Dial(client.Config{
		Endpoint: s.address, CAFile: s.pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
	})
	if err != nil {
		t.Fatalf("dialling authn: %v", err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("closing the connection: %v", err)
		}
	})
	servetest.AwaitReady(t, conn)
	return conn
}

// Issue has the service sign a token of a service account, for ten minutes.
func (s *Service) Issue(t testing.TB, conn *client.Conn, account core.ServiceAccount) string {
	t.Helper()
	public, private, err := serviceaccount.Claims(account, nil, nil, nil, nil, nil, 600, 0, []string{Issuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), public, private)
	if err != nil {
		t.Fatalf("GenerateToken() = %v, want no error", err)
	}
	return token
}

// Apply writes objects to the Kubernetes API.
func (s *Service) Apply(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	s.api.Apply(t, objects...)
}

// Delete deletes objects.
func (s *Service) Delete(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	s.api.Delete(t, objects...)
}

// SetAvailable says whether the Kubernetes API answers.
func (s *Service) SetAvailable(available bool) { s.api.SetAvailable(available) }
