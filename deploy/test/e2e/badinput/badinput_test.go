// Package badinput holds what the programs say of input that they cannot use: one
// clear line that names the thing and the reason, and an exit code that is not 0.
package badinput

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// endsWithin is how long a program may take to find out that its input is bad.
const endsWithin = time.Minute

// outcome is how a program ended.
type outcome struct {
	code   int
	stderr string
}

// run runs a program that is expected to end by itself.
func run(t *testing.T, name string, args ...string) outcome {
	t.Helper()
	path, err := framework.Binary(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), endsWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = t.TempDir()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running %s: %v", name, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("%s did not end within %v; stderr:\n%s", name, endsWithin, &stderr)
	}
	return outcome{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()}
}

// check wants the program's last word to be one line of its own with all of wants.
func (o outcome) check(t *testing.T, name string, wants ...string) {
	t.Helper()
	if o.code == 0 {
		t.Errorf("exit code = 0, want another; stderr:\n%s", o.stderr)
	}
	lines := strings.Split(strings.TrimRight(o.stderr, "\n"), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, name+": ") {
		t.Errorf("the last line is not the program's: %q", last)
	}
	for _, want := range wants {
		if !strings.Contains(last, want) {
			t.Errorf("the last line has no %q: %q", want, last)
		}
	}
	for _, noise := range []string{"goroutine ", "panic:", "Usage:"} {
		if strings.Contains(o.stderr, noise) {
			t.Errorf("stderr has %q:\n%s", noise, o.stderr)
		}
	}
}

// world is what the programs' flags name.
type world struct {
	pki *pki.Layout
	// takenAddress is in use.
	takenAddress string
	// dir is for files of the test.
	dir string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	layout, err := pki.Ensure(t.Context(), pki.Config{Dir: filepath.Join(dir, "pki")})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{pki: layout, takenAddress: listener.Addr().String(), dir: dir}
}

// file writes a file and returns its path.
func (w *world) file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// missing is the path of a file that is not there.
func (w *world) missing() string { return filepath.Join(w.dir, "missing") }

func (w *world) takenPort() string {
	_, port, _ := net.SplitHostPort(w.takenAddress)
	return port
}

// gatewayArgs are good but for etcd: nobody listens there.
func (w *world) gatewayArgs(t *testing.T) []string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + port,
		"--tls-cert-file=" + w.pki.Cert(pki.APIServer), "--tls-private-key-file=" + w.pki.Key(pki.APIServer),
		"--client-ca-file=" + w.pki.Cert(pki.ClusterCA),
		"--service-account-issuer=https://issuer.example",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--etcd-servers=http://127.0.0.1:1", "--etcd-startup-timeout=1s",
		"--gates-ca-file=" + w.pki.Cert(pki.GatesCA),
		"--gates-client-cert-file=" + w.pki.Cert(pki.Gateway),
		"--gates-client-key-file=" + w.pki.Key(pki.Gateway),
	}
}

// serviceArgs are what every service needs, good in all.
func (w *world) serviceArgs(t *testing.T, name pki.Name) []string {
	t.Helper()
	kubeconfig := filepath.Join(w.dir, string(name)+".kubeconfig")
	if err := w.pki.WriteKubeconfig(pki.Kubeconfig{Path: kubeconfig, Server: "https://127.0.0.1:1", Identity: name}); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--listen-address=127.0.0.1:0",
		"--tls-cert-file=" + w.pki.Cert(name), "--tls-private-key-file=" + w.pki.Key(name),
		"--peer-ca-file=" + w.pki.Cert(pki.GatesCA),
		"--kubeconfig=" + kubeconfig,
	}
}

func (w *world) authnArgs(t *testing.T) []string {
	return append(w.serviceArgs(t, pki.Authn),
		"--service-account-issuer=https://issuer.example",
		"--service-account-key-file="+w.pki.ServiceAccountPublicKey(),
		"--service-account-signing-key-file="+w.pki.ServiceAccountKey())
}

// badCase is one mistake, added to good arguments.
type badCase struct {
	name string
	args []string
	want []string
}

func TestGateway(t *testing.T) {
	w := newWorld(t)
	noKey := w.file(t, "no-key.pem", "not a key")
	noPolicy := w.file(t, "policy.yaml", "kind: Nonsense\n")
	noEncryption := w.file(t, "encryption.yaml", "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources: [{providers: [{nonsense: {}}]}]\n")
	for _, test := range []badCase{
		{"unknown flag", []string{"--no-such-flag=1"}, []string{"unknown flag", "--no-such-flag"}},
		{"flag that moved", []string{"--authorization-mode=RBAC"}, []string{"--authorization-mode", "trigate-authz"}},
		{"value of another type", []string{"--etcd-startup-timeout=soon"}, []string{"--etcd-startup-timeout", "soon"}},
		{"argument", []string{"start"}, []string{"takes no arguments", "start"}},
		{"missing key", []string{"--tls-private-key-file=" + w.missing()}, []string{w.missing(), "no such file"}},
		{"key that is none", []string{"--tls-private-key-file=" + noKey}, []string{noKey}},
		{"missing CA of the gates", []string{"--gates-ca-file=" + w.missing()}, []string{"--gates-ca-file", w.missing()}},
		{"CA of the gates that is none", []string{"--gates-ca-file=" + noKey}, []string{noKey}},
		{"key of another certificate", []string{"--gates-client-key-file=" + w.pki.Key(pki.Authz)}, []string{w.pki.Key(pki.Authz)}},
		{"malformed audit policy", []string{"--audit-policy-file=" + noPolicy, "--audit-log-path=-"}, []string{"audit", noPolicy}},
		{"malformed encryption configuration", []string{"--encryption-provider-config=" + noEncryption}, []string{"storage", "nonsense"}},
		{"malformed service range", []string{"--service-cluster-ip-range=ten"}, []string{"service-cluster-ip-range"}},
		{"port in use", []string{"--secure-port=" + w.takenPort()}, []string{"--secure-port", w.takenAddress, "address already in use"}},
		{"endpoint that is none", []string{"--authz-endpoint=nowhere"}, []string{"--authz-endpoint", "nowhere"}},
		{"etcd that does not answer", nil, []string{"--etcd-servers", "http://127.0.0.1:1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			run(t, "trigate-gateway", append(w.gatewayArgs(t), test.args...)...).check(t, "trigate-gateway", test.want...)
		})
	}
}

