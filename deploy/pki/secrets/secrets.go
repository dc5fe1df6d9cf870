// Package secrets keeps a PKI in the Secrets of a namespace, one for each
// certificate, in the form that cert-manager gives them: tls.crt, tls.key and
// ca.crt. A Secret is replaced whole, so no process ever mounts a certificate
// beside another's key.
package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
)

const (
	// prefix makes the name of a Secret out of a certificate's.
	prefix = "trigate-"
	// ServiceAccount is the Secret with the keys of service-account tokens: sa.key
	// signs them, sa.pub verifies them.
	ServiceAccount = prefix + "service-account"
	// AdminKubeconfig is the Secret with the operator's kubeconfig.
	AdminKubeconfig = prefix + "admin-kubeconfig"
	// KubeconfigKey is the key of AdminKubeconfig.
	KubeconfigKey = "kubeconfig"

	caKey          = "ca.crt"
	nextKey        = "next.key" // of an authority that is being replaced
	managedByLabel = "app.kubernetes.io/managed-by"
	partOfLabel    = "app.kubernetes.io/part-of"
	manager        = "trigate-pki"
)

// Name is what the Secret of a certificate or an authority is called.
func Name(name pki.Name) string { return prefix + string(name) }

// location is where a file of the PKI is.
type location struct{ secret, key string }

// Store is the PKI in the Secrets of one namespace. Load reads them; what is
// written is kept until Flush. It is used by one caller at a time.
type Store struct {
	client corev1client.SecretInterface
	layout pki.Layout
	// locations are those of all files, by path.
	locations map[string]location
	// loaded are the Secrets as the API has them, by name, and changed those to be.
	loaded  map[string]*corev1.Secret
	changed map[string]map[string][]byte
}

var _ pki.Store = (*Store)(nil)

// Load reads the Secrets of a namespace. Those that do not exist have no files.
func Load(ctx context.Context, client corev1client.SecretInterface) (*Store, error) {
	s := &Store{
		client:    client,
		locations: map[string]location{},
		loaded:    map[string]*corev1.Secret{},
		changed:   map[string]map[string][]byte{},
	}
	for authority, names := range pki.Names() {
		s.locations[s.layout.Cert(authority)] = location{Name(authority), caKey}
		s.locations[s.layout.Key(authority)] = location{Name(authority), corev1.TLSPrivateKeyKey}
		s.locations[s.layout.NextKey(authority)] = location{Name(authority), nextKey}
		for _, name := range names {
			s.locations[s.layout.Cert(name)] = location{Name(name), corev1.TLSCertKey}
			s.locations[s.layout.Key(name)] = location{Name(name), corev1.TLSPrivateKeyKey}
		}
	}
	s.locations[s.layout.ServiceAccountKey()] = location{ServiceAccount, s.layout.ServiceAccountKey()}
	s.locations[s.layout.ServiceAccountPublicKey()] = location{ServiceAccount, s.layout.ServiceAccountPublicKey()}
	next := s.layout.NextKey(pki.ServiceAccountKeys)
	s.locations[next] = location{ServiceAccount, next}
	s.locations[KubeconfigKey] = location{AdminKubeconfig, KubeconfigKey}
	for _, l := range s.locations {
		if _, ok := s.loaded[l.secret]; ok {
			continue
		}
		secret, err := client.Get(ctx, l.secret, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			secret = nil
		case err != nil:
			return nil, fmt.Errorf("reading Secret %s: %w", l.secret, err)
		}
		s.loaded[l.secret] = secret
	}
	return s, nil
}

// Read implements pki.Store.
func (s *Store) Read(path string) ([]byte, error) {
	l, ok := s.locations[path]
	if !ok {
		return nil, fs.ErrNotExist
	}
	data := s.data(l.secret)
	content := data[l.key]
	if len(content) == 0 && l.key == caKey {
		// An authority that someone else made need not have a bundle.
		content = data[corev1.TLSCertKey]
	}
	if len(content) == 0 {
		return nil, fs.ErrNotExist
	}
	return content, nil
}

// Write implements pki.Store.
func (s *Store) Write(path string, content []byte) error {
	l, ok := s.locations[path]
	if !ok {
		return fmt.Errorf("no Secret is for %s", path)
	}
	s.change(l.secret)[l.key] = content
	return nil
}

