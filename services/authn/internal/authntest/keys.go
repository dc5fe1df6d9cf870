// Package authntest has what the tests of the authentication service share: keys
// and files, tokens of every kind, an issuer and a webhook on loopback. Production
// code does not import it.
package authntest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"testing"

	"github.com/trigate/trigate/services/internal/servetest"
)

// Key is a key of a service-account issuer, in files.
type Key struct {
	// Private is the key.
	Private crypto.Signer
	// PrivateFile has the key, PublicFile its public half, PEM.
	PrivateFile, PublicFile string
	// PrivatePEM and PublicPEM are what is in the files.
	PrivatePEM, PublicPEM []byte
}

// NewRSAKey makes a key in files of the test.
func NewRSAKey(t testing.TB) Key {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatalf("generating an RSA key: %v", err)
	}
	return newKey(t, private)
}

// NewECDSAKey makes a key in files of the test.
func NewECDSAKey(t testing.TB, curve elliptic.Curve) Key {
	t.Helper()
	private, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatalf("generating an ECDSA key: %v", err)
	}
	return newKey(t, private)
}

func newKey(t testing.TB, private crypto.Signer) Key {
	t.Helper()
	// In the encodings of which upstream reads the public half too.
	privateType, privateDER := "RSA PRIVATE KEY", []byte(nil)
	switch private := private.(type) {
	case *rsa.PrivateKey:
		privateDER = x509.MarshalPKCS1PrivateKey(private)
	case *ecdsa.PrivateKey:
		der, err := x509.MarshalECPrivateKey(private)
		if err != nil {
			t.Fatalf("encoding a private key: %v", err)
		}
		privateType, privateDER = "EC PRIVATE KEY", der
	}
	publicDER, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatalf("encoding a public key: %v", err)
	}
	dir := t.TempDir()
	key := Key{
		Private:     private,
		PrivateFile: filepath.Join(dir, "sa.key"),
		PublicFile:  filepath.Join(dir, "sa.pub"),
		PrivatePEM:  pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: privateDER}),
		PublicPEM:   pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER}),
	}
	servetest.WriteFile(t, key.PrivateFile, key.PrivatePEM)
	servetest.WriteFile(t, key.PublicFile, key.PublicPEM)
	return key
}
