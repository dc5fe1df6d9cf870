package admission

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// manifests are the files from which webhooks and policies are configured without the
// API.
type manifests struct{ dir string }

// The folders of the plugins.
const (
	validatingWebhooks = "validating-webhooks"
	mutatingWebhooks   = "mutating-webhooks"
	validatingPolicies = "validating-policies"
	mutatingPolicies   = "mutating-policies"
)

// newManifests writes the configuration of the plugins, with a folder for each, and a
// kubeconfig by which webhooks know who calls.
func newManifests(t *testing.T) *manifests {
	t.Helper()
	m := &manifests{dir: t.TempDir()}
	for _, plugin := range []string{validatingWebhooks, mutatingWebhooks, validatingPolicies, mutatingPolicies} {
		if err := os.Mkdir(filepath.Join(m.dir, plugin), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write(t, "webhooks.kubeconfig", `
apiVersion: v1
kind: Config
users:
- {name: "*", user: {token: a-webhook-token}}
`)
	m.write(t, "admission.yaml", strings.ReplaceAll(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: DIR/webhooks.kubeconfig, staticManifestsDir: DIR/validating-webhooks}
- name: MutatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: DIR/webhooks.kubeconfig, staticManifestsDir: DIR/mutating-webhooks}
- name: ValidatingAdmissionPolicy
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ValidatingAdmissionPolicyConfiguration, staticManifestsDir: DIR/validating-policies}
- name: MutatingAdmissionPolicy
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: MutatingAdmissionPolicyConfiguration, staticManifestsDir: DIR/mutating-policies}
`, "DIR", m.dir))
	return m
}

// flag is the argument that names the configuration.
func (m *manifests) flag() string {
	return "--admission-control-config-file=" + filepath.Join(m.dir, "admission.yaml")
}

// write replaces a file at once, so that nobody reads half of it.
func (m *manifests) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// webhook writes the manifest of a webhook for ConfigMaps with the label case=name.
func (m *manifests) webhook(t *testing.T, plugin, kind, name string, hook *framework.Webhook) {
	t.Helper()
	m.write(t, plugin+"/"+name+".yaml", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata: {name: %[2]s.static.k8s.io}
webhooks:
- name: %[2]s.trigate.test
  clientConfig: {url: "%[3]s/%[2]s", caBundle: %[4]s}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
  objectSelector: {matchLabels: {case: %[2]s}}
  sideEffects: None
  admissionReviewVersions: [v1]
`, kind, name, hook.URL, base64Of(hook.CABundle)))
}

// validatingPolicy writes the manifest of a policy that refuses, for a reason, what has
// the label case=policy: ConfigMaps, and policies in the API.
func (m *manifests) validatingPolicy(t *testing.T, reason string) {
	t.Helper()
	m.write(t, validatingPolicies+"/policy.yaml", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: policy.static.k8s.io}
spec:
  matchConstraints:
    objectSelector: {matchLabels: {case: policy}}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}
    - {apiGroups: [admissionregistration.k8s.io], apiVersions: [v1], resources: [validatingadmissionpolicies], operations: [CREATE]}
  validations: [{expression: "false", message: refused by a manifest, reason: %s}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: policy.static.k8s.io}