// Remove implements pki.Store.
func (s *Store) Remove(path string) error {
	if _, err := s.Read(path); err != nil {
		return err
	}
	l := s.locations[path]
	data := s.change(l.secret)
	delete(data, l.key)
	return nil
}

// data is what a Secret holds, or will.
func (s *Store) data(secret string) map[string][]byte {
	if data, ok := s.changed[secret]; ok {
		return data
	}
	if loaded := s.loaded[secret]; loaded != nil {
		return loaded.Data
	}
	return nil
}

func (s *Store) change(secret string) map[string][]byte {
	data, ok := s.changed[secret]
	if !ok {
		data = map[string][]byte{}
		maps.Copy(data, s.data(secret))
		s.changed[secret] = data
	}
	return data
}

// Flush writes the Secrets that must change, and returns their names. It is done
// in such an order that a Flush that is cut short leaves nothing that the next one
// would not mend: authorities that exist before what they sign, and new ones after,
// since what has no authority is made anew. A Secret that someone else has changed
// or made meanwhile, or that trigate-pki does not manage, is an error. A dry run
// writes nothing and says what it would.
func (s *Store) Flush(ctx context.Context, dryRun bool) ([]string, error) {
	if err := s.complete(); err != nil {
		return nil, err
	}
	var names []string
	for name, data := range s.changed {
		if loaded := s.loaded[name]; loaded == nil || !maps.EqualFunc(loaded.Data, data, bytes.Equal) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if order := s.order(a) - s.order(b); order != 0 {
			return order
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		if loaded := s.loaded[name]; loaded != nil && loaded.Labels[managedByLabel] != manager {
			return nil, fmt.Errorf("cannot change Secret %s: its label %s is not %s: have whoever made it renew it, or set the label", name, managedByLabel, manager)
		}
	}
	if dryRun {
		return names, nil
	}
	for i, name := range names {
		if err := s.flush(ctx, name); err != nil {
			return names[:i], fmt.Errorf("writing Secret %s: %w", name, err)
		}
	}
	return names, nil
}

func (s *Store) order(name string) int {
	for authority := range pki.Names() {
		if Name(authority) == name {
			if s.loaded[name] == nil {
				return 2
			}
			return 0
		}
	}
	return 1
}

// complete sets what follows from the rest: the bundle beside each certificate, and
// an authority's own certificate, for those who sign by it.
func (s *Store) complete() error {
	for authority, names := range pki.Names() {
		bundle, err := s.Read(s.layout.Cert(authority))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if data := s.data(Name(name)); len(data) > 0 && !bytes.Equal(data[caKey], bundle) && s.managed(Name(name)) {
				s.change(Name(name))[caKey] = bundle
			}
		}
		if _, ok := s.changed[Name(authority)]; !ok {
			continue
		}
		key, err := s.Read(s.layout.Key(authority))
		if err != nil {
			return fmt.Errorf("reading the key of %s: %w", authority, err)
		}
		signer, err := pki.Signer(bundle, key)
		if err != nil {
			return fmt.Errorf("authority %s: %w", authority, err)
		}
		if s.change(Name(authority))[corev1.TLSCertKey], err = cert.EncodeCertificates(signer); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) managed(name string) bool {
	loaded := s.loaded[name]
	return loaded == nil || loaded.Labels[managedByLabel] == manager
}

func (s *Store) flush(ctx context.Context, name string) error {
	data := s.changed[name]
	var stored *corev1.Secret
	var err error
	if loaded := s.loaded[name]; loaded == nil {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{managedByLabel: manager, partOfLabel: "trigate"}},
			Type:       corev1.SecretTypeOpaque,
			Data:       data,
		}
		if data[corev1.TLSCertKey] != nil && data[corev1.TLSPrivateKeyKey] != nil {
			secret.Type = corev1.SecretTypeTLS
		}
		stored, err = s.client.Create(ctx, secret, metav1.CreateOptions{FieldManager: manager})
	} else {
		// Its resourceVersion goes along, so that a change in between is a conflict.
		secret := loaded.DeepCopy()
		secret.Data = data
		stored, err = s.client.Update(ctx, secret, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return err
	}
	s.loaded[name] = stored
	delete(s.changed, name)
	return nil
}
