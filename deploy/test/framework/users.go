package framework

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/trigate/trigate/deploy/pki"
)

// User returns the client configuration of a user with a certificate of the
// cluster's CA.
func (c *Cluster) User(tb testing.TB, name string, groups ...string) *rest.Config {
	tb.Helper()
	return c.CertificateUser(tb, pki.ClusterCA, name, groups...)
}

// CertificateUser is User with a certificate of the named CA.
func (c *Cluster) CertificateUser(tb testing.TB, authority pki.Name, name string, groups ...string) *rest.Config {
	tb.Helper()
	certPEM, keyPEM := c.Certificate(tb, authority, name, groups...)
	config := c.anonymous(tb)
	config.CertData, config.KeyData = certPEM, keyPEM
	return config
}

// Token returns the client configuration of whoever bears token.
func (c *Cluster) Token(tb testing.TB, token string) *rest.Config {
	tb.Helper()
	config := c.anonymous(tb)
	config.BearerToken = token
	return config
}

// Anonymous returns a client configuration without credentials.
func (c *Cluster) Anonymous(tb testing.TB) *rest.Config {
	tb.Helper()
	return c.anonymous(tb)
}

func (c *Cluster) anonymous(tb testing.TB) *rest.Config {
	tb.Helper()
	config := rest.AnonymousClientConfig(c.Config(tb))
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// ServiceAccountToken has the API issue a token for a service account.
func (c *Cluster) ServiceAccountToken(tb testing.TB, namespace, name string) string {
	tb.Helper()
	request, err := c.Client(tb).CoreV1().ServiceAccounts(namespace).CreateToken(context.Background(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("%s: token for %s/%s: %v", c.Name, namespace, name, err)
	}
	return request.Status.Token
}

// Certificate signs a client certificate, valid for an hour, and returns it and
// its key.
func (c *Cluster) Certificate(tb testing.TB, authority pki.Name, name string, groups ...string) (certPEM, keyPEM []byte) {
	tb.Helper()
	authorityCerts, err := cert.CertsFromFile(c.PKI.Cert(authority))
	if err != nil {
		tb.Fatal(err)
	}
	authorityKey, err := keyutil.PrivateKeyFromFile(c.PKI.Key(authority))
	if err != nil {
		tb.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authorityCerts[0], key.Public(), authorityKey)
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	certPEM, err = cert.EncodeCertificates(signed)
	if err != nil {
		tb.Fatal(err)
	}
	keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		tb.Fatal(err)
	}
	return certPEM, keyPEM
}
