package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// IssueClient makes a key and a client certificate by which the Kubernetes API
// knows a user and its groups. They are returned and kept nowhere. validity is cut
// to the authority's.
func IssueClient(config Config, user string, groups []string, validity time.Duration) (Credentials, error) {
	config, err := config.complete()
	if err != nil {
		return Credentials{}, err
	}
	if user == "" {
		return Credentials{}, errors.New("no user name is given for the certificate")
	}
	m := &maker{Config: config, layout: Layout{Dir: config.Dir}}
	certPath, keyPath := m.layout.Cert(ClusterCA), m.layout.Key(ClusterCA)
	if c, err := m.readCertificates(certPath); err != nil {
		return Credentials{}, err
	} else if c == nil {
		return Credentials{}, fmt.Errorf("authority %s is missing", certPath)
	}
	a, err := m.ensureAuthority(authoritySpec{name: ClusterCA})
	if err != nil {
		return Credentials{}, err
	}
	if a.key == nil {
		return Credentials{}, fmt.Errorf("the key of the authority, %s, is missing", keyPath)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, fmt.Errorf("making a key: %w", err)
	}
	now := m.Clock.Now()
	c, err := m.issue(&certificate{
		Subject:               pkix.Name{CommonName: user, Organization: groups},
		NotBefore:             latest(now.Add(-clockSkew), a.signer.NotBefore),
		NotAfter:              earliest(now.Add(validity), a.signer.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           client,
		BasicConstraintsValid: true,
	}, a.signer, key.Public(), a.key)
	if err != nil {
		return Credentials{}, fmt.Errorf("issuing a certificate for %q: %w", user, err)
	}
	credentials := Credentials{}
	if credentials.Authorities, err = m.Store.Read(certPath); err != nil {
		return Credentials{}, err
	}
	if credentials.Certificate, err = cert.EncodeCertificates(c); err != nil {
		return Credentials{}, err
	}
	if credentials.Key, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return Credentials{}, err
	}
	return credentials, nil
}

// Signer returns the certificate of a bundle that belongs to an authority's key,
// both in PEM.
func Signer(bundle, key []byte) (*x509.Certificate, error) {
	certs, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return nil, err
	}
	private, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	for _, c := range certs {
		if samePublicKey(c.PublicKey, private.Public()) {
			return c, nil
		}
	}
	return nil, errors.New("its key does not belong to one of its certificates")
}
