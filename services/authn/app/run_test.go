package app

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

const (
	issuer = "https://issuer.example.com"
	// stopTimeout is only reached when something hangs.
	stopTimeout = 30 * time.Second
)

// parse returns the options that flags give.
func parse(t testing.TB, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	var sections cliflag.NamedFlagSets
	o.AddFlags(&sections)
	all := pflag.NewFlagSet("all", pflag.ContinueOnError)
	for _, name := range sections.Order {
		all.AddFlagSet(sections.FlagSets[name])
	}
	if err := all.Parse(args); err != nil {
		t.Fatalf("parsing %q: %v", args, err)
	}
	return o
}

// service is the whole service in this process, but for its command.
type service struct {
	pki     *servetest.PKI
	address string
	// metrics is where /metrics and /readyz are.
	metrics string
}

// isolate gives a configuration metrics of its own, since several services run in
// the process of the test.
func isolate(c *Config) {
	registry := prometheus.NewRegistry()
	c.Serve.Registerer, c.Serve.Gatherer = registry, registry
}

// start runs the service with flags, until the test ends.
func start(t testing.TB, args ...string) *service {
	t.Helper()
	s := &service{pki: servetest.NewPKI(t)}
	flags := override(append(s.tlsArgs(t), s.keyArgs(t)...), args)
	o := parse(t, flags...).Complete()
	if err := errors.Join(o.Validate()...); err != nil {
		t.Fatalf("Validate() = %v, want nil", err)
	}
	config, err := NewConfig(o)
	if err != nil {
		t.Fatalf("NewConfig() = %v, want nil", err)
	}
	isolate(config)
	config.Serve.Listener = servetest.Listen(t)
	s.address = config.Serve.Listener.Addr().String()
	config.Serve.MetricsListener = servetest.Listen(t)
	s.metrics = "http://" + config.Serve.MetricsListener.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config.Complete()) }() // The cleanup waits for it.
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		case <-time.After(stopTimeout):
			t.Error("the service does not stop")
		}
	})
	return s
}

// tlsArgs are the flags that every service needs.
func (s *service) tlsArgs(t testing.TB) []string {
	t.Helper()
	cert := s.pki.Process(t, "authn")
	return []string{
		"--tls-cert-file=" + cert.CertFile,
		"--tls-private-key-file=" + cert.KeyFile,
		"--peer-ca-file=" + s.pki.Gates.File,
		"--client-ca-file=" + s.pki.Cluster.File,
	}
}

// keyArgs are the flags of the service-account keys.
func (s *service) keyArgs(t testing.TB) []string {
	t.Helper()
	key := authntest.NewRSAKey(t)
	return []string{
		"--service-account-signing-key-file=" + key.PrivateFile,
		"--service-account-key-file=" + key.PublicFile,
		"--service-account-issuer=" + issuer,
	}
}

// dial returns a connection with a certificate, until the test ends.
func (s *service) dial(t testing.TB, cert servetest.Cert) *client.Conn {
	t.Helper()
	conn, err := client.Dial(client.Config{
		Endpoint: s.address, CAFile: s.pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
	})
	if err != nil {
		t.Fatalf("Dial() = %v, want nil", err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	return conn
}

// gateway returns a connection as the gateway, when the service is SERVING.
func (s *service) gateway(t testing.TB) *client.Conn {
	t.Helper()
	conn := s.dial(t, s.pki.Process(t, "gateway"))
	waitReady(t, conn)
	return conn
}

func waitReady(t testing.TB, conn *client.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	if err := conn.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady() = %v, want nil", err)
	}
}

func account(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid"}}
}

// issue has the service sign a token of a service account, as TokenRequest does.
func issue(t testing.TB, conn *client.Conn, name string, pod *core.Pod) string {
	t.Helper()
	of := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid"}}
	public, private, err := serviceaccount.Claims(of, pod, nil, nil, nil, nil, 600, 0, []string{issuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), public, private)
	if err != nil {
		t.Fatalf("GenerateToken() = %v, want no error", err)
	}
	return token
}

// TestRun follows a service account from its first token to its end.
func TestRun(t *testing.T) {
	api := apitest.New(t, account("cart"))
	conn := start(t, "--kubeconfig="+api.Kubeconfig(t)).gateway(t)
	tokens := client.NewToken(conn)
	token := issue(t, conn, "cart", nil)
	response, ok, err := tokens.AuthenticateToken(t.Context(), token)
	if !ok || err != nil || response.User.GetName() != "system:serviceaccount:shop:cart" {
		t.Fatalf("AuthenticateToken() = %v, %v, %v, want the service account", response, ok, err)
	}

	// What has been read is known without the API, and what has not is not judged.
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cart-0", UID: "pod-uid"}}
	bound := issue(t, conn, "cart", pod)
	if _, ok, err := tokens.AuthenticateToken(t.Context(), bound); ok || err == nil || client.IsCouldNotDecide(err) {
		t.Errorf("AuthenticateToken(bound to a missing pod) = %v, %v, want a refusal", ok, err)
	}
	api.SetAvailable(false)
	if _, ok, err := tokens.AuthenticateToken(t.Context(), token); !ok {
		t.Errorf("AuthenticateToken() = %v, %v without the API, want true", ok, err)
	}
	if _, ok, err := tokens.AuthenticateToken(t.Context(), bound); ok || !client.IsCouldNotDecide(err) {
		t.Errorf("AuthenticateToken(bound) = %v, %v without the API, want an error for which IsCouldNotDecide holds", ok, err)
	}
	api.SetAvailable(true)

	api.Apply(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "pod-uid"}})
	servetest.Eventually(t, func() error {
		response, _, err := tokens.AuthenticateToken(t.Context(), bound)
		if err != nil {
			return err
		}
		if got := response.User.GetExtra()["authentication.kubernetes.io/pod-name"]; len(got) != 1 || got[0] != "cart-0" {
			t.Errorf("extra of a pod's token = %v, want its name", response.User.GetExtra())
		}
		return nil
	})
	api.Delete(t, account("cart"))
	servetest.Eventually(t, func() error {
		if _, ok, err := tokens.AuthenticateToken(t.Context(), token); ok || client.IsCouldNotDecide(err) {
			return fmt.Errorf("AuthenticateToken() = %v, %w after the account was deleted", ok, err)
		}
		return nil
	})
}

