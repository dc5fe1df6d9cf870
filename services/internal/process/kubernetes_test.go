package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trigate/trigate/services/internal/servetest"
)

func TestRESTConfig(t *testing.T) {
	dir := t.TempDir()
	ca := servetest.NewCA(t, "cluster")
	cert := ca.Issue(t, servetest.Subject{CommonName: "system:trigate:authz"})
	servetest.WriteFile(t, filepath.Join(dir, "ca.crt"), ca.PEM)
	servetest.WriteFile(t, filepath.Join(dir, "authz.crt"), cert.CertPEM)
	servetest.WriteFile(t, filepath.Join(dir, "authz.key"), cert.KeyPEM)
	servetest.WriteFile(t, filepath.Join(dir, "bad.crt"), []byte("no certificate"))
	const good = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: ca.crt}}]
users: [{name: u, user: {client-certificate: authz.crt, client-key: authz.key}}]
`
	for name, tc := range map[string]struct {
		content string
		// wantErr is what the error says after flag and file.
		wantErr string
	}{
		"good":                {content: good},
		"not there":           {wantErr: "no such file"},
		"empty":               {content: "\n", wantErr: "no configuration has been provided"},
		"not YAML":            {content: "apiVersion: [", wantErr: "yaml"},
		"a context of no one": {content: strings.Replace(good, "current-context: c", "current-context: d", 1), wantErr: "context: d"},
		"a missing CA":        {content: strings.Replace(good, "ca.crt", "none.crt", 1), wantErr: "none.crt"},
		"a bad certificate":   {content: strings.Replace(good, "authz.crt", "bad.crt", 1), wantErr: "bad.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "kubeconfig")
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if tc.content != "" {
				servetest.WriteFile(t, path, []byte(tc.content))
			}
			config, err := RESTConfig(path, "trigate-authz")
			if tc.wantErr != "" {
				prefix := "--kubeconfig: reading " + path + ": "
				if err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("RESTConfig() = %v, want an error that starts with %q and has %q", err, prefix, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatalf("RESTConfig() = %v, want nil", err)
			}
			if config.Host != "https://127.0.0.1:6443" || config.CertFile != filepath.Join(dir, "authz.crt") {
				t.Errorf("RESTConfig() = %s with %s, want that of the file", config.Host, config.CertFile)
			}
			if config.QPS >= 0 || config.UserAgent != "trigate-authz" {
				t.Errorf("RESTConfig() has %v requests per second and agent %q, want no limit and trigate-authz", config.QPS, config.UserAgent)
			}
		})
	}
}
