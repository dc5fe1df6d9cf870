// Package mtls gives the TLS side of the calls between Trigate's processes:
// transport credentials whose certificates and CA bundles follow the files
// they came from, and on the server the identity that the handshake proved.
//
// Files are read again at each handshake. Handshakes are rare (connections
// live for minutes) and the files are small, so this needs no watcher and no
// goroutine, and a new certificate is in force for the very next connection.
// A file that became unusable leaves the old content in force; it is logged
// once for each bad content, and counted.
package mtls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"

	"k8s.io/klog/v2"
)

// KeyPair is a certificate with its private key, as two PEM files have them
// now. It is safe for concurrent use.
type KeyPair struct {
	file reloaded[tls.Certificate]
}

// NewKeyPair reads a certificate and its key. The error names the file.
func NewKeyPair(certFile, keyFile string) (*KeyPair, error) {
	p := &KeyPair{file: reloaded[tls.Certificate]{
		what:  fmt.Sprintf("certificate %q and key %q", certFile, keyFile),
		paths: []string{certFile, keyFile},
		parse: func(contents [][]byte) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(contents[0], contents[1])
			return &pair, err
		},
	}}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return p, nil
}

// Certificate returns the pair as the files have it now, or the last usable
// one.
func (p *KeyPair) Certificate() *tls.Certificate { return p.file.current() }

// Check reads the files and returns why they cannot be used, or nil.
func (p *KeyPair) Check() error { return p.file.reload() }

// Bundle is a set of trusted CA certificates, as a PEM file has it now. It is
// safe for concurrent use.
type Bundle struct {
	file reloaded[authorities]
}

type authorities struct {
	certs []*x509.Certificate
	pool  *x509.CertPool
}

// NewBundle reads a CA bundle. The error names the file.
func NewBundle(path string) (*Bundle, error) {
	b := &Bundle{file: reloaded[authorities]{
		what:  fmt.Sprintf("CA bundle %q", path),
		paths: []string{path},
		parse: func(contents [][]byte) (*authorities, error) {
			certs, err := parseCertificates(contents[0])
			return &authorities{certs: certs, pool: poolOf(certs)}, err
		},
	}}
	if err := b.Check(); err != nil {
		return nil, err
	}
	return b, nil
}

// Pool returns the certificates as the file has them now, or the last usable
// ones. The caller must not change it.
func (b *Bundle) Pool() *x509.CertPool { return b.file.current().pool }

// Certificates returns what Pool holds. The caller must not change it.
func (b *Bundle) Certificates() []*x509.Certificate { return b.file.current().certs }

// Check reads the file and returns why it cannot be used, or nil.
func (b *Bundle) Check() error { return b.file.reload() }

func poolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool
}

func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(data) > 0 {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate in it")
	}
	return certs, nil
}

// reloaded is a value that is parsed from files, and parsed again when their
// contents change.
type reloaded[T any] struct {
	what  string // for errors
	paths []string
	parse func(contents [][]byte) (*T, error)

	// mu guards what follows. It is held while the files are read, so that an
	// older content can never replace a newer one.
	mu       sync.Mutex
	contents [][]byte // what was parsed last, whether it was usable or not
	lastErr  error    // why contents was not usable
	value    *T       // from the last usable contents
}

// current returns the value for the files' present contents, or the last
// usable one.
func (r *reloaded[T]) current() *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What is wrong with the files is logged already, and the value is the last
	// usable one then.
	_ = r.readLocked()
	return r.value
}

// reload reads the files, and returns why their contents cannot be used.
func (r *reloaded[T]) reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readLocked()
}

func (r *reloaded[T]) readLocked() error {
	contents := make([][]byte, len(r.paths))
	for i, path := range r.paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return r.rejectLocked(nil, err)
		}
		contents[i] = content
	}
	if r.contents != nil && equal(contents, r.contents) {
		return r.lastErr
	}
	value, err := r.parse(contents)
	if err != nil {
		return r.rejectLocked(contents, err)
	}
	if r.value != nil {
		klog.Background().Info("Reloaded TLS files", "paths", r.paths)
	}
	r.contents, r.lastErr, r.value = contents, nil, value
	return nil
}

// rejectLocked keeps the old value and says so, once for each kind of failure.
func (r *reloaded[T]) rejectLocked(contents [][]byte, err error) error {
	err = fmt.Errorf("reading %s: %w", r.what, err)
	if r.value != nil && (r.lastErr == nil || r.lastErr.Error() != err.Error()) {
		klog.Background().Error(err, "Keeping the TLS files' last usable content", "paths", r.paths)
	}
	r.contents, r.lastErr = contents, err
	return err
}

func equal(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
