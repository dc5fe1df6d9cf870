// Package rest tests the gates' REST face over real processes: what each path answers
// to whom, and what it says of a request that it cannot answer.
package rest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
	"github.com/trigate/trigate/gateway/rest"
)

func TestMain(m *testing.M) { framework.Main(m) }

const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b"}]}}`

// questions has a request for each path that is posted to, and what is in the answer.
var questions = map[string]struct{ body, want string }{
	"/gates/authn/v1/authenticate-token": {`{"token":"nobody's"}`, `"authenticated":false`},
	"/gates/authn/v1/issue-token": {
		`{"claims":{"sub":"system:serviceaccount:default:default","aud":["a"],"exp":4102444800,"iat":1,"nbf":1,` +
			`"kubernetes.io":{"namespace":"default","serviceaccount":{"name":"default","uid":"u"}}}}`, `"token":"ey`,
	},
	"/gates/authz/v1/authorize":       {`{"attributes":{"verb":"get","resource":"pods"}}`, `"decision":"DECISION_ALLOW"`},
	"/gates/authz/v1/batch-authorize": {`{"questions":[{"attributes":{"verb":"get","path":"/","user":{"name":"eve"}}}]}`, `"decision":"DECISION_NO_OPINION"`},
	"/gates/authz/v1/explain":         {`{"attributes":{"verb":"get","resource":"pods"}}`, `"decidedBy":"group \"system:masters\"`},
	"/gates/authz/v1/who-can":         {`{"attributes":{"verb":"get","resource":"nodes"}}`, `"name":"cluster-admin"`},
	"/gates/authz/v1/list-rules":      {`{"namespace":"default"}`, `"verbs":["*"]`},
	"/gates/admission/v1/admit":       {`{"attributes":{"object":` + pod + `}}`, `"serviceAccountName":"default"`},
	"/gates/admission/v1/validate":    {`{"attributes":{"operation":"CREATE","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}}}`, `"allowed":true`},
}

// reads are the other paths that have one answer.
var reads = map[string]string{
	"/gates/authn/v1/list-public-keys": `"keyId":`,
	rest.StatusPath:                    `"name":"admission"`,
	rest.OpenAPIPath:                   `"openapi": "3.`,
}

type answer struct {
	code   int
	header http.Header
	body   string
}

// status is the body as a failure.
func (a answer) status(t *testing.T) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(a.body), &status); err != nil || status.Kind != "Status" {
		t.Errorf("the answer %d is no Status (%v): %s", a.code, err, a.body)
	}
	return status
}

func send(t *testing.T, config *restclient.Config, method, path, contentType, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := framework.HTTP(t, config).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(content)}
}

// ask posts what questions has for a path, or reads it.
func ask(t *testing.T, config *restclient.Config, path string) answer {
	t.Helper()
	if question, ok := questions[path]; ok {
		return send(t, config, http.MethodPost, path, "application/json", question.body)
	}
	return send(t, config, http.MethodGet, path, "", "")
}

func TestEveryPath(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	admin, eve, nobody := c.User(t, "root", "system:masters"), c.User(t, "eve"), c.Anonymous(t)
	for _, path := range rest.Paths() {
		t.Run(strings.TrimPrefix(path, "/gates/"), func(t *testing.T) {
			verb := "get"
			question, posted := questions[path]
			want, read := reads[path]
			switch {
			case posted:
				verb, want = "post", question.want
			case !read && !rest.IsStream(path):
				t.Fatalf("this test has no request for %s", path)
			}
			if !rest.IsStream(path) {
				// The default service account comes a moment after the server.
				framework.Eventually(t, "an administrator gets 200 with "+want, func() error {
					if got := ask(t, admin, path); got.code != http.StatusOK || !strings.Contains(got.body, want) {
						return fmt.Errorf("got %d:\n%s", got.code, got.body)
					}
					return nil
				})
			}
			got := ask(t, eve, path)
			denied := fmt.Sprintf(`User "eve" cannot %s path "%s"`, verb, path)
			if status := got.status(t); got.code != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden || !strings.Contains(status.Message, denied) {
				t.Errorf("who has no right got %d, want 403 with %q:\n%s", got.code, denied, got.body)
			}
			if got = ask(t, nobody, path); got.code != http.StatusUnauthorized || got.status(t).Reason != metav1.StatusReasonUnauthorized {
				t.Errorf("nobody got %d, want 401:\n%s", got.code, got.body)
			}
			other := map[string]string{"get": http.MethodPost, "post": http.MethodGet}[verb]
			if got = send(t, admin, other, path, "", ""); got.code != http.StatusMethodNotAllowed || got.header.Get("Allow") != strings.ToUpper(verb) {
				t.Errorf("%s got %d with Allow %q, want 405 with %s", other, got.code, got.header.Get("Allow"), verb)
			}
			if posted {
				testBadBodies(t, admin, path)
			}
		})
	}
}

