package client_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trigate/trigate/services/admission/client"
	"github.com/trigate/trigate/services/admission/internal/undecided"
	"github.com/trigate/trigate/services/admission/server"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

var (
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
)

// noting are attributes that remember what is annotated.
type noting struct {
	admission.Attributes
	said map[string]string
}

func (n *noting) AddAnnotationWithLevel(key, value string, level auditinternal.Level) error {
	n.said[key] = value + " at " + string(level)
	return nil
}

func note(a admission.Attributes) *noting { return &noting{a, map[string]string{}} }

// newPod is what a client sends that leaves the name to the server.
func newPod() *core.Pod {
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Namespace: "ns", Labels: map[string]string{"app": "web"}},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
}

// stored is a Pod with what an API server sets in a new one.
func stored(admitted *core.Pod) *core.Pod {
	pod := admitted.DeepCopy()
	if pod.Name == "" {
		pod.Name = pod.GenerateName + "x7kq2"
	}
	pod.UID, pod.Generation, pod.CreationTimestamp = "1", 1, metav1.Now()
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	pod.Status = core.PodStatus{Phase: core.PodPending, QOSClass: core.PodQOSBestEffort}
	return pod
}

func toPods(operation admission.Operation, object runtime.Object) admission.Attributes {
	name := ""
	if accessor, ok := object.(metav1.Object); ok {
		name = accessor.GetName()
	}
	return admission.NewAttributesRecord(object, nil, podKind, "ns", name, pods, "", operation, &metav1.CreateOptions{}, false, somebody)
}

// labels is a mutating plugin, for which nothing is to be validated.
var labels = judge(func(_ context.Context, phase string, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if phase != "admit" {
		return errors.New("called for validation")
	}
	a.GetObject().(metav1.Object).SetLabels(map[string]string{"by": "admit"})
	return a.AddAnnotation("mutating.example.com/said", "labelled")
})

// says is a settled plugin that annotates what it sees, and judges by what verdict says.
func says(verdict func(context.Context, admission.Attributes) error) admission.ValidationInterface {
	return judge(func(ctx context.Context, phase string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		if phase != "validate" {
			return errors.New("called for mutation")
		}
		if err := a.AddAnnotation("settled.example.com/saw", a.GetObject().(metav1.Object).GetLabels()["by"]); err != nil {
			return err
		}
		return verdict(ctx, a)
	})
}

func allows(context.Context, admission.Attributes) error { return nil }

// TestAhead has Admit validate too: what the settled plugins say of the object as the
// mutating ones leave it stands in for Validate, without a call, as long as the object is
// the same but for what an API server sets.
func TestAhead(t *testing.T) {
	_, c := start(t, server.Config{Plugins: labels, Settled: says(allows)})
	for name, test := range map[string]struct {
		change func(*core.Pod)
		want   bool
	}{
		"as stored":               {func(*core.Pod) {}, true},
		"another status":          {func(pod *core.Pod) { pod.Status.Phase = core.PodFailed }, true},
		"another label":           {func(pod *core.Pod) { pod.Labels["app"] = "db" }, false},
		"another annotation":      {func(pod *core.Pod) { pod.Annotations = map[string]string{"a": "b"} }, false},
		"another owner":           {func(pod *core.Pod) { pod.OwnerReferences = []metav1.OwnerReference{{Name: "o"}} }, false},
		"another finalizer":       {func(pod *core.Pod) { pod.Finalizers = []string{"example.com/f"} }, false},
		"another image":           {func(pod *core.Pod) { pod.Spec.Containers[0].Image = "example.com/other:1" }, false},
		"another service account": {func(pod *core.Pod) { pod.Spec.ServiceAccountName = "other" }, false},
		"to be deleted":           {func(pod *core.Pod) { pod.DeletionGracePeriodSeconds = new(int64) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			admitted, ahead := note(toPods(admission.Create, newPod())), &client.Ahead{}
			if err := c.Admit(client.WithAhead(t.Context(), ahead), admitted, nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"mutating.example.com/said": "labelled at Metadata"}, admitted.said); diff != "" {
				t.Errorf("Admit annotated (-want +got):\n%s", diff)
			}
			pod := stored(admitted.GetObject().(*core.Pod))
			test.change(pod)
			later, want := note(toPods(admission.Create, pod)), map[string]string{}
			if test.want {
				want["settled.example.com/saw"] = "admit at Metadata"
			}
			if got := ahead.Conclude(t.Context(), later); got != test.want {
				t.Errorf("Conclude() = %v, want %v", got, test.want)
			}
			if diff := cmp.Diff(want, later.said); diff != "" {
				t.Errorf("Conclude annotated (-want +got):\n%s", diff)
			}
			if test.want && ahead.Conclude(t.Context(), later) {
				t.Error("Conclude() = true for the second time, want that to be asked")
			}
		})
	}
}

