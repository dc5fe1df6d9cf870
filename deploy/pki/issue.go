package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// certificate shortens the type's name for the many places that have one.
type certificate = x509.Certificate

// serviceAccountKeyBits is the size that kubeadm takes; RS256 needs no more.
const serviceAccountKeyBits = 2048

// ensureAuthority loads an authority, or makes it if it has no certificate.
func (m *maker) ensureAuthority(spec authoritySpec) (*authority, error) {
	certPath, keyPath := m.layout.Cert(spec.name), m.layout.Key(spec.name)
	bundle, err := m.readCertificates(certPath)
	if err != nil {
		return nil, err
	}
	key, err := m.readKey(keyPath)
	if err != nil {
		return nil, err
	}
	if bundle == nil {
		return m.newAuthority(spec, key)
	}
	a := &authority{name: spec.name, bundle: bundle, signer: bundle[0], key: key}
	if key != nil {
		i := slices.IndexFunc(bundle, func(c *certificate) bool { return samePublicKey(c.PublicKey, key.Public()) })
		if i < 0 {
			return nil, fmt.Errorf("key %s does not belong to a certificate in %s", keyPath, certPath)
		}
		a.signer = bundle[i]
	}
	switch now := m.Clock.Now(); {
	case !a.signer.IsCA:
		return nil, fmt.Errorf("certificate %s is not that of an authority", certPath)
	case now.After(a.signer.NotAfter):
		return nil, fmt.Errorf("authority %s expired on %s: remove it and its key to have a new one made, which everyone who trusts it must then be given",
			certPath, a.signer.NotAfter.Format(time.DateOnly))
	case now.Before(a.signer.NotBefore):
		return nil, fmt.Errorf("authority %s is not valid before %s: is the clock right?", certPath, a.signer.NotBefore.Format(time.RFC3339))
	}
	return a, nil
}

