package identity

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/client-go/util/keyutil"

	"github.com/trigate/trigate/deploy/test/framework"
)

// claims are those of a token.
type claims map[string]any

// with returns the claims with one that is another.
func (c claims) with(name string, value any) claims {
	changed := maps.Clone(c)
	changed[name] = value
	return changed
}

// TestForgedTokens has tokens of the cluster's own key, and of others, that differ
// from a good one in one respect, and wants each to be taken or refused as on stock,
// as a bearer token and in a review.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), transcript.Admin(t)
		good := requestToken(t, admin, namespace, "default", "{}")
		header, payload := parts(t, good)
		own := signer{key: privateKey(t, c), keyID: header["kid"]}
		stranger, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		resigned := own.sign(t, payload)
		for _, test := range []struct {
			name, token string
			good        bool
		}{
			{"signed again", resigned, true},
			{"unicode in a claim of no meaning", own.sign(t, payload.with("zoë", "名前 \U0001f600")), true},
			{"for several audiences", own.sign(t, payload.with("aud", append(audiences(payload), "vault"))), true},
			{"expired", own.sign(t, payload.with("exp", now.Add(-time.Hour).Unix())), false},
			{"not yet valid", own.sign(t, payload.with("nbf", now.Add(time.Hour).Unix())), false},
			{"of another issuer", own.sign(t, payload.with("iss", "https://somebody.example.org")), false},
			{"for another audience", own.sign(t, payload.with("aud", []string{"vault"})), false},
			// As legacy tokens are, which have no audience.
			{"for nobody", own.sign(t, payload.with("aud", []string{})), true},
			// The private claims say who it is.
			{"with another subject", own.sign(t, payload.with("sub", "system:serviceaccount:kube-system:default")), true},
			{"without private claims", own.sign(t, payload.with("kubernetes.io", nil)), false},
			{"of a service account without a name", own.sign(t, payload.with("kubernetes.io", map[string]any{
				"namespace": namespace, "serviceaccount": map[string]any{"name": "", "uid": "1"},
			})), false},
			{"of a service account whose name is none", own.sign(t, payload.with("kubernetes.io", map[string]any{
				"namespace": "../..", "serviceaccount": map[string]any{"name": "a/b", "uid": "1"},
			})), false},
			{"with private claims that are none", own.sign(t, payload.with("kubernetes.io", "none")), false},
			{"of a service account that never was", own.sign(t, payload.with("kubernetes.io", map[string]any{
				"namespace": namespace, "serviceaccount": map[string]any{"name": "default", "uid": "00000000-0000-0000-0000-000000000000"},
			})), false},
			{"with a key ID of nobody", signer{key: own.key, keyID: "nobody"}.sign(t, payload), false},
			{"without a key ID", signer{key: own.key}.sign(t, payload), true},
			{"signed by a stranger", signer{key: stranger, keyID: header["kid"]}.sign(t, payload), false},
			{"unsigned", encode(t, map[string]string{"alg": "none", "typ": "JWT"}) + "." + encode(t, payload) + ".", false},
			{"signed with the public key as a secret", hmacSigned(t, payload), false},
			{"with another signature", resigned[:len(resigned)-8] + "AAAAAAAA", false},
			{"cut off", resigned[:len(resigned)-20], false},
			{"without a signature", resigned[:strings.LastIndex(resigned, ".")], false},
			{"in upper case", strings.ToUpper(resigned), false},
			{"100 KiB long", own.sign(t, payload.with("ballast", strings.Repeat("x", 75<<10))), true},
		} {
			code := whoAmI(t, transcript.As(t, c.Token(t, test.token))).Code
			if taken := code == http.StatusCreated; taken != test.good {
				t.Errorf("%s: got code %d, want it taken = %v", test.name, code, test.good)
			}
			answer := review(t, admin, test.token, "[]")
			if taken, _ := answer.Field(t, "status", "authenticated").(bool); taken != test.good {
				t.Errorf("%s: authenticated = %v, want %v; the answer was:\n%s", test.name, taken, test.good, answer.Body)
			}
		}
		// These cannot be sent as headers.
		for _, token := range []string{`"a\nb"`, `"a b"`, `" "`, `"\u0000"`, `"名前"`} {
			admin.Send(t, http.MethodPost, tokenReviews,
				"{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: "+token+"}}")
		}
	})
}

// signer signs tokens.
type signer struct {
	key   any
	keyID string
}

func (s signer) sign(t *testing.T, content claims) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithHeader("kid", s.keyID)
	if s.keyID == "" {
		options = nil
	}
	return serialized(t, jose.SigningKey{Algorithm: jose.RS256, Key: s.key}, options, content)
}

func hmacSigned(t *testing.T, content claims) string {
	t.Helper()
	return serialized(t, jose.SigningKey{Algorithm: jose.HS256, Key: []byte(strings.Repeat("public", 10))}, nil, content)
}

func serialized(t *testing.T, key jose.SigningKey, options *jose.SignerOptions, content claims) string {
	t.Helper()
	s, err := jose.NewSigner(key, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(map[string]any(content)).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// privateKey is the key that signs the cluster's tokens.
func privateKey(t *testing.T, c *framework.Cluster) any {
	t.Helper()
	key, err := keyutil.PrivateKeyFromFile(c.PKI.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// parts returns what a token says.
func parts(t *testing.T, token string) (map[string]string, claims) {
	t.Helper()
	fields := strings.Split(token, ".")
	header, payload := map[string]string{}, claims{}
	for i, into := range []any{&header, &payload} {
		content, err := base64.RawURLEncoding.DecodeString(fields[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(content, into); err != nil {
			t.Fatal(err)
		}
	}
	return header, payload
}

func audiences(content claims) []string {
	var all []string
	for _, audience := range content["aud"].([]any) {
		all = append(all, fmt.Sprint(audience))
	}
	return all
}

func encode(t *testing.T, part any) string {
	t.Helper()
	content, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(content)
}
