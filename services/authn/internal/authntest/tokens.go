package authntest

import (
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Claims are claims by their names, as a test wants them.
type Claims map[string]any

// With returns the claims with another one. A nil value leaves it out.
func (c Claims) With(name string, value any) Claims {
	changed := Claims{}
	for k, v := range c {
		changed[k] = v
	}
	if changed[name] = value; value == nil {
		delete(changed, name)
	}
	return changed
}

// ServiceAccountClaims are those of a service account's token that is valid for an
// hour. Further fields go into the private claims.
func ServiceAccountClaims(issuer, namespace, name, uid string, audiences []string, private map[string]any) Claims {
	now := time.Now()
	kubernetes := map[string]any{
		"namespace":      namespace,
		"serviceaccount": map[string]any{"name": name, "uid": uid},
	}
	for k, v := range private {
		kubernetes[k] = v
	}
	return Claims{
		"iss":           issuer,
		"sub":           "system:serviceaccount:" + namespace + ":" + name,
		"aud":           audiences,
		"iat":           now.Unix(),
		"nbf":           now.Unix(),
		"exp":           now.Add(time.Hour).Unix(),
		"jti":           "11111111-2222-3333-4444-555555555555",
		"kubernetes.io": kubernetes,
	}
}

// Sign makes a token. The key ID is upstream's for the key, unless one is given.
func Sign(t testing.TB, key Key, keyID string, claims Claims) string {
	t.Helper()
	public, err := serviceaccount.StaticPublicKeysGetter([]any{key.Private.Public()})
	if err != nil {
		t.Fatalf("reading a public key: %v", err)
	}
	known := public.GetPublicKeys(t.Context(), "")[0]
	algorithm := jose.RS256
	if _, isRSA := key.Private.(interface{ Size() int }); !isRSA {
		algorithm = jose.ES256
	}
	if keyID == "" {
		keyID = known.KeyID
	}
	return sign(t, jose.SigningKey{
		Algorithm: algorithm,
		Key:       jose.JSONWebKey{Key: key.Private, KeyID: keyID, Algorithm: string(algorithm), Use: "sig"},
	}, claims)
}

// SignHMAC makes a token with a symmetric key, as an attacker does who takes a
// public key for one.
func SignHMAC(t testing.TB, secret []byte, claims Claims) string {
	t.Helper()
	return sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: secret}, claims)
}

func sign(t testing.TB, key jose.SigningKey, claims Claims) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatalf("making a signer: %v", err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any(claims)).CompactSerialize()
	if err != nil {
		t.Fatalf("signing a token: %v", err)
	}
	return token
}

// SignPayload makes a token of claims as they are written: with a name that is there twice,
// say.
func SignPayload(t testing.TB, key Key, keyID, payload string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{
		Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key.Private, KeyID: keyID, Algorithm: string(jose.RS256), Use: "sig"},
	}, nil)
	if err != nil {
		t.Fatalf("making a signer: %v", err)
	}
	signed, err := signer.Sign([]byte(payload))
	if err != nil {
		t.Fatalf("signing a token: %v", err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatalf("signing a token: %v", err)
	}
	return token
}

// Unsigned makes a token of alg "none".
func Unsigned(t testing.TB, claims Claims) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatalf("encoding claims: %v", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(payload) + "."
}

// SignWithoutKeyID makes a token that does not say which key verifies it.
func SignWithoutKeyID(t testing.TB, key Key, claims Claims) string {
	t.Helper()
	return sign(t, jose.SigningKey{Algorithm: jose.RS256, Key: key.Private}, claims)
}
