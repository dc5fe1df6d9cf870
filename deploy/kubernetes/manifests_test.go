package kubernetes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	gatewayapp "github.com/trigate/trigate/gateway/app"
	admissionapp "github.com/trigate/trigate/services/admission/app"
	authnapp "github.com/trigate/trigate/services/authn/app"
	authzapp "github.com/trigate/trigate/services/authz/app"
)

// componentLabel says of a pod what it is.
const componentLabel = "app.kubernetes.io/component"

var (
	overlays   = []string{"single", "ha"}
	components = []string{"cert-manager", "etcd-backup", "external-etcd", "monitoring", "node-port", "outbound"}
)

// render builds an overlay, with components, and returns the objects of types that
// Kubernetes has.
func render(t *testing.T, overlay string, with ...string) []runtime.Object {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("overlays", overlay)
	if len(with) > 0 {
		// kustomize takes relative paths only.
		dir, err = os.MkdirTemp(here, ".test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		content := fmt.Sprintf("namespace: trigate-system\nresources: [../overlays/%s]\ncomponents: [../components/%s]\n",
			overlay, strings.Join(with, ", ../components/"))
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("overlay %s with %v: %v", overlay, with, err)
	}
	var objects []runtime.Object
	for _, resource := range rendered.Resources() {
		if !scheme.Scheme.IsGroupRegistered(resource.GetGvk().Group) {
			continue // of a custom resource
		}
		content, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(content, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", resource.CurId(), err)
		}
		objects = append(objects, object)
	}
	return objects
}

// of are the objects of one type.
func of[T runtime.Object](objects []runtime.Object) []T {
	var typed []T
	for _, object := range objects {
		if object, ok := object.(T); ok {
			typed = append(typed, object)
		}
	}
	return typed
}

// templates are the templates of all pods, by the name of what makes them.
func templates(objects []runtime.Object) map[string]corev1.PodTemplateSpec {
	found := map[string]corev1.PodTemplateSpec{}
	for _, object := range objects {
		switch object := object.(type) {
		case *appsv1.Deployment:
			found[object.Name] = object.Spec.Template
		case *appsv1.StatefulSet:
			found[object.Name] = object.Spec.Template
		case *batchv1.CronJob:
			found[object.Name] = object.Spec.JobTemplate.Spec.Template
		}
	}
	return found
}

// everything is each overlay alone, and with each component.
func everything(t *testing.T, test func(t *testing.T, objects []runtime.Object)) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) { test(t, render(t, overlay)) })
		for _, component := range components {
			if component == "node-port" {
				continue // the overlays have it
			}
			t.Run(overlay+" with "+component, func(t *testing.T) { test(t, render(t, overlay, component)) })
		}
	}
}

// TestFlags parses what the manifests give to our programs.
func TestFlags(t *testing.T) {
	programs := map[string]*pflag.FlagSet{
		"trigate-gateway":   gatewayapp.NewCommand().Flags(),
		"trigate-authn":     authnapp.NewCommand().Flags(),
		"trigate-authz":     authzapp.NewCommand().Flags(),
		"trigate-admission": admissionapp.NewCommand().Flags(),
	}
	for _, overlay := range overlays {
		found := templates(render(t, overlay))
		for name, flags := range programs {
			container := found[name].Spec.Containers[0]
			if len(container.Args) == 0 {
				t.Fatalf("%s: %s has no arguments", overlay, name)
			}
			// What a variable stands for need not be text: flags of lists and ranges take it.
			args := slices.DeleteFunc(slices.Clone(container.Args), func(arg string) bool {
				return strings.Contains(arg, "$(") && flags.Lookup(flagName(arg)) != nil
			})
			if err := flags.Parse(args); err != nil {
				t.Errorf("%s: %s: %v", overlay, name, err)
			}
		}
	}
}

func flagName(arg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	return name
}

// TestPods holds every pod to what they all promise.
func TestPods(t *testing.T) {
	everything(t, func(t *testing.T, objects []runtime.Object) {
		for _, account := range of[*corev1.ServiceAccount](objects) {
			if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
				t.Errorf("service account %s has its token mounted", account.Name)
			}
		}
		found := templates(objects)
		if len(found) < 5 {
			t.Fatalf("only %d kinds of pods: %v", len(found), slices.Sorted(maps.Keys(found)))
		}
		for name, template := range found {
			spec := template.Spec
			if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
				t.Errorf("%s: nothing of it asks the host cluster, but it has a token", name)
			}
			if spec.SecurityContext == nil || spec.SecurityContext.RunAsNonRoot == nil || !*spec.SecurityContext.RunAsNonRoot {
				t.Errorf("%s may run as root", name)
			}
			for _, container := range spec.Containers {
				if c := container.SecurityContext; c == nil || c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem {
					t.Errorf("%s may write to its image", name)
				}
				if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() || container.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s lacks requests or a limit of memory", name)
				}
				if container.LivenessProbe == nil && spec.RestartPolicy != corev1.RestartPolicyNever {
					t.Errorf("%s is never found dead", name)
				}
				if strings.HasSuffix(container.Image, ":latest") || !strings.Contains(container.Image, ":") {
					t.Errorf("%s runs %s, an image without a version", name, container.Image)
				}
			}
		}
	})
}

// TestDisruptions wants a budget for whatever runs all the time, and in overlay ha
// replicas that are spread.
func TestDisruptions(t *testing.T) {
	for _, overlay := range overlays {
		objects := render(t, overlay)
		budgets := of[*policyv1.PodDisruptionBudget](objects)
		for name, template := range templates(objects) {
			if !slices.ContainsFunc(budgets, func(budget *policyv1.PodDisruptionBudget) bool {
				return selects(t, budget.Spec.Selector, template.Labels)
			}) {
				t.Errorf("%s: %s has no disruption budget", overlay, name)
			}
			if overlay == "ha" && len(template.Spec.TopologySpreadConstraints) == 0 {
				t.Errorf("ha: %s is not spread", name)
			}
		}
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, set map[string]string) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Matches(labels.Set(set))
}

