package convert_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// podAt returns a Pod with times in several places.
func podAt(created, managed, ready time.Time) *core.Pod {
	at := func(t time.Time) metav1.Time { return metav1.Time{Time: t.Local()} }
	last := at(managed)
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", CreationTimestamp: at(created),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "untimed"}, {Manager: "m", Time: &last}},
		},
		Spec:   core.PodSpec{SecurityContext: &core.PodSecurityContext{}},
		Status: core.PodStatus{Conditions: []core.PodCondition{{Type: "Ready", LastTransitionTime: at(ready)}}},
	}
}

func TestFractionsOfSecondsTravel(t *testing.T) {
	second := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		pod  *core.Pod
		want []*admissionv1.TimeFraction
	}{
		"none": {podAt(second, second, second), nil},
		"one":  {podAt(second, second.Add(1), second), []*admissionv1.TimeFraction{{Field: "metadata.managedFields[1].time", Nanos: 1}}},
		"all": {podAt(second.Add(5), time.Unix(-1, 999999999), second.Add(7e8)), []*admissionv1.TimeFraction{
			{Field: "metadata.creationTimestamp", Nanos: 5},
			{Field: "metadata.managedFields[1].time", Nanos: 999999999},
			{Field: "status.conditions[0].lastTransitionTime", Nanos: 7e8},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			codec := convert.NewCodec()
			m, err := codec.EncodeObject(tc.pod, podKind)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, m.GetTimeFractions(), protocmp.Transform()); diff != "" {
				t.Errorf("the fractions (-want +got):\n%s", diff)
			}
			decoded, err := codec.DecodeObject("object", m, pods)
			if err != nil {
				t.Fatal(err)
			}
			mustBeSame(t, "on the server", tc.pod, decoded)
		})
	}
}

// TestLossOfFractionsIsAChange has a fraction that a plugin drops be gone in the
// handler's object too.
func TestLossOfFractionsIsAChange(t *testing.T) {
	second := time.Unix(1e9, 0)
	codec := convert.NewCodec()
	m, err := codec.EncodeObject(podAt(second, second.Add(1), second), podKind)
	if err != nil {
		t.Fatal(err)
	}
	without := podAt(second, second, second)
	changed, err := codec.EncodeLike(without, m)
	if err != nil || changed == nil {
		t.Fatalf("EncodeLike() = %v, %v, want the changed object", changed, err)
	}
	back, err := codec.DecodeLike("object", changed, without)
	if err != nil {
		t.Fatal(err)
	}
	mustBeSame(t, "on the client", without, back)
}

// TestFractionsInMaps has the keys be ones that no message could carry as they
// are.
func TestFractionsInMaps(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}
	second := time.Unix(1e9, 0)
	budget := &policy.PodDisruptionBudget{Status: policy.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{
		"p": {Time: second.Add(1)}, "q": {Time: second}, "\"é\xff": {Time: second.Add(2)},
	}}}
	codec := convert.NewCodec()
	m, err := codec.EncodeObject(budget, kind)
	if err != nil {
		t.Fatal(err)
	}
	want := []*admissionv1.TimeFraction{
		{Field: `status.disruptedPods["\"\u00e9\xff"]`, Nanos: 2},
		{Field: `status.disruptedPods["p"]`, Nanos: 1},
	}
	if diff := cmp.Diff(want, m.GetTimeFractions(), protocmp.Transform()); diff != "" {
		t.Errorf("the fractions (-want +got):\n%s", diff)
	}
	decoded, err := codec.DecodeObject("object", m, kind.GroupVersion().WithResource("poddisruptionbudgets"))
	if err != nil {
		t.Fatal(err)
	}
	mustBeSame(t, "on the server", budget, decoded)
}

func TestUnusableFractions(t *testing.T) {
	codec := convert.NewCodec()
	for name, tc := range map[string]struct {
		fraction *admissionv1.TimeFraction
		want     string
	}{
		"of nothing":    {nil, "f.time_fractions[0].nanos: 0 is no fraction of a second"},
		"none":          {&admissionv1.TimeFraction{Field: "metadata.creationTimestamp"}, "f.time_fractions[0].nanos: 0 is no"},
		"a second":      {&admissionv1.TimeFraction{Field: "metadata.creationTimestamp", Nanos: 1e9}, "f.time_fractions[0].nanos: 1000000000 is no"},
		"before":        {&admissionv1.TimeFraction{Field: "metadata.creationTimestamp", Nanos: -1}, "f.time_fractions[0].nanos: -1 is no"},
		"no such field": {&admissionv1.TimeFraction{Field: "spec.time", Nanos: 1}, `f.time_fractions: the object has no time at "spec.time"`},
		"beyond a list": {&admissionv1.TimeFraction{Field: "metadata.managedFields[1].time", Nanos: 1}, "f.time_fractions: the object has no time at"},
		"no time":       {&admissionv1.TimeFraction{Field: "metadata.name", Nanos: 1}, "f.time_fractions: the object has no time at"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &admissionv1.Object{
				Kind: convert.ToKind(podKind), Encoding: admissionv1.Encoding_ENCODING_JSON,
				Data:          []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"managedFields":[{}]}}`),
				TimeFractions: []*admissionv1.TimeFraction{tc.fraction},
			}
			_, err := codec.DecodeObject("f", m, pods)
			e, ok := rpcerr.As(err)
			if !ok || e.Reason != rpcerr.ReasonInvalidArgument || !strings.HasPrefix(e.Error(), tc.want) {
				t.Errorf("DecodeObject() = %v, want an InvalidArgument %q", err, tc.want)
			}
		})
	}
}
