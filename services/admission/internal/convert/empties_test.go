package convert_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/apis/rbac"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/admission/internal/kindtest"
)

// TestEmptyIsNotNil has lists that are there but empty arrive so where JSON
// would show them: webhooks and CEL tell `[]` from `null`.
func TestEmptyIsNotNil(t *testing.T) {
	role := schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}
	slice := schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}
	pod := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	for name, tc := range map[string]struct {
		object   runtime.Object
		kind     schema.GroupVersionKind
		encoding admissionv1.Encoding
	}{
		"empty rules":             {&rbac.Role{Rules: []rbac.PolicyRule{}}, role, admissionv1.Encoding_ENCODING_JSON},
		"no rules":                {&rbac.Role{}, role, admissionv1.Encoding_ENCODING_PROTOBUF},
		"rules":                   {&rbac.Role{Rules: []rbac.PolicyRule{{Verbs: []string{"get"}}}}, role, admissionv1.Encoding_ENCODING_PROTOBUF},
		"a rule with empty verbs": {&rbac.Role{Rules: []rbac.PolicyRule{{Verbs: []string{}}}}, role, admissionv1.Encoding_ENCODING_JSON},
		"empty endpoints":         {&discovery.EndpointSlice{Endpoints: []discovery.Endpoint{}}, slice, admissionv1.Encoding_ENCODING_JSON},
		"data that is null":       {&core.ConfigMap{BinaryData: map[string][]byte{"a": nil}}, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, admissionv1.Encoding_ENCODING_JSON},
		"data that is empty":      {&core.ConfigMap{BinaryData: map[string][]byte{"a": {}}}, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, admissionv1.Encoding_ENCODING_PROTOBUF},
		"empty containers":        {&core.Pod{Spec: core.PodSpec{Containers: []core.Container{}, SecurityContext: &core.PodSecurityContext{}}}, pod, admissionv1.Encoding_ENCODING_JSON},
	} {
		t.Run(name, func(t *testing.T) {
			codec := convert.NewCodec()
			m, err := codec.EncodeObject(tc.object, tc.kind)
			if err != nil {
				t.Fatal(err)
			}
			if m.GetEncoding() != tc.encoding {
				t.Errorf("EncodeObject() is %v, want %v", m.GetEncoding(), tc.encoding)
			}
			decoded, err := codec.DecodeObject("object", m, tc.kind.GroupVersion().WithResource("things"))
			if err != nil {
				t.Fatal(err)
			}
			mustBeSame(t, "on the server", tc.object, decoded)
			if same, err := codec.EncodeLike(decoded, m); err != nil || same != nil {
				t.Errorf("EncodeLike() = %v, %v, want nil, nil", same, err)
			}
		})
	}
}

// TestEveryEmptyListArrives has every kind arrive that has as many empty lists
// and maps as its JSON would show.
func TestEveryEmptyListArrives(t *testing.T) {
	codec := convert.NewCodec()
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		external, err := kind.Scheme.New(kind.GroupVersionKind)
		if err != nil {
			t.Fatal(err)
		}
		fillEmpties(reflect.ValueOf(external).Elem(), 0)
		internalVersion := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
		original, err := kind.Scheme.ConvertToVersion(external, internalVersion)
		if err != nil {
			t.Fatal(err)
		}
		m, err := codec.EncodeObject(original, kind.GroupVersionKind)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := codec.DecodeObject("object", m, kind.Resource())
		if err != nil {
			t.Fatal(err)
		}
		want, err := kind.Scheme.ConvertToVersion(original, kind.GroupVersion())
		if err != nil {
			t.Fatal(err)
		}
		got, err := kind.Scheme.ConvertToVersion(decoded, kind.GroupVersion())
		if err != nil {
			t.Fatal(err)
		}
		mustBeSameJSON(t, want, got)
	})
}

// fillEmpties makes every list and map empty and not nil, in structs that are
// there by themselves and in one element of each list of structs near the top.
func fillEmpties(v reflect.Value, depth int) {
	for i := range v.NumField() {
		field := v.Field(i)
		if !v.Type().Field(i).IsExported() || strings.HasPrefix(v.Type().Field(i).Name, "XXX") {
			continue
		}
		switch field.Kind() {
		case reflect.Struct:
			fillEmpties(field, depth)
		case reflect.Map:
			field.Set(reflect.MakeMap(field.Type()))
		case reflect.Slice:
			if field.Type().Elem().Kind() == reflect.Uint8 {
				continue // bytes are no list
			}
			field.Set(reflect.MakeSlice(field.Type(), 0, 0))
			if depth == 0 && field.Type().Elem().Kind() == reflect.Struct {
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
				fillEmpties(field.Index(0), depth+1)
			}
		}
	}
}
