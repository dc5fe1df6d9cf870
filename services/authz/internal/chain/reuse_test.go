package chain

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/servetest"
)

// withPolicy builds a chain over an API with these objects, all of which have been
// read.
func withPolicy(t *testing.T, objects []runtime.Object, change func(*kubeoptions.BuiltInAuthorizationOptions), modes ...string) *Chain {
	t.Helper()
	restConfig, err := process.RESTConfig(apitest.New(t, objects...).Kubeconfig(t), "test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		t.Fatal(err)
	}
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = modes
	if change != nil {
		change(options)
	}
	factory := process.NewInformerFactory(client)
	upstream, err := options.ToAuthorizationConfig(factory)
	if err != nil {
		t.Fatalf("ToAuthorizationConfig() = %v", err)
	}
	store := policy.NewStore()
	c, err := New(t.Context(), Config{Upstream: *upstream, Policy: store, ServerID: t.Name()})
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	reader := policy.NewReader(store, client)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		reader.Shutdown()
		factory.Shutdown()
	})
	for _, source := range []process.InformerFactory{reader, factory} {
		source.StartWithContext(ctx)
		if result := source.WaitForCacheSyncWithContext(t.Context()); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	servetest.Eventually(t, func() error {
		for _, synced := range c.HandlersSynced() {
			if !synced() {
				return errors.New("a handler has not synced")
			}
		}
		return nil
	})
	return c
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func rule(verb, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: names}
}

func ref(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}

// janesPolicy lets jane do something by each kind of rule.
func janesPolicy() []runtime.Object {
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}}
	return []runtime.Object{
		clusterRole(
			"everywhere", rule("get", "pods"), rule("list", "pods", "web"), rule("list", "pods"),
			rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}, ResourceNames: []string{"web"}},
		),
		clusterRole("named", rule("get", "secrets", "mine"), rule("update", "configmaps", "mine")),
		clusterRole("here", rule("get", "secrets"), rule("get", "services")),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "1"}, RoleRef: ref("everywhere"), Subjects: subjects},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "2"}, RoleRef: ref("named"), Subjects: subjects},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "3"}, RoleRef: ref("here"), Subjects: subjects},
	}
}

