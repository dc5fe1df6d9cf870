package convert_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

var (
	pods         = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	podKind      = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	widgets      = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	widgetKind   = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	scaleKind    = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	deployments  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	allEncodings = []admissionv1.Encoding{admissionv1.Encoding_ENCODING_PROTOBUF, admissionv1.Encoding_ENCODING_JSON, admissionv1.Encoding_ENCODING_CBOR}
)

// widget has what a custom resource can hold that is easily lost.
func widget() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1",
		"kind":       "Widget",
		"metadata": map[string]any{
			"name":        "w",
			"annotations": map[string]any{"ключ": "значение \u2028 <&> 🧭"},
			"managedFields": []any{map[string]any{
				"manager": "m", "operation": "Apply", "fieldsType": "FieldsV1",
				"fieldsV1": map[string]any{"f:spec": map[string]any{".": map[string]any{}}},
			}},
		},
		"spec": map[string]any{
			"beyondFloat": int64(9007199254740993),
			"largest":     int64(math.MaxInt64),
			"smallest":    int64(math.MinInt64),
			"integral":    float64(1),
			"fraction":    0.1,
			"huge":        1e300,
			"null":        nil,
			"emptyList":   []any{},
			"emptyMap":    map[string]any{},
			"emptyString": "",
			"false":       false,
			"nested":      []any{[]any{int64(1), "two", 3.5, nil, map[string]any{"unknown": int64(4)}}},
		},
	}}
}

func TestCustomResourcesArriveExactly(t *testing.T) {
	codec := convert.NewCodec()
	original := widget()
	m, err := codec.EncodeObject(original, widgetKind)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(widget(), original); diff != "" {
		t.Errorf("encoding changed the object (-want +got):\n%s", diff)
	}
	decoded, err := codec.DecodeObject("object", m, widgets)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(runtime.Object(original), decoded); diff != "" {
		t.Errorf("on the server (-want +got):\n%s", diff)
	}
	if same, err := codec.EncodeLike(decoded, m); err != nil || same != nil {
		t.Errorf("EncodeLike() of an unchanged object = %v, %v, want nil, nil", same, err)
	}
	back, err := codec.DecodeLike("object", m, original)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(runtime.Object(original), back); diff != "" {
		t.Errorf("on the client (-want +got):\n%s", diff)
	}
}

func TestJSONHasExactIntegers(t *testing.T) {
	codec := convert.NewCodec()
	m := &admissionv1.Object{
		Kind:     convert.ToKind(widgetKind),
		Encoding: admissionv1.Encoding_ENCODING_JSON,
		Data:     []byte(`{"apiVersion":"example.com/v1","kind":"Widget","spec":{"n":9007199254740993,"m":-9223372036854775808}}`),
	}
	decoded, err := codec.DecodeObject("object", m, widgets)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"n": int64(9007199254740993), "m": int64(math.MinInt64)}
	if diff := cmp.Diff(want, decoded.(*unstructured.Unstructured).Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

// TestExternalTypes has the types arrive as they are that handlers do not use
// in their internal form, type meta included.
func TestExternalTypes(t *testing.T) {
	codec := convert.NewCodec()
	typeMeta := metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"}
	uid := "u"
	for name, tc := range map[string]struct {
		object   runtime.Object
		kind     schema.GroupVersionKind
		resource schema.GroupVersionResource
	}{
		"scale of a custom resource": {
			&autoscalingv1.Scale{TypeMeta: typeMeta, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, scaleKind, widgets,
		},
		"scale without type meta": {&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, scaleKind, widgets},
		"scale of a deployment":   {&autoscaling.Scale{Spec: autoscaling.ScaleSpec{Replicas: 3}}, scaleKind, deployments},
		"create options": {
			&metav1.CreateOptions{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "CreateOptions"}, DryRun: []string{"All"}, FieldManager: "m"},
			schema.GroupVersionKind{},
			schema.GroupVersionResource{},
		},
		"update options without type meta": {&metav1.UpdateOptions{FieldValidation: "Strict"}, schema.GroupVersionKind{}, schema.GroupVersionResource{}},
		"delete options": {
			&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(uid), GracePeriodSeconds: new(int64)},
			schema.GroupVersionKind{},
			schema.GroupVersionResource{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := codec.EncodeObject(tc.object, tc.kind)
			if err != nil {
				t.Fatal(err)
			}
			var decoded runtime.Object
			if tc.resource.Empty() {
				decoded, err = codec.DecodeOptions("options", m)
			} else {
				decoded, err = codec.DecodeObject("object", m, tc.resource)
			}
			if err != nil {
				t.Fatal(err)
			}
			mustBeSame(t, "on the server", tc.object, decoded)
			back, err := codec.DecodeLike("object", m, tc.object)
			if err != nil {
				t.Fatal(err)
			}
			mustBeSame(t, "on the client", tc.object, back)
		})
	}
}

