package convert

import (
	"crypto/x509"
	"fmt"

	"k8s.io/kubernetes/pkg/serviceaccount"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

// ToPublicKeys returns the messages for verification keys.
func ToPublicKeys(keys []serviceaccount.PublicKey) ([]*authnv1.PublicKey, error) {
	var out []*authnv1.PublicKey
	for _, key := range keys {
		der, err := x509.MarshalPKIXPublicKey(key.PublicKey)
		if err != nil {
			return nil, fmt.Errorf("encoding public key %s: %w", key.KeyID, err)
		}
		out = append(out, &authnv1.PublicKey{
			KeyId:                     key.KeyID,
			SpkiDer:                   der,
			ExcludedFromOidcDiscovery: key.ExcludeFromOIDCDiscovery,
		})
	}
	return out, nil
}

// FromPublicKeys returns the verification keys that messages stand for.
func FromPublicKeys(messages []*authnv1.PublicKey) ([]serviceaccount.PublicKey, error) {
	var out []serviceaccount.PublicKey
	for i, m := range messages {
		key, err := x509.ParsePKIXPublicKey(m.GetSpkiDer())
		if err != nil {
			return nil, fmt.Errorf("reading keys[%d].spki_der: %w", i, err)
		}
		out = append(out, serviceaccount.PublicKey{
			KeyID:                    m.GetKeyId(),
			PublicKey:                key,
			ExcludeFromOIDCDiscovery: m.GetExcludedFromOidcDiscovery(),
		})
	}
	return out, nil
}
