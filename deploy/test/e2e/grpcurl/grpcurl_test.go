// Package grpcurl tests the gates' own faces with the real grpcurl: what a service
// says of itself, what it answers, and whom it lets call.
package grpcurl

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const service = "trigate.authz.v1.AuthorizationService"

// call runs grpcurl against authz, and returns what it prints.
func call(t *testing.T, c *framework.Cluster, credentials []string, args ...string) (string, error) {
	t.Helper()
	program, err := framework.Binary("grpcurl")
	if err != nil {
		t.Fatal(err)
	}
	all := append([]string{"-cacert", filepath.Join(c.PKI.Dir, "gates-ca.crt"), "-servername", "trigate-authz"}, credentials...)
	output, err := exec.CommandContext(t.Context(), program, append(all, args...)...).CombinedOutput()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return string(output), err
}

// address is where authz listens.
func address(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.Dir, "ports.json"))
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]int{}
	if err := json.Unmarshal(content, &ports); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports["authz"])
}

// certificate are the flags for a user's certificate.
func certificate(t *testing.T, c *framework.Cluster, name string, groups ...string) []string {
	t.Helper()
	cert, key := c.Certificate(t, pki.ClusterCA, name, groups...)
	dir := t.TempDir()
	for file, content := range map[string][]byte{"crt": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"-cert", filepath.Join(dir, "crt"), "-key", filepath.Join(dir, "key")}
}

func TestAuthz(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	authz, admin := address(t, c), certificate(t, c, "root", "system:masters")
	c.Grant(t, framework.Grant{
		Name: "reader", Namespace: c.Namespace(t), User: "ann", Rules: []rbacv1.PolicyRule{framework.May("list", "", "pods")},
	})
	c.Grant(t, framework.Grant{
		Name: "asker", User: "ben",
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"post"}, NonResourceURLs: []string{"/" + service + "/WhoCan"}}},
	})
	const whoCan = `{"attributes": {"verb": "delete", "resource_request": true, "resource": "nodes"}}`

	t.Run("describe", func(t *testing.T) {
		output, err := call(t, c, admin, authz, "describe", service)
		for _, method := range []string{"Authorize", "BatchAuthorize", "Explain", "WhoCan", "WatchPolicyRevision"} {
			if err != nil || !strings.Contains(output, "rpc "+method+" ") {
				t.Errorf("describe = %v, without %s:\n%s", err, method, output)
			}
		}
	})
	t.Run("explain", func(t *testing.T) {
		output, err := call(t, c, admin, "-d",
			`{"attributes": {"user": {"name": "ben"}, "verb": "post", "path": "/`+service+`/WhoCan"}}`, authz, service+"/Explain")
		for _, part := range []string{`"DECISION_ALLOW"`, `"kind": "ClusterRoleBinding"`, `"name": "asker"`, `"name": "ben"`} {
			if err != nil || !strings.Contains(output, part) {
				t.Errorf("Explain = %v, without %s:\n%s", err, part, output)
			}
		}
	})
	t.Run("who can", func(t *testing.T) {
		for who, credentials := range map[string][]string{
			"an administrator":  admin,
			"who may call this": certificate(t, c, "ben"),
		} {
			output, err := call(t, c, credentials, "-d", whoCan, authz, service+"/WhoCan")
			if err != nil || !strings.Contains(output, `"name": "cluster-admin"`) {
				t.Errorf("%s: WhoCan = %v, without cluster-admin:\n%s", who, err, output)
			}
		}
	})
	t.Run("callers", func(t *testing.T) {
		for who, test := range map[string]struct {
			credentials []string
			want        string
		}{
			"who may not call this":    {certificate(t, c, "ann"), `user "ann" may not post to /` + service + "/WhoCan"},
			"a token of nobody":        {[]string{"-H", "authorization: Bearer nobody's"}, "the bearer token is not valid"},
			"nobody":                   {nil, "a client certificate or a bearer token is needed"},
			"who may call another one": {certificate(t, c, "ben"), "trigate.authz.v1.AuthorizationService/Explain"},
		} {
			method := "/WhoCan"
			if strings.Contains(test.want, "/Explain") {
				method = "/Explain"
			}
			output, err := call(t, c, test.credentials, "-d", whoCan, authz, service+method)
			if err == nil || !strings.Contains(output, test.want) {
				t.Errorf("%s: %v, want it refused with %q:\n%s", who, err, test.want, output)
			}
		}
	})
	t.Run("bad input", func(t *testing.T) {
		for body, want := range map[string]string{
			`{"attributes": {"verb": "get"}, "page_token": "x"}`:   "page_token",
			`{"attributes": {"verb": "get"}, "page_size": 100000}`: "page_size",
			`{"attributes": {"verb": "get"}, "nobody": 1}`:         "nobody",
		} {
			output, err := call(t, c, admin, "-d", body, authz, service+"/WhoCan")
			if err == nil || !strings.Contains(output, want) {
				t.Errorf("%s: %v, want an error about %s:\n%s", body, err, want, output)
			}
		}
	})
}
