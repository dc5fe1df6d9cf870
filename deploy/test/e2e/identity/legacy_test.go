package identity

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestLegacyTokenWorksAndIsTracked has a token that lives in a Secret, as clusters of
// before TokenRequest have them.
func TestLegacyTokenWorksAndIsTracked(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), c.Admin(t)
		const label = "kubernetes.io/legacy-token-last-used"
		account := "/api/v1/namespaces/" + namespace + "/serviceaccounts/default"
		secrets := "/api/v1/namespaces/" + namespace + "/secrets"
		uid := admin.Send(t, http.MethodGet, account, "").Want(t, http.StatusOK).String(t, "metadata", "uid")
		token := signed(t, c, map[string]string{
			"iss":                                    "kubernetes/serviceaccount",
			"sub":                                    "system:serviceaccount:" + namespace + ":default",
			"kubernetes.io/serviceaccount/namespace": namespace,
			"kubernetes.io/serviceaccount/secret.name":          "old",
			"kubernetes.io/serviceaccount/service-account.name": "default",
			"kubernetes.io/serviceaccount/service-account.uid":  uid,
		})
		who := transcript.As(t, c.Token(t, token))
		whoAmI(t, who).WantMessage(t, http.StatusUnauthorized, "Unauthorized") // there is no such Secret

		admin.Send(t, http.MethodPost, secrets, `
apiVersion: v1
kind: Secret
metadata: {name: old, annotations: {kubernetes.io/service-account.name: default}}
type: kubernetes.io/service-account-token
stringData: {token: `+token+`}
`).Want(t, http.StatusCreated)
		awaitCode(t, "the token is known", c.As(t, c.Token(t, token)), http.MethodPost, selfSubjectReviews, selfSubjectReview, http.StatusCreated)
		whoAmI(t, who).Want(t, http.StatusCreated).WantWarnings(t)
		review(t, transcript.Admin(t), token, "[]")
		framework.Eventually(t, "the label of its last use", func() error {
			answer := admin.Send(t, http.MethodGet, secrets+"/old", "").Want(t, http.StatusOK)
			if got, today := answer.String(t, "metadata", "labels", label), time.Now().UTC().Format(time.DateOnly); got != today {
				return fmt.Errorf("%s = %q, want %q", label, got, today)
			}
			return nil
		})

		admin.Send(t, http.MethodDelete, secrets+"/old", "").Want(t, http.StatusOK)
		awaitUnknown(t, "the token is refused", c.As(t, c.Token(t, token)))
	})
}

// TestStaleTokenOfAServiceAccountIsWarnedOf has a token in a Secret that the service
// account names, as controllers once made them by themselves.
func TestStaleTokenOfAServiceAccountIsWarnedOf(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), c.Admin(t)
		accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
		uid := admin.Send(t, http.MethodPost, accounts, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: builder}, secrets: [{name: old}]}").
			Want(t, http.StatusCreated).String(t, "metadata", "uid")
		token := signed(t, c, map[string]string{
			"iss":                                    "kubernetes/serviceaccount",
			"sub":                                    "system:serviceaccount:" + namespace + ":builder",
			"kubernetes.io/serviceaccount/namespace": namespace,
			"kubernetes.io/serviceaccount/secret.name":          "old",
			"kubernetes.io/serviceaccount/service-account.name": "builder",
			"kubernetes.io/serviceaccount/service-account.uid":  uid,
		})
		admin.Send(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/secrets", `
apiVersion: v1
kind: Secret
metadata: {name: old, annotations: {kubernetes.io/service-account.name: builder}}
type: kubernetes.io/service-account-token
stringData: {token: `+token+`}
`).Want(t, http.StatusCreated)
		awaitCode(t, "the token is known", c.As(t, c.Token(t, token)), http.MethodPost, selfSubjectReviews, selfSubjectReview, http.StatusCreated)
		who := transcript.As(t, c.Token(t, token))
		for range 2 { // also when the token was met before
			whoAmI(t, who).Want(t, http.StatusCreated).
				WantWarnings(t, "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.").
				WantAnnotation(t, "authentication.k8s.io/legacy-token", "system:serviceaccount:"+namespace+":builder")
		}
	})
}

// signed is a token with these claims and the signature of the cluster.
func signed(t *testing.T, c *framework.Cluster, claims map[string]string) string {
	t.Helper()
	key, err := keyutil.PrivateKeyFromFile(c.PKI.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	private, ok := key.(*rsa.PrivateKey)
	if !ok {
		t.Fatalf("the key is a %T, want RSA", key)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode(payload)
	digest := sha256.Sum256([]byte(token))
	signature, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return token + "." + encode(signature)
}
