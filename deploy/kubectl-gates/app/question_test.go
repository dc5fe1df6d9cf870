package app

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// TestQuestions asks, and looks at what reaches the gate.
func TestQuestions(t *testing.T) {
	s := newServer(t)
	var got *authzv1.Attributes
	answer(t, s, pathExplain, func(q *authzv1.ExplainRequest) (proto.Message, error) {
		got = q.GetAttributes()
		return &authzv1.ExplainResponse{Answer: &authzv1.AuthorizeResponse{Decision: authzv1.Decision_DECISION_ALLOW}}, nil
	})
	me := &authnv1.UserInfo{Name: "caller", Groups: []string{"callers"}, Extra: []*authnv1.ExtraEntry{{Key: "example.com/k", Values: []string{"v"}}}}
	everyone := func(name string, groups ...string) *authnv1.UserInfo {
		return &authnv1.UserInfo{Name: name, Groups: append(groups, "system:authenticated")}
	}
	for name, tc := range map[string]struct {
		args    []string
		want    *authzv1.Attributes
		warning string
	}{
		"a resource": {
			args: []string{"list", "pods"},
			want: &authzv1.Attributes{User: me, Verb: "list", ResourceRequest: true, Namespace: "tour", ApiVersion: "v1", Resource: "pods"},
		},
		"its short name and an object": {
			args: []string{"get", "po", "shell", "-n", "other"},
			want: &authzv1.Attributes{User: me, Verb: "get", ResourceRequest: true, Namespace: "other", ApiVersion: "v1", Resource: "pods", Name: "shell"},
		},
		"an object as can-i has it": {
			args: []string{"get", "pods/shell"},
			want: &authzv1.Attributes{User: me, Verb: "get", ResourceRequest: true, Namespace: "tour", ApiVersion: "v1", Resource: "pods", Name: "shell"},
		},
		"a subresource": {
			args: []string{"get", "pods/log", "shell"},
			want: &authzv1.Attributes{User: me, Verb: "get", ResourceRequest: true, Namespace: "tour", ApiVersion: "v1", Resource: "pods", Subresource: "log", Name: "shell"},
		},
		"a subresource by its flag": {
			args: []string{"get", "pods/log", "--subresource", "log"},
			want: &authzv1.Attributes{User: me, Verb: "get", ResourceRequest: true, Namespace: "tour", ApiVersion: "v1", Resource: "pods", Subresource: "log", Name: "log"},
		},
		"a group and all namespaces": {
			args: []string{"update", "deploy.apps/scale", "-A"},
			want: &authzv1.Attributes{User: me, Verb: "update", ResourceRequest: true, ApiGroup: "apps", ApiVersion: "v1", Resource: "deployments", Subresource: "scale"},
		},
		"a version": {
			args: []string{"list", "deployments.v1.apps"},
			want: &authzv1.Attributes{User: me, Verb: "list", ResourceRequest: true, Namespace: "tour", ApiGroup: "apps", ApiVersion: "v1", Resource: "deployments"},
		},
		"what is in no namespace": {
			args: []string{"list", "nodes"},
			want: &authzv1.Attributes{User: me, Verb: "list", ResourceRequest: true, ApiVersion: "v1", Resource: "nodes"},
		},
		"what is in no namespace, with one": {
			args:    []string{"list", "nodes", "-n", "tour"},
			want:    &authzv1.Attributes{User: me, Verb: "list", ResourceRequest: true, ApiVersion: "v1", Resource: "nodes"},
			warning: "Warning: resource \"nodes\" is not in namespaces: the namespace is left out\n",
		},
		"a namespace, which is in itself": {
			args: []string{"get", "ns", "other"},
			want: &authzv1.Attributes{User: me, Verb: "get", ResourceRequest: true, Namespace: "other", ApiVersion: "v1", Resource: "namespaces", Name: "other"},
		},
		"whom one may impersonate": {
			args: []string{"impersonate", "users", "bob"},
			want: &authzv1.Attributes{User: me, Verb: "impersonate", ResourceRequest: true, Resource: "users", Name: "bob"},
		},
		"everything": {
			args: []string{"*", "*"},
			want: &authzv1.Attributes{User: me, Verb: "*", ResourceRequest: true, Namespace: "tour", Resource: "*"},
		},
		"what the server does not have": {
			args:    []string{"fly", "kites.example.com/red"},
			want:    &authzv1.Attributes{User: me, Verb: "fly", ResourceRequest: true, Namespace: "tour", ApiGroup: "example.com", Resource: "kites", Name: "red"},
			warning: "Warning: verb \"fly\" is not a known verb\nWarning: the server has no resource type \"kites.example.com\"\n",
		},
		"a URL": {
			args: []string{"get", "/healthz", "--as", "ann"},
			want: &authzv1.Attributes{User: everyone("ann"), Verb: "get", Path: "/healthz"},
		},
		"a user with groups": {
			args: []string{"get", "/healthz", "--as", "ann", "--as-group", "dev", "--as-group", "ops", "--as-uid", "7"},
			want: &authzv1.Attributes{
				User: &authnv1.UserInfo{Name: "ann", Uid: "7", Groups: []string{"dev", "ops", "system:authenticated"}}, Verb: "get", Path: "/healthz",
			},
		},
		"a service account": {
			args: []string{"get", "/healthz", "--as", "system:serviceaccount:tour:ann"},
			want: &authzv1.Attributes{User: everyone("system:serviceaccount:tour:ann", "system:serviceaccounts", "system:serviceaccounts:tour"), Verb: "get", Path: "/healthz"},
		},
		"nobody": {
			args: []string{"get", "/healthz", "--as", "system:anonymous"},
			want: &authzv1.Attributes{User: &authnv1.UserInfo{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}, Verb: "get", Path: "/healthz"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got = nil
			s.run(t, "", append([]string{"explain", "-q"}, tc.args...)...).want(t, exitYes, "", tc.warning)
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("explain %v asked (-want +got):\n%s", tc.args, diff)
			}
		})
	}
}

