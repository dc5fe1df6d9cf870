package admission

import (
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

// violations are what PodSecurity's restricted has against the pod of these tests.
const violations = `allowPrivilegeEscalation != false (container "main" must set securityContext.allowPrivilegeEscalation=false), ` +
	`unrestricted capabilities (container "main" must set securityContext.capabilities.drop=["ALL"]), ` +
	`runAsNonRoot != true (pod or container "main" must set securityContext.runAsNonRoot=true), ` +
	`seccompProfile (pod or container "main" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")`

// quoted is violations as a Warning header has them.
var quoted = strings.ReplaceAll(violations, `"`, `\"`)

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: d1}
spec:
  replicas: 0
  selector: {matchLabels: {app: d1}}
  template:
    metadata: {labels: {app: d1}}
    spec: {containers: [{name: main, image: example.com/image:1}]}
`

func TestPodSecurityRefusesWhatIsNotRestricted(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.LabelledNamespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
		admin.Send(t, "POST", core(ns, "pods"), pod).
			WantMessage(t, 403, `pods "p1" is forbidden: violates PodSecurity "restricted:latest": `+violations).
			WantAnnotation(t, "pod-security.kubernetes.io/enforce-policy", "restricted:latest")
		admin.Send(t, "POST", core(ns, "pods"), podWith("p2", "",
			"securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, hostNetwork: true")).Want(t, 403)
		admin.Send(t, "POST", core(ns, "pods"), `
apiVersion: v1
kind: Pod
metadata: {name: p3}
spec:
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - {name: main, image: i, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}
`).Want(t, 201).WantAnnotation(t, "pod-security.kubernetes.io/enforce-policy", "restricted:latest")
		// A template is not refused, only warned of.
		admin.Send(t, "POST", group("apps/v1", ns, "deployments"), deployment).Want(t, 201).
			WantWarnings(t, `would violate PodSecurity \"restricted:latest\": `+quoted)
		// An ephemeral container is.
		admin.Send(t, "PATCH", core(ns, "pods/p3/ephemeralcontainers"),
			`{"spec":{"ephemeralContainers":[{"name":"debug","image":"i","securityContext":{"privileged":true}}]}}`,
			framework.StrategicPatch).Want(t, 403)
	})
}

func TestPodSecurityWarnsAndAudits(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.LabelledNamespace(t, map[string]string{
			"pod-security.kubernetes.io/warn":  "restricted",
			"pod-security.kubernetes.io/audit": "restricted",
		})
		const auditKey = "pod-security.kubernetes.io/audit-violations"
		admin.Send(t, "POST", group("apps/v1", ns, "deployments"), deployment).Want(t, 201).
			WantWarnings(t, `would violate PodSecurity \"restricted:latest\": `+quoted).
			WantAnnotation(t, auditKey, `would violate PodSecurity "restricted:latest": `+violations)
		admin.Send(t, "POST", core(ns, "pods"), pod).Want(t, 201).
			WantWarnings(t, `would violate PodSecurity \"restricted:latest\": `+quoted).
			WantAnnotation(t, auditKey, `would violate PodSecurity "restricted:latest": `+violations)

		// kubectl shows them.
		shown := s.KubectlInput(t, strings.ReplaceAll(deployment, "d1", "d2"), "apply", "-n", ns, "-f", "-")
		if want := `Warning: would violate PodSecurity "restricted:latest": ` + violations + "\n"; shown.Code != 0 || shown.Stderr != want {
			t.Errorf("kubectl apply: got code %d and stderr\n%s\nwant code 0 and\n%s", shown.Code, shown.Stderr, want)
		}

		// Whoever makes the policy stricter is warned of what is there already.
		admin.Send(t, "PATCH", "/api/v1/namespaces/"+ns+"?dryRun=All", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`,
			framework.MergePatch).Want(t, 200).WantWarnings(t,
			`existing pods in namespace \"`+ns+`\" violate the new PodSecurity enforce level \"restricted:latest\"`,
			`p1: allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile`)
		admin.Send(t, "PATCH", "/api/v1/namespaces/"+ns+"?dryRun=All", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"nonsense"}}}`,
			framework.MergePatch).Want(t, 422)
	})
}
