// Package outage tests what happens while a gate is away: those who need it are told
// to try again, nobody else notices, nothing is allowed or written that should not
// be, and all is well by itself once it is back.
package outage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// The gates, by the names of their processes.
const (
	authn     = "authn"
	authz     = "authz"
	admission = "admission"
)

// The users of the tests. Ann may read and write ConfigMaps, Eve may do nothing.
const (
	ann = "ann"
	eve = "eve"
)

// start starts all parts of a Trigate and lets Ann in.
func start(t *testing.T, opts framework.PartsOptions) *framework.Parts {
	t.Helper()
	p := framework.NewParts(t, opts)
	p.Start(t, p.Names()...)
	p.AwaitReady(t)
	letIn(t, p.Cluster, rbacv1.Subject{Kind: "User", Name: ann})
	framework.Eventually(t, "Ann is let in", func() error {
		_, err := framework.ClientFor(t, p.User(t, ann)).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
	return p
}

// letIn lets somebody read and write ConfigMaps.
func letIn(t *testing.T, c *framework.Cluster, subject rbacv1.Subject) {
	t.Helper()
	client := c.Client(t).RbacV1()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "configmaps-"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
	}
	role, err := client.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{subject},
	}
	if _, err := client.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// answer is what the API said, before a client would try again.
type answer struct {
	code       int
	retryAfter string
	body       string
}

// ask sends one request.
func ask(t *testing.T, config *rest.Config, method, path, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := framework.HTTP(t, config).Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{code: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After"), body: string(content)}
}

// wantUnavailable wants the answer to have the client try again.
func (a answer) wantUnavailable(t *testing.T, what, gate string) {
	t.Helper()
	if a.code != http.StatusServiceUnavailable || a.retryAfter == "" {
		t.Errorf("%s: %d with Retry-After %q, want 503 with one; %s", what, a.code, a.retryAfter, a.body)
		return
	}
	var status metav1.Status
	if err := json.Unmarshal([]byte(a.body), &status); err != nil {
		t.Errorf("%s: the body is no Status: %v: %s", what, err, a.body)
		return
	}
	if status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(status.Message, gate) {
		t.Errorf("%s: reason %q, message %q; want ServiceUnavailable, naming %s", what, status.Reason, status.Message, gate)
	}
	for _, internal := range []string{"rpc error", "code = ", "dial tcp"} {
		if strings.Contains(a.body, internal) {
			t.Errorf("%s: the answer tells of the inside: %s", what, a.body)
		}
	}
}

func (a answer) want(t *testing.T, what string, code int) {
	t.Helper()
	if a.code != code {
		t.Errorf("%s: %d, want %d; %s", what, a.code, code, a.body)
	}
}

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	reviews    = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	review     = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"eve","resourceAttributes":{"verb":"list","resource":"configmaps"}}}`
	tokenAsks  = "/apis/authentication.k8s.io/v1/tokenreviews"
)

// othersGoOn wants what needs no gate to go on.
func othersGoOn(t *testing.T, p *framework.Parts, missing string) {
	t.Helper()
	ask(t, p.Config(t), http.MethodGet, configMaps, "").want(t, "an administrator reads", http.StatusOK)
	for _, path := range []string{"/healthz", "/livez", "/version"} {
		if _, err := p.Probe(t, path); err != nil {
			t.Errorf("%s without %s: %v", path, missing, err)
		}
	}
	report, err := p.Probe(t, "/readyz?verbose")
	if want := "[-]gate-" + missing + " failed"; err == nil || !strings.Contains(report, want) {
		t.Errorf("/readyz without %s = %v, want %q in it:\n%s", missing, err, want, report)
	}
	if err := p.Died(); err != nil {
		t.Error(err)
	}
}

func TestAuthzAway(t *testing.T) {
	p := start(t, framework.PartsOptions{})
	p.Kill(t, authz)
	for _, user := range []string{ann, eve} {
		config := p.User(t, user)
		ask(t, config, http.MethodGet, configMaps, "").wantUnavailable(t, user+" reads", authz)
		ask(t, config, http.MethodPost, configMaps, `{"metadata":{"name":"by-`+user+`"}}`).wantUnavailable(t, user+" writes", authz)
		ask(t, config, http.MethodGet, configMaps+"?watch=true", "").wantUnavailable(t, user+" watches", authz)
	}
	ask(t, p.Config(t), http.MethodPost, reviews, review).wantUnavailable(t, "a review", authz)
	othersGoOn(t, p, authz)
	framework.Eventually(t, "the audit event has the code of the answer", func() error {
		events := p.AuditEvents(t, func(e *auditv1.Event) bool { return e.User.Username == eve && e.Verb == "list" })
		if len(events) == 0 {
			return errors.New("no event")
		}
		if got := events[0].ResponseStatus; got == nil || got.Code != http.StatusServiceUnavailable {
			return fmt.Errorf("response status %v, want code 503", got)
		}
		return nil
	})

	p.Start(t, authz)
	p.AwaitReady(t)
	ask(t, p.User(t, ann), http.MethodGet, configMaps, "").want(t, "Ann reads again", http.StatusOK)
	ask(t, p.User(t, eve), http.MethodGet, configMaps, "").want(t, "Eve is refused again", http.StatusForbidden)
	for _, user := range []string{ann, eve} {
		ask(t, p.Config(t), http.MethodGet, configMaps+"/by-"+user, "").want(t, "what "+user+" wrote meanwhile", http.StatusNotFound)
	}
}

func TestAuthnAway(t *testing.T) {
	p := start(t, framework.PartsOptions{})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := p.Client(t).CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	letIn(t, p.Cluster, rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"})
	token := p.ServiceAccountToken(t, "default", "robot")
	robot := p.Token(t, token)
	framework.Eventually(t, "the robot is let in", func() error {
		_, err := framework.ClientFor(t, robot).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	})

	p.Kill(t, authn)
	ask(t, robot, http.MethodGet, configMaps, "").wantUnavailable(t, "the robot reads", authn)
	ask(t, p.Token(t, "forged"), http.MethodGet, configMaps, "").wantUnavailable(t, "a forged token", authn)
	// Anonymous may read this path, but whoever has a token is not anonymous.
	ask(t, robot, http.MethodGet, "/version", "").wantUnavailable(t, "the robot asks for the version", authn)
	ask(t, p.Config(t), http.MethodPost, tokenAsks, tokenReview(t, token)).wantUnavailable(t, "a token review", authn)
	ask(t, p.Config(t), http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/robot/token",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`).wantUnavailable(t, "a token request", authn)
	ask(t, p.User(t, ann), http.MethodGet, configMaps, "").want(t, "Ann reads by her certificate", http.StatusOK)
	othersGoOn(t, p, authn)

	p.Start(t, authn)
	p.AwaitReady(t)
	ask(t, robot, http.MethodGet, configMaps, "").want(t, "the robot reads again", http.StatusOK)
	ask(t, p.Token(t, "forged"), http.MethodGet, configMaps, "").want(t, "a forged token is refused again", http.StatusUnauthorized)
}