func testBadBodies(t *testing.T, admin *restclient.Config, path string) {
	first := strings.SplitN(questions[path].body, `"`, 3)[1]
	for name, test := range map[string]struct {
		body  string
		code  int32
		field string
		text  string
	}{
		"malformed":     {`{"` + first + `": get}`, http.StatusBadRequest, first, "not JSON"},
		"cut":           {`{"` + first + `": `, http.StatusBadRequest, first, "ends too early"},
		"unknown field": {`{"nobodys": 1}`, http.StatusBadRequest, "nobodys", "unknown field"},
		"wrong type":    {`{"` + first + `": 1.5}`, http.StatusBadRequest, first, "has to be"},
		"no object":     {`[]`, http.StatusBadRequest, "", "object"},
		"too large":     {`{"` + first + `": "` + strings.Repeat("x", 4<<20) + `"}`, http.StatusRequestEntityTooLarge, "", "limit is 3145728"},
	} {
		got := send(t, admin, http.MethodPost, path, "application/json", test.body)
		status := got.status(t)
		if got.code != int(test.code) || status.Code != test.code || !strings.Contains(status.Message, test.text) {
			t.Errorf("%s: got %d, want %d with %q: %s", name, got.code, test.code, test.text, got.body)
		}
		if test.field != "" && (status.Details == nil || len(status.Details.Causes) != 1 || status.Details.Causes[0].Field != test.field) {
			t.Errorf("%s: the answer does not name the field %s: %s", name, test.field, got.body)
		}
	}
	if got := send(t, admin, http.MethodPost, path, "text/plain", "{}"); got.code != http.StatusUnsupportedMediaType {
		t.Errorf("text/plain got %d, want 415: %s", got.code, got.body)
	}
}

func TestQuestions(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	admin := c.User(t, "root", "system:masters")
	c.Grant(t, framework.Grant{
		Name: "rest-explainer", User: "ann",
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"post"}, NonResourceURLs: []string{"/gates/authz/v1/explain"}},
		},
	})
	t.Run("the caller is the user of a question", func(t *testing.T) {
		got := send(t, c.User(t, "ann"), http.MethodPost, "/gates/authz/v1/explain", "application/yaml",
			"attributes:\n  verb: post\n  path: /gates/authz/v1/explain\n")
		for _, part := range []string{`"DECISION_ALLOW"`, `"name":"rest-explainer"`, `"name":"ann"`} {
			if got.code != http.StatusOK || !strings.Contains(got.body, part) {
				t.Errorf("explain = %d, without %s:\n%s", got.code, part, got.body)
			}
		}
	})
	t.Run("a misspelt field", func(t *testing.T) {
		got := send(t, admin, http.MethodPost, "/gates/authz/v1/authorize", "application/json", `{"attributes":{"resouce":"pods"}}`)
		if status := got.status(t); status.Message != `attributes.resouce: unknown field, did you mean "resource"?` {
			t.Errorf("message = %q", status.Message)
		}
	})
	t.Run("a kind that nobody knows", func(t *testing.T) {
		got := send(t, admin, http.MethodPost, "/gates/admission/v1/admit", "application/json",
			`{"attributes":{"object":{"apiVersion":"a.b/v1","kind":"C","metadata":{"name":"d"}}}}`)
		if status := got.status(t); got.code != http.StatusBadRequest || status.Details.Causes[0].Field != "attributes.object.kind" {
			t.Errorf("got %d: %s", got.code, got.body)
		}
	})
	t.Run("nothing is written", func(t *testing.T) {
		namespace := c.Namespace(t)
		got := send(t, admin, http.MethodPost, "/gates/admission/v1/admit", "application/json",
			`{"attributes":{"object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"`+namespace+`"}}}}`)
		if got.code != http.StatusOK || !strings.Contains(got.body, `"allowed":true`) {
			t.Errorf("got %d: %s", got.code, got.body)
		}
		if _, err := c.Client(t).CoreV1().ConfigMaps(namespace).Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
			t.Error("the object is there")
		}
	})
	t.Run("the audit log", func(t *testing.T) {
		framework.Eventually(t, "the question is in the audit log", func() error {
			events := c.AuditEvents(t, func(e *auditv1.Event) bool {
				return e.RequestURI == "/gates/authz/v1/explain" && e.User.Username == "ann" && e.Verb == "post"
			})
			if len(events) == 0 {
				return fmt.Errorf("no event of ann's")
			}
			return nil
		})
	})
	t.Run("OpenAPI", func(t *testing.T) {
		want, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "gateway", "rest", "openapi.json"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), ask(t, admin, rest.OpenAPIPath).body); diff != "" {
			t.Errorf("the document that is served is not the one in the repository:\n%s", diff)
		}
		index := send(t, admin, http.MethodGet, "/", "", "")
		for _, path := range rest.Paths() {
			if !strings.Contains(index.body, `"`+path+`"`) {
				t.Errorf("/ does not list %s", path)
			}
		}
	})
}

