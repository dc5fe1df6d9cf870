package app_test

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/trigate-pki/app"
)

// run runs the command and wants an exit code.
func run(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	if got := app.Main(args, &out, &errOut); got != want {
		t.Fatalf("%q = %d, want %d\n%s%s", args, got, want, out.String(), errOut.String())
	}
	return out.String(), errOut.String()
}

func TestInitIsIdempotent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	out, _ := run(t, 0, "init", "--dir="+dir, "--dry-run", "--output="+kubeconfig)
	if !strings.Contains(out, "would write "+dir+"/apiserver.crt") || !strings.Contains(out, "would write "+kubeconfig) {
		t.Errorf("a dry run says:\n%s", out)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("a dry run made the directory: %v", err)
	}
	run(t, 0, "init", "--dir="+dir, "--server=https://api.example.org:8443", "--gateway-address=192.0.2.7", "--namespace=trigate-system", "--output="+kubeconfig)
	certs, err := cert.CertsFromFile(filepath.Join(dir, "apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"api.example.org", "192.0.2.7", "trigate-gateway.trigate-system.svc", "localhost"} {
		if err := certs[0].VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://api.example.org:8443" {
		t.Errorf("the kubeconfig's server is %s", config.Host)
	}
	if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]os.FileMode{kubeconfig: 0o600, filepath.Join(dir, "sa.key"): 0o600, filepath.Join(dir, "ca.key"): 0o600, dir: 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %o", path, info, err, want)
		}
	}
	if out, _ := run(t, 2, "check", "--dir="+dir, "--namespace=other"); !strings.Contains(out, "it lacks the name trigate-gateway.other") {
		t.Errorf("check for another namespace says:\n%s", out)
	}
	if out, _ := run(t, 0, "init", "--dir="+dir); out != "nothing had to be written\n" {
		t.Errorf("a second run says:\n%s", out)
	}
}

func TestCheckAndRenew(t *testing.T) {
	dir := t.TempDir()
	run(t, 0, "init", "--dir="+dir)
	if out, _ := run(t, 0, "check", "--dir="+dir); !strings.Contains(out, "etcd-client") || strings.Contains(out, "soon") {
		t.Errorf("check says:\n%s", out)
	}
	out, stderr := run(t, 2, "check", "--dir="+dir, "--before=9000h")
	if !strings.Contains(out, "it ends soon") || stderr != "" {
		t.Errorf("check says:\n%s%s", out, stderr)
	}
	if out, _ := run(t, 2, "check", "--dir="+dir, "--gateway-address=api.example.org"); !strings.Contains(out, "it lacks the name api.example.org") {
		t.Errorf("check says:\n%s", out)
	}
	if out, _ := run(t, 0, "renew", "--dir="+dir); out != "nothing had to be written\n" {
		t.Errorf("renew says:\n%s", out)
	}
	if out, _ := run(t, 0, "renew", "--dir="+dir, "--before=8759h59m59.999s"); strings.Count(out, "wrote") != 11 {
		t.Errorf("renew --before says:\n%s", out)
	}
	if err := os.Remove(filepath.Join(dir, "authz.key")); err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, 2, "check", "--dir="+dir); !strings.Contains(out, "its key is missing") {
		t.Errorf("check says:\n%s", out)
	}
}

func TestKubeconfigOfUser(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "kubeconfig")
	run(t, 0, "init", "--dir="+dir)
	run(t, 0, "kubeconfig", "--dir="+dir, "--user=system:node:a", "--group=system:nodes", "--validity=8h", "--output="+path)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := cert.ParseCertsPEM(config.CertData)
	if err != nil {
		t.Fatal(err)
	}
	if got := certs[0].Subject.String(); got != "CN=system:node:a,O=system:nodes" {
		t.Errorf("subject = %s", got)
	}
	out, _ := run(t, 0, "kubeconfig", "--dir="+dir, "--user=jane", "--output=-")
	if config, err := clientcmd.Load([]byte(out)); err != nil || len(config.AuthInfos["jane"].ClientKeyData) == 0 {
		t.Errorf("on the standard output: %v, %v", config, err)
	}
	certs, err = cert.ParseCertsPEM(mustLoad(t, out))
	if err != nil || len(certs[0].Subject.Organization) > 0 {
		t.Errorf("jane's groups = %v, %v, want none", certs[0].Subject.Organization, err)
	}
}

func mustLoad(t *testing.T, kubeconfig string) []byte {
	t.Helper()
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	return config.AuthInfos["jane"].ClientCertificateData
}

func TestBadInput(t *testing.T) {
	empty := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"nowhere", []string{"init"}, "--dir: say where the PKI is"},
		{"two places", []string{"init", "--dir=x", "--kubeconfig=y"}, "--dir: the PKI is either"},
		{"namespace", []string{"init", "--dir=x", "--namespace=A_b"}, `--namespace: "A_b"`},
		{"address with port", []string{"init", "--dir=x", "--gateway-address=a:1"}, `--gateway-address: "a:1"`},
		{"server", []string{"init", "--dir=x", "--server=http://a"}, "--server"},
		{"range", []string{"init", "--dir=x", "--service-cluster-ip-range=10.0.0.0"}, "--service-cluster-ip-range"},
		{"validity", []string{"init", "--dir=x", "--validity=-1h"}, "--validity"},
		{"before its beginning", []string{"renew", "--dir=" + empty, "--before=9000h"}, "cannot be renewed"},
		{"argument", []string{"init", "x"}, `"x"`},
		{"unknown command", []string{"make"}, `"make"`},
		{"no kubeconfig file", []string{"init", "--kubeconfig=" + empty + "/none"}, "--kubeconfig"},
		{"nothing to renew", []string{"renew", "--dir=" + empty}, "authority ca: it is missing"},
		{"no authority for a user", []string{"kubeconfig", "--dir=" + empty, "--output=-"}, "ca.crt is missing"},
		{"no output", []string{"kubeconfig", "--dir=" + empty}, "--output"},
		{"no step", []string{"rotate", "--dir=" + empty, "--authority=ca", "--step=x"}, "ca.key, is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			_, stderr := run(t, 1, tt.args...)
			if !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "trigate-pki: ") {
				t.Errorf("error = %q, want one line with %q", stderr, tt.want)
			}
			for _, dir := range []string{".", empty} {
				if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
					t.Errorf("made %v, %v", entries, err)
				}
			}
		})
	}
}
