// Package logs tests that what a request causes in all processes can be found in their
// logs by its audit ID, and that no credentials can.
package logs

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// processes are those of Trigate, with what each calls the audit ID in its lines: the
// gateway has upstream's.
var processes = map[string]string{"gateway": "audit-ID", "authn": "auditID", "authz": "auditID", "admission": "auditID"}

const privileged = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"hostNetwork":true,"containers":[{"name":"a","image":"b"}]}}`

// linesOf returns the lines of a process' log that are whole. Each has to be JSON.
func linesOf(t *testing.T, c *framework.Cluster, process string) []map[string]any {
	t.Helper()
	content := logOf(t, c, process)
	whole := content[:strings.LastIndexByte(content, '\n')+1]
	var lines []map[string]any
	for text := range strings.Lines(whole) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%s has logged what is not JSON (%v): %s", process, err, text)
		}
		lines = append(lines, line)
	}
	return lines
}

func logOf(t *testing.T, c *framework.Cluster, process string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.Dir, "logs", process+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// post creates a Pod under an audit ID, and returns the answer's code and body.
func post(t *testing.T, config *restclient.Config, namespace, auditID string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, config.Host+"/api/v1/namespaces/"+namespace+"/pods", strings.NewReader(privileged))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(auditv1.HeaderAuditID, auditID)
	resp, err := framework.HTTP(t, config).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestAuditIDs follows requests through the logs: each process that had a part in a
// request has a line with its audit ID.
func TestAuditIDs(t *testing.T) {
	var args []string
	for process := range processes {
		args = append(args, "--"+process+"-arg=--logging-format=json", "--"+process+"-arg=--v=4")
	}
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: args})
	strict := c.LabelledNamespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	closed := c.Namespace(t)
	c.Grant(t, framework.Grant{
		Name: "logged", Namespace: strict, User: "system:serviceaccount:" + strict + ":default",
		Rules: []rbacv1.PolicyRule{framework.May("create", "", "pods")},
	})
	token := c.ServiceAccountToken(t, strict, "default")
	header, payload, _ := strings.Cut(token, ".")
	payload, signature, _ := strings.Cut(payload, ".")
	forged := header + "." + payload + "." + strings.Repeat("A", len(signature))

	for _, test := range []struct {
		name, token, namespace, auditID string
		code                            int
		text                            string
		in                              []string
	}{
		{"refused by admission", token, strict, "refused-by-admission", http.StatusForbidden, "violates PodSecurity", []string{"gateway", "authn", "authz", "admission"}},
		{"refused by authz", token, closed, "refused-by-authz", http.StatusForbidden, "cannot create resource", []string{"gateway", "authz"}},
		{"refused by authn", forged, strict, "refused-by-authn", http.StatusUnauthorized, "Unauthorized", []string{"gateway", "authn"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, body := post(t, c.Token(t, test.token), test.namespace, test.auditID)
			if code != test.code || !strings.Contains(body, test.text) {
				t.Fatalf("got %d, want %d with %q: %s", code, test.code, test.text, body)
			}
			for _, process := range test.in {
				framework.Eventually(t, process+" has a line", func() error {
					for _, line := range linesOf(t, c, process) {
						if line[processes[process]] == test.auditID {
							return nil
						}
					}
					return fmt.Errorf("no line has %s %q", processes[process], test.auditID)
				})
			}
			framework.Eventually(t, "the audit log has it", func() error {
				if len(c.AuditEvents(t, func(e *auditv1.Event) bool { return string(e.AuditID) == test.auditID })) == 0 {
					return fmt.Errorf("no event has %q", test.auditID)
				}
				return nil
			})
		})
	}
	for process := range processes {
		log := logOf(t, c, process)
		for what, secret := range map[string]string{"the token": token, "its payload": payload, "its signature": signature, "the forged token": forged} {
			if strings.Contains(log, secret) {
				t.Errorf("the log of %s has %s", process, what)
			}
		}
	}
}