// TestPage asks for the page's parts without a browser; deploy/test/ui has one.
func TestPage(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	admin, eve, nobody := c.User(t, "root", "system:masters"), c.User(t, "eve"), c.Anonymous(t)
	index := send(t, admin, http.MethodGet, "/", "", "")
	for path, want := range map[string]struct{ mediaType, part string }{
		"/gates/ui/":          {"text/html; charset=utf-8", "<title>Trigate"},
		"/gates/ui/app.js":    {"text/javascript; charset=utf-8", "fetch("},
		"/gates/ui/style.css": {"text/css; charset=utf-8", "prefers-color-scheme"},
		"/gates/ui/icon.svg":  {"image/svg+xml", "<svg"},
	} {
		got := send(t, admin, http.MethodGet, path, "", "")
		if got.code != http.StatusOK || got.header.Get("Content-Type") != want.mediaType || !strings.Contains(got.body, want.part) {
			t.Errorf("%s = %d, %s, want 200, %s with %q:\n%s", path, got.code, got.header.Get("Content-Type"), want.mediaType, want.part, got.body)
		}
		for header, part := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; ", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
		} {
			if value := got.header.Get(header); !strings.Contains(value, part) {
				t.Errorf("%s: %s is %q, want %q in it", path, header, value, part)
			}
		}
		if head := send(t, admin, http.MethodHead, path, "", ""); head.code != http.StatusOK || head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
			t.Errorf("HEAD %s = %d, Content-Length %s, want 200 and %d", path, head.code, head.header.Get("Content-Length"), len(got.body))
		}
		if got = send(t, admin, http.MethodPost, path, "", ""); got.code != http.StatusMethodNotAllowed || got.header.Get("Allow") != "GET, HEAD" || got.status(t).Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s = %d with Allow %q, want 405", path, got.code, got.header.Get("Allow"))
		}
		if got = send(t, eve, http.MethodGet, path, "", ""); got.code != http.StatusForbidden || !strings.Contains(got.status(t).Message, `User "eve" cannot get path "`+path+`"`) {
			t.Errorf("who has no right got %d for %s, want 403:\n%s", got.code, path, got.body)
		}
		if got = send(t, nobody, http.MethodGet, path, "", ""); got.code != http.StatusUnauthorized {
			t.Errorf("nobody got %d for %s, want 401:\n%s", got.code, path, got.body)
		}
		if !strings.Contains(index.body, `"`+path+`"`) {
			t.Errorf("/ does not list %s", path)
		}
	}
	if got := send(t, admin, http.MethodGet, "/gates/ui/other.js", "", ""); got.code != http.StatusNotFound || got.status(t).Code != http.StatusNotFound {
		t.Errorf("what is not there = %d, want 404:\n%s", got.code, got.body)
	}
	if got := send(t, admin, http.MethodGet, "/gates/ui", "", ""); !strings.Contains(got.body, "<title>Trigate") {
		t.Errorf("without a slash there is no way to the page, but %d:\n%s", got.code, got.body)
	}
}

// alone is a policy that lets Deployments in a namespace have one replica.
const alone = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: alone}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    resourceRules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}]
  validations: [{expression: "object.spec.replicas == 1", message: one is enough}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: alone}
