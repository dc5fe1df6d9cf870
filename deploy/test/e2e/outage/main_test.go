// Package outage tests what clients see while a gate of Trigate is down, slow or
// dying: a pause, and never a wrong answer.
package outage

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// The gates, by the names of their processes.
const (
	authn     = "authn"
	authz     = "authz"
	admission = "admission"
)

// namespace is where all happens, and configMaps are its ConfigMaps.
const (
	namespace  = "outage"
	configMaps = "/api/v1/namespaces/" + namespace + "/configmaps"
)

// people are the users of a control plane.
type people struct {
	// admin is a member of system:masters.
	admin *rest.Config
	// ann has a certificate, and may do everything with ConfigMaps.
	ann *rest.Config
	// robot is a service account with ann's rights and a token.
	robot *rest.Config
	// nobody has a certificate and no rights.
	nobody *rest.Config
	// stranger has a token that nobody issued.
	stranger *rest.Config
	// anonymous has neither.
	anonymous *rest.Config
}

// settle makes the namespace and the people.
func settle(t *testing.T, c *framework.Cluster) *people {
	t.Helper()
	ctx, core := t.Context(), c.Client(t).CoreV1()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := core.Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rules := []rbacv1.PolicyRule{framework.May("get,list,watch,create,update,patch,delete,deletecollection", "", "configmaps")}
	c.Grant(t, framework.Grant{Name: "ann", Namespace: namespace, User: "ann", Rules: rules})
	c.Grant(t, framework.Grant{Name: "robot", Namespace: namespace, User: "system:serviceaccount:" + namespace + ":robot", Rules: rules})
	p := &people{
		admin:     c.Config(t),
		ann:       c.User(t, "ann"),
		robot:     c.Token(t, c.ServiceAccountToken(t, namespace, "robot")),
		nobody:    c.User(t, "nobody"),
		stranger:  c.Token(t, "not-a-token"),
		anonymous: c.Anonymous(t),
	}
	// authn knows the account as soon as it has seen it.
	framework.Eventually(t, "the robot", func() error {
		_, err := framework.ClientFor(t, p.robot).CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	return p
}

// ask sends a request without a body that changes nothing.
func ask(t *testing.T, c *framework.Cluster, who *rest.Config, path string) *framework.Answer {
	t.Helper()
	return c.As(t, who).Send(t, http.MethodGet, path, "")
}

// configMap is one with a datum.
func configMap(name, datum string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {datum: %s}}", name, datum)
}

// wantUnavailable wants the answer of a gate that could not decide: 503 with
// Retry-After, a Status that says which gate it was, and the same code in the audit
// log.
func wantUnavailable(t *testing.T, answer *framework.Answer, gate string) {
	t.Helper()
	if err := unavailable(answer, gate); err != nil {
		t.Errorf("%s: %v; the answer was:\n%s", answer.Request, err, answer.Body)
	}
}

func unavailable(answer *framework.Answer, gate string) error {
	if answer.Code != http.StatusServiceUnavailable {
		return fmt.Errorf("code %d, want 503", answer.Code)
	}
	var errs []error
	if got := answer.Header.Get("Retry-After"); got != "1" {
		errs = append(errs, fmt.Errorf("Retry-After = %q, want 1", got))
	}
	var body metav1.Status
	if err := answer.Into(&body); err != nil {
		return err
	}
	if body.Kind != "Status" || body.Status != metav1.StatusFailure || body.Reason != metav1.StatusReasonServiceUnavailable || body.Code != http.StatusServiceUnavailable {
		errs = append(errs, errors.New("the body is not the Status of an unavailable service"))
	}
	if !strings.Contains(body.Message, gate) {
		errs = append(errs, fmt.Errorf("the message does not say that it is %s", gate))
	}
	for _, inside := range []string{"rpc error", "code = ", "dial tcp", "127.0.0.1"} {
		if strings.Contains(string(answer.Body), inside) {
			errs = append(errs, fmt.Errorf("the answer tells of the inside: %q", inside))
		}
	}
	switch {
	case answer.Audit == nil:
		errs = append(errs, errors.New("there is no audit event"))
	case answer.Audit.ResponseStatus == nil || answer.Audit.ResponseStatus.Code != http.StatusServiceUnavailable:
		errs = append(errs, fmt.Errorf("the audit event says %+v, want code 503", answer.Audit.ResponseStatus))
	}
	return errors.Join(errs...)
}

// wantHealth wants the health paths to answer those who have no credentials, and
// /readyz to say which gate is down.
func wantHealth(t *testing.T, c *framework.Cluster, down string) {
	t.Helper()
	for _, path := range []string{"/healthz", "/livez", "/version"} {
		if body, err := c.Probe(t, path); err != nil {
			t.Errorf("%s without %s: %v\n%s", path, down, err, body)
		}
	}
	framework.Eventually(t, "/readyz without "+down, func() error {
		report, err := c.Probe(t, "/readyz?verbose")
		if err == nil {
			return errors.New("it is ok")
		}
		var failed []string
		for line := range strings.Lines(report) {
			if check, ok := strings.CutPrefix(line, "[-]"); ok {
				name, _, _ := strings.Cut(check, " ")
				failed = append(failed, name)
			}
		}
		if want := []string{"gate-" + down}; !slices.Equal(failed, want) {
			return fmt.Errorf("it says that %q failed, want %q: %w\n%s", failed, want, err, report)
		}
		return nil
	})
}

// wantWhole wants everybody to get what is theirs again. While it waits, nobody may
// get what is not, and no token or certificate be refused.
func wantWhole(t *testing.T, c *framework.Cluster, p *people) {
	t.Helper()
	for _, tc := range []struct {
		name string
		who  *rest.Config
		want int
	}{
		{"ann", p.ann, http.StatusOK},
		{"robot", p.robot, http.StatusOK},
		{"nobody", p.nobody, http.StatusForbidden},
		{"stranger", p.stranger, http.StatusUnauthorized},
	} {
		framework.Eventually(t, tc.name, func() error {
			answer := ask(t, c, tc.who, configMaps)
			switch answer.Code {
			case tc.want:
				return nil
			case http.StatusServiceUnavailable:
				return errors.New("is told to try again")
			}
			t.Fatalf("%s got %d, want %d:\n%s", tc.name, answer.Code, tc.want, answer.Body)
			return nil
		})
	}
	client := framework.ClientFor(t, p.ann).CoreV1().ConfigMaps(namespace)
	framework.Eventually(t, "ann's write", func() error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "whole-"}}
		_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil && !apierrors.IsServiceUnavailable(err) {
			t.Fatal(err)
		}
		return err
	})
}
