package badinput

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

// TestCertificatesOfAnotherCA is about processes whose certificates the others do
// not accept. That is no mistake which one of them could see for itself, and it may
// be mended on the other side: they go on, are not ready, and say why.
func TestCertificatesOfAnotherCA(t *testing.T) {
	for _, test := range []struct {
		name string
		// args are given to the gateway.
		args func(layout *pki.Layout) []string
		// part is who says in one line of its log what is wrong.
		part string
		want []string
	}{
		{
			"the gateway does not accept the services",
			func(layout *pki.Layout) []string { return []string{"--gates-ca-file=" + layout.Cert(pki.FrontProxyCA)} },
			"gateway",
			[]string{"Waiting for a gate", `gate="authz"`, "signed by unknown authority"},
		},
		{
			"the services do not accept the gateway",
			func(layout *pki.Layout) []string {
				return []string{
					"--gates-client-cert-file=" + layout.Cert(pki.FrontProxyClient),
					"--gates-client-key-file=" + layout.Key(pki.FrontProxyClient),
				}
			},
			"gateway",
			[]string{"Waiting for a gate", `gate="authz"`, "certificate"},
		},
		{
			"a service does not accept the API's server",
			func(layout *pki.Layout) []string {
				return []string{
					"--tls-cert-file=" + layout.Cert(pki.EtcdServer),
					"--tls-private-key-file=" + layout.Key(pki.EtcdServer),
				}
			},
			"authz",
			[]string{"Waiting for the Kubernetes API", "signed by unknown authority"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := framework.NewParts(t, framework.PartsOptions{})
			p.AddArgs(t, "gateway", test.args(p.PKI)...)
			p.Start(t, p.Names()...)
			framework.Eventually(t, "the reason is said", func() error {
				if err := p.Died(); err != nil {
					t.Fatal(err)
				}
				if report, err := p.Probe(t, "/readyz?verbose"); err == nil {
					t.Fatalf("/readyz is ok:\n%s", report)
				}
				for line := range strings.Lines(p.Log(t, test.part)) {
					if containsAll(line, test.want) {
						return nil
					}
				}
				return fmt.Errorf("%s has no line with %q in its log", test.part, test.want)
			})
		})
	}
}

func containsAll(line string, wants []string) bool {
	for _, want := range wants {
		if !strings.Contains(line, want) {
			return false
		}
	}
	return true
}