spec: {policyName: alone, validationActions: [Deny]}
`

// TestDefaults asks admission about an object that leaves out what a policy reads.
func TestDefaults(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	admin, namespace := c.User(t, "root", "system:masters"), c.Namespace(t)
	manifest := fmt.Sprintf(alone, namespace)
	c.MustKubectlInput(t, manifest, "create", "-f", "-")
	t.Cleanup(func() { c.MustKubectlInput(t, manifest, "delete", "-f", "-") })
	validate := func(replicas string) answer {
		return send(t, admin, http.MethodPost, "/gates/admission/v1/validate", "application/yaml", fmt.Sprintf(`
attributes:
  object:
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: a, namespace: %s}
    spec: {%s selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}
`, namespace, replicas))
	}
	framework.Eventually(t, "the policy is in force", func() error {
		if got := validate("replicas: 2,"); got.code != http.StatusOK || !strings.Contains(got.body, "one is enough") {
			return fmt.Errorf("got %d: %s", got.code, got.body)
		}
		return nil
	})
	if got := validate(""); got.code != http.StatusOK || !strings.Contains(got.body, `"allowed":true`) {
		t.Errorf("without replicas: got %d, want it allowed: %s", got.code, got.body)
	}
	t.Run("what admission changed, beside what it was asked about", func(t *testing.T) {
		got := ask(t, admin, "/gates/admission/v1/admit")
		var admitted struct{ Object, DefaultedObject *corev1.Pod }
		if err := json.Unmarshal([]byte(got.body), &admitted); err != nil || admitted.Object == nil || admitted.DefaultedObject == nil {
			t.Fatalf("got %d (%v): %s", got.code, err, got.body)
		}
		for _, pod := range []*corev1.Pod{admitted.Object, admitted.DefaultedObject} {
			if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
				t.Errorf("the default of restartPolicy is not set: %s", got.body)
			}
		}
		if admitted.Object.Spec.ServiceAccountName != "default" || admitted.DefaultedObject.Spec.ServiceAccountName != "" {
			t.Errorf("the service account is not the only one's that admission changed: %s", got.body)
		}
	})
}

func TestStreams(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	admin := c.User(t, "root", "system:masters")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin.Host+"/gates/authz/v1/watch-policy-revision?timeout=1s", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := framework.HTTP(t, admin).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got := resp.Header.Get("Content-Type"); got != "application/x-ndjson" {
		t.Errorf("Content-Type = %q", got)
	}
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() {
		t.Fatalf("the stream ended at once: %v", lines.Err())
	}
	namespace := c.Namespace(t)
	c.Grant(t, framework.Grant{Name: "streamed", Namespace: namespace, User: "ann", Rules: []rbacv1.PolicyRule{framework.May("get", "", "pods")}})
	for lines.Scan() {
		var line struct {
			Result *struct {
				Changes []struct{ Namespace string }
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Result == nil {
			t.Fatalf("line %s: %v", lines.Bytes(), err)
		}
		for _, change := range line.Result.Changes {
			if change.Namespace == namespace {
				return
			}
		}
	}
	t.Fatalf("the stream ended before it told of the change: %v", lines.Err())
}

func TestKilledGates(t *testing.T) {
	c := framework.NewParts(t, framework.PartsOptions{})
	c.Start(t, c.Names()...)
	c.AwaitReady(t)
	admin := c.User(t, "root", "system:masters")
	c.Kill(t, "authn", "authz", "admission")
	for path := range questions {
		framework.Eventually(t, path+" is a 503", func() error {
			got := ask(t, admin, path)
			status := got.status(t)
			if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || status.Reason != metav1.StatusReasonServiceUnavailable {
				return fmt.Errorf("got %d: %s", got.code, got.body)
			}
			if strings.Contains(got.body, "127.0.0.1") {
				return fmt.Errorf("the answer tells of the inside: %s", got.body)
			}
			return nil
		})
	}
	var state rest.Status
	if err := json.Unmarshal([]byte(ask(t, admin, rest.StatusPath).body), &state); err != nil || len(state.Gates) != 3 {
		t.Fatalf("status = %+v, %v", state, err)
	}
	for _, gate := range state.Gates {
		if gate.Ready || gate.Reason == "" || len(gate.Replicas) != 1 || gate.Replicas[0].Health != "UNREACHABLE" {
			t.Errorf("a killed gate is %+v", gate)
		}
	}
}
