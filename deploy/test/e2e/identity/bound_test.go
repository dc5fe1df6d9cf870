package identity

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestKubectlCreatesBoundTokens has kubectl make a token for each kind of object that
// it can be bound to, and say whose it is, with what is known of the object.
func TestKubectlCreatesBoundTokens(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		namespace, admin := c.Namespace(t), c.Admin(t)
		objects := "/api/v1/namespaces/" + namespace
		node := "node-of-" + namespace
		admin.Make(t, "/api/v1/nodes", node, "{apiVersion: v1, kind: Node, metadata: {name: "+node+"}}")
		admin.Send(t, http.MethodPost, objects+"/secrets", "{apiVersion: v1, kind: Secret, metadata: {name: holder}}").Want(t, http.StatusCreated)
		admin.Send(t, http.MethodPost, objects+"/pods",
			"{apiVersion: v1, kind: Pod, metadata: {name: holder}, spec: {nodeName: "+node+", containers: [{name: a, image: a}]}}").Want(t, http.StatusCreated)
		for _, test := range []struct {
			kind, name, path string
			extra            []string
		}{
			{"Secret", "holder", objects + "/secrets/holder", nil},
			{"Pod", "holder", objects + "/pods/holder", []string{"pod-name", "pod-uid", "node-name", "node-uid"}},
			{"Node", node, "/api/v1/nodes/" + node, []string{"node-name", "node-uid"}},
		} {
			t.Run(test.kind, func(t *testing.T) {
				uid := admin.Send(t, http.MethodGet, test.path, "").Want(t, http.StatusOK).String(t, "metadata", "uid")
				token := strings.TrimSpace(c.MustKubectl(t, "--namespace="+namespace, "create", "token", "default",
					"--bound-object-kind="+test.kind, "--bound-object-name="+test.name, "--bound-object-uid="+uid))
				bearer := c.As(t, c.Token(t, token))
				answer := whoAmI(t, bearer).Want(t, http.StatusCreated)
				extra := append([]string{"credential-id"}, test.extra...)
				for _, key := range extra {
					if answer.Field(t, "status", "userInfo", "extra", "authentication.kubernetes.io/"+key) == nil {
						t.Errorf("the user has no %s: %s", key, answer.Body)
					}
				}
				// kubectl shows the same, with a kubeconfig that has no certificate.
				shown := framework.RunKubectl(t, filepath.Join(t.TempDir(), "none"), "",
					"--server="+c.Config(t).Host, "--insecure-skip-tls-verify", "--token="+token, "auth", "whoami")
				for _, key := range extra {
					if shown.Code != 0 || !strings.Contains(shown.Stdout, "authentication.kubernetes.io/"+key) {
						t.Errorf("kubectl auth whoami does not show %s: %+v", key, shown)
					}
				}
				// The audit event tells by which token.
				if answer.Audit == nil || len(answer.Audit.User.Extra["authentication.kubernetes.io/credential-id"]) != 1 {
					t.Errorf("the audit event does not tell the credential: %+v", answer.Audit)
				}
				// Another object of the same name is not the one.
				result := c.Kubectl(t, "--namespace="+namespace, "create", "token", "default",
					"--bound-object-kind="+test.kind, "--bound-object-name="+test.name, "--bound-object-uid=00000000-0000-0000-0000-000000000000")
				if result.Code == 0 || !strings.Contains(result.Stderr, "UID") {
					t.Errorf("kubectl create token for another uid: %+v, want it refused", result)
				}
			})
		}
	})
}
