package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

// TestCertificateOnAnOpenConnection has a client keep its connection while its
// certificate stops to be good: by its own end, and by the end of the CA that signed
// it.
func TestCertificateOnAnOpenConnection(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "clients.crt")
	other := newAuthority(t)
	write(t, bundle, other.pem)
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--controllers=false", "--gateway-arg=--client-ca-file=" + bundle}})
	cluster, err := os.ReadFile(c.PKI.Cert(pki.ClusterCA))
	if err != nil {
		t.Fatal(err)
	}

	t.Run("the certificate ends", func(t *testing.T) {
		ends := time.Now().Add(10 * time.Second).Truncate(time.Second)
		client := other.client(t, c, ends)
		for served := 0; ; served++ {
			before := time.Now()
			code, err := client.ask(served > 0)
			after := time.Now()
			switch {
			case err != nil:
				t.Fatal(err)
			case code == http.StatusCreated && before.After(ends):
				t.Fatalf("a request was served %s after the certificate had ended", before.Sub(ends))
			case code == http.StatusUnauthorized && after.Before(ends):
				t.Fatalf("a request was refused %s before the certificate ends", ends.Sub(after))
			case code == http.StatusUnauthorized && served > 0:
				return
			case code != http.StatusCreated:
				t.Fatalf("got code %d after %d that were served", code, served)
			}
		}
	})
	t.Run("the CA is replaced", func(t *testing.T) {
		client := other.client(t, c, time.Now().Add(time.Hour))
		if code, err := client.ask(false); err != nil || code != http.StatusCreated {
			t.Fatalf("got code %d, %v", code, err)
		}
		write(t, bundle, cluster)
		// The gateway reads the file when it has changed.
		framework.Eventually(t, "a refusal on the open connection", func() error {
			code, err := client.ask(true)
			if err == nil && code != http.StatusUnauthorized {
				err = fmt.Errorf("got code %d", code)
			}
			return err
		})
		whoAmI(t, c.As(t, c.User(t, "ann"))).Want(t, http.StatusCreated)
	})
}

// authority is a CA that the control plane does not know of itself.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key := newKey(t)
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "other"}, key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := cert.EncodeCertificates(certificate)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate: certificate, key: key, pem: encoded}
}

// keeper is a client that has one connection.
type keeper struct {
	client *http.Client
	url    string
}

func (a authority) client(t *testing.T, c *framework.Cluster, ends time.Time) keeper {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "jane", Organization: []string{"system:masters"}},
		NotBefore:    time.Now().Add(-time.Minute), NotAfter: ends,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	config := c.Anonymous(t)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, MaxConnsPerHost: 1}}
	t.Cleanup(client.CloseIdleConnections)
	return keeper{client: client, url: config.Host + "/api/v1/namespaces?dryRun=All"}
}

// ask sends a request that only a known user may, and wants it to go over the
// connection that there is.
func (k keeper) ask(again bool) (int, error) {
	req, err := http.NewRequest(http.MethodPost, k.url, strings.NewReader(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "a-"}}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	reused := false
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
	resp, err := k.client.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return 0, err
	}
	if reused != again {
		return 0, errors.New("the connection was not kept")
	}
	return resp.StatusCode, nil
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
