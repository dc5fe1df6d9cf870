package app

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/servetest"
)

// said is an answer, as far as it can be seen.
type said struct {
	Decision authorizer.Decision
	Reason   string
	Err      string
}

func ask(ctx context.Context, a authorizer.Authorizer, question authorizer.Attributes) said {
	decision, reason, err := a.Authorize(ctx, question)
	return said{decision, reason, text(err)}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// inProcess returns the chain that kube-apiserver builds from flags, with
// informers of its own that have synced.
func inProcess(t *testing.T, kubeconfig string, args ...string) (authorizer.Authorizer, authorizer.RuleResolver) {
	t.Helper()
	restConfig, err := process.RESTConfig(kubeconfig, "in-process")
	if err != nil {
		t.Fatal(err)
	}
	kubernetesClient, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		t.Fatal(err)
	}
	factory := process.NewInformerFactory(kubernetesClient)
	config, err := parse(t, args...).Authorization.ToAuthorizationConfig(factory)
	if err != nil {
		t.Fatalf("ToAuthorizationConfig() = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	authorizers, rules, err := config.New(ctx, "in-process")
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	factory.StartWithContext(ctx)
	if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
		t.Fatalf("WaitForCacheSync() = %v", result.Err)
	}
	return authorizers, rules
}

// world is what RBAC and Node decide by.
func world() []runtime.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	to := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	users := func(names ...string) []rbacv1.Subject {
		var subjects []rbacv1.Subject
		for _, name := range names {
			subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name})
		}
		return subjects
	}
	role, binding := readers()
	return []runtime.Object{
		role, binding,
		&rbacv1.ClusterRole{ObjectMeta: meta("", "paths"), Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics", "/logs/*"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "paths"), RoleRef: to("ClusterRole", "paths"), Subjects: users("jane", "j\u00e9")},
		&rbacv1.Role{ObjectMeta: meta("ns", "edit-web"), Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"update", "patch"}, APIGroups: []string{"apps"}, Resources: []string{"deployments", "deployments/scale"}, ResourceNames: []string{"web"}},
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta("ns", "edit-web"), RoleRef: to("Role", "edit-web"), Subjects: []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Namespace: "ns", Name: "deployer"},
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta("ns", "gone"), RoleRef: to("ClusterRole", "gone"), Subjects: users("paul", "jane")},
		&corev1.Node{ObjectMeta: meta("", "node-1")},
		&corev1.Pod{ObjectMeta: meta("ns", "on-1"), Spec: corev1.PodSpec{
			NodeName: "node-1", ServiceAccountName: "default",
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mine"}}}},
		}},
	}
}

// questions are asked of every chain.
func questions(t *testing.T) map[string]authorizer.AttributesRecord {
	t.Helper()
	resource := func(u user.Info, verb, namespace, group, res, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{
			User: u, Verb: verb, Namespace: namespace, APIGroup: group, APIVersion: "v1", Resource: res, Name: name, ResourceRequest: true,
			Path: "/" + res,
		}
	}
	path := func(u user.Info, verb, p string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: u, Verb: verb, Path: p}
	}
	named := func(name string, groups ...string) user.Info {
		return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
	}
	jane, paul := named("jane"), named("paul")
	node := named("system:node:node-1", user.NodesGroup)
	deployer := named("system:serviceaccount:ns:deployer", "system:serviceaccounts", "system:serviceaccounts:ns")
	scale := resource(deployer, "patch", "ns", "apps", "deployments", "web")
	scale.Subresource = "scale"
	label, err := labels.NewRequirement("app", selection.In, []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	onNode := func(name string) authorizer.AttributesRecord {
		list := resource(node, "list", "", "", "pods", "")
		list.FieldSelectorRequirements = fields.Requirements{{Operator: selection.Equals, Field: "spec.nodeName", Value: name}}
		return list
	}
	selected := resource(jane, "list", "ns", "", "pods", "")
	selected.LabelSelectorRequirements = labels.Requirements{*label}
	unparsable := onNode("node-1")
	unparsable.FieldSelectorRequirements = nil
	unparsable.FieldSelectorParsingErr = errors.New("invalid field selector")
	inPart := onNode("node-1")
	inPart.FieldSelectorParsingErr = errors.New("invalid field selector")
	inPart.LabelSelectorParsingErr = errors.New("invalid \xff selector")
	everything := &user.DefaultInfo{
		Name: "jane", UID: "u1", Groups: []string{"readers", "a"},
		Extra: map[string][]string{"example.com/team": {"blue", "red"}, "example.com/none": {}},
	}
	return map[string]authorizer.AttributesRecord{
		"masters":                     resource(named("root", user.SystemPrivilegedGroup), "delete", "ns", "", "pods", "web"),
		"cluster role by group":       getPod,
		"user with everything":        resource(everything, "get", "ns", "", "pods", "web"),
		"other verb":                  resource(getPod.User, "delete", "ns", "", "pods", "web"),
		"other group":                 resource(getPod.User, "get", "ns", "apps", "pods", "web"),
		"role by service account":     resource(deployer, "patch", "ns", "apps", "deployments", "web"),
		"role elsewhere":              resource(deployer, "patch", "other", "apps", "deployments", "web"),
		"other name":                  resource(deployer, "patch", "ns", "apps", "deployments", "db"),
		"no name":                     resource(deployer, "patch", "ns", "apps", "deployments", ""),
		"subresource":                 scale,
		"binding to a role not there": resource(paul, "get", "ns", "", "pods", "web"),
		"path":                        path(jane, "get", "/metrics"),
		"path by prefix":              path(jane, "get", "/logs/a/b"),
		"other path":                  path(jane, "get", "/healthz"),
		"a path that is not UTF-8":    path(jane, "get", "/logs/\xff%41 \x00"),
		"a user beyond ASCII":         path(named("j\u00e9"), "get", "/metrics"),
		"a user that is not UTF-8":    path(named("j\xe9\xff"), "get", "/metrics"),
		"a name that is not UTF-8":    resource(getPod.User, "get", "n\xffs", "", "pods", "w\xff"),
		"a user without a name":       path(&user.DefaultInfo{}, "get", "/metrics"),
		"own secret of a node":        resource(node, "get", "ns", "", "secrets", "mine"),
		"other secret of a node":      resource(node, "get", "ns", "", "secrets", "other"),
		"node reads its pods":         onNode("node-1"),
		"node reads others' pods":     onNode("node-2"),
		"node reads all pods":         resource(node, "list", "", "", "pods", ""),
		"selector does not parse":     unparsable,
		"selector parses in part":     inPart,
		"label selector":              selected,
		"node without a name":         resource(named("someone", user.NodesGroup), "get", "ns", "", "secrets", "mine"),
	}
}

// TestParity asks the same questions over gRPC and of kube-apiserver's chain in
// this process, over the same objects, and wants the same answers.
func TestParity(t *testing.T) {
	hook := newWebhook(t)
	policy := write(t, "policy.jsonl", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","resource":"pods","namespace":"ns"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"readers","nonResourcePath":"/logs/*","readonly":true}}
`)
	conditions := write(t, "authorization.yaml", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- type: Webhook
  name: first.example.com
  webhook:
    timeout: 10s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %[1]s}
    matchConditions:
    - expression: has(request.resourceAttributes) && request.resourceAttributes.verb != 'patch'
    - expression: "!('system:nodes' in request.groups)"
- type: Webhook
  name: second.example.com
  webhook:
    timeout: 10s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %[1]s}
    matchConditions:
    - expression: request.resourceAttributes.namespace == 'ns'
- {type: RBAC, name: rbac}
`, hook))
	for name, args := range map[string][]string{
		"Node, RBAC":    {"--authorization-mode=Node,RBAC"},
		"RBAC, Node":    {"--authorization-mode=RBAC,Node"},
		"RBAC":          {"--authorization-mode=RBAC"},
		"AlwaysAllow":   {"--authorization-mode=AlwaysAllow"},
		"AlwaysDeny":    {"--authorization-mode=RBAC,AlwaysDeny"},
		"ABAC":          {"--authorization-mode=ABAC,RBAC", "--authorization-policy-file=" + policy},
		"Webhook":       {"--authorization-mode=Webhook,RBAC", "--authorization-webhook-version=v1", "--authorization-webhook-config-file=" + hook},
		"configuration": {"--authorization-config=" + conditions},
	} {
		t.Run(name, func(t *testing.T) {
			api := apitest.New(t, world()...)
			kubeconfig := api.Kubeconfig(t)
			remote := start(t, nil, append([]string{"--kubeconfig=" + kubeconfig}, args...)...).gateway(t)
			local, localRules := inProcess(t, kubeconfig, args...)
			// Upstream's graph of nodes is filled a moment after its informers.
			servetest.Eventually(t, func() error {
				own := questions(t)["own secret of a node"]
				if got, want := ask(t.Context(), remote, own), ask(t.Context(), local, own); got != want {
					return fmt.Errorf("remote = %v, in process = %v", got, want)
				}
				return nil
			})
			compareDecisions(t, remote, local)
			compareRules(t, remote, localRules)
		})
	}
}

func compareDecisions(t *testing.T, remote *client.Client, local authorizer.Authorizer) {
	for name, question := range questions(t) {
		t.Run(name, func(t *testing.T) {
			want, got := ask(t.Context(), local, question), ask(t.Context(), remote, question)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-in process +remote):\n%s", diff)
			}
			decision := remote.ConditionsAwareAuthorize(t.Context(), question)
			wantDecision := authorizer.ConditionsAwareDecisionFromParts(local.Authorize(t.Context(), question))
			if decision.String() != wantDecision.String() {
				t.Errorf("ConditionsAwareAuthorize() = %s, want %s", decision, wantDecision)
			}
		})
	}
}

func compareRules(t *testing.T, remote, local authorizer.RuleResolver) {
	for _, namespace := range []string{"", "ns", "other", "n\xff"} {
		for name, question := range questions(t) {
			want, got := rulesOf(t, local, question.User, namespace), rulesOf(t, remote, question.User, namespace)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rules of %q in %q (-in process +remote):\n%s", name, namespace, diff)
			}
		}
	}
}

// rules is an answer about rules, as far as it can be seen.
type rules struct {
	Resource    []authorizer.DefaultResourceRuleInfo
	NonResource []authorizer.DefaultNonResourceRuleInfo
	Incomplete  bool
	Err         string
}

func rulesOf(t *testing.T, resolver authorizer.RuleResolver, u user.Info, namespace string) rules {
	t.Helper()
	resource, nonResource, incomplete, err := resolver.RulesFor(t.Context(), u, namespace)
	out := rules{Incomplete: incomplete, Err: text(err)}
	for _, rule := range resource {
		out.Resource = append(out.Resource, authorizer.DefaultResourceRuleInfo{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range nonResource {
		out.NonResource = append(out.NonResource, authorizer.DefaultNonResourceRuleInfo{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	return out
}

func TestConditionsFailClosed(t *testing.T) {
	c := start(t, nil, "--authorization-mode=AlwaysAllow").gateway(t)
	decision, reason, err := c.EvaluateConditions(t.Context(), authorizer.ConditionsAwareDecisionAllow("", nil), nil)
	if decision != authorizer.DecisionDeny || reason != "" || !errors.Is(err, authorizer.ErrorConditionEvaluationNotSupported) {
		t.Errorf("EvaluateConditions() = %v, %q, %v, want Deny with %v", decision, reason, err, authorizer.ErrorConditionEvaluationNotSupported)
	}
}

// newWebhook runs a webhook authorizer and returns the kubeconfig that names it.
// What it says depends on the whole review, so that a question which loses
// something on its way gets another answer.
func newWebhook(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		spec, err := json.Marshal(review.Spec)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status.Reason = "webhook: " + string(spec)
		switch {
		case review.Spec.User == "paul":
			http.Error(w, "not today", http.StatusForbidden)
			return
		case strings.HasPrefix(review.Spec.User, "system:node:"):
			review.Status.Allowed, review.Status.Denied = true, true
		case review.Spec.User == "jane":
			review.Status.Allowed = true
		case review.Spec.User == "j\u00e9":
			review.Status.Denied = true
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("answering: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["hook"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pemOf(server)}
	config.Contexts["hook"] = &clientcmdapi.Context{Cluster: "hook"}
	config.CurrentContext = "hook"
	path := write(t, "webhook.kubeconfig", "")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