func TestEveryEncodingIsUnderstood(t *testing.T) {
	codec := convert.NewCodec()
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: core.PodSpec{
		Containers: []core.Container{{Name: "c"}}, SecurityContext: &core.PodSecurityContext{},
	}}
	original, err := codec.EncodeObject(pod, podKind)
	if err != nil {
		t.Fatal(err)
	}
	for _, encoding := range allEncodings {
		t.Run(encoding.String(), func(t *testing.T) {
			m, err := codec.EncodeLike(pod, &admissionv1.Object{Kind: original.GetKind(), Encoding: encoding})
			if err != nil {
				t.Fatal(err)
			}
			if m.GetEncoding() != encoding {
				t.Fatalf("EncodeLike() is %v, want %v", m.GetEncoding(), encoding)
			}
			decoded, err := codec.DecodeObject("object", m, pods)
			if err != nil {
				t.Fatal(err)
			}
			mustBeSame(t, "on the server", pod, decoded)
		})
	}
}

// TestNothingIsDefaulted has an object without defaults arrive without them.
func TestNothingIsDefaulted(t *testing.T) {
	m := &admissionv1.Object{
		Kind:     convert.ToKind(podKind),
		Encoding: admissionv1.Encoding_ENCODING_JSON,
		Data:     []byte(`{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"c"}]}}`),
	}
	decoded, err := convert.NewCodec().DecodeObject("object", m, pods)
	if err != nil {
		t.Fatal(err)
	}
	if policy := decoded.(*core.Pod).Spec.RestartPolicy; policy != "" {
		t.Errorf("restartPolicy = %q, want none", policy)
	}
}

func TestUnusableObjects(t *testing.T) {
	codec := convert.NewCodec()
	json, cbor, proto := admissionv1.Encoding_ENCODING_JSON, admissionv1.Encoding_ENCODING_CBOR, admissionv1.Encoding_ENCODING_PROTOBUF
	pod, widgetMessage := convert.ToKind(podKind), convert.ToKind(widgetKind)
	otherEnvelope := []byte("k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12\x00\x1a\x00\"\x00")
	for name, tc := range map[string]struct {
		m        *admissionv1.Object
		resource schema.GroupVersionResource
		want     string
	}{
		"no kind":               {&admissionv1.Object{Encoding: json, Data: []byte("{}")}, pods, "f.kind: a kind and a version are needed"},
		"internal version":      {&admissionv1.Object{Kind: &admissionv1.GroupVersionKind{Version: "__internal", Kind: "Pod"}, Encoding: json}, pods, "f.kind: a kind"},
		"no encoding":           {&admissionv1.Object{Kind: pod, Data: []byte("{}")}, pods, "f.encoding: ENCODING_UNSPECIFIED is not known"},
		"custom, no encoding":   {&admissionv1.Object{Kind: widgetMessage, Data: []byte("{}")}, widgets, "f.encoding: ENCODING_UNSPECIFIED is not known"},
		"unknown kind":          {&admissionv1.Object{Kind: widgetMessage, Encoding: json}, pods, "f.kind: example.com/v1, Kind=Widget is not a kind"},
		"no envelope":           {&admissionv1.Object{Kind: pod, Encoding: proto, Data: []byte("x")}, pods, "f.data: decoding the envelope"},
		"another kind within":   {&admissionv1.Object{Kind: pod, Encoding: proto, Data: otherEnvelope}, pods, "f.data: the data is of /v1, Kind=ConfigMap"},
		"broken JSON":           {&admissionv1.Object{Kind: pod, Encoding: json, Data: []byte(`{"spec":`)}, pods, "f.data: "},
		"JSON of another kind":  {&admissionv1.Object{Kind: pod, Encoding: json, Data: []byte(`{"apiVersion":"v1","kind":"Secret"}`)}, pods, "f.data: the data is of /v1, Kind=Secret"},
		"broken CBOR":           {&admissionv1.Object{Kind: widgetMessage, Encoding: cbor, Data: []byte{0xa1}}, widgets, "f.data: "},
		"custom as protobuf":    {&admissionv1.Object{Kind: widgetMessage, Encoding: proto, Data: otherEnvelope}, widgets, "f.encoding: "},
		"custom without a kind": {&admissionv1.Object{Kind: widgetMessage, Encoding: json, Data: []byte("{}")}, widgets, "f.data: "},
		"custom of another":     {&admissionv1.Object{Kind: widgetMessage, Encoding: json, Data: []byte(`{"apiVersion":"v1","kind":"Pod"}`)}, widgets, "f.data: the data is of /v1, Kind=Pod"},
		"custom with times":     {&admissionv1.Object{Kind: widgetMessage, Encoding: json, Data: []byte("{}"), TimeFractions: []*admissionv1.TimeFraction{{Nanos: 1}}}, widgets, "f.time_fractions: "},
		"a list as an object":   {&admissionv1.Object{Kind: widgetMessage, Encoding: json, Data: []byte(`[]`)}, widgets, "f.data: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := codec.DecodeObject("f", tc.m, tc.resource)
			e, ok := rpcerr.As(err)
			if !ok || e.Reason != rpcerr.ReasonInvalidArgument || !strings.HasPrefix(e.Error(), tc.want) {
				t.Errorf("DecodeObject() = %v, want an InvalidArgument %q", err, tc.want)
			}
		})
	}
}
