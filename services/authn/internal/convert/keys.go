package convert

import (
	"crypto/x509"
	"fmt"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

// ToPublicKey returns the message for a verification key. Package serviceaccount
// of Kubernetes has a type for it, but drags most of Kubernetes in.
func ToPublicKey(keyID string, key any, excludedFromDiscovery bool) (*authnv1.PublicKey, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding public key %s: %w", keyID, err)
	}
	return &authnv1.PublicKey{KeyId: keyID, SpkiDer: der, ExcludedFromOidcDiscovery: excludedFromDiscovery}, nil
}

// FromPublicKey returns the key of a message.
func FromPublicKey(m *authnv1.PublicKey) (any, error) {
	key, err := x509.ParsePKIXPublicKey(m.GetSpkiDer())
	if err != nil {
		return nil, fmt.Errorf("reading public key %s: %w", m.GetKeyId(), err)
	}
	return key, nil
}
