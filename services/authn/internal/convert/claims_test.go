package convert

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

func TestToClaimsRegisteredClaimsWin(t *testing.T) {
	encoded, err := ToClaims(&jwt.Claims{Subject: "registered"}, map[string]any{"sub": "private", "big": json.Number("9007199254740993")})
	if err != nil {
		t.Fatalf("ToClaims() = %v, want no error", err)
	}
	if diff := cmp.Diff(`{"big":9007199254740993,"sub":"registered"}`, string(encoded)); diff != "" {
		t.Errorf("ToClaims() differs (-want +got):\n%s", diff)
	}
}

const goodClaims = `{"sub":"system:serviceaccount:shop:cart","aud":["api"],"iat":1700000000,"nbf":1700000000,"exp":1700003600,"jti":"j",` +
	`"kubernetes.io":{"namespace":"shop","serviceaccount":{"name":"cart","uid":"u"},"pod":{"name":"p","uid":"pu"},"node":{"name":"n","uid":"nu"},` +
	`"attestations":{"a":["b"]},"warnafter":1700003600}}`

func TestFromClaims(t *testing.T) {
	if _, err := FromClaims([]byte(goodClaims)); err != nil {
		t.Fatalf("FromClaims(%s) = %v, want no error", goodClaims, err)
	}
	replace := func(old, replacement string) string {
		if !strings.Contains(goodClaims, old) {
			t.Fatalf("%s is not in the good claims", old)
		}
		return strings.Replace(goodClaims, old, replacement, 1)
	}
	for name, c := range map[string]struct{ claims, want string }{
		"one audience as a string": {replace(`["api"]`, `"api"`), ""},
		"no nbf":                   {replace(`"nbf":1700000000,`, ``), ""},
		"no jti":                   {replace(`"jti":"j",`, ``), ""},

		"empty":                      {``, "claims"},
		"no object":                  {`[]`, "claims"},
		"null":                       {`null`, "claims.kubernetes.io.namespace"},
		"empty object":               {`{}`, "claims.kubernetes.io.namespace"},
		"cut off":                    {goodClaims[:len(goodClaims)-1], "claims"},
		"trailing data":              {goodClaims + `{}`, "claims"},
		"not UTF-8":                  {replace(`"jti":"j"`, "\"jti\":\"\xff\""), "claims"},
		"too large":                  {replace(`"jti":"j"`, `"jti":"`+strings.Repeat("j", MaxClaimsBytes)+`"`), "claims"},
		"issuer":                     {replace(`"jti"`, `"iss":"https://evil.example.com","jti"`), "claims.iss"},
		"no subject":                 {replace(`"sub":"system:serviceaccount:shop:cart",`, ``), "claims.sub"},
		"subject a user":             {replace(`system:serviceaccount:shop:cart`, `system:admin`), "claims.sub"},
		"subject another name":       {replace(`serviceaccount:shop:cart`, `serviceaccount:shop:other`), "claims.sub"},
		"subject another namespace":  {replace(`serviceaccount:shop:cart`, `serviceaccount:kube-system:cart`), "claims.sub"},
		"subject with another colon": {replace(`serviceaccount:shop:cart`, `serviceaccount:shop:cart:x`), "claims.sub"},
		"colon in the names":         {strings.NewReplacer(`serviceaccount:shop:cart`, `serviceaccount:a:b:c`, `"namespace":"shop"`, `"namespace":"a:b"`, `"name":"cart"`, `"name":"c"`).Replace(goodClaims), "claims.sub"},
		"subject in upper case":      {replace(`"sub":`, `"SUB":`), "claims"},
		"subject twice":              {replace(`"jti":"j"`, `"sub":"system:serviceaccount:shop:cart"`), "claims"},
		"subject a number":           {replace(`"system:serviceaccount:shop:cart"`, `7`), "claims.sub"},
		"no audience":                {replace(`["api"]`, `[]`), "claims.aud"},
		"audience null":              {replace(`["api"]`, `null`), "claims.aud"},
		"empty audience":             {replace(`["api"]`, `["api",""]`), ""},
		"audience a number":          {replace(`["api"]`, `7`), "claims.aud"},
		"no iat":                     {replace(`"iat":1700000000,`, ``), "claims.iat"},
		"iat zero":                   {replace(`"iat":1700000000`, `"iat":0`), "claims.iat"},
		"no exp":                     {replace(`"exp":1700003600,`, ``), "claims.exp"},
		"exp at iat":                 {replace(`"exp":1700003600`, `"exp":1700000000`), "claims.exp"},
		"exp before iat":             {replace(`"exp":1700003600`, `"exp":-1`), "claims.exp"},
		"exp a fraction":             {replace(`"exp":1700003600`, `"exp":1700003600.5`), "claims.exp"},
		"exp a string":               {replace(`"exp":1700003600`, `"exp":"1700003600"`), "claims.exp"},
		"exp beyond int64":           {replace(`"exp":1700003600`, `"exp":9223372036854775808`), "claims.exp"},
		"nbf after exp":              {replace(`"nbf":1700000000`, `"nbf":1700003600`), "claims.nbf"},
		"unknown claim":              {replace(`"jti":"j"`, `"admin":true`), "claims"},
		"unknown private claim":      {replace(`"warnafter":1700003600`, `"admin":true`), "claims"},
		"legacy claims":              {replace(`"jti":"j"`, `"kubernetes.io/serviceaccount/namespace":"x"`), "claims"},
		"no namespace":               {replace(`"namespace":"shop",`, ``), "claims.kubernetes.io.namespace"},
		"no name":                    {replace(`"name":"cart",`, ``), "claims.kubernetes.io.serviceaccount.name"},
		"no uid":                     {replace(`"name":"cart","uid":"u"`, `"name":"cart"`), "claims.kubernetes.io.serviceaccount.uid"},
		"pod without a name":         {replace(`"name":"p",`, ``), "claims.kubernetes.io.pod.name"},
		"pod without a uid":          {replace(`"name":"p","uid":"pu"`, `"name":"p"`), "claims.kubernetes.io.pod.uid"},
		"node without a uid":         {replace(`"pod":{"name":"p","uid":"pu"},"node":{"name":"n","uid":"nu"}`, `"node":{"name":"n"}`), "claims.kubernetes.io.node.uid"},
		"pod and secret":             {replace(`"node":{`, `"secret":{`), "claims.kubernetes.io.secret"},
		"secret and node":            {replace(`"pod":{`, `"secret":{`), "claims.kubernetes.io.node"},
		"two webhooks":               {replace(`"pod":{"name":"p","uid":"pu"},"node":{`, `"validatingwebhookconfiguration":{"name":"p","uid":"pu"},"mutatingwebhookconfiguration":{`), "claims.kubernetes.io.mutatingwebhookconfiguration"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := FromClaims([]byte(c.claims))
			if c.want == "" {
				if err != nil {
					t.Errorf("FromClaims() = %v, want no error", err)
				}
				return
			}
			e, ok := rpcerr.As(err)
			if !ok || e.Reason != rpcerr.ReasonInvalidArgument || e.Field != c.want {
				t.Errorf("FromClaims() = %v, want an InvalidArgument of %s", err, c.want)
			}
		})
	}
}

// FuzzFromClaims holds claims that are accepted to what a verifier will read in
// the signed token, with a parser that is not strict.
func FuzzFromClaims(f *testing.F) {
	f.Add([]byte(goodClaims))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		claims, err := FromClaims(data)
		if err != nil {
			return
		}
		signed, err := ToClaims(claims.Registered(), claims.Private())
		if err != nil {
			t.Fatalf("ToClaims: %v", err)
		}
		var read struct {
			Subject    string `json:"sub"`
			Issuer     string `json:"iss"`
			Kubernetes struct {
				Namespace string `json:"namespace"`
				Account   struct {
					Name string `json:"name"`
					UID  string `json:"uid"`
				} `json:"serviceaccount"`
			} `json:"kubernetes.io"`
		}
		if err := json.NewDecoder(bytes.NewReader(signed)).Decode(&read); err != nil {
			t.Fatalf("reading %s: %v", signed, err)
		}
		k := read.Kubernetes
		if read.Issuer != "" || read.Subject != "system:serviceaccount:"+k.Namespace+":"+k.Account.Name || k.Account.UID == "" {
			t.Errorf("FromClaims(%q) lets %s be signed", data, signed)
		}
	})
}
