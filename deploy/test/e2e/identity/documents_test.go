package identity

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestOthersCanVerifyTokens gets the documents that OpenID Connect names and
// verifies a token by nothing but them.
func TestOthersCanVerifyTokens(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), transcript.Admin(t)
		token := requestToken(t, admin, namespace, "default", "{audiences: [vault]}")
		worker := c.Token(t, requestToken(t, admin, namespace, "default", "{}"))

		const configurationPath, keysPath = "/.well-known/openid-configuration", "/openid/v1/jwks"
		var configuration struct {
			Issuer  string
			JWKSURI string   `json:"jwks_uri"`
			Algs    []string `json:"id_token_signing_alg_values_supported"`
		}
		// Any service account may read them, and no stranger.
		transcript.As(t, worker).Send(t, http.MethodGet, configurationPath, "").Want(t, http.StatusOK).Decode(t, &configuration)
		transcript.As(t, c.Anonymous(t)).Send(t, http.MethodGet, configurationPath, "").Want(t, http.StatusForbidden)
		transcript.As(t, c.Anonymous(t)).Send(t, http.MethodGet, keysPath, "").Want(t, http.StatusForbidden)
		if !strings.HasSuffix(configuration.JWKSURI, keysPath) {
			t.Errorf("jwks_uri = %q, want one that ends with %s", configuration.JWKSURI, keysPath)
		}

		// The keys themselves differ between clusters; all else about them does not.
		transcript.As(t, worker).Send(t, http.MethodGet, keysPath, "").Want(t, http.StatusNotAcceptable) // it is no plain JSON
		anyType := func(req *http.Request) { req.Header.Del("Accept") }
		answer := c.As(t, worker).Send(t, http.MethodGet, keysPath, "", anyType).Want(t, http.StatusOK)
		var keys struct{ Keys []map[string]string }
		answer.Decode(t, &keys)
		transcript.Say("headers of "+keysPath, map[string]any{
			"Content-Type": answer.Header.Get("Content-Type"), "Cache-Control": answer.Header.Get("Cache-Control"),
		})
		for _, key := range keys.Keys {
			shape := map[string]any{"length of kid": len(key["kid"]), "length of n": len(key["n"])}
			for name, value := range key {
				if name != "kid" && name != "n" {
					shape[name] = value
				}
			}
			transcript.Say("a key of "+keysPath, shape)
		}

		header, claims := verified(t, token, keys.Keys)
		if !slices.Contains(configuration.Algs, header["alg"]) {
			t.Errorf("the token is signed with %s, the configuration lists %q", header["alg"], configuration.Algs)
		}
		if got := claims["iss"]; got != configuration.Issuer {
			t.Errorf("iss = %v, want %q", got, configuration.Issuer)
		}
		if diff := cmp.Diff([]any{"vault"}, claims["aud"]); diff != "" {
			t.Errorf("aud (-want +got):\n%s", diff)
		}
		for _, moment := range []string{"iat", "nbf", "exp"} {
			if _, ok := claims[moment].(float64); !ok {
				t.Errorf("%s = %v, want a time", moment, claims[moment])
			}
		}
		if life := claims["exp"].(float64) - claims["iat"].(float64); life != 3600 {
			t.Errorf("the token lives %v s, want an hour", life)
		}
		for _, moment := range []string{"iat", "nbf", "exp"} {
			delete(claims, moment)
		}
		transcript.Say("claims", claims)
	})
}

// verified returns the header and the claims of a token whose signature one of the
// keys verifies.
func verified(t *testing.T, token string, keys []map[string]string) (header map[string]string, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	if err := json.Unmarshal(decoded(t, parts[0]), &header); err != nil {
		t.Fatalf("header of the token: %v", err)
	}
	if err := json.Unmarshal(decoded(t, parts[1]), &claims); err != nil {
		t.Fatalf("claims of the token: %v", err)
	}
	index := slices.IndexFunc(keys, func(key map[string]string) bool { return key["kid"] == header["kid"] })
	if index < 0 {
		t.Fatalf("none of the %d keys is %q, which signed the token", len(keys), header["kid"])
	}
	key := keys[index]
	if key["kty"] != "RSA" || header["alg"] != "RS256" {
		t.Fatalf("the key is %s, the signature %s, want RSA and RS256", key["kty"], header["alg"])
	}
	public := &rsa.PublicKey{
		N: new(big.Int).SetBytes(decoded(t, key["n"])),
		E: int(new(big.Int).SetBytes(decoded(t, key["e"])).Int64()),
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], decoded(t, parts[2])); err != nil {
		t.Fatalf("the key does not verify the token: %v", err)
	}
	return header, claims
}

func decoded(t *testing.T, text string) []byte {
	t.Helper()
	content, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatalf("decoding %q: %v", text, err)
	}
	return content
}
