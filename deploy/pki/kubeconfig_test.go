package pki_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
)

// TestKubeconfig makes a request as each identity to a server with the API
// server's certificate, from the directory as it was made and from a moved one.
func TestKubeconfig(t *testing.T) {
	root := filepath.Join(t.TempDir(), "made")
	layout := ensure(t, pki.Config{Dir: filepath.Join(root, "pki")})
	server := whoAmIServer(t, layout)
	for _, tt := range []struct {
		identity pki.Name
		path     string
		embed    bool
		want     string
	}{
		{pki.Admin, "kubeconfig", true, "CN=kubernetes-admin,O=system:masters"},
		{pki.Controllers, "pki/controllers.kubeconfig", false, "CN=system:kube-controller-manager"},
		{pki.Authn, "pki/authn.kubeconfig", false, "CN=system:trigate:authn,O=system:trigate"},
		{pki.Authz, "authz.kubeconfig", false, "CN=system:trigate:authz,O=system:trigate"},
	} {
		path := filepath.Join(root, tt.path)
		if err := layout.WriteKubeconfig(pki.Kubeconfig{Path: path, Server: server, Identity: tt.identity, Embed: tt.embed}); err != nil {
			t.Fatal(err)
		}
		if got := whoAmI(t, path); got != tt.want {
			t.Errorf("%s is seen as %s, want %s", tt.path, got, tt.want)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("mode of %s = %o, want 600", tt.path, got)
		}
	}

	moved := root + "-elsewhere"
	if err := os.Rename(root, moved); err != nil {
		t.Fatal(err)
	}
	if got, want := whoAmI(t, filepath.Join(moved, "pki/authn.kubeconfig")), "CN=system:trigate:authn,O=system:trigate"; got != want {
		t.Errorf("after moving the directory it is seen as %s, want %s", got, want)
	}
	alone := filepath.Join(t.TempDir(), "config")
	write(t, alone, readFile(t, filepath.Join(moved, "kubeconfig")))
	if got, want := whoAmI(t, alone), "CN=kubernetes-admin,O=system:masters"; got != want {
		t.Errorf("a copy of the admin's is seen as %s, want %s", got, want)
	}
}

func TestKubeconfigKeepsWhatPeopleSet(t *testing.T) {
	layout := ensure(t, pki.Config{Dir: t.TempDir()})
	kubeconfig := pki.Kubeconfig{Path: filepath.Join(layout.Dir, "kubeconfig"), Server: "https://127.0.0.1:1", Identity: pki.Admin, Embed: true}
	if err := layout.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig.Path)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts["trigate"].Namespace = "boutique"
	config.Contexts["other"] = config.Contexts["trigate"].DeepCopy()
	config.CurrentContext = "other"
	if err := clientcmd.WriteToFile(*config, kubeconfig.Path); err != nil {
		t.Fatal(err)
	}

	kubeconfig.Server = "https://127.0.0.1:2"
	if err := layout.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	config, err = clientcmd.LoadFromFile(kubeconfig.Path)
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Contexts["trigate"].Namespace; got != "boutique" {
		t.Errorf("namespace = %q, want boutique", got)
	}
	if config.CurrentContext != "other" || config.Contexts["other"] == nil {
		t.Errorf("current context = %q of %v, want other", config.CurrentContext, config.Contexts)
	}
	if got := config.Clusters["trigate"].Server; got != "https://127.0.0.1:2" {
		t.Errorf("server = %s, want the new one", got)
	}
}

func TestKubeconfigErrors(t *testing.T) {
	layout := ensure(t, pki.Config{Dir: t.TempDir()})
	path := filepath.Join(layout.Dir, "kubeconfig")
	write(t, path, []byte("{"))
	err := layout.WriteKubeconfig(pki.Kubeconfig{Path: path, Server: "https://127.0.0.1:1", Identity: pki.Admin, Embed: true})
	if err == nil || !strings.Contains(err.Error(), "reading kubeconfig "+path) {
		t.Errorf("WriteKubeconfig over a broken file = %v", err)
	}
	if got := string(readFile(t, path)); got != "{" {
		t.Errorf("the broken file is now %q", got)
	}
	remove(t, path, layout.Key(pki.Admin))
	err = layout.WriteKubeconfig(pki.Kubeconfig{Path: path, Server: "https://127.0.0.1:1", Identity: pki.Admin, Embed: true})
	if err == nil || !strings.Contains(err.Error(), layout.Key(pki.Admin)) {
		t.Errorf("WriteKubeconfig without the key = %v", err)
	}
}

// whoAmIServer answers with the subject of the caller's certificate.
func whoAmIServer(t *testing.T, layout *pki.Layout) string {
	t.Helper()
	serving, err := tls.LoadX509KeyPair(layout.Cert(pki.APIServer), layout.Key(pki.APIServer))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := cert.NewPool(layout.Cert(pki.ClusterCA))
	if err != nil {
		t.Fatal(err)
	}
	clients.AddCert(readCert(t, layout.Cert(pki.GatesCA)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.String())
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func whoAmI(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	response, err := client.Get(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
