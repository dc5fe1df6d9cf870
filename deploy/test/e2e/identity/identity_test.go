// Package identity tests who a caller is to the API: service-account tokens and
// what ends them, reviews, bootstrap tokens, certificates and the documents by
// which others verify tokens.
package identity

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// The paths of what these tests ask for most.
const (
	selfSubjectReviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	tokenReviews       = "/apis/authentication.k8s.io/v1/tokenreviews"
)

const selfSubjectReview = `{apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}`

// whoAmI has the API say who the caller is.
func whoAmI(t *testing.T, who *framework.Caller) *framework.Answer {
	t.Helper()
	return who.Send(t, http.MethodPost, selfSubjectReviews, selfSubjectReview)
}

// awaitCode asks until the API answers with a code, and logs how long that took.
func awaitCode(t *testing.T, what string, who *framework.Caller, method, path, body string, want int) {
	t.Helper()
	began := time.Now()
	framework.Eventually(t, what, func() error {
		answer, err := who.TrySend(method, path, body)
		if err != nil {
			return err
		}
		if answer.Code != want {
			return fmt.Errorf("%s %s: got code %d, want %d; the answer was:\n%s", method, path, answer.Code, want, answer.Body)
		}
		return nil
	})
	t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
}

// awaitUnknown waits until the API knows the caller no longer.
func awaitUnknown(t *testing.T, what string, who *framework.Caller) {
	t.Helper()
	awaitCode(t, what, who, http.MethodPost, selfSubjectReviews, selfSubjectReview, http.StatusUnauthorized)
}

// requestToken has the API issue a token and returns it. spec is that of a
// TokenRequest.
func requestToken(t *testing.T, admin *framework.Caller, namespace, name, spec string) string {
	t.Helper()
	answer := admin.Send(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+name+"/token",
		"{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, spec: "+spec+"}").Want(t, http.StatusCreated)
	token := answer.String(t, "status", "token")
	if strings.Count(token, ".") != 2 {
		t.Fatalf("%s: got token %q, want a JWT", answer.Request, token)
	}
	return token
}

func TestServiceAccountMayDoNothingUntilItIsLetTo(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace := transcript.Namespace(t)
		admin := transcript.Admin(t)
		worker := c.Token(t, requestToken(t, admin, namespace, "default", "{}"))
		asWorker, polling := transcript.As(t, worker), c.As(t, worker)
		configMaps := "/api/v1/namespaces/" + namespace + "/configmaps"
		forbidden := func(verb, resource string) string {
			return fmt.Sprintf(`%s is forbidden: User "system:serviceaccount:%s:default" cannot %s resource %q in API group "" in the namespace %q`,
				resource, namespace, verb, resource, namespace)
		}

		asWorker.Send(t, http.MethodGet, configMaps, "").WantMessage(t, http.StatusForbidden, forbidden("list", "configmaps"))
		asWorker.Send(t, http.MethodGet, configMaps+"?watch=true", "").WantMessage(t, http.StatusForbidden, forbidden("watch", "configmaps"))
		asWorker.Send(t, http.MethodDelete, configMaps, "").WantMessage(t, http.StatusForbidden, forbidden("deletecollection", "configmaps"))
		asWorker.Send(t, http.MethodGet, "/api/v1/nodes", "").Want(t, http.StatusForbidden)
		whoAmI(t, asWorker).Want(t, http.StatusCreated)

		bindings := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/rolebindings"
		admin.Send(t, http.MethodPost, bindings, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: default, namespace: `+namespace+`}]
