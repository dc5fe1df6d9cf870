package convert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"testing"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

func TestPublicKeyRoundTrip(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]interface{ Equal(crypto.PublicKey) bool }{
		"RSA":   &rsaKey.PublicKey,
		"ECDSA": &ecdsaKey.PublicKey,
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ToPublicKey("id", want, true)
			if err != nil {
				t.Fatalf("ToPublicKey() = %v, want no error", err)
			}
			if m.GetKeyId() != "id" || !m.GetExcludedFromOidcDiscovery() {
				t.Errorf("ToPublicKey(id, key, true) = %v", m)
			}
			got, err := FromPublicKey(m)
			if err != nil {
				t.Fatalf("FromPublicKey() = %v, want no error", err)
			}
			if !want.Equal(got) {
				t.Errorf("FromPublicKey(ToPublicKey(%v)) = %v", want, got)
			}
		})
	}
}

func TestPublicKeyThatIsNone(t *testing.T) {
	if _, err := ToPublicKey("id", "text", false); err == nil {
		t.Error("ToPublicKey(text) gives no error")
	}
	if _, err := FromPublicKey(&authnv1.PublicKey{SpkiDer: []byte("text")}); err == nil {
		t.Error("FromPublicKey(text) gives no error")
	}
}
