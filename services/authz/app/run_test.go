package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/servetest"
)

// stopTimeout is only reached when something hangs.
const stopTimeout = 30 * time.Second

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
}

// start runs the service with flags, until the test ends. The change function,
// if there is one, changes its configuration.
func start(t testing.TB, change func(*Config), args ...string) *service {
	t.Helper()
	s := &service{pki: servetest.NewPKI(t)}
	o := parse(t, append(s.tlsArgs(t), args...)...).Complete()
	if err := errors.Join(o.Validate()...); err != nil {
		t.Fatalf("Validate() = %v, want nil", err)
	}
	config, err := NewConfig(o)
	if err != nil {
		t.Fatalf("NewConfig() = %v, want nil", err)
	}
	if change != nil {
		change(config)
	}
	listener := servetest.Listen(t)
	s.address = listener.Addr().String()
	config.Serve.Listener = listener
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
	cert := s.pki.Process(t, "authz")
	return []string{
		"--tls-cert-file=" + cert.CertFile,
		"--tls-private-key-file=" + cert.KeyFile,
		"--peer-ca-file=" + s.pki.Gates.File,
		"--client-ca-file=" + s.pki.Cluster.File,
	}
}

// dial returns a client with a certificate, until the test ends.
func (s *service) dial(t testing.TB, cert servetest.Cert) *client.Client {
	t.Helper()
	c, err := client.Dial(client.Config{
		Endpoint: s.address, CAFile: s.pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
	})
	if err != nil {
		t.Fatalf("Dial() = %v, want nil", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	return c
}

// gateway returns a client as the gateway, when the service is SERVING.
func (s *service) gateway(t testing.TB) *client.Client {
	t.Helper()
	c := s.dial(t, s.pki.Process(t, "gateway"))
	waitReady(t, c)
	return c
}

func waitReady(t testing.TB, c *client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady() = %v, want nil", err)
	}
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readers lets group readers get pods everywhere.
func readers() (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding) {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "read-pods"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "readers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "read-pods"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "readers"}},
	}
	return role, binding
}

var getPod = authorizer.AttributesRecord{
	User: &user.DefaultInfo{Name: "jane", Groups: []string{"readers"}},
	Verb: "get", Namespace: "ns", APIVersion: "v1", Resource: "pods", Name: "web", ResourceRequest: true,
}

// TestLateAPI has a service whose Kubernetes API comes late: it says neither
// yes nor no until it has read the bindings.
func TestLateAPI(t *testing.T) {
	role, binding := readers()
	api := apitest.New(t, role, binding)
	api.SetAvailable(false)
	s := start(t, nil, "--authorization-mode=RBAC", "--kubeconfig="+api.Kubeconfig(t))
	c := s.dial(t, s.pki.Process(t, "gateway"))

	wantUndecided(t, c)
	_, _, incomplete, err := c.RulesFor(t.Context(), getPod.User, "ns")
	if !client.IsCouldNotDecide(err) || !incomplete {
		t.Errorf("RulesFor() = incomplete %v, %v, want incomplete and could not decide", incomplete, err)
	}

	api.SetAvailable(true)
	waitReady(t, c)
	if decision, _, err := c.Authorize(t.Context(), getPod); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("Authorize() = %v, %v, want Allow", decision, err)
	}

	// What was read stays in force while the API is away, and what changes
	// meanwhile is read when it comes back.
	api.SetAvailable(false)
	if decision, _, err := c.Authorize(t.Context(), getPod); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("Authorize() without the API = %v, %v, want Allow", decision, err)
	}
	api.Delete(t, binding)
	api.SetAvailable(true)
	servetest.Eventually(t, func() error {
		decision, _, err := c.Authorize(t.Context(), getPod)
		if decision == authorizer.DecisionAllow {
			return errors.New("still allowed without a binding")
		}
		return err
	})
}

// TestNoService has nobody to decide.
func TestNoService(t *testing.T) {
	pki := servetest.NewPKI(t)
	listener := servetest.Listen(t)
	s := &service{pki: pki, address: listener.Addr().String()}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	wantUndecided(t, s.dial(t, pki.Process(t, "gateway")))
}

func wantUndecided(t *testing.T, c *client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	decision, reason, err := c.Authorize(ctx, getPod)
	if decision != authorizer.DecisionNoOpinion || reason != "" || !client.IsCouldNotDecide(err) {
		t.Errorf("Authorize() = %v, %q, %v, want NoOpinion and could not decide", decision, reason, err)
	}
	if got := c.ConditionsAwareAuthorize(ctx, getPod); !got.IsNoOpinion() || !client.IsCouldNotDecide(got.Error()) {
		t.Errorf("ConditionsAwareAuthorize() = %v, want NoOpinion and could not decide", got)
	}
}