`).Want(t, http.StatusCreated)
		awaitCode(t, "the binding is in force", polling, http.MethodGet, configMaps, "", http.StatusOK)
		asWorker.Send(t, http.MethodGet, configMaps+"/none", "").WantMessage(t, http.StatusNotFound, `configmaps "none" not found`)
		asWorker.Send(t, http.MethodGet, configMaps+"?limit=1&labelSelector=none", "").Want(t, http.StatusOK)
		// It lets the account read these, there, and no more.
		asWorker.Send(t, http.MethodDelete, configMaps+"/none", "").Want(t, http.StatusForbidden)
		asWorker.Send(t, http.MethodGet, "/api/v1/namespaces/"+namespace+"/secrets", "").WantMessage(t, http.StatusForbidden, forbidden("list", "secrets"))
		asWorker.Send(t, http.MethodGet, "/api/v1/namespaces/kube-system/configmaps", "").Want(t, http.StatusForbidden)
		asWorker.Send(t, http.MethodGet, "/api/v1/configmaps", "").Want(t, http.StatusForbidden)

		admin.Send(t, http.MethodDelete, bindings+"/viewer", "").Want(t, http.StatusOK)
		awaitCode(t, "the deleted binding is in force no longer", polling, http.MethodGet, configMaps, "", http.StatusForbidden)
		asWorker.Send(t, http.MethodGet, configMaps, "").WantMessage(t, http.StatusForbidden, forbidden("list", "configmaps"))
	})
}

func TestBoundTokenEndsWithItsObject(t *testing.T) {
	for _, test := range []struct {
		name, resource, object, ref string
	}{
		{
			"Secret", "secrets", "{apiVersion: v1, kind: Secret, metadata: {name: holder}}",
			"{apiVersion: v1, kind: Secret, name: holder}",
		},
		{
			"Pod", "pods", "{apiVersion: v1, kind: Pod, metadata: {name: holder}, spec: {containers: [{name: a, image: a}]}}",
			"{apiVersion: v1, kind: Pod, name: holder}",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
				namespace, admin := transcript.Namespace(t), transcript.Admin(t)
				objects := "/api/v1/namespaces/" + namespace + "/" + test.resource
				spec := "{boundObjectRef: " + test.ref + "}"
				admin.Send(t, http.MethodPost, objects, test.object).Want(t, http.StatusCreated)
				bound := c.Token(t, requestToken(t, admin, namespace, "default", spec))
				free := c.Token(t, requestToken(t, admin, namespace, "default", "{}"))
				whoAmI(t, transcript.As(t, bound)).Want(t, http.StatusCreated)

				c.Admin(t).Send(t, http.MethodDelete, objects+"/holder", "").Want(t, http.StatusOK)
				awaitUnknown(t, "the token is refused", c.As(t, bound))
				whoAmI(t, transcript.As(t, bound)).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
				whoAmI(t, transcript.As(t, free)).Want(t, http.StatusCreated)

				// An object of the same name is another one.
				admin.Send(t, http.MethodPost, objects, test.object).Want(t, http.StatusCreated)
				again := c.Token(t, requestToken(t, admin, namespace, "default", spec))
				awaitCode(t, "a token for the new object works", c.As(t, again), http.MethodPost, selfSubjectReviews, selfSubjectReview, http.StatusCreated)
				whoAmI(t, transcript.As(t, bound)).Want(t, http.StatusUnauthorized)
			})
		})
	}
}

func TestTokenOfDeletedServiceAccountIsUnknown(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), transcript.Admin(t)
		accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
		const builder = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: builder}}"
		admin.Send(t, http.MethodPost, accounts, builder).Want(t, http.StatusCreated)
		token := requestToken(t, admin, namespace, "builder", "{}")
		who := c.Token(t, token)
		whoAmI(t, transcript.As(t, who)).Want(t, http.StatusCreated)

		admin.Send(t, http.MethodDelete, accounts+"/builder", "").Want(t, http.StatusOK)
		awaitUnknown(t, "the token is refused", c.As(t, who))
		whoAmI(t, transcript.As(t, who)).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
		transcript.As(t, who).Send(t, http.MethodGet, "/version", "").Want(t, http.StatusUnauthorized)
		review(t, admin, token, "[]")

		// An account of the same name is another one.
		admin.Send(t, http.MethodPost, accounts, builder).Want(t, http.StatusCreated)
		again := c.Token(t, requestToken(t, admin, namespace, "builder", "{}"))
		awaitCode(t, "a token of the new account works", c.As(t, again), http.MethodPost, selfSubjectReviews, selfSubjectReview, http.StatusCreated)
		whoAmI(t, transcript.As(t, who)).Want(t, http.StatusUnauthorized)
	})
}

// review has the API review a token. audiences are a list in YAML.
func review(t *testing.T, who *framework.Caller, token, audiences string) *framework.Answer {
	t.Helper()
	return who.Send(t, http.MethodPost, tokenReviews,
		"{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: '"+token+"', audiences: "+audiences+"}}").Want(t, http.StatusCreated)
}

func TestTokenReview(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), transcript.Admin(t)
		const issuer = "https://kubernetes.default.svc.cluster.local"
		forAPI := requestToken(t, admin, namespace, "default", "{}")
		forOthers := requestToken(t, admin, namespace, "default", "{audiences: [vault, mail], expirationSeconds: 1200}")
		for _, test := range []struct {
			name, token, audiences string
			want                   bool
		}{
			{"token for the API", forAPI, "[]", true},
			{"token for the API, asked as such", forAPI, "[" + issuer + "]", true},
			{"token for the API, asked for others", forAPI, "[vault]", false},
			{"token for others", forOthers, "[]", false},
			{"token for others, asked by one of them", forOthers, "[vault]", true},
			{"token for others, asked by both and a third", forOthers, "[third, mail, vault]", true},
			{"token with another signature", forAPI[:len(forAPI)-8] + "AAAAAAAA", "[]", false},
			{"no JWT", "nobody", "[]", false},
			{"JWT without a signature", "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiJqYW5lIn0.", "[]", false},
		} {
			answer := review(t, admin, test.token, test.audiences)
			if got, _ := answer.Field(t, "status", "authenticated").(bool); got != test.want {
				t.Errorf("%s: authenticated = %v, want %v; the answer was:\n%s", test.name, got, test.want, answer.Body)
			}
			username := answer.String(t, "status", "user", "username")
			if want := "system:serviceaccount:" + namespace + ":default"; test.want && username != want {
				t.Errorf("%s: username = %q, want %q", test.name, username, want)
			}
		}
		admin.Send(t, http.MethodPost, tokenReviews, "{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {}}").
			Want(t, http.StatusBadRequest)

		// What is not for the API does not open it.
		whoAmI(t, transcript.As(t, c.Token(t, forOthers))).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
		// To review is a right.
		asWorker := transcript.As(t, c.Token(t, forAPI))
		asWorker.Send(t, http.MethodPost, tokenReviews, "{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: a}}").
			Want(t, http.StatusForbidden)
	})
}

func TestSelfSubjectReview(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), transcript.Admin(t)
		whoAmI(t, admin).Want(t, http.StatusCreated)
		whoAmI(t, transcript.As(t, c.User(t, "jane", "dev", "ops"))).Want(t, http.StatusCreated)
		whoAmI(t, transcript.As(t, c.User(t, "jane"))).Want(t, http.StatusCreated)
		whoAmI(t, transcript.As(t, c.Anonymous(t))).Want(t, http.StatusForbidden)
		whoAmI(t, transcript.As(t, c.Token(t, requestToken(t, admin, namespace, "default", "{}")))).Want(t, http.StatusCreated)

		// Impersonated, with everything that there is to say of a user.
		impersonated := []framework.RequestOption{
			framework.Header("Impersonate-User", "zoë"),
			framework.Header("Impersonate-Uid", "f1"),
			framework.Header("Impersonate-Group", "dev"),
			framework.Header("Impersonate-Group", "ops"),
			framework.Header("Impersonate-Extra-Team.example.org%2fName", "a, b"),
			framework.Header("Impersonate-Extra-Team.example.org%2fName", "c"),
		}
		answer := admin.Send(t, http.MethodPost, selfSubjectReviews, selfSubjectReview, impersonated...).Want(t, http.StatusCreated)
		if got := answer.String(t, "status", "userInfo", "username"); got != "zoë" {
			t.Errorf("impersonated user = %q, want %q", got, "zoë")
		}
		jane := transcript.As(t, c.User(t, "jane"))
		jane.Send(t, http.MethodPost, selfSubjectReviews, selfSubjectReview, framework.Header("Impersonate-User", "john")).
			Want(t, http.StatusForbidden)
	})
}

// TestUnknownTokensAreRefused wants the same 401 for all that is no token of this cluster.
func TestUnknownTokensAreRefused(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		namespace, admin := transcript.Namespace(t), transcript.Admin(t)
		good := requestToken(t, admin, namespace, "default", "{}")
		for _, token := range []string{
			"nobody", "a b", "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiJqYW5lIn0.", good[:len(good)-8] + "AAAAAAAA", good + "A",
			"abcdef.0123456789abcdef", strings.Repeat("x", 8<<10),
		} {
			who := transcript.As(t, c.Token(t, token))
			who.Send(t, http.MethodGet, "/api", "").WantMessage(t, http.StatusUnauthorized, "Unauthorized")
			who.Send(t, http.MethodGet, "/healthz", "").Want(t, http.StatusUnauthorized)
		}
		anonymous := transcript.As(t, c.Anonymous(t))
		for _, value := range []string{"Bearer", "Bearer ", "Basic amFuZTpzZWNyZXQ=", "bearer " + good, "Bearer  " + good} {
			anonymous.Send(t, http.MethodGet, "/api", "", framework.Header("Authorization", value))
		}
	})
}

func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
		admin := transcript.Admin(t)
		const secrets = "/api/v1/namespaces/kube-system/secrets"
		secret := func(id, more string) string {
			return "{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, metadata: {name: bootstrap-token-" + id + "}, " +
				"stringData: {token-id: " + id + ", token-secret: 0123456789abcdef, " + more + "}}"
		}
		for id, more := range map[string]string{
			"aaaaaa": "usage-bootstrap-authentication: 'true', auth-extra-groups: 'system:bootstrappers:workers,system:bootstrappers:others'",
			"bbbbbb": "usage-bootstrap-signing: 'true'",
			"cccccc": "usage-bootstrap-authentication: 'true', expiration: '" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + "'",
		} {
			c.Admin(t).Send(t, http.MethodPost, secrets, secret(id, more)).Want(t, http.StatusCreated)
			t.Cleanup(func() { c.Admin(t).Send(t, http.MethodDelete, secrets+"/bootstrap-token-"+id, "") })
		}
		as := func(token string) *framework.Caller { return transcript.As(t, c.Token(t, token)) }
		for _, id := range []string{"aaaaaa", "cccccc"} {
			token := id + ".0123456789abcdef"
			awaitCode(t, "the token is known", c.As(t, c.Token(t, token)), http.MethodPost, selfSubjectReviews, selfSubjectReview, http.StatusCreated)
			answer := whoAmI(t, as(token)).Want(t, http.StatusCreated)
			if got, want := answer.String(t, "status", "userInfo", "username"), "system:bootstrap:"+id; got != want {
				t.Errorf("user = %q, want %q", got, want)
			}
		}
		whoAmI(t, as("aaaaaa.0123456789abcdee")).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
		whoAmI(t, as("bbbbbb.0123456789abcdef")).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
		whoAmI(t, as("dddddd.0123456789abcdef")).WantMessage(t, http.StatusUnauthorized, "Unauthorized")
		review(t, admin, "aaaaaa.0123456789abcdef", "[]")
		review(t, admin, "bbbbbb.0123456789abcdef", "[]")

		admin.Send(t, http.MethodDelete, secrets+"/bootstrap-token-aaaaaa", "").Want(t, http.StatusOK)
		awaitUnknown(t, "the token of the deleted Secret is refused", c.As(t, c.Token(t, "aaaaaa.0123456789abcdef")))
	})
}
