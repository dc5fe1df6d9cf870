package app

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// grant is a path by which a role of the namespace tour allows to read pods.
func grant() *authzv1.Grant {
	return &authzv1.Grant{
		Subject: &authzv1.Subject{Kind: "ServiceAccount", Name: "ann"},
		Binding: &authzv1.ObjectName{Kind: "RoleBinding", Namespace: "tour", Name: "ann-reads"},
		Role:    &authzv1.ObjectName{Kind: "Role", Namespace: "tour", Name: "reader"},
		Rule: &authzv1.Rule{
			Verbs: []string{"get", "list"}, ApiGroups: []string{"", "apps"}, Resources: []string{"pods", "pods/log"}, ResourceNames: []string{"a"},
		},
		RuleIndex: 2,
	}
}

// said is the answer of the chain.
func said(decision authzv1.Decision, authorizers ...*authzv1.AuthorizerDecision) *authzv1.AuthorizeResponse {
	return &authzv1.AuthorizeResponse{Decision: decision, Authorizers: authorizers}
}

// undecided are the authorizers of a chain that allows nothing.
func undecided() []*authzv1.AuthorizerDecision {
	return []*authzv1.AuthorizerDecision{
		{Name: "node", Decision: authzv1.Decision_DECISION_NO_OPINION},
		{Name: "hook.example.com", Decision: authzv1.Decision_DECISION_NO_OPINION, Reason: "not\nmine", Error: "slow"},
	}
}

// miss is a rule that falls short in one respect.
func miss(dimension authzv1.Dimension, change func(*authzv1.Grant)) *authzv1.NearMiss {
	g := grant()
	if change != nil {
		change(g)
	}
	return &authzv1.NearMiss{Grant: g, Dimension: dimension}
}

