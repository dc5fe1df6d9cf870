package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trigate/trigate/services/internal/servetest"
)

// TestBadPluginConfigurations starts the service with plugins that are configured
// wrongly. Each error names the file, the plugin or its field, and the reason.
func TestBadPluginConfigurations(t *testing.T) {
	servetest.CheckLeaks(t)
	pki := servetest.NewPKI(t)
	dir := t.TempDir()
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const webhooks, policies = "{apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, ", "{apiVersion: apiserver.config.k8s.io/v1, kind: ValidatingAdmissionPolicyConfiguration, "
	none := filepath.Join(dir, "none")
	for name, tc := range map[string]struct {
		plugin, configuration string
		// want are parts of the error, beside the flag and the file.
		want []string
	}{
		"pod security, level":    {"PodSecurity", "{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {audit: some}}", []string{"audit", "must be one of"}},
		"pod security, kind":     {"PodSecurity", "{apiVersion: pod-security.admission.config.k8s.io/v1, kind: Other}", []string{"Other"}},
		"event rates":            {"EventRateLimit", "{apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, qps: -1, burst: 1}]}", []string{"limits[0].qps", "must be positive"}},
		"images, no kubeconfig":  {"ImagePolicyWebhook", "{imagePolicy: {kubeConfigFile: " + none + ", allowTTL: 50, denyTTL: 50, retryBackoff: 500}}", []string{none, "no such file"}},
		"images, times":          {"ImagePolicyWebhook", "{imagePolicy: {kubeConfigFile: " + none + ", allowTTL: -5}}", []string{"ImagePolicyWebhook", "valid value is between 1s and 30m0s"}},
		"quota, kind":            {"ResourceQuota", "{apiVersion: apiserver.config.k8s.io/v1, kind: Other}", []string{"Other"}},
		"quota, resource":        {"ResourceQuota", "{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{matchContains: [a]}]}", []string{"limitedResources[0].resource", "Required"}},
		"tolerations":            {"PodTolerationRestriction", "{apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{operator: Nope}]}", []string{"operator", "Nope"}},
		"webhooks, relative":     {"ValidatingAdmissionWebhook", webhooks + "kubeConfigFile: relative}", []string{"kubeConfigFile", "must be an absolute file path"}},
		"webhooks, not there":    {"MutatingAdmissionWebhook", webhooks + "kubeConfigFile: " + none + "}", []string{none, "no such file"}},
		"webhooks, no manifests": {"ValidatingAdmissionWebhook", webhooks + "staticManifestsDir: " + none + "}", []string{"staticManifestsDir", none, "no such file"}},
		"webhooks, a file":       {"MutatingAdmissionWebhook", webhooks + "staticManifestsDir: " + file("a-file", "") + "}", []string{"staticManifestsDir", "must be a directory"}},
		"webhooks, a manifest": {
			"ValidatingAdmissionWebhook",
			webhooks + "staticManifestsDir: " + filepath.Dir(file("hooks/hook.yaml", "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: hook}\n")) + "}",
			[]string{"hook.yaml", `must have a name ending with ".static.k8s.io"`},
		},
		"policies, relative": {"ValidatingAdmissionPolicy", policies + "staticManifestsDir: relative}", []string{"staticManifestsDir", "must be an absolute file path"}},
		"policies, a manifest": {
			"ValidatingAdmissionPolicy",
			policies + "staticManifestsDir: " + filepath.Dir(file("policies/policy.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy.static.k8s.io}\n")) + "}",
			[]string{"policy.yaml", "ConfigMap"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := file(strings.ReplaceAll(name, " ", "-")+"-config.yaml", fmt.Sprintf(
				"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- {name: %s, configuration: %s}\n", tc.plugin, tc.configuration))
			err := runOnce(t, parse(t, append(pki.TLSFlags(t, "admission"),
				"--kubeconfig="+file("kubeconfig", kubeconfig), "--authz-endpoint=127.0.0.1:1", "--listen-address=127.0.0.1:0",
				"--enable-admission-plugins="+tc.plugin, "--admission-control-config-file="+config)...))
			servetest.WantFlagError(t, err, append(tc.want, "--admission-control-config-file: ", config)...)
		})
	}
}