spec: {policyName: policy.static.k8s.io, validationActions: [Deny]}
`, reason))
}

// TestManifestsConfigureWebhooksAndPolicies has webhooks and policies come from files,
// which change while the server runs.
func TestManifestsConfigureWebhooksAndPolicies(t *testing.T) {
	type control struct {
		manifests *manifests
		seen      chan string // the credentials that the webhook was called with
	}
	controls := map[string]control{}
	for _, name := range []string{framework.Stock, framework.Trigate} {
		m, seen := newManifests(t), make(chan string, 100)
		deny := framework.Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: 402, Message: "to be paid for"}}
		})
		change := framework.Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/data","value":{"by":"webhook"}}]`)
		})
		hook := framework.StartWebhook(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			seen <- req.Header.Get("Authorization")
			if req.URL.Path == "/deny" {
				deny.ServeHTTP(w, req)
				return
			}
			change.ServeHTTP(w, req)
		}))
		m.webhook(t, validatingWebhooks, "ValidatingWebhookConfiguration", "deny", hook)
		m.webhook(t, mutatingWebhooks, "MutatingWebhookConfiguration", "change", hook)
		m.validatingPolicy(t, "Forbidden")
		m.write(t, mutatingPolicies+"/policy.yaml", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: policy.static.k8s.io}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    objectSelector: {matchLabels: {case: mutating}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{data: {"by": "policy"}}'}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: policy.static.k8s.io}
spec: {policyName: policy.static.k8s.io}
`)
		controls[name] = control{m, seen}
	}
	stock := framework.StartStock(t, framework.StockOptions{Args: []string{controls[framework.Stock].manifests.flag()}})
	trigate := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--admission-arg=" + controls[framework.Trigate].manifests.flag()}})

	framework.CompareThese(t, stock, trigate, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin, ns := s.Admin(t), s.Namespace(t)
		m, seen := controls[c.Name].manifests, controls[c.Name].seen
		maps := core(ns, "configmaps")
		labelled := func(name string) string {
			return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", labels: {case: " + name + "}}}"
		}
		admin.Send(t, "POST", maps, configMap).Want(t, 201)
		admin.Send(t, "POST", maps, labelled("deny")).WantMessage(t, 402, `admission webhook "deny.trigate.test" denied the request: to be paid for`)
		again := maps + "?dryRun=All"
		wantChanged := func(name, by string) {
			t.Helper()
			changed := admin.Send(t, "POST", again, labelled(name)).Want(t, 201)
			if got := changed.String(t, "data", "by"); got != by {
				t.Errorf("the ConfigMap %s has %q from its manifest, want %q", name, got, by)
			}
		}
		wantChanged("change", "webhook")
		wantChanged("mutating", "policy")
		for range 2 {
			if got := <-seen; got != "Bearer a-webhook-token" {
				t.Errorf("the webhook was called with the credentials %q, want those of the kubeconfig", got)
			}
		}
		admin.Send(t, "POST", maps, labelled("policy")).WantMessage(t, 403,
			`configmaps "policy" is forbidden: ValidatingAdmissionPolicy 'policy.static.k8s.io' with binding 'policy.static.k8s.io' denied request: refused by a manifest`)
		// Unlike those of the API, manifests guard policies too.
		policy := func(name, label string) string {
			return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %s, labels: {case: %s}}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}
  validations: [{expression: "true"}]
`, name, label)
		}
		const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
		admin.Send(t, "POST", policies+"?dryRun=All", policy("guarded", "policy")).Want(t, 403)
		admin.Send(t, "POST", policies+"?dryRun=All", policy("others", "other")).Want(t, 201)
		// Names of manifests are not to be had in the API.
		admin.Send(t, "POST", policies+"?dryRun=All", policy("mine.static.k8s.io", "other")).Want(t, 422)
		admin.Send(t, "GET", policies+"/policy.static.k8s.io", "").Want(t, 404)

		// What cannot be read leaves what was there in force.
		m.write(t, mutatingPolicies+"/policy.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
		m.validatingPolicy(t, "Invalid")
		c.Admin(t).Await(t, "POST", again, labelled("policy"), 422)
		wantChanged("mutating", "policy")
		m.write(t, validatingPolicies+"/policy.yaml", "kind: [")
		m.write(t, validatingWebhooks+"/deny.yaml", "")
		c.Admin(t).Await(t, "POST", again, labelled("deny"), 201)
		admin.Send(t, "POST", again, labelled("policy")).Want(t, 422)
		if err := os.Remove(filepath.Join(m.dir, validatingPolicies, "policy.yaml")); err != nil {
			t.Fatal(err)
		}
		c.Admin(t).Await(t, "POST", again, labelled("policy"), 201)
	})
}