// TestAheadIsOfOneRequest has another request than the admitted one come to Conclude.
func TestAheadIsOfOneRequest(t *testing.T) {
	_, c := start(t, server.Config{Plugins: labels, Settled: says(allows)})
	pod := newPod()
	pod.Name = "web"
	other := pod.DeepCopy()
	other.Name = "db"
	record := func(object runtime.Object, namespace, subresource string, resource schema.GroupVersionResource, operation admission.Operation, dryRun bool) admission.Attributes {
		return admission.NewAttributesRecord(object, nil, podKind, namespace, "web", resource, subresource, operation, &metav1.CreateOptions{}, dryRun, somebody)
	}
	ahead := &client.Ahead{}
	if ahead.Conclude(t.Context(), record(pod, "ns", "", pods, admission.Create, false)) {
		t.Error("Conclude() = true before Admit, want false")
	}
	if err := c.Admit(client.WithAhead(t.Context(), ahead), record(pod, "ns", "", pods, admission.Create, false), nil); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]admission.Attributes{
		"another name":        record(stored(other), "ns", "", pods, admission.Create, false),
		"another namespace":   record(stored(pod), "db", "", pods, admission.Create, false),
		"a subresource":       record(stored(pod), "ns", "binding", pods, admission.Create, false),
		"another resource":    record(stored(pod), "ns", "", configMaps, admission.Create, false),
		"an update":           record(stored(pod), "ns", "", pods, admission.Update, false),
		"a dry run":           record(stored(pod), "ns", "", pods, admission.Create, true),
		"another type":        record(&core.ConfigMap{}, "ns", "", pods, admission.Create, false),
		"no object":           record(nil, "ns", "", pods, admission.Create, false),
		"a typed nil pointer": record((*core.Pod)(nil), "ns", "", pods, admission.Create, false),
	} {
		if ahead.Conclude(t.Context(), a) {
			t.Errorf("Conclude() = true for %s, want false", name)
		}
	}
	if !ahead.Conclude(t.Context(), record(stored(pod), "ns", "", pods, admission.Create, false)) {
		t.Error("Conclude() = false for the admitted request, want true")
	}
}

// TestAheadForgets has a request be admitted again, as a patch that is tried again is. If
// the settled plugins refuse it by then, what they said first does not count.
func TestAheadForgets(t *testing.T) {
	var verdict error
	_, c := start(t, server.Config{Plugins: labels, Settled: says(func(context.Context, admission.Attributes) error { return verdict })})
	pod, ahead := newPod(), &client.Ahead{}
	for _, verdict = range []error{nil, errors.New("no")} {
		if err := c.Admit(client.WithAhead(t.Context(), ahead), toPods(admission.Create, pod), nil); err != nil {
			t.Fatal(err)
		}
	}
	if ahead.Conclude(t.Context(), toPods(admission.Create, stored(pod))) {
		t.Error("Conclude() = true by what was said of the first attempt, want that Validate has to be called")
	}
}

// TestAheadSaysNothing has requests whose validation Admit does not tell ahead, since
// Validate's words, or nobody's, are called for.
func TestAheadSaysNothing(t *testing.T) {
	questions := undecided.NewTracker()
	asks := questions.Authorizer(authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", rpcerr.PeerUnreachable("authz", errors.New("gone"))
	}))
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "n"}}}
	for name, test := range map[string]struct {
		settled admission.ValidationInterface
		request admission.Attributes
		unasked bool
	}{
		"nobody wants it":    {says(allows), toPods(admission.Create, newPod()), true},
		"nothing is settled": {nil, toPods(admission.Create, newPod()), false},
		"an update":          {says(allows), toPods(admission.Update, newPod()), false},
		"an unknown type":    {says(allows), toPods(admission.Create, widget), false},
		"a refusal":          {says(func(context.Context, admission.Attributes) error { return errors.New("no") }), toPods(admission.Create, newPod()), false},
		"a warning": {says(func(ctx context.Context, _ admission.Attributes) error {
			warning.AddWarning(ctx, "", "careful")
			return nil
		}), toPods(admission.Create, newPod()), false},
		"a question without an answer": {says(func(ctx context.Context, a admission.Attributes) error {
			_, _, _ = asks.Authorize(ctx, authorizer.AttributesRecord{User: a.GetUserInfo(), Verb: "get"})
			return nil
		}), toPods(admission.Create, newPod()), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := start(t, server.Config{Plugins: labels, Settled: test.settled, Questions: questions})
			a, ahead, ctx := note(test.request), &client.Ahead{}, t.Context()
			if !test.unasked {
				ctx = client.WithAhead(ctx, ahead)
			}
			if err := c.Admit(ctx, a, nil); err != nil {
				t.Fatalf("Admit() = %v, want nil", err)
			}
			said := maps.Clone(a.said)
			if ahead.Conclude(t.Context(), a) {
				t.Error("Conclude() = true, want that Validate has to be called")
			}
			if diff := cmp.Diff(said, a.said); diff != "" {
				t.Errorf("Conclude annotated:\n%s", diff)
			}
		})
	}
}