// newAuthority makes an authority for a key that was there alone, as a run that
// was cut short leaves it, or for a new one. What an earlier authority has signed
// goes first: otherwise a run that is cut short would leave certificates that do
// not belong to their authority, which is an error that only the operator can mend.
func (m *maker) newAuthority(spec authoritySpec, key crypto.Signer) (*authority, error) {
	if key == nil {
		for _, leaf := range spec.certificates {
			if err := m.Store.Remove(m.layout.Cert(leaf.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("removing what a lost authority signed: %w", err)
			}
		}
		var err error
		if key, err = m.newKey(m.layout.Key(spec.name)); err != nil {
			return nil, err
		}
	}
	template := m.authorityTemplate(spec)
	c, err := m.sign(m.layout.Cert(spec.name), template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &authority{name: spec.name, bundle: []*certificate{c}, signer: c, key: key}, nil
}

// authorityTemplate is a new authority's certificate before it is signed.
func (m *maker) authorityTemplate(spec authoritySpec) *certificate {
	now := m.Clock.Now()
	return &certificate{
		Subject:               pkix.Name{CommonName: spec.commonName},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(m.AuthorityValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
}

// ensureCertificate makes or renews one certificate, if there is need.
func (m *maker) ensureCertificate(a *authority, spec certificateSpec) error {
	certPath, keyPath := m.layout.Cert(spec.name), m.layout.Key(spec.name)
	chain, err := m.readCertificates(certPath)
	if err != nil {
		return err
	}
	key, err := m.readKey(keyPath)
	if err != nil {
		return err
	}
	why := "it is missing"
	if chain != nil && key != nil {
		if why, err = m.judge(a, spec, chain, key); why == "" || err != nil {
			return err
		}
	}
	if a.key == nil {
		return fmt.Errorf("certificate %s must be issued (%s), but the key of its authority, %s, is missing", certPath, why, m.layout.Key(a.name))
	}
	if key == nil || m.NewKeys && chain != nil {
		// In this order, so that no moment has a certificate beside another's key.
		if err := m.Store.Remove(certPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a certificate whose key is replaced: %w", err)
		}
		if key, err = m.newKey(keyPath); err != nil {
			return err
		}
	}
	names := spec.altNames
	if chain != nil {
		names = merge(names, cert.AltNames{DNSNames: chain[0].DNSNames, IPs: chain[0].IPAddresses})
	}
	now := m.Clock.Now()
	_, err = m.sign(certPath, &certificate{
		Subject:               spec.subject(),
		DNSNames:              names.DNSNames,
		IPAddresses:           names.IPs,
		NotBefore:             latest(now.Add(-clockSkew), a.signer.NotBefore),
		NotAfter:              earliest(now.Add(m.CertificateValidity), a.signer.NotAfter),
		KeyUsage:              keyUsage(key),
		ExtKeyUsage:           spec.usages,
		BasicConstraintsValid: true,
	}, a.signer, key.Public(), a.key)
	return err
}

// judge tells why a certificate must be issued anew, and "" if it need not. An
// error means that the files are not ours to replace.
func (m *maker) judge(a *authority, spec certificateSpec, chain []*certificate, key crypto.Signer) (string, error) {
	c, now := chain[0], m.Clock.Now()
	certPath := m.layout.Cert(spec.name)
	if !samePublicKey(c.PublicKey, key.Public()) {
		return "", fmt.Errorf("key %s does not belong to certificate %s", m.layout.Key(spec.name), certPath)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range a.bundle {
		roots.AddCert(root)
	}
	for _, intermediate := range chain[1:] {
		intermediates.AddCert(intermediate)
	}
	// The time is judged below; here the question is only whose certificate it is.
	if _, err := c.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: latest(c.NotBefore, a.signer.NotBefore),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}); err != nil {
		return "", fmt.Errorf("certificate %s is not signed by %s: %w", certPath, m.layout.Cert(a.name), err)
	}
	if why := spec.missingFrom(c); why != "" {
		return why, nil
	}
	switch left := c.NotAfter.Sub(now); {
	case left <= 0:
		return "it expired on " + c.NotAfter.Format(time.DateOnly), nil
	case now.Before(c.NotBefore):
		return "it is not valid before " + c.NotBefore.Format(time.RFC3339), nil
	case m.RenewAll && a.key != nil:
		return "all are to be renewed", nil
	case left > m.renewBefore(c):
		return "", nil
	case a.key == nil || !c.NotAfter.Before(a.signer.NotAfter):
		// It cannot be renewed, or would end no later; it is good for now.
		return "", nil
	default:
		return "it expires on " + c.NotAfter.Format(time.DateOnly), nil
	}
}

// renewBefore is the rest of its validity at which a certificate is renewed.
func (c Config) renewBefore(of *certificate) time.Duration {
	if c.RenewBefore != 0 {
		return c.RenewBefore
	}
	return of.NotAfter.Sub(of.NotBefore) / 3
}

// merge returns the names of both, each once.
func merge(a, b cert.AltNames) cert.AltNames {
	merged := cert.AltNames{DNSNames: slices.Clone(a.DNSNames), IPs: slices.Clone(a.IPs)}
	for _, name := range b.DNSNames {
		if !slices.Contains(merged.DNSNames, name) {
			merged.DNSNames = append(merged.DNSNames, name)
		}
	}
	for _, ip := range b.IPs {
		if !slices.ContainsFunc(merged.IPs, ip.Equal) {
			merged.IPs = append(merged.IPs, ip)
		}
	}
	return merged
}

// missingFrom tells what the spec asks for and c does not have, or "".
func (s certificateSpec) missingFrom(c *certificate) string {
	want := s.subject()
	if c.Subject.CommonName != want.CommonName || !slices.Equal(c.Subject.Organization, want.Organization) {
		return fmt.Sprintf("its subject is %q, not %q", c.Subject, want)
	}
	for _, name := range s.altNames.DNSNames {
		if !slices.Contains(c.DNSNames, name) {
			return "it lacks the name " + name
		}
	}
	for _, ip := range s.altNames.IPs {
		if !slices.ContainsFunc(c.IPAddresses, ip.Equal) {
			return "it lacks the address " + ip.String()
		}
	}
	for _, usage := range s.usages {
		if !slices.Contains(c.ExtKeyUsage, usage) && !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
			return "it lacks a key usage"
		}
	}
	return ""
}

func (s certificateSpec) subject() pkix.Name {
	subject := pkix.Name{CommonName: s.commonName}
	if s.organization != "" {
		subject.Organization = []string{s.organization}
	}
	return subject
}

// sign issues a certificate into a file.
func (m *maker) sign(path string, template, parent *certificate, public crypto.PublicKey, signer crypto.Signer) (*certificate, error) {
	c, err := m.issue(template, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("issuing %s: %w", path, err)
	}
	data, err := cert.EncodeCertificates(c)
	if err != nil {
		return nil, fmt.Errorf("issuing %s: %w", path, err)
	}
	return c, m.write(path, data)
}

func (m *maker) issue(template, parent *certificate, public crypto.PublicKey, signer crypto.Signer) (*certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, withSerial(template), parent, public, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// withSerial gives the template a serial number of 127 random bits: positive, and
// with more entropy than the 64 bits that authorities must have.
func withSerial(template *certificate) *certificate {
	var serial [16]byte
	_, _ = rand.Read(serial[:]) // never fails
	serial[0] &= 0x7f
	template.SerialNumber = new(big.Int).SetBytes(serial[:])
	return template
}

// newKey makes a key for TLS into a file.
func (m *maker) newKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making key %s: %w", path, err)
	}
	return key, m.writeKey(path, key)
}

func (m *maker) writeKey(path string, key crypto.Signer) error {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encoding key %s: %w", path, err)
	}
	return m.write(path, data)
}