func TestServices(t *testing.T) {
	w := newWorld(t)
	noKey := w.file(t, "no-key.pem", "not a key")
	garbage := w.file(t, "garbage.yaml", "kind: [")
	nonsense := w.file(t, "nonsense.yaml", "kind: Nonsense\napiVersion: apiserver.config.k8s.io/v1\n")
	good := map[string][]string{
		"trigate-authn":     w.authnArgs(t),
		"trigate-authz":     append(w.serviceArgs(t, pki.Authz), "--authorization-mode=RBAC"),
		"trigate-admission": append(w.serviceArgs(t, pki.Admission), "--authz-endpoint=127.0.0.1:1"),
	}
	every := []badCase{
		{"unknown flag", []string{"--no-such-flag=1"}, []string{"unknown flag", "--no-such-flag"}},
		{"argument", []string{"start"}, []string{"start"}},
		{"missing key", []string{"--tls-private-key-file=" + w.missing()}, []string{"--tls-private-key-file", w.missing()}},
		{"key that is none", []string{"--tls-private-key-file=" + noKey}, []string{noKey}},
		{"key of another certificate", []string{"--tls-private-key-file=" + w.pki.Key(pki.Gateway)}, []string{w.pki.Key(pki.Gateway)}},
		{"CA that is none", []string{"--peer-ca-file=" + noKey}, []string{noKey}},
		{"malformed kubeconfig", []string{"--kubeconfig=" + garbage}, []string{"--kubeconfig", garbage}},
		{"missing kubeconfig", []string{"--kubeconfig=" + w.missing()}, []string{"--kubeconfig", w.missing()}},
		{"port in use", []string{"--listen-address=" + w.takenAddress}, []string{"--listen-address", w.takenAddress, "address already in use"}},
	}
	own := map[string][]badCase{
		"trigate-authn": {
			{"missing signing key", []string{"--service-account-signing-key-file=" + w.missing()}, []string{"--service-account-signing-key-file", w.missing()}},
			{"signing key that is none", []string{"--service-account-signing-key-file=" + noKey}, []string{noKey}},
			{"malformed configuration", []string{"--authentication-config=" + garbage}, []string{"--authentication-config"}},
			{"configuration of another kind", []string{"--authentication-config=" + nonsense}, []string{"Nonsense"}},
			{"issuer without a client", []string{"--oidc-issuer-url=https://issuer.example"}, []string{"oidc-client-id"}},
		},
		"trigate-authz": {
			{"unknown mode", []string{"--authorization-mode=Magic"}, []string{"authorization-mode", "Magic"}},
			{"malformed configuration", []string{"--authorization-mode=", "--authorization-config=" + garbage}, []string{"--authorization-config"}},
			{"mode without its file", []string{"--authorization-mode=ABAC"}, []string{"ABAC"}},
		},
		"trigate-admission": {
			{"unknown plugin", []string{"--enable-admission-plugins=Magic"}, []string{"enable-admission-plugins", "Magic"}},
			{"malformed configuration", []string{"--admission-control-config-file=" + garbage}, []string{"admission-control-config-file"}},
			{"missing configuration", []string{"--admission-control-config-file=" + w.missing()}, []string{w.missing()}},
		},
	}
	for program, args := range good {
		for _, test := range append(append([]badCase{}, every...), own[program]...) {
			t.Run(program+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				run(t, program, append(append([]string{}, args...), test.args...)...).check(t, program, test.want...)
			})
		}
	}
}

// TestAuthzNeedsAMode wants authz to refuse upstream's default, which is to allow
// everything.
func TestAuthzNeedsAMode(t *testing.T) {
	w := newWorld(t)
	run(t, "trigate-authz", w.serviceArgs(t, pki.Authz)...).
		check(t, "trigate-authz", "--authorization-mode", "--authorization-config")
}

func TestLocal(t *testing.T) {
	w := newWorld(t)
	file := w.file(t, "file", "")
	for _, test := range []badCase{
		{"unknown flag", []string{"--no-such-flag"}, []string{"unknown flag", "--no-such-flag"}},
		{"directory that is a file", []string{"--dir=" + file}, []string{file}},
		{"port in use", []string{"--dir=" + filepath.Join(w.dir, "local"), "--port=" + w.takenPort()}, []string{"--port " + w.takenPort(), "address already in use"}},
		{"programs that are not there", []string{"--dir=" + filepath.Join(w.dir, "other"), "--port=0", "--program-dir=" + w.dir}, []string{"trigate-gateway"}},
		{"no gateway", []string{"--dir=" + filepath.Join(w.dir, "none"), "--gateways=0"}, []string{"--gateways"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, "trigate-local", test.args...).check(t, "trigate-local", test.want...)
		})
	}
}

// TestLocalTwice wants a second runner on the same directory to be refused.
func TestLocalTwice(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	run(t, "trigate-local", "--dir="+c.Dir, "--port=0").check(t, "trigate-local", c.Dir)
	if got := c.MustKubectl(t, "get", "--raw", "/readyz"); got != "ok" {
		t.Errorf("the first one's /readyz = %q, want ok", got)
	}
}
