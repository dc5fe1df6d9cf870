package pki

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// ServiceAccountKeys is what the keys of service-account tokens are called where
// they are replaced like an authority.
const ServiceAccountKeys Name = "sa"

// Rotation is a step by which an authority is replaced by another, or the key of
// service-account tokens. Between two steps everyone has to have read the files.
type Rotation string

// The steps, in their order.
const (
	// AddRotation makes the next authority and has it trusted beside the present one.
	AddRotation Rotation = "add"
	// UseRotation signs by the next authority, and issues all certificates anew by it.
	UseRotation Rotation = "use"
	// RetireRotation ends the trust in all others.
	RetireRotation Rotation = "retire"
)

// nextSuffix makes the name of an authority's next key; its file has .key as well.
const nextSuffix = ".next"

// NextKey is the path of the key that an authority, or ServiceAccountKeys, has after
// UseRotation; it is there between AddRotation and UseRotation.
func (l *Layout) NextKey(name Name) string { return l.Key(name + nextSuffix) }

// Rotate takes one step, and returns the layout with what was written. A step that
// was cut short, or was taken already, may be taken again. What Ensure says of
// Config and of broken files holds here as well.
func Rotate(ctx context.Context, config Config, name Name, step Rotation) (*Layout, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	m := &maker{Config: config, layout: Layout{Dir: config.Dir}}
	var r rotation
	specs := authorities(config)
	if i := slices.IndexFunc(specs, func(s authoritySpec) bool { return s.name == name }); i >= 0 {
		r = &authorityRotation{m, specs[i]}
	} else if name == ServiceAccountKeys {
		r = &keyRotation{m}
	} else {
		return nil, fmt.Errorf("%q is no authority; there are ca, gates-ca, front-proxy-ca, etcd-ca, and sa for the service accounts' key", name)
	}
	key, err := m.readKey(m.layout.Key(name))
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, fmt.Errorf("rotating %s: its key, %s, is missing", name, m.layout.Key(name))
	}
	switch step {
	case AddRotation:
		err = m.addNext(name, r)
	case UseRotation:
		err = m.useNext(ctx, name, r)
	case RetireRotation:
		err = r.retire(key)
	default:
		err = fmt.Errorf("%q is no step; there are add, use and retire", step)
	}
	if err != nil {
		return nil, fmt.Errorf("rotating %s: %w", name, err)
	}
	return &m.layout, nil
}

// rotation is what differs between authorities and bare keys.
type rotation interface {
	newKey(path string) (crypto.Signer, error)
	// trust adds what belongs to key to what is trusted.
	trust(key crypto.Signer) error
	trusted(key crypto.Signer) (bool, error)
	// used is called when the key is the one that signs.
	used(ctx context.Context) error
	// retire ends the trust in all keys but this one.
	retire(key crypto.Signer) error
}

func (m *maker) addNext(name Name, r rotation) error {
	next, err := m.readKey(m.layout.NextKey(name))
	if err != nil {
		return err
	}
	if next == nil {
		if next, err = r.newKey(m.layout.NextKey(name)); err != nil {
			return err
		}
	}
	if trusted, err := r.trusted(next); trusted || err != nil {
		return err
	}
	return r.trust(next)
}

func (m *maker) useNext(ctx context.Context, name Name, r rotation) error {
	path := m.layout.NextKey(name)
	next, err := m.readKey(path)
	if err != nil {
		return err
	}
	if next != nil {
		trusted, err := r.trusted(next)
		if err != nil {
			return err
		}
		if !trusted {
			return errors.New("the next key is not trusted yet: take the step add first")
		}
		if err := m.writeKey(m.layout.Key(name), next); err != nil {
			return err
		}
		if err := m.Store.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", path, err)
		}
	}
	// Without a next key the step was taken already, maybe not to its end.
	return r.used(ctx)
}

type authorityRotation struct {
	*maker
	spec authoritySpec
}

var _ rotation = (*authorityRotation)(nil)

func (r *authorityRotation) bundle() ([]*certificate, error) {
	path := r.layout.Cert(r.spec.name)
	bundle, err := r.readCertificates(path)
	if err == nil && bundle == nil {
		err = fmt.Errorf("its certificate, %s, is missing", path)
	}
	return bundle, err
}

