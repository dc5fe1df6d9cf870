package interest_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/interest"
)

// settling is what settled plugins judge Pods by.
var settling = []runtime.Object{
	&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/audit": "restricted",
	}}},
	&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "careful", Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"},
	}},
	&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
	}}},
	&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "known"}, Handler: "h"},
}

// neverRefuses are settled plugins whose Validate has nothing to say of Pods.
var neverRefuses = sets.New("Priority")

// TestSettledPlugins has each plugin with a settled rule judge Pods as they are at the end
// of Admit and as they are stored: with the name that the server makes up, and all else
// that it sets. What lets one go on says the same of both, and what refuses one refuses
// both.
func TestSettledPlugins(t *testing.T) {
	var settled []string
	for _, plugin := range members(t, "", settling...) {
		rules := interestOf(t, "", plugin)
		for _, rule := range rules.GetMutating() {
			if rule.GetSettled() {
				t.Errorf("%s: a rule of Admit is settled: %v", plugin.Name, rule)
			}
		}
		i := slices.IndexFunc(rules.GetValidating(), (*admissionv1.InterestRule).GetSettled)
		if interest.Settled(plugin.Name) != (i >= 0) {
			t.Errorf("%s has settled rules: %v, want %v", plugin.Name, i >= 0, interest.Settled(plugin.Name))
		}
		if i < 0 {
			continue
		}
		settled = append(settled, plugin.Name)
		if diff := cmp.Diff([]string{"pods"}, rules.GetValidating()[i].GetResources()); diff != "" {
			t.Errorf("%s is settled for what this test does not try (-want +got):\n%s", plugin.Name, diff)
		}
		t.Run(plugin.Name, func(t *testing.T) { testSettled(t, plugin) })
	}
	if diff := cmp.Diff([]string{"LimitRanger", "ServiceAccount", "PodSecurity", "Priority", "RuntimeClass"}, settled); diff != "" {
		t.Errorf("settled plugins (-want +got):\n%s", diff)
	}
}

func testSettled(t *testing.T, plugin interest.Plugin) {
	validating, ok := plugin.Handler.(admission.ValidationInterface)
	if !ok {
		t.Fatal("it does not validate")
	}
	refused, allowed := 0, 0
	for name, pod := range podsToSettle() {
		before, err := outcomeOf(t, validating, createOf(pod))
		after, errAfter := outcomeOf(t, validating, createOf(asStored(pod)))
		switch {
		case (err == nil) != (errAfter == nil):
			t.Errorf("%s: Validate() = %v at the end of Admit, %v when stored", name, err, errAfter)
		case err != nil:
			refused++
		default:
			allowed++
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("%s: what it says at the end of Admit, and when stored:\n%s", name, diff)
			}
		}
	}
	if allowed == 0 || (refused == 0) != neverRefuses.Has(plugin.Name) {
		t.Errorf("%d Pods allowed and %d refused, want some of both", allowed, refused)
	}
}

// podsToSettle are Pods of which each plugin refuses some.
func podsToSettle() map[string]*api.Pod {
	with := func(change func(*api.Pod)) *api.Pod {
		pod := &api.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Namespace: namespace, Labels: map[string]string{"app": "web"}},
			Spec: api.PodSpec{
				ServiceAccountName: "careful",
				SecurityContext:    &api.PodSecurityContext{},
				Containers: []api.Container{{Name: "main", Image: "example.com/main:1", Resources: api.ResourceRequirements{
					Limits: api.ResourceList{api.ResourceCPU: resource.MustParse("1")}, Requests: api.ResourceList{api.ResourceCPU: resource.MustParse("1")},
				}}},
			},
		}
		change(pod)
		return pod
	}
	return map[string]*api.Pod{
		"plain":                   with(func(*api.Pod) {}),
		"named":                   with(func(pod *api.Pod) { pod.GenerateName, pod.Name = "", "web" }),
		"a mirror Pod":            with(func(pod *api.Pod) { pod.Annotations = map[string]string{api.MirrorPodAnnotationKey: "m"} }),
		"without service account": with(func(pod *api.Pod) { pod.Spec.ServiceAccountName = "" }),
		"with a foreign secret": with(func(pod *api.Pod) {
			pod.Spec.Volumes = []api.Volume{{Name: "v", VolumeSource: api.VolumeSource{Secret: &api.SecretVolumeSource{SecretName: "s"}}}}
		}),
		"on the host's network": with(func(pod *api.Pod) { pod.Spec.HostNetwork = true }),
		"privileged": with(func(pod *api.Pod) {
			pod.Spec.Containers[0].SecurityContext = &api.SecurityContext{Privileged: ptr.To(true)}
		}),
		"too large":  with(func(pod *api.Pod) { pod.Spec.Containers[0].Resources.Limits[api.ResourceCPU] = resource.MustParse("2") }),
		"of a class": with(func(pod *api.Pod) { pod.Spec.RuntimeClassName = ptr.To("known") }),
		"with overhead of its own": with(func(pod *api.Pod) {
			pod.Spec.RuntimeClassName, pod.Spec.Overhead = ptr.To("known"), api.ResourceList{api.ResourceCPU: resource.MustParse("1")}
		}),
		"with a priority": with(func(pod *api.Pod) { pod.Spec.PriorityClassName, pod.Spec.Priority = "p", ptr.To[int32](1) }),
	}
}

// asStored is a Pod with what the API server sets in a new one.
func asStored(admitted *api.Pod) *api.Pod {
	pod := admitted.DeepCopy()
	if pod.Name == "" {
		pod.Name = pod.GenerateName + "x7kq2"
	}
	pod.UID, pod.Generation, pod.CreationTimestamp = "1", 1, metav1.Now()
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1("{}")}}
	pod.Status = api.PodStatus{Phase: api.PodPending, QOSClass: api.PodQOSGuaranteed}
	return pod
}

// told is what a plugin says of a request that it lets go on.
type told struct {
	Warnings    []string
	Annotations map[string]string
}

// AddWarning implements warning.Recorder.
func (s *told) AddWarning(_, text string) { s.Warnings = append(s.Warnings, text) }

func createOf(pod *api.Pod) admission.Attributes {
	return admission.NewAttributesRecord(pod, nil, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, namespace, pod.Name,
		core("pods"), "", admission.Create, &metav1.CreateOptions{}, false, people[0])
}

func outcomeOf(t *testing.T, plugin admission.ValidationInterface, a admission.Attributes) (told, error) {
	t.Helper()
	said := told{}
	ctx := audit.WithAuditContext(warning.WithWarningRecorder(t.Context(), &said))
	if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}, nil); err != nil {
		t.Fatal(err)
	}
	chain, ok := admission.WithAudit(plugin).(admission.ValidationInterface)
	if !ok {
		t.Fatal("upstream's auditing does not validate")
	}
	err := chain.Validate(ctx, a, admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme))
	said.Annotations = audit.AuditContextFrom(ctx).GetEventAnnotations()
	return said, err
}
