// Package servetest has what the tests of services need: throw-away CAs and
// certificates, a real server with a real connection to it, and a check that no
// goroutine is left behind. Production code does not import it.
package servetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a throw-away certificate authority.
type CA struct {
	// File has the CA's certificate, PEM.
	File string
	// PEM is what is in File.
	PEM []byte

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes a CA whose certificate is in a file of the test.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber:          newSerial(t),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatalf("creating the certificate of CA %s: %v", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("parsing the certificate of CA %s: %v", name, err)
	}
	ca := &CA{
		File: filepath.Join(t.TempDir(), "ca.crt"),
		PEM:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		cert: cert,
		key:  key,
	}
	WriteFile(t, ca.File, ca.PEM)
	return ca
}

// Subject is what a certificate says.
type Subject struct {
	// CommonName is the user's or the process' name.
	CommonName string
	// Organizations are the user's groups.
	Organizations []string
	// DNSNames are the names that a server is verified by. Loopback addresses
	// are added.
	DNSNames []string
	// NotAfter is the certificate's end. Zero: in a day.
	NotAfter time.Time
}

// Cert is a certificate and its key.
type Cert struct {
	// CertFile and KeyFile have the PEM blocks.
	CertFile, KeyFile string
	// CertPEM and KeyPEM are what is in the files.
	CertPEM, KeyPEM []byte
}

// Issue makes a certificate for clients and servers, in files of the test.
func (ca *CA) Issue(t testing.TB, subject Subject) Cert {
	t.Helper()
	key := newKey(t)
	notAfter := subject.NotAfter
	if notAfter.IsZero() {
		notAfter = time.Now().Add(24 * time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: newSerial(t),
		Subject:      pkix.Name{CommonName: subject.CommonName, Organization: subject.Organizations},
		NotBefore:    time.Now().Add(-2 * time.Hour),
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     subject.DNSNames,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatalf("creating the certificate of %s: %v", subject.CommonName, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("encoding the key of %s: %v", subject.CommonName, err)
	}
	dir := t.TempDir()
	cert := Cert{
		CertFile: filepath.Join(dir, "tls.crt"),
		KeyFile:  filepath.Join(dir, "tls.key"),
		CertPEM:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyPEM:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
	WriteFile(t, cert.CertFile, cert.CertPEM)
	WriteFile(t, cert.KeyFile, cert.KeyPEM)
	return cert
}

// WriteFile replaces a file at once, as a rotation does.
func WriteFile(t testing.TB, path string, content []byte) {
	t.Helper()
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		t.Fatalf("writing %s: %v", temporary, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatalf("replacing %s: %v", path, err)
	}
}

// PKI is the two authorities of a Trigate and the names that its processes have.
type PKI struct {
	// Gates signs the certificates of Trigate's processes.
	Gates *CA
	// Cluster signs the certificates of users.
	Cluster *CA
}

// NewPKI makes both authorities.
func NewPKI(t testing.TB) *PKI {
	t.Helper()
	return &PKI{Gates: NewCA(t, "gates"), Cluster: NewCA(t, "cluster")}
}

// Process issues the certificate of one of Trigate's processes by its short
// name ("gateway", "authz"), for both serving and calling.
func (p *PKI) Process(t testing.TB, name string) Cert {
	t.Helper()
	return p.Gates.Issue(t, Subject{
		CommonName:    "system:trigate:" + name,
		Organizations: []string{"system:trigate"},
		DNSNames:      []string{"trigate-" + name, "localhost"},
	})
}

// User issues a user's certificate.
func (p *PKI) User(t testing.TB, name string, groups ...string) Cert {
	t.Helper()
	return p.Cluster.Issue(t, Subject{CommonName: name, Organizations: groups})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("generating a key: %v", err)
	}
	return key
}

func newSerial(t testing.TB) *big.Int {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatalf("generating a serial number: %v", err)
	}
	return serial
}