func (r *authorityRotation) trusted(key crypto.Signer) (bool, error) {
	bundle, err := r.bundle()
	return slices.ContainsFunc(bundle, func(c *certificate) bool { return samePublicKey(c.PublicKey, key.Public()) }), err
}

func (r *authorityRotation) trust(key crypto.Signer) error {
	bundle, err := r.bundle()
	if err != nil {
		return err
	}
	template := r.authorityTemplate(r.spec)
	c, err := r.issue(template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("issuing its certificate: %w", err)
	}
	return r.writeBundle(append(bundle, c))
}

func (r *authorityRotation) writeBundle(bundle []*certificate) error {
	data, err := cert.EncodeCertificates(bundle...)
	if err != nil {
		return err
	}
	return r.write(r.layout.Cert(r.spec.name), data)
}

// used issues anew what another authority of the bundle has signed.
func (r *authorityRotation) used(ctx context.Context) error {
	a, err := r.ensureAuthority(r.spec)
	if err != nil {
		return err
	}
	for _, leaf := range r.spec.certificates {
		if err := ctx.Err(); err != nil {
			return err
		}
		chain, err := r.readCertificates(r.layout.Cert(leaf.name))
		if err != nil {
			return err
		}
		m := *r.maker
		m.RenewAll = chain != nil && !signedByOne(chain, []*certificate{a.signer})
		m.layout.Written = nil
		if err := m.ensureCertificate(a, leaf); err != nil {
			return err
		}
		r.layout.Written = append(r.layout.Written, m.layout.Written...)
	}
	return nil
}

func (r *authorityRotation) retire(key crypto.Signer) error {
	if next, err := r.Store.Read(r.layout.NextKey(r.spec.name)); err == nil && len(next) > 0 {
		return errors.New("the next authority is not used yet: take the step use first")
	}
	bundle, err := r.bundle()
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(bundle), func(c *certificate) bool { return !samePublicKey(c.PublicKey, key.Public()) })
	for _, leaf := range r.spec.certificates {
		chain, err := r.readCertificates(r.layout.Cert(leaf.name))
		if err != nil {
			return err
		}
		if chain != nil && !signedByOne(chain, kept) {
			return fmt.Errorf("certificate %s is still signed by the old one: take the step use first", r.layout.Cert(leaf.name))
		}
	}
	if len(kept) == len(bundle) {
		return nil
	}
	return r.writeBundle(kept)
}

type keyRotation struct{ *maker }

var _ rotation = (*keyRotation)(nil)

func (r *keyRotation) newKey(path string) (crypto.Signer, error) {
	key, err := rsa.GenerateKey(rand.Reader, serviceAccountKeyBits)
	if err != nil {
		return nil, fmt.Errorf("making key %s: %w", path, err)
	}
	return key, r.writeKey(path, key)
}

func (r *keyRotation) trusted(key crypto.Signer) (bool, error) {
	publics, err := r.readPublicKeys(r.layout.ServiceAccountPublicKey())
	return slices.ContainsFunc(publics, func(public any) bool { return samePublicKey(public, key.Public()) }), err
}

func (r *keyRotation) trust(key crypto.Signer) error {
	path := r.layout.ServiceAccountPublicKey()
	old, err := r.Store.Read(path)
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	data, err := publicKeyPEM(key)
	if err != nil {
		return err
	}
	return r.write(path, slices.Concat(old, data))
}

func (r *keyRotation) used(context.Context) error { return nil }

func (r *keyRotation) retire(key crypto.Signer) error {
	if next, err := r.Store.Read(r.layout.NextKey(ServiceAccountKeys)); err == nil && len(next) > 0 {
		return errors.New("the next key is not used yet: take the step use first")
	}
	data, err := publicKeyPEM(key)
	if err != nil {
		return err
	}
	path := r.layout.ServiceAccountPublicKey()
	publics, err := r.readPublicKeys(path)
	if err != nil {
		return err
	}
	if len(publics) == 1 && samePublicKey(publics[0], key.Public()) {
		return nil
	}
	return r.write(path, data)
}

func publicKeyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding a public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der}), nil
}