// TestRunBeforeTheAPI starts the service while its API does not answer. It waits,
// and is then ready by itself.
func TestRunBeforeTheAPI(t *testing.T) {
	api := apitest.New(t, account("cart"))
	api.SetAvailable(false)
	s := start(t, "--kubeconfig="+api.Kubeconfig(t))
	conn := s.dial(t, s.pki.Process(t, "gateway"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := conn.WaitReady(ctx); err == nil {
		t.Error("the service is ready without its API")
	}
	if _, ok, err := client.NewToken(conn).AuthenticateToken(t.Context(), "x"); ok || !client.IsCouldNotDecide(err) {
		t.Errorf("AuthenticateToken() = %v, %v, want an error for which IsCouldNotDecide holds", ok, err)
	}
	api.SetAvailable(true)
	waitReady(t, conn)
	if _, ok, err := client.NewToken(conn).AuthenticateToken(t.Context(), issue(t, conn, "cart", nil)); !ok {
		t.Errorf("AuthenticateToken() = %v, %v, want true", ok, err)
	}
}

// TestCallers has people call the service, by certificate and by token.
func TestCallers(t *testing.T) {
	api := apitest.New(t, account("cart"))
	closed := servetest.Listen(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	kubeconfig := "--kubeconfig=" + api.Kubeconfig(t)
	alone := start(t, kubeconfig)
	withAuthz := start(t, kubeconfig, "--authz-endpoint="+closed.Addr().String())
	for name, tc := range map[string]struct {
		service *service
		groups  []string
		token   func(t *testing.T) string
		want    rpcerr.Reason
	}{
		"masters":                  {alone, []string{user.SystemPrivilegedGroup}, nil, ""},
		"a user":                   {alone, []string{"people"}, nil, rpcerr.ReasonPermissionDenied},
		"a user, authz is down":    {withAuthz, []string{"people"}, nil, rpcerr.ReasonPeerUnreachable},
		"masters, authz is down":   {withAuthz, []string{user.SystemPrivilegedGroup}, nil, ""},
		"a service account":        {alone, nil, func(t *testing.T) string { return issue(t, alone.gateway(t), "cart", nil) }, rpcerr.ReasonPermissionDenied},
		"an unknown account":       {alone, nil, func(t *testing.T) string { return issue(t, alone.gateway(t), "other", nil) }, rpcerr.ReasonUnauthenticated},
		"a bad token":              {alone, nil, func(*testing.T) string { return "nope" }, rpcerr.ReasonUnauthenticated},
		"nobody":                   {alone, nil, nil, rpcerr.ReasonUnauthenticated},
		"a token of another issue": {withAuthz, nil, func(t *testing.T) string { return issue(t, alone.gateway(t), "cart", nil) }, rpcerr.ReasonUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			var cert servetest.Cert
			if tc.groups != nil {
				cert = tc.service.pki.User(t, "jane", tc.groups...)
			}
			conn := tc.service.dial(t, cert)
			waitReady(t, conn)
			ctx := t.Context()
			if tc.token != nil {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tc.token(t))
			}
			_, err := authnv1.NewAuthenticationServiceClient(conn).ListPublicKeys(ctx, &authnv1.ListPublicKeysRequest{})
			var got rpcerr.Reason
			if e, ok := rpcerr.As(err); ok {
				got = e.Reason
			}
			if got != tc.want {
				t.Errorf("ListPublicKeys() = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestRunLimitsLifetimes has a token asked for that is valid longer than the flag
// allows.
func TestRunLimitsLifetimes(t *testing.T) {
	api := apitest.New(t, account("cart"))
	conn := start(t, "--kubeconfig="+api.Kubeconfig(t),
		"--service-account-max-token-expiration=1h", "--service-account-extend-token-expiration=false").gateway(t)
	issue(t, conn, "cart", nil)
	of := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid"}}
	public, private, err := serviceaccount.Claims(of, nil, nil, nil, nil, nil, 3601, 0, []string{issuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), public, private); err == nil {
		t.Errorf("GenerateToken(3601 s) = %q, want an error", token)
	}
	*public.Expiry--
	if _, err := client.NewTokenGenerator(conn).GenerateToken(t.Context(), public, private); err != nil {
		t.Errorf("GenerateToken(3600 s) = %v, want no error", err)
	}
}