// TestBadQuestions wants errors that say what is wrong, before a gate is asked.
func TestBadQuestions(t *testing.T) {
	s := newServer(t)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":               {[]string{"explain"}, "expected VERB and RESOURCE"},
		"too much":              {[]string{"explain", "get", "pods", "a", "b"}, "got 4 arguments"},
		"two names":             {[]string{"explain", "get", "pods/a", "b"}, `pods has no subresource "a"`},
		"a name of a URL":       {[]string{"explain", "get", "/healthz", "a"}, `a URL has no name, got "a"`},
		"a subresource of one":  {[]string{"who-can", "get", "/healthz", "--subresource", "log"}, "--subresource"},
		"a URL in a namespace":  {[]string{"who-can", "get", "/healthz", "-A"}, "--all-namespaces"},
		"a query":               {[]string{"explain", "get", "/healthz?verbose"}, "/healthz?verbose"},
		"groups of nobody":      {[]string{"explain", "get", "/healthz", "--as-group", "dev"}, "--as-group and --as-uid need --as"},
		"a format":              {[]string{"explain", "get", "/healthz", "-o", "xml"}, "must be one of json, yaml"},
		"a flag":                {[]string{"explain", "--fast"}, "unknown flag: --fast\nSee 'kubectl gates explain --help' for usage"},
		"a command":             {[]string{"complain"}, `unknown command "complain" for "kubectl gates"`},
		"a page":                {[]string{"who-can", "get", "/healthz", "--chunk-size", "1001"}, "--chunk-size must be from 1 to 1000"},
		"an audience of no one": {[]string{"whoami", "--audience", "vault"}, "--audience is about a token"},
		"a token as argument":   {[]string{"whoami", "x"}, `unexpected argument "x"`},
		"no token":              {[]string{"whoami", "--token", ""}, "the token is empty"},
		"no object":             {[]string{"admit"}, "must specify one of -f and -k"},
		"an operation":          {[]string{"admit", "-f", "-", "--operation", "connect"}, `--operation must be one of create, update, delete, got "connect"`},
		"a time":                {[]string{"watch-revisions", "--timeout", "-1s"}, "--timeout must not be negative"},
		"a context":             {[]string{"explain", "get", "/healthz", "--context", "nowhere"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) { s.run(t, "", tc.args...).wantError(t, tc.want) })
	}
}
