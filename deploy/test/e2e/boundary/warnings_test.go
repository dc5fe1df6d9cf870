package boundary

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestWarningsOfWebhooksReachTheClient(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		warnings := []string{"first", "zweite – 警告", "first"}
		warn := func(allowed func(*admissionv1.AdmissionRequest) bool) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				response := &admissionv1.AdmissionResponse{Allowed: allowed(r), Warnings: warnings}
				if !response.Allowed {
					response.Result = &metav1.Status{Message: "no"}
				}
				return response
			}
		}
		mutate.Decide(warn(func(r *admissionv1.AdmissionRequest) bool { return r.Name != "refused-early" }))
		validate.Decide(warn(func(r *admissionv1.AdmissionRequest) bool { return r.Name != "refused" }))
		all := framework.Rule("*", "", "v1", "configmaps")
		c.RegisterMutating(t, "trigate-test-warnings", mutate.Mutating("mutate", ns, all))
		c.RegisterValidating(t, "trigate-test-warnings", validate.Validating("validate", ns, all))

		want := []string{"first", "zweite – 警告"}
		admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201).WantWarnings(t, want...)
		admin.Send(t, "POST", core(ns, "configmaps"), named("refused")).Want(t, 400).WantWarnings(t, want...)
		admin.Send(t, "POST", core(ns, "configmaps"), named("refused-early")).Want(t, 400).WantWarnings(t, want...)
		admin.Send(t, "PATCH", core(ns, "configmaps/c1"), `{"data":{"x":"y"}}`, framework.MergePatch).Want(t, 200).WantWarnings(t, want...)
		admin.Send(t, "DELETE", core(ns, "configmaps/c1"), "").Want(t, 200).WantWarnings(t, want...)
		admin.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: c2, unknown: x}, unknown: y}").Want(t, 201).
			WantWarnings(t, append([]string{`unknown field \"metadata.unknown\"`, `unknown field \"unknown\"`}, want...)...)
		if shown := s.Kubectl(t, "create", "configmap", "c3", "-n", ns); shown.Code != 0 || shown.Stderr != "Warning: first\nWarning: zweite – 警告\n" {
			t.Errorf("kubectl create: got code %d and stderr %q", shown.Code, shown.Stderr)
		}

		// Neighbours: what does not fit into a header, as it is or at all.
		warnings = []string{
			"", "with \"quotes\" and \\ backslash", "line\nbreak", "carriage\rreturn", "tab\tand \x01 control", strings.Repeat("long ", 200), " blanks ", "nul\x00", "\u202ereversed",
		}
		admin.Send(t, "POST", core(ns, "configmaps"), named("c4")).Want(t, 201)
		warnings = nil
		for i := range 200 {
			warnings = append(warnings, fmt.Sprintf("warning %d of a great many", i))
		}
		admin.Send(t, "POST", core(ns, "configmaps"), named("c5")).Want(t, 201)
	})
}

func TestDeprecatedVersionsWarn(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		defineCounters(t, c, "deprecations",
			counterVersion("v1", "    storage: true\n")+
				counterVersion("v1beta1", "    storage: false\n    deprecated: true\n")+
				counterVersion("v1alpha1", "    storage: false\n    deprecated: true\n    deprecationWarning: nimm v1 – 'bitte'\n"))
		for version, warnings := range map[string][]string{
			"v1":       nil,
			"v1beta1":  {customGroup + "/v1beta1 Counter is deprecated; use " + customGroup + "/v1 Counter"},
			"v1alpha1": {"nimm v1 – 'bitte'"},
		} {
			c.Admin(t).Await(t, "GET", group(customGroup+"/"+version, ns, "deprecations"), "", 200)
			caller := c.Admin(t)
			object := "{apiVersion: " + customGroup + "/" + version + ", kind: Counter, metadata: {name: " + version + "}}"
			created := caller.Send(t, "POST", group(customGroup+"/"+version, ns, "deprecations"), object).Want(t, 201).WantWarnings(t, warnings...)
			if deprecated := created.Audit.Annotations["k8s.io/deprecated"]; (deprecated == "true") != (warnings != nil) {
				t.Errorf("%s: got audit annotation %q", version, deprecated)
			}
		}
		for _, version := range []string{"v1", "v1alpha1", "v1beta1"} {
			admin.Send(t, "GET", group(customGroup+"/"+version, ns, "deprecations/v1"), "").Want(t, 200)
		}
		for _, version := range []string{"v1", "v1alpha1", "v1beta1"} {
			admin.Send(t, "DELETE", group(customGroup+"/"+version, ns, "deprecations/"+version), "").Want(t, 200)
		}
		// Built-in ones say since when and until when.
		admin.Send(t, "GET", core(ns, "componentstatuses"), "").Want(t, 404)
		admin.Send(t, "GET", "/api/v1/componentstatuses/none", "")
		admin.Send(t, "GET", core(ns, "endpoints"), "").Want(t, 200)
	})
}
