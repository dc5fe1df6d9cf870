package gates

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	pod       = "{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: c, image: busybox}]}}"
	configMap = "{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, labels: {kite: %s}}, data: {k: v}}"
)

// policies are a policy that refuses red kites, and one that has green ones say so.
const policies = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: kites}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    resourceRules: [{operations: [CREATE, UPDATE], apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  validations: [{expression: "object.metadata.labels.kite != 'red'", message: red kites are out of fashion}]
  auditAnnotations: [{key: kite, valueExpression: "string(object.metadata.labels.kite)"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: kites}
spec: {policyName: kites, validationActions: [Deny]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: kites}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    resourceRules: [{operations: [CREATE, UPDATE], apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  matchConditions: [{name: green, expression: "object.metadata.labels.kite == 'green'"}]
  reinvocationPolicy: Never
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{data: {'painted': 'yes'}}"}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: kites}
spec: {policyName: kites}
`

func TestAdmit(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	ns := c.Namespace(t)
	strict := c.LabelledNamespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "baseline"})
	admit := func(object string, args ...string) framework.Result {
		t.Helper()
		return gatesInput(t, c, object, append([]string{"admit", "-f", "-"}, args...)...)
	}
	manifest := fmt.Sprintf(policies, ns)
	c.MustKubectlInput(t, manifest, "create", "-f", "-")
	t.Cleanup(func() { c.MustKubectlInput(t, manifest, "delete", "-f", "-") })

	t.Run("changed by a plugin", func(t *testing.T) {
		want(t, admit(fmt.Sprintf(pod, "shell"), "-n", ns), 0, "pod/shell in namespace "+ns+" (create): allowed, changed:\n", "\n+  serviceAccountName: default\n")
		if result := admit(fmt.Sprintf(pod, "shell"), "-n", ns); strings.Contains(result.Stdout, "+  restartPolicy") {
			t.Errorf("a default is shown for a change by admission:\n%s", result.Stdout)
		}
	})
	t.Run("denied by PodSecurity", func(t *testing.T) {
		result := admit(fmt.Sprintf(pod, "shell"), "-n", strict)
		want(t, result, 1, "pod/shell in namespace "+strict+" (create): denied by validating admission (403 Forbidden)\n", `violates PodSecurity "restricted:latest"`)
		// It is what the API server would say.
		real := c.KubectlInput(t, fmt.Sprintf(pod, "shell"), "create", "-n", strict, "-f", "-", "--dry-run=server")
		_, message, _ := strings.Cut(real.Stderr, "STDIN\": ")
		if message == "" || !strings.Contains(result.Stdout, strings.TrimSpace(message)) {
			t.Errorf("printed:\n%s\nwant the API server's message:\n%s", result.Stdout, real.Stderr)
		}
	})
	t.Run("denied by a policy", func(t *testing.T) {
		framework.Eventually(t, "the policy is in force", func() error {
			result := admit(fmt.Sprintf(configMap, "a", "red"), "-n", ns)
			if result.Code != 1 || !strings.Contains(result.Stdout, "ValidatingAdmissionPolicy 'kites' with binding 'kites' denied request: red kites are out of fashion") {
				return fmt.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
			}
			return nil
		})
	})
	t.Run("changed by a policy", func(t *testing.T) {
		framework.Eventually(t, "the policy is in force", func() error {
			result := admit(fmt.Sprintf(configMap, "a", "green"), "-n", ns)
			if result.Code != 0 || !strings.Contains(result.Stdout, "\n+  painted: \"yes\"\n") {
				return fmt.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
			}
			return nil
		})
		want(t, admit(fmt.Sprintf(configMap, "a", "green"), "-n", ns, "-o", "yaml"), 0, "painted: \"yes\"", "kites/kite: green", "allowed: true")
	})
	t.Run("left alone", func(t *testing.T) {
		want(t, admit(fmt.Sprintf(configMap, "a", "blue"), "-n", ns), 0, "configmap/a in namespace "+ns+" (create): allowed, unchanged\n")
	})
	t.Run("denied by a webhook", func(t *testing.T) {
		hook := framework.StartWebhook(t, framework.Admission(func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if request.DryRun == nil || !*request.DryRun || request.UserInfo.Username != "ann" {
				return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "not a dry run by ann"}}
			}
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "ann may not fly", Reason: metav1.StatusReasonForbidden, Code: 403}, Warnings: []string{"it rains"}}
		}))
		c.RegisterValidating(t, "kites", hook.Validating("kites", ns, framework.Rule("CREATE", "", "v1", "configmaps")))
		framework.Eventually(t, "the webhook is in force", func() error {
			result := admit(fmt.Sprintf(configMap, "a", "blue"), "-n", ns, "--as", "ann")
			if result.Code != 1 || !strings.Contains(result.Stdout, `admission webhook "kites.trigate.test" denied the request: ann may not fly`) || !strings.Contains(result.Stdout, "  Warning: it rains\n") {
				return fmt.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
			}
			return nil
		})
	})
	t.Run("what is there", func(t *testing.T) {
		c.MustKubectlInput(t, fmt.Sprintf(configMap, "there", "blue"), "create", "-n", ns, "-f", "-")
		want(t, admit(fmt.Sprintf(configMap, "there", "red"), "-n", ns), 1, "configmap/there in namespace "+ns+" (update): denied by validating admission")
		want(t, admit(fmt.Sprintf(configMap, "there", "blue"), "-n", ns, "--operation", "delete"), 0, "(delete): allowed, unchanged\n")
		want(t, admit("{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}", "--operation", "delete"), 1, "namespace/kube-system (delete): denied by mutating admission (403 Forbidden)", "this namespace may not be deleted")
	})
	t.Run("custom resources of an unknown kind", func(t *testing.T) {
		want(t, admit("{apiVersion: kites.example.com/v1, kind: Kite, metadata: {name: a}}"), 2, `no matches for kind "Kite"`)
	})
	// Nothing was written.
	for _, name := range []string{"pods/shell", "configmaps/a"} {
		if result := c.Kubectl(t, "get", name, "-n", ns); result.Code == 0 || !strings.Contains(result.Stderr, "NotFound") {
			t.Errorf("kubectl get %s: exit code %d, want it not to be there\n%s%s", name, result.Code, result.Stdout, result.Stderr)
		}
	}
	if color := c.MustKubectl(t, "get", "configmap", "there", "-n", ns, "-o", "jsonpath={.metadata.labels.kite}"); color != "blue" {
		t.Errorf("the kite that was there is %s, want blue", color)
	}
}