func TestExplain(t *testing.T) {
	const (
		allow, deny, noOpinion = authzv1.Decision_DECISION_ALLOW, authzv1.Decision_DECISION_DENY, authzv1.Decision_DECISION_NO_OPINION

		says      = "  node              no opinion\n  hook.example.com  no opinion: not; mine: slow\n"
		rules     = "  rules[2] of Role tour/reader, by RoleBinding tour/ann-reads:\n    verbs: get, list; API groups: \"\", apps; resources: pods, pods/log; names: a\n"
		would     = "\nHint: it would be allowed if rules[2] of Role tour/reader did not lack that. Whoever else is bound to the role would be allowed it too.\n"
		caller    = "\nNo rule that is bound to this user comes near. Its groups are callers.\n\nHint: a binding that names the user or one of the groups, with a role that has\n"
		listsPods = "list pods in namespace tour"
	)
	for name, tc := range map[string]struct {
		args   []string
		answer *authzv1.ExplainResponse
		code   int
		want   string
	}{
		"allowed by RBAC": {
			args: []string{"list", "pods"},
			answer: &authzv1.ExplainResponse{
				Answer: said(allow, undecided()[0], &authzv1.AuthorizerDecision{Name: "rbac", Decision: allow}),
				Grant:  grant(),
			},
			want: "yes: caller may " + listsPods + `

  authorizer  rbac
  binding     RoleBinding tour/ann-reads
  subject     ServiceAccount tour/ann
  role        Role tour/reader
  rules[2]    verbs: get, list; API groups: "", apps; resources: pods, pods/log; names: a
`,
		},
		"allowed in spite of an error": {
			args:   []string{"get", "/healthz"},
			answer: &authzv1.ExplainResponse{Answer: &authzv1.AuthorizeResponse{Decision: allow, Error: "a role is missing"}, DecidedBy: "webhook \"w\" allows it"},
			want:   "yes: caller may get /healthz\n\n  webhook \"w\" allows it\n\nErrors while deciding:\n  a role is missing\n",
		},
		"refused by a webhook": {
			args:   []string{"delete", "nodes", "n"},
			answer: &authzv1.ExplainResponse{Answer: said(deny), DecidedBy: `webhook "w" refuses it`},
			code:   exitNo,
			want:   "no: caller may not delete nodes \"n\"\n\n  webhook \"w\" refuses it\n",
		},
		"nothing near": {
			args:   []string{"get", "pods/log", "shell"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...), Errors: []string{"clusterrole \"gone\" not found"}},
			code:   exitNo,
			want: "no: caller may not get pods/log \"shell\" in namespace tour\n\n" + says +
				"\nRoles that are bound and cannot be read:\n  clusterrole \"gone\" not found\n" +
				caller + "  verbs: get; API groups: \"\"; resources: pods/log; names: shell\n",
		},
		"no path near": {
			args:   []string{"get", "/healthz"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...)},
			code:   exitNo,
			want:   "no: caller may not get /healthz\n\n" + says + caller + "  verbs: get; URLs: /healthz\n",
		},
		"no decision at all": {
			args:   []string{"get", "/healthz"},
			answer: &authzv1.ExplainResponse{},
			code:   exitNo,
			want:   "no: caller may not get /healthz\n\n" + caller + "  verbs: get; URLs: /healthz\n",
		},
		"another verb": {
			args:   []string{"delete", "pods"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...), NearMisses: []*authzv1.NearMiss{miss(authzv1.Dimension_DIMENSION_VERB, nil)}},
			code:   exitNo,
			want:   "no: caller may not delete pods in namespace tour\n\n" + says + "\nNearest rules:\n" + rules + "    lacks the verb \"delete\"\n" + would,
		},
		"other respects": {
			args: []string{"get", "pods/log"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...), NearMisses: []*authzv1.NearMiss{
				miss(authzv1.Dimension_DIMENSION_RESOURCE, nil), miss(authzv1.Dimension_DIMENSION_API_GROUP, nil), miss(authzv1.Dimension_DIMENSION_NAME, nil),
				miss(authzv1.Dimension_DIMENSION_PATH, nil), miss(99, nil), miss(authzv1.Dimension_DIMENSION_VERB, nil), miss(authzv1.Dimension_DIMENSION_VERB, nil),
			}},
			code: exitNo,
			want: "no: caller may not get pods/log in namespace tour\n\n" + says + "\nNearest rules:\n" +
				rules + "    lacks the resource \"pods/log\"\n" +
				rules + "    lacks the API group \"\"\n" +
				rules + "    is for single names, and the request has none\n" +
				rules + "    lacks the path \"\"\n" +
				rules + "    falls short in a way that this version does not know: 99\n" +
				"  and 2 more (-o json has up to 100)\n" + would,
		},
		"another name": {
			args:   []string{"get", "deploy", "b"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...), NearMisses: []*authzv1.NearMiss{miss(authzv1.Dimension_DIMENSION_NAME, nil)}},
			code:   exitNo,
			want:   "no: caller may not get deployments.apps \"b\" in namespace tour\n\n" + says + "\nNearest rules:\n" + rules + "    lacks the name \"b\"\n" + would,
		},
		"another namespace": {
			args:   []string{"list", "pods", "-n", "other"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...), NearMisses: []*authzv1.NearMiss{miss(authzv1.Dimension_DIMENSION_NAMESPACE, nil)}},
			code:   exitNo,
			want: "no: caller may not list pods in namespace other\n\n" + says + "\nNearest rules:\n" + rules + "    is bound in namespace \"tour\", not in \"other\"\n" +
				"\nHint: it would be allowed if a RoleBinding in namespace \"other\" bound a role with that rule; Role tour/reader cannot be bound there.\n",
		},
		"all namespaces": {
			args: []string{"list", "pods", "-A"},
			answer: &authzv1.ExplainResponse{Answer: said(noOpinion, undecided()...), NearMisses: []*authzv1.NearMiss{miss(authzv1.Dimension_DIMENSION_NAMESPACE, func(g *authzv1.Grant) {
				g.Role = &authzv1.ObjectName{Kind: "ClusterRole", Name: "view"}
			})}},
			code: exitNo,
			want: "no: caller may not list pods in all namespaces\n\n" + says +
				"\nNearest rules:\n  rules[2] of ClusterRole view, by RoleBinding tour/ann-reads:\n    verbs: get, list; API groups: \"\", apps; resources: pods, pods/log; names: a\n" +
				"    is bound in namespace \"tour\" only, and the request is not in a namespace\n" +
				"\nHint: it would be allowed if a ClusterRoleBinding bound ClusterRole view too.\n",
		},
		"names that would take over the terminal": {
			args: []string{"list", "pods"},
			answer: &authzv1.ExplainResponse{
				Answer: &authzv1.AuthorizeResponse{Decision: allow, PercentEncoded: true},
				Grant: func() *authzv1.Grant {
					g := grant()
					g.Binding.Name = "\x1b[2J\rgone"
					return g
				}(),
			},
			want: "yes: caller may " + listsPods + `

  authorizer  rbac
  binding     RoleBinding tour/^[[2J\rgone
  subject     ServiceAccount tour/ann
  role        Role tour/reader
  rules[2]    verbs: get, list; API groups: "", apps; resources: pods, pods/log; names: a

Names are percent-encoded here, since one of them is not UTF-8.
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			answer(t, s, pathExplain, func(*authzv1.ExplainRequest) (proto.Message, error) { return tc.answer, nil })
			args := append([]string{"explain"}, tc.args...)
			s.run(t, "", args...).want(t, tc.code, tc.want, "")
			s.run(t, "", append(args, "-q")...).want(t, tc.code, "", "")
			for format, toJSON := range map[string]func([]byte) ([]byte, error){
				"json": func(content []byte) ([]byte, error) { return content, nil },
				"yaml": func(content []byte) ([]byte, error) { return yaml.YAMLToJSON(content) },
			} {
				got := s.run(t, "", append(args, "-o", format)...)
				content, err := toJSON([]byte(got.out))
				if err != nil || got.code != tc.code || !json.Valid(content) {
					t.Fatalf("-o %s: exit code %d, %v:\n%s", format, got.code, err, got.out)
				}
				message := &authzv1.ExplainResponse{}
				if err := protojson.Unmarshal(content, message); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.answer, message, protocmp.Transform()); diff != "" {
					t.Errorf("-o %s (-want +got):\n%s", format, diff)
				}
			}
		})
	}
}