func tokenReview(t *testing.T, token string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": map[string]string{"token": token},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestAdmissionAway(t *testing.T) {
	p := start(t, framework.PartsOptions{})
	kept := configMaps + "/kept"
	ask(t, p.User(t, ann), http.MethodPost, configMaps, `{"metadata":{"name":"kept"},"data":{"a":"1"}}`).want(t, "Ann writes", http.StatusCreated)

	p.Kill(t, admission)
	for name, config := range map[string]*rest.Config{"Ann": p.User(t, ann), "the administrator": p.Config(t)} {
		ask(t, config, http.MethodPost, configMaps, `{"metadata":{"name":"lost"}}`).wantUnavailable(t, name+" creates", admission)
		ask(t, config, http.MethodPut, kept, `{"metadata":{"name":"kept"},"data":{"a":"2"}}`).wantUnavailable(t, name+" updates", admission)
		ask(t, config, http.MethodDelete, kept, "").wantUnavailable(t, name+" deletes", admission)
		ask(t, config, http.MethodGet, kept, "").want(t, name+" reads", http.StatusOK)
	}
	othersGoOn(t, p, admission)
	ask(t, p.Config(t), http.MethodGet, configMaps+"/lost", "").want(t, "what was not written", http.StatusNotFound)
	if got := ask(t, p.Config(t), http.MethodGet, kept, ""); !strings.Contains(got.body, `"a":"1"`) {
		t.Errorf("what was not changed = %s", got.body)
	}

	p.Start(t, admission)
	p.AwaitReady(t)
	ask(t, p.User(t, ann), http.MethodDelete, kept, "").want(t, "Ann deletes again", http.StatusOK)
}

// TestSlowGate stops authz without ending it: its connections stay, and answers do
// not come.
func TestSlowGate(t *testing.T) {
	p := start(t, framework.PartsOptions{})
	p.Signal(t, authz, syscall.SIGSTOP)
	begin := time.Now()
	ask(t, p.User(t, ann), http.MethodGet, configMaps+"?timeout=3s", "").wantUnavailable(t, "Ann reads", authz)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the answer took %v, want it within the request's own 3 s", took)
	}
	othersReadOn := ask(t, p.Config(t), http.MethodGet, configMaps, "")
	othersReadOn.want(t, "an administrator reads", http.StatusOK)
	p.Signal(t, authz, syscall.SIGCONT)
	framework.Eventually(t, "Ann reads again", func() error {
		if got := ask(t, p.User(t, ann), http.MethodGet, configMaps, ""); got.code != http.StatusOK {
			return fmt.Errorf("%d: %s", got.code, got.body)
		}
		return nil
	})
}

// clientFor returns a client that tries again as client-go does by default.
func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	return framework.ClientFor(t, config)
}
