package serve_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

// parse returns the options of a service that calls authn and authz.
func parse(t *testing.T, args ...string) serve.CompletedOptions {
	t.Helper()
	o := serve.NewOptions("127.0.0.1:7443", "authn", "authz")
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("Parse(%q) = %v, want nil", args, err)
	}
	return o.Complete()
}

// valid are the flags without which nothing is valid.
func valid(t *testing.T, pki *servetest.PKI) []string {
	t.Helper()
	cert := pki.Process(t, "admission")
	return []string{
		"--tls-cert-file=" + cert.CertFile,
		"--tls-private-key-file=" + cert.KeyFile,
		"--peer-ca-file=" + pki.Gates.File,
	}
}

func TestOptionsValidate(t *testing.T) {
	pki := servetest.NewPKI(t)
	for name, tc := range map[string]struct {
		args []string
		// want are the flags that the messages start with.
		want []string
	}{
		"the least": {},
		"all of them": {args: []string{
			"--listen-address=[::]:0", "--client-ca-file=" + pki.Cluster.File, "--authn-endpoint=dns:///authn:7441",
			"--authz-endpoint=a:1,b:2", "--metrics-listen-address=127.0.0.1:0", "--shutdown-delay=1s", "--reflection=false",
			"--kubeconfig=" + pki.Cluster.File, "--max-message-bytes=1", "--max-connection-age=1s",
		}},
		"files that are not there": {
			[]string{"--tls-cert-file=", "--tls-private-key-file=/no/such", "--peer-ca-file=", "--client-ca-file=/no/such", "--kubeconfig=/no/such"},
			[]string{"tls-cert-file", "tls-private-key-file", "peer-ca-file", "client-ca-file", "kubeconfig"},
		},
		"files with something else in them": {
			[]string{"--tls-private-key-file=" + pki.Gates.File, "--peer-ca-file=/dev/null", "--client-ca-file=/dev/null"},
			[]string{"tls-cert-file, --tls-private-key-file", "peer-ca-file", "client-ca-file"},
		},
		"half a client certificate":       {[]string{"--peer-client-cert-file=/no/such"}, []string{"peer-client-cert-file"}},
		"a client certificate, not there": {[]string{"--peer-client-cert-file=/no/such", "--peer-client-key-file=/no/such"}, []string{"peer-client-cert-file", "peer-client-key-file"}},
		"addresses": {
			[]string{"--listen-address=localhost", "--metrics-listen-address=localhost:70000", "--authn-endpoint=x", "--authz-endpoint=a:1,b"},
			[]string{"listen-address", "authn-endpoint", "authz-endpoint", "metrics-listen-address"},
		},
		"numbers": {
			[]string{"--shutdown-delay=-1s", "--max-message-bytes=0", "--max-connection-age=0s"},
			[]string{"shutdown-delay", "max-message-bytes", "max-connection-age"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			errs := parse(t, append(valid(t, pki), tc.args...)...).Validate()
			if len(errs) != len(tc.want) {
				t.Fatalf("Validate() = %v, want one message for each of %v", errs, tc.want)
			}
			for i, err := range errs {
				if !strings.HasPrefix(err.Error(), "--"+tc.want[i]+": ") || strings.Contains(err.Error(), "\n") {
					t.Errorf("message %q, want a line that starts with --%s:", err, tc.want[i])
				}
			}
		})
	}
}

func TestOptionsReachTheServerAndTheConnections(t *testing.T) {
	pki := servetest.NewPKI(t)
	required := valid(t, pki)
	o := parse(t, append(required, "--authz-endpoint=h:1", "--reflection=false", "--max-message-bytes=7",
		"--shutdown-delay=3s", "--max-connection-age=4s", "--client-ca-file="+pki.Cluster.File, "--metrics-listen-address=h:2")...)
	certFile, keyFile := strings.TrimPrefix(required[0], "--tls-cert-file="), strings.TrimPrefix(required[1], "--tls-private-key-file=")
	want := serve.Config{
		Name: "admission", ListenAddress: "127.0.0.1:7443", CertFile: certFile, KeyFile: keyFile,
		PeerCAFile: pki.Gates.File, ClientCAFile: pki.Cluster.File, MaxMessageBytes: 7, MaxConnectionAge: 4 * time.Second,
		ShutdownDelay: 3 * time.Second, DisableReflection: true, MetricsListenAddress: "h:2",
	}
	if diff := cmp.Diff(want, o.ServerConfig("admission")); diff != "" {
		t.Errorf("ServerConfig() (-want +got):\n%s", diff)
	}
	got, ok := o.DialConfig("authz")
	wantDial := dial.Config{
		Name: "authz", Endpoint: "h:1", ServerName: "trigate-authz", CAFile: pki.Gates.File,
		CertFile: certFile, KeyFile: keyFile, MaxMessageBytes: 7,
	}
	if diff := cmp.Diff(fmt.Sprintf("%+v", wantDial), fmt.Sprintf("%+v", got)); diff != "" || !ok {
		t.Errorf("DialConfig(authz) = %v (-want +got):\n%s", ok, diff)
	}
	if _, ok := o.DialConfig("authn"); ok {
		t.Error("DialConfig(authn) without an endpoint = true, want false")
	}
}

func TestOptionsOfAServiceWithoutPeers(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	serve.NewOptions("127.0.0.1:7441").AddFlags(fs)
	for _, name := range []string{"authn-endpoint", "authz-endpoint", "admission-endpoint"} {
		if fs.Lookup(name) != nil {
			t.Errorf("there is a flag --%s, want none", name)
		}
	}
}
