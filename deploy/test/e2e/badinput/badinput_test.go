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
	"regexp"
	"slices"
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

// logLine is how every line of a log begins.
var logLine = regexp.MustCompile(`^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} `)

// check wants the program's last word to be one line of its own with all of wants,
// and nothing before it but its log.
func (o outcome) check(t *testing.T, name string, wants ...string) {
	t.Helper()
	if o.code != 1 {
		t.Errorf("exit code = %d, want 1; stderr:\n%s", o.code, o.stderr)
	}
	lines := strings.Split(strings.TrimRight(o.stderr, "\n"), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, name+": ") {
		t.Errorf("the last line is not the program's: %q", last)
	}
	for _, line := range lines[:len(lines)-1] {
		if !logLine.MatchString(line) {
			t.Errorf("a line is neither the last nor of the log: %q", line)
		}
	}
	for _, want := range wants {
		if !strings.Contains(last, want) {
			t.Errorf("the last line has no %q: %q", want, last)
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
	policy := w.file(t, "good-policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	noPolicy := w.file(t, "policy.yaml", "kind: Nonsense\n")
	noEncryption := w.file(t, "encryption.yaml", "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources: [{providers: [{nonsense: {}}]}]\n")
	for _, test := range []badCase{
		{"unknown flag", []string{"--no-such-flag=1"}, []string{"unknown flag", "--no-such-flag"}},
		{"flag that moved", []string{"--authorization-mode=RBAC"}, []string{"--authorization-mode", "trigate-authz"}},
		{"flag that moved, without a value", []string{"--oidc-issuer-url"}, []string{"--oidc-issuer-url", "trigate-authn"}},
		{"value of another type", []string{"--etcd-startup-timeout=soon"}, []string{"--etcd-startup-timeout", "soon"}},
		{"negative time", []string{"--etcd-startup-timeout=-1s"}, []string{"--etcd-startup-timeout", "negative"}},
		{"unknown feature gate", []string{"--feature-gates=Magic=true"}, []string{"feature gate", "Magic"}},
		{"argument", []string{"start"}, []string{"takes no arguments", "start"}},

		{"missing key", []string{"--tls-private-key-file=" + w.missing()}, []string{"--tls-private-key-file", w.missing(), "no such file"}},
		{"key that is none", []string{"--tls-private-key-file=" + noKey}, []string{"--tls-private-key-file", noKey}},
		{"missing CA of the clients", []string{"--client-ca-file=" + w.missing()}, []string{w.missing(), "no such file"}},
		{"CA of the clients that is none", []string{"--client-ca-file=" + noKey}, []string{noKey}},
		{"missing CA of the gates", []string{"--gates-ca-file=" + w.missing()}, []string{"--gates-ca-file", w.missing()}},
		{"CA of the gates that is none", []string{"--gates-ca-file=" + noKey}, []string{"--gates-ca-file", noKey}},
		{"key of another certificate", []string{"--gates-client-key-file=" + w.pki.Key(pki.Authz)}, []string{"--gates-client-key-file", w.pki.Key(pki.Authz), "does not match"}},
		{"missing CA of etcd", []string{"--etcd-cafile=" + w.missing()}, []string{"--etcd-cafile", w.missing()}},
		{"missing key of etcd", []string{"--etcd-certfile=" + w.pki.Cert(pki.EtcdClient), "--etcd-keyfile=" + w.missing()}, []string{"--etcd-keyfile", w.missing()}},

		{"missing audit policy", []string{"--audit-policy-file=" + w.missing(), "--audit-log-path=-"}, []string{"audit", w.missing()}},
		{"malformed audit policy", []string{"--audit-policy-file=" + noPolicy, "--audit-log-path=-"}, []string{"audit", noPolicy}},
		{"malformed audit webhook", []string{"--audit-policy-file=" + policy, "--audit-webhook-config-file=" + noPolicy}, []string{"audit webhook"}},
		{"malformed encryption configuration", []string{"--encryption-provider-config=" + noEncryption}, []string{noEncryption, "nonsense"}},
		{"malformed tracing configuration", []string{"--tracing-config-file=" + noPolicy}, []string{"tracing", "Nonsense"}},
		{"malformed service range", []string{"--service-cluster-ip-range=ten"}, []string{"service-cluster-ip-range"}},

		{"port in use", []string{"--secure-port=" + w.takenPort()}, []string{"--secure-port " + w.takenPort(), w.takenAddress, "address already in use"}},
		{"endpoint that is none", []string{"--authz-endpoint=nowhere"}, []string{"--authz-endpoint", "nowhere"}},
		{"no endpoint", []string{"--admission-endpoint="}, []string{"--admission-endpoint", "required"}},
		{"no issuer", []string{"--service-account-issuer="}, []string{"service-account-issuer"}},
		{"no CA of the clients", []string{"--client-ca-file="}, []string{"--client-ca-file", "required"}},
		{"no certificate for the gates", []string{"--gates-client-cert-file="}, []string{"--gates-client-cert-file", "required"}},
		{"no etcd", []string{"--etcd-servers="}, []string{"--etcd-servers"}},
		{"flags that contradict each other", []string{"--encryption-provider-config-automatic-reload"}, []string{"--encryption-provider-config-automatic-reload"}},
		{"two mistakes", []string{"--authn-endpoint=", "--gates-ca-file="}, []string{"--authn-endpoint", "--gates-ca-file"}},

		{"etcd that does not answer", nil, []string{"--etcd-servers", "http://127.0.0.1:1", "--etcd-startup-timeout", "connection refused"}},
		{"etcd without TLS", []string{"--etcd-servers=https://" + w.takenAddress, "--etcd-cafile=" + w.pki.Cert(pki.EtcdCA)}, []string{"--etcd-servers", w.takenAddress}},
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
		{"key that is none", []string{"--tls-private-key-file=" + noKey}, []string{"--tls-private-key-file", noKey}},
		{"key of another certificate", []string{"--tls-private-key-file=" + w.pki.Key(pki.Gateway)}, []string{"--tls-private-key-file", w.pki.Key(pki.Gateway), "does not match"}},
		{"no certificate", []string{"--tls-cert-file="}, []string{"--tls-cert-file", "required"}},
		{"CA that is none", []string{"--peer-ca-file=" + noKey}, []string{"--peer-ca-file", noKey}},
		{"CA of users that is none", []string{"--client-ca-file=" + noKey}, []string{"--client-ca-file", noKey}},
		{"unknown feature gate", []string{"--feature-gates=Magic=true"}, []string{"--feature-gates", "Magic"}},
		{"unknown log format", []string{"--logging-format=prose"}, []string{"--logging-format", "prose"}},
		{"address that is none", []string{"--listen-address=here"}, []string{"--listen-address", "here"}},
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
			{"contradicting configurations", []string{"--authorization-config=" + garbage}, []string{"--authorization-config", "--authorization-mode"}},
			{"mode without its file", []string{"--authorization-mode=ABAC"}, []string{"ABAC"}},
		},
		"trigate-admission": {
			{"unknown plugin", []string{"--enable-admission-plugins=Magic"}, []string{"enable-admission-plugins", "Magic"}},
			{"malformed configuration", []string{"--admission-control-config-file=" + garbage}, []string{"admission-control-config-file"}},
			{"missing configuration", []string{"--admission-control-config-file=" + w.missing()}, []string{w.missing()}},
		},
	}
	for program, args := range good {
		for _, test := range slices.Concat(every, own[program]) {
			t.Run(program+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				run(t, program, slices.Concat(args, test.args)...).check(t, program, test.want...)
			})
		}
	}
}

// TestAuthzConfiguration is about what stands in the place of --authorization-mode.
func TestAuthzConfiguration(t *testing.T) {
	w := newWorld(t)
	const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"
	for _, test := range []badCase{
		// Upstream's default is to allow everything.
		{"none", nil, []string{"--authorization-mode", "--authorization-config"}},
		{"missing", []string{"--authorization-config=" + w.missing()}, []string{"--authorization-config", w.missing()}},
		{"malformed", []string{"--authorization-config=" + w.file(t, "garbage.yaml", "kind: [")}, []string{"--authorization-config", "garbage.yaml"}},
		{
			"unknown type",
			[]string{"--authorization-config=" + w.file(t, "type.yaml", header+"authorizers: [{type: Magic, name: m}]\n")},
			[]string{"--authorization-config", "Magic"},
		},
		{
			"unknown field",
			[]string{"--authorization-config=" + w.file(t, "field.yaml", header+"authorizers: [{type: RBAC, name: r, magic: true}]\n")},
			[]string{"--authorization-config", "field.yaml", "magic"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			run(t, "trigate-authz", append(w.serviceArgs(t, pki.Authz), test.args...)...).check(t, "trigate-authz", test.want...)
		})
	}
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