func (m *maker) write(path string, data []byte) error {
	if err := m.Store.Write(path, data); err != nil {
		return err
	}
	m.layout.Written = append(m.layout.Written, path)
	return nil
}

// ensureServiceAccountKeys makes the key that signs service-account tokens, and
// the public key that verifies them.
func (m *maker) ensureServiceAccountKeys() error {
	keyPath, publicPath := m.layout.ServiceAccountKey(), m.layout.ServiceAccountPublicKey()
	key, err := m.readKey(keyPath)
	if err != nil {
		return err
	}
	publics, err := m.readPublicKeys(publicPath)
	if err != nil {
		return err
	}
	switch {
	case key == nil && publics != nil:
		return fmt.Errorf("key %s is missing beside %s: restore it, or remove that too to have a new pair made, which ends the validity of all tokens", keyPath, publicPath)
	case key != nil && publics != nil:
		if !slices.ContainsFunc(publics, func(public any) bool { return samePublicKey(public, key.Public()) }) {
			return fmt.Errorf("public keys %s: the one of %s is not among them", publicPath, keyPath)
		}
		return nil
	case key == nil:
		if key, err = rsa.GenerateKey(rand.Reader, serviceAccountKeyBits); err != nil {
			return fmt.Errorf("making key %s: %w", keyPath, err)
		}
		if err := m.writeKey(keyPath, key); err != nil {
			return err
		}
	}
	data, err := publicKeyPEM(key)
	if err != nil {
		return err
	}
	return m.write(publicPath, data)
}

// keyUsage is what a TLS certificate may do with its key. Encipherment is for the
// RSA key exchange of an operator's own key, and meaningless for others.
func keyUsage(key crypto.Signer) x509.KeyUsage {
	if _, ok := key.(*rsa.PrivateKey); ok {
		return x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	}
	return x509.KeyUsageDigitalSignature
}

func samePublicKey(a, b crypto.PublicKey) bool {
	comparable, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && comparable.Equal(b)
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// readCertificates returns nil for a file that does not exist.
func (m *maker) readCertificates(path string) ([]*certificate, error) {
	return read(m.Store, path, "certificate", cert.ParseCertsPEM)
}

// readKey returns nil for a file that does not exist.
func (m *maker) readKey(path string) (crypto.Signer, error) {
	return read(m.Store, path, "key", parseKey)
}

func parseKey(data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", key)
	}
	return signer, nil
}

// readPublicKeys returns nil for a file that does not exist.
func (m *maker) readPublicKeys(path string) ([]any, error) {
	return read(m.Store, path, "public keys", keyutil.ParsePublicKeysPEM)
}

// read returns the zero value for a file that does not exist.
func read[T any](store Store, path, what string, parse func([]byte) (T, error)) (T, error) {
	var none T
	data, err := store.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("reading %s: %w", what, err)
	}
	value, err := parse(data)
	if err != nil {
		return none, fmt.Errorf("reading %s %s: %s", what, path, oneLine(err))
	}
	return value, nil
}
