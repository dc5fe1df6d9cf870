package gates

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestStatus(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{})
	framework.Eventually(t, "all gates healthy", func() error {
		result := gates(t, c, "status")
		for _, row := range []string{"\nauthn       yes     1/1        yes (", "\nauthz       yes     1/1        yes (", "\nadmission   yes     1/1 "} {
			if result.Code != 0 || !strings.Contains(result.Stdout, row) {
				return fmt.Errorf("exit code %d, no %q in\n%s%s", result.Code, row, result.Stdout, result.Stderr)
			}
		}
		return nil
	})
	framework.Eventually(t, "a gate that is gone is not healthy", func() error {
		c.Signal(t, "authz", syscall.SIGKILL)
		result := gates(t, c, "status")
		if result.Code != 1 || !strings.Contains(result.Stdout, "authz is not healthy: ") {
			return fmt.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		return nil
	})
	// A question waits for the gate, as with kubectl.
	want(t, gates(t, c, "explain", "get", "/healthz", "--as", "ann"), 0, "yes: ann may get /healthz")
	framework.Eventually(t, "it is healthy again", func() error {
		if result := gates(t, c, "status", "-o", "json"); result.Code != 0 {
			return fmt.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		return nil
	})
}

// TestRights has a service account ask, without the right to and with it.
func TestRights(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	ns := c.Namespace(t)
	c.MustKubectl(t, "config", "set-credentials", "asker", "--token", c.ServiceAccountToken(t, ns, "default"))
	c.MustKubectl(t, "config", "set-credentials", "nobody", "--token", "nobody's")
	asks := []string{"explain", "list", "pods", "-n", ns, "--user", "asker"}
	const hint = "  kubectl create clusterrole gates-explain --verb=post --non-resource-url=/gates/authz/v1/explain\n"
	want(t, gates(t, c, asks...), 2, "Error from server (Forbidden)", `"system:serviceaccount:`+ns+`:default"`, hint)
	// What the hint says helps.
	c.MustKubectl(t, strings.Fields(hint)[1:]...)
	c.MustKubectl(t, "create", "clusterrolebinding", "gates-explain", "--clusterrole=gates-explain", "--serviceaccount="+ns+":default")
	t.Cleanup(func() { c.MustKubectl(t, "delete", "clusterrole/gates-explain", "clusterrolebinding/gates-explain") })
	framework.Eventually(t, "the right is in force", func() error {
		if result := gates(t, c, asks...); result.Code != 1 || !strings.Contains(result.Stdout, "no: system:serviceaccount:"+ns+":default may not list pods in namespace "+ns+"\n") {
			return fmt.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		return nil
	})
	want(t, gates(t, c, "explain", "post", "/gates/authz/v1/explain", "--user", "asker"), 0, "binding     ClusterRoleBinding gates-explain\n")
	want(t, gates(t, c, "explain", "get", "/healthz", "--user", "nobody"), 2, "You must be logged in to the server")
	// The administrator is not bound to anything.
	want(t, gates(t, c, "explain", "delete", "nodes"), 0, "system:masters")
}

func TestWhoCan(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	ns := c.Namespace(t)
	c.Grant(t, framework.Grant{Name: "kite-flyer", Namespace: ns, User: "ann", Rules: []rbacv1.PolicyRule{framework.May("get,list", "", "pods")}})
	result := gates(t, c, "who-can", "list", "po", "-n", ns)
	want(t, result, 0, "KIND ", "RoleBinding/"+ns+"/kite-flyer", "Role/"+ns+"/kite-flyer", "ClusterRoleBinding/cluster-admin", "Others may be allowed by what cannot list whom it allows: node.")
	want(t, gates(t, c, "who-can", "list", "pods", "-n", ns, "-o", "name"), 0, "user/ann\n", "group/system:masters\n")
	if result := gates(t, c, "who-can", "list", "pods", "-A", "-o", "name"); result.Code != 0 || strings.Contains(result.Stdout, "user/ann\n") {
		t.Errorf("exit code %d, ann may list the pods of one namespace only:\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	want(t, gates(t, c, "who-can", "get", "/healthz", "-o", "yaml"), 0, "name: system:public-info-viewer")

	// More than a page.
	var subjects []string
	for i := range 1200 {
		subjects = append(subjects, fmt.Sprintf("{kind: User, apiGroup: rbac.authorization.k8s.io, name: flyer-%04d}", i))
	}
	c.MustKubectlInput(t, "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: flyers, namespace: "+ns+"}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: kite-flyer}, subjects: ["+
		strings.Join(subjects, ", ")+"]}", "create", "-f", "-")
	for _, size := range []string{"1000", "499"} {
		framework.Eventually(t, "all flyers are listed", func() error {
			result := gates(t, c, "who-can", "list", "pods", "-n", ns, "-o", "name", "--chunk-size", size)
			if n := strings.Count(result.Stdout, "user/flyer-"); result.Code != 0 || n != len(subjects) {
				return fmt.Errorf("exit code %d, %d flyers, want %d: %s", result.Code, n, len(subjects), result.Stderr)
			}
			return nil
		})
	}
}

func TestWhoAmI(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	ns := c.Namespace(t)
	token := c.ServiceAccountToken(t, ns, "default")
	name := "system:serviceaccount:" + ns + ":default"
	result := gatesInput(t, c, token+"\n", "whoami", "--token", "-")
	want(t, result, 0, "Username ", name, "system:serviceaccounts:"+ns+", system:authenticated")
	if result.Stderr != "" {
		t.Errorf("stderr = %q, want nothing", result.Stderr)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, gates(t, c, "whoami", "--token-file", file, "-o", "json"), 0, `"authenticated": true`, `"name": "`+name+`"`)
	result = gates(t, c, "whoami", "--token", token)
	want(t, result, 0, name, "Warning: other users of this machine can see a token")
	if strings.Contains(result.Stdout+result.Stderr, token) {
		t.Errorf("the token is in what was printed:\n%s%s", result.Stdout, result.Stderr)
	}
	want(t, gates(t, c, "whoami", "--token-file", file, "--audience", "vault"), 1, "no: the token is not good: ")
	want(t, gatesInput(t, c, token+"x", "whoami", "--token", "-"), 1, "no: ")
	want(t, gates(t, c, "whoami"), 0, "system:masters")
}

func TestWatchRevisions(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	ns := c.Namespace(t)
	stream := c.KubectlStream(t, "gates", "watch-revisions")
	if header := stream.Next(t); !strings.HasPrefix(header, "CLUSTERROLES ") {
		t.Fatalf("the first line is %q", header)
	}
	stream.Next(t)
	c.Grant(t, framework.Grant{Name: "kite-watcher", Namespace: ns, User: "ann", Rules: []rbacv1.PolicyRule{framework.May("get", "", "pods")}})
	// Other tests' changes are there too.
	for line := ""; !strings.Contains(line, ns); line = stream.Next(t) {
	}
	want(t, gates(t, c, "watch-revisions", "--timeout=2s", "--no-headers"), 0, " yes")
}

// TestStock asks an API server that has no gates.
func TestStock(t *testing.T) {
	c := framework.Shared(t, framework.Stock)
	for _, args := range [][]string{{"status"}, {"explain", "list", "pods"}, {"who-can", "list", "pods"}, {"watch-revisions"}} {
		want(t, gates(t, c, args...), 2, "is it a Trigate?")
	}
	want(t, gatesInput(t, c, "x", "whoami", "--token", "-"), 2, "is it a Trigate?")
}