// TestReuse wants to hear of each kind of answer for which other questions it holds.
func TestReuse(t *testing.T) {
	hook := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(hook.Close)
	webhook := write(t, filepath.Join(t.TempDir(), "hook"),
		`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "`+hook.URL+`"}}]}`)
	policyFile := abacPolicy(t)
	files := func(o *kubeoptions.BuiltInAuthorizationOptions) {
		o.PolicyFile, o.WebhookConfigFile = policyFile, webhook
	}
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}}
	question := func(u user.Info, verb, resource string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: u, Verb: verb, Namespace: "ns", Resource: resource, Name: "web", ResourceRequest: true}
	}
	path := func(path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: jane, Verb: "get", Path: path}
	}
	clusterWide := question(jane, "get", "nodes")
	clusterWide.Namespace = ""
	const (
		none         = authzv1.Reuse_REUSE_UNSPECIFIED
		sameName     = authzv1.Reuse_REUSE_SAME_NAME
		anyName      = authzv1.Reuse_REUSE_ANY_NAME
		anyNamespace = authzv1.Reuse_REUSE_ANY_NAMESPACE
	)
	for _, tc := range []struct {
		name     string
		modes    []string
		question authorizer.AttributesRecord
		allowed  bool
		want     authzv1.Reuse
	}{
		{"by a cluster role", []string{"RBAC"}, question(jane, "get", "pods"), true, anyNamespace},
		{"by a cluster role, with rules for a name and for all", []string{"RBAC"}, question(jane, "list", "pods"), true, anyNamespace},
		{"by a role, and another name by another", []string{"RBAC"}, question(jane, "get", "secrets"), true, sameName},
		{"by a role", []string{"RBAC"}, question(jane, "get", "services"), true, anyName},
		{"refused for this name", []string{"RBAC"}, question(jane, "update", "configmaps"), false, sameName},
		{"refused", []string{"RBAC"}, question(jane, "delete", "pods"), false, anyName},
		{"refused without a namespace", []string{"RBAC"}, clusterWide, false, anyName},
		{"a path", []string{"RBAC"}, path("/metrics"), true, anyNamespace},
		{"a path that is refused", []string{"RBAC"}, path("/logs"), false, anyName},
		{"system:masters", []string{"Webhook", "RBAC"}, question(root, "get", "pods"), true, anyNamespace},
		{"after the Node authorizer", []string{"Node", "RBAC"}, question(jane, "get", "pods"), true, anyNamespace},
		{"a node", []string{"Node", "RBAC"}, question(node, "get", "services"), true, none},
		{"a node whom others allow", []string{"RBAC", "Node"}, question(node, "delete", "secrets"), false, none},
		{"before the Node authorizer", []string{"RBAC", "Node"}, question(jane, "get", "pods"), true, anyNamespace},
		{"by ABAC", []string{"ABAC", "RBAC"}, question(jane, "delete", "pods"), true, anyName},
		{"after ABAC", []string{"ABAC", "AlwaysAllow"}, question(paul, "get", "pods"), true, anyName},
		{"a path after ABAC", []string{"ABAC", "RBAC"}, path("/metrics"), true, anyNamespace},
		{"AlwaysAllow", []string{"AlwaysAllow"}, question(paul, "get", "pods"), true, anyNamespace},
		{"AlwaysDeny", []string{"AlwaysDeny"}, question(paul, "get", "pods"), false, anyNamespace},
		{"AlwaysAllow after RBAC", []string{"RBAC", "AlwaysAllow"}, question(paul, "get", "pods"), true, anyName},
		{"after a webhook", []string{"Webhook", "RBAC"}, question(jane, "get", "pods"), true, none},
		{"before a webhook", []string{"RBAC", "Webhook"}, question(jane, "get", "pods"), true, anyNamespace},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := withPolicy(t, janesPolicy(), files, tc.modes...)
			ctx, sayings := Record(t.Context())
			decision, reason, _ := c.Authorize(ctx, tc.question)
			if (decision == authorizer.DecisionAllow) != tc.allowed {
				t.Fatalf("Authorize() = %v, %q, want allowed %v", decision, reason, tc.allowed)
			}
			if got := sayings.Reuse(); got != tc.want {
				t.Errorf("Reuse() = %v, want %v", got, tc.want)
			}
			configuration, _ := c.Configuration()
			if got := sayings.Configuration(); got != configuration || got == "" {
				t.Errorf("Configuration() = %q, want %q", got, configuration)
			}
		})
	}
	_, unasked := Record(t.Context())
	if got := unasked.Reuse(); got != none {
		t.Errorf("Reuse() = %v without a question, want none", got)
	}
}

// TestRulesFor lists the rules of one user.
func TestRulesFor(t *testing.T) {
	c := withPolicy(t, janesPolicy(), nil, "RBAC")
	for name, want := range map[string]int{"jane": 7, "paul": 0} {
		rules, _, incomplete, err := c.RulesFor(t.Context(), &user.DefaultInfo{Name: name}, "ns")
		if len(rules) != want || incomplete || err != nil {
			t.Errorf("RulesFor(%s) = %d rules, %v, %v, want %d", name, len(rules), incomplete, err, want)
		}
	}
}

// TestDigest wants configurations to differ that decide differently.
func TestDigest(t *testing.T) {
	seen := map[string]string{}
	digestOf := func(name string, c *Chain) string {
		got, _ := c.Configuration()
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[got] = name
		return got
	}
	abac := func(content string) *Chain {
		path := write(t, filepath.Join(t.TempDir(), "policy"), content)
		return fromModes(t, func(o *kubeoptions.BuiltInAuthorizationOptions) { o.PolicyFile = path }, "ABAC")
	}
	line := `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","resource":"pods"}}`
	digestOf("deny", fromModes(t, nil, "AlwaysDeny"))
	digestOf("allow", fromModes(t, nil, "AlwaysAllow"))
	digestOf("deny, allow", fromModes(t, nil, "AlwaysDeny", "AlwaysAllow"))
	want := digestOf("ABAC", abac(line))
	digestOf("ABAC with another policy", abac("# nothing"))
	if got, _ := abac(line).Configuration(); got != want {
		t.Errorf("digest = %s, want %s again", got, want)
	}
}