// TestReferences wants every ConfigMap that is named to be there, and every Secret to be
// one that trigate-pki makes.
func TestReferences(t *testing.T) {
	documented, err := os.ReadFile(filepath.Join("..", "docs", "pki.md"))
	if err != nil {
		t.Fatal(err)
	}
	everything(t, func(t *testing.T, objects []runtime.Object) {
		maps := map[string]bool{}
		for _, object := range of[*corev1.ConfigMap](objects) {
			maps[object.Name] = true
		}
		for name, template := range templates(objects) {
			for _, container := range template.Spec.Containers {
				for _, from := range container.EnvFrom {
					if !maps[from.ConfigMapRef.Name] {
						t.Errorf("%s names ConfigMap %s, which there is not", name, from.ConfigMapRef.Name)
					}
				}
			}
			for _, volume := range template.Spec.Volumes {
				if volume.Projected == nil {
					continue
				}
				for _, source := range volume.Projected.Sources {
					if source.ConfigMap != nil && !maps[source.ConfigMap.Name] {
						t.Errorf("%s names ConfigMap %s, which there is not", name, source.ConfigMap.Name)
					}
					if source.Secret == nil {
						continue
					}
					if short := strings.TrimPrefix(source.Secret.Name, "trigate-"); !strings.Contains(string(documented), "`"+short+"`") &&
						!strings.Contains(string(documented), "`trigate-"+short+"`") && !strings.Contains(string(documented), "**`"+short+"`**") {
						t.Errorf("%s names Secret %s, of which pki.md does not tell", name, source.Secret.Name)
					}
					for _, forbidden := range []string{"trigate-admin", "trigate-admin-kubeconfig", "trigate-gates-ca", "trigate-etcd-ca", "trigate-front-proxy-ca"} {
						if source.Secret.Name == forbidden {
							t.Errorf("%s mounts %s, which no pod may", name, forbidden)
						}
					}
				}
			}
		}
	})
}

// arrowRow is a row of the table of arrows.
var arrowRow = regexp.MustCompile(`(?m)^\| ([a-z][a-z -]*) \| ([a-z][a-z-]*) \| (\d+) \|`)

// TestArrows compares what the NetworkPolicies allow with the documented arrows, as the
// caller's policy has them and as the called one's has them.
func TestArrows(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range arrowRow.FindAllStringSubmatch(string(document), -1) {
		documented[fmt.Sprintf("%s → %s:%s", row[1], row[2], row[3])] = true
	}
	if len(documented) == 0 {
		t.Fatal("operations.md has no table of arrows")
	}
	for _, overlay := range overlays {
		ingress, egress := map[string]bool{}, map[string]bool{}
		for _, policy := range of[*networkingv1.NetworkPolicy](render(t, overlay)) {
			self := policy.Spec.PodSelector.MatchLabels[componentLabel]
			if self == "" {
				self = "all"
			}
			for _, rule := range policy.Spec.Ingress {
				for _, arrow := range ends(t, rule.From, rule.Ports) {
					ingress[fmt.Sprintf("%s → %s:%s", arrow.peer, self, arrow.port)] = true
				}
			}
			for _, rule := range policy.Spec.Egress {
				for _, arrow := range ends(t, rule.To, rule.Ports) {
					egress[fmt.Sprintf("%s → %s:%s", self, arrow.peer, arrow.port)] = true
				}
			}
		}
		// Callers from outside have no policy of ours, and DNS is not ours to guard.
		wantIngress, wantEgress := maps.Clone(documented), maps.Clone(documented)
		maps.DeleteFunc(wantIngress, func(arrow string, _ bool) bool {
			from, to, _ := strings.Cut(arrow, " → ")
			return from == "all" || from != "anyone" && documented["anyone → "+to]
		})
		maps.DeleteFunc(wantEgress, func(arrow string, _ bool) bool {
			return strings.HasPrefix(arrow, "anyone → ") || strings.HasPrefix(arrow, "gates client → ")
		})
		if diff := cmp.Diff(wantIngress, ingress); diff != "" {
			t.Errorf("%s: ingress (-documented +allowed):\n%s", overlay, diff)
		}
		if diff := cmp.Diff(wantEgress, egress); diff != "" {
			t.Errorf("%s: egress (-documented +allowed):\n%s", overlay, diff)
		}
	}
}

type end struct{ peer, port string }

// ends are who a rule is about, and at which ports.
func ends(t *testing.T, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) []end {
	t.Helper()
	var names []string
	for _, peer := range peers {
		switch {
		case peer.IPBlock != nil || peer.PodSelector == nil:
			t.Fatalf("a rule is about more than pods: %v", peer)
		case peer.NamespaceSelector != nil:
			if peer.PodSelector.MatchLabels["trigate/gates-client"] != "true" {
				t.Fatalf("a rule lets in pods of all namespaces: %v", peer.PodSelector)
			}
			names = append(names, "gates client")
		default:
			names = append(names, peer.PodSelector.MatchLabels[componentLabel])
		}
	}
	if len(ports) == 0 {
		t.Fatal("a rule is about all ports")
	}
	var all []end
	for _, port := range ports {
		peers := names
		if len(peers) == 0 {
			peers = []string{"anyone"}
			if port.Port.IntValue() == 53 {
				peers = []string{"dns"}
			}
		}
		for _, peer := range peers {
			all = append(all, end{peer, port.Port.String()})
		}
	}
	return all
}
