package explain

import (
	"path/filepath"
	"slices"
	"testing"

	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/servetest"
)

const abacPolicy = `# people

{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"paul","resource":"*","namespace":"*","apiGroup":"*"}}
  # groups
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"dev","resource":"pods","namespace":"ns","readonly":true}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","nonResourcePath":"/logs/*"}}
`

func writePolicy(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	servetest.WriteFile(t, path, []byte(content))
	return path
}

var chain = []authzconfig.AuthorizerConfiguration{
	{Name: "node", Type: "Node"},
	{Name: "hook.example.com", Type: "Webhook"},
	{Name: "abac", Type: "ABAC"},
	{Name: "rbac", Type: "RBAC"},
	{Name: "alwaysallow", Type: "AlwaysAllow"},
	{Name: "alwaysdeny", Type: "AlwaysDeny"},
}

func TestDecidedBy(t *testing.T) {
	e := newExplainer(t, Config{ABACPolicyFile: writePolicy(t, abacPolicy)})
	const allow, deny, noOpinion = authorizer.DecisionAllow, authorizer.DecisionDeny, authorizer.DecisionNoOpinion
	getPod := resource(person("jane", "dev"), "get", "pods:p", "ns")
	nodeGets := resource(&user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}, "get", "secrets:s", "ns")
	for name, tc := range map[string]struct {
		question authorizer.AttributesRecord
		said     []convert.Say
		want     string
	}{
		"nobody was asked": {question: getPod},
		"nobody decides":   {question: getPod, said: []convert.Say{{Name: "node", Decision: noOpinion}, {Name: "rbac", Decision: noOpinion, Reason: "r"}}},
		"RBAC":             {question: getPod, said: []convert.Say{{Name: "node", Decision: noOpinion}, {Name: "rbac", Decision: allow, Reason: "r"}}},
		"system:masters":   {question: getPod, said: []convert.Say{{Name: "kubernetes.io/system-privileged-group", Decision: allow}}, want: `group "system:masters" may do everything`},
		"a node":           {question: nodeGets, said: []convert.Say{{Name: "node", Decision: allow}}, want: `the Node authorizer allows it to node "n1"`},
		"a line of ABAC":   {question: getPod, said: []convert.Say{{Name: "abac", Decision: allow}}, want: "line 5 of the ABAC policy allows it"},
		"another line": {
			question: path(person("jane"), "post", "/logs/a"), said: []convert.Say{{Name: "abac", Decision: allow}},
			want: "line 6 of the ABAC policy allows it",
		},
		"a webhook refuses": {question: getPod, said: []convert.Say{{Name: "hook.example.com", Decision: deny, Reason: "not jane"}}, want: `webhook "hook.example.com" refuses it: not jane`},
		"a webhook allows":  {question: getPod, said: []convert.Say{{Name: "hook.example.com", Decision: allow}}, want: `webhook "hook.example.com" allows it`},
		"AlwaysAllow":       {question: getPod, said: []convert.Say{{Name: "rbac", Decision: noOpinion}, {Name: "alwaysallow", Decision: allow}}, want: "AlwaysAllow allows everything"},
		"one that is gone":  {question: getPod, said: []convert.Say{{Name: "old", Decision: allow, Reason: "r"}}, want: `authorizer "old" allows it: r`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := e.decidedBy(t.Context(), tc.question, tc.said, chain); got != tc.want {
				t.Errorf("decidedBy() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNotListedBy(t *testing.T) {
	want := []string{"node", "hook.example.com", "abac", "alwaysallow"}
	if got := notListedBy(chain); !slices.Equal(got, want) {
		t.Errorf("notListedBy() = %q, want %q", got, want)
	}
}

func TestABACFile(t *testing.T) {
	for name, path := range map[string]string{
		"none":      filepath.Join(t.TempDir(), "none"),
		"no policy": writePolicy(t, "{"),
	} {
		if e, err := New(Config{ABACPolicyFile: path}); err == nil {
			t.Errorf("%s: New() = %v, want an error", name, e)
		}
	}
}
