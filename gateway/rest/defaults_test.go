package rest

import (
	"encoding/json"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // Deployments and their defaults.

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

func TestSetDefaults(t *testing.T) {
	h, err := New(Config{Schemes: []*apiruntime.Scheme{legacyscheme.Scheme}})
	if err != nil {
		t.Fatal(err)
	}
	deployment := &admissionv1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	kite := &admissionv1.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Kite"}
	const inJSON, inCBOR = admissionv1.Encoding_ENCODING_JSON, admissionv1.Encoding_ENCODING_CBOR
	t.Run("a built-in kind", func(t *testing.T) {
		object := &admissionv1.Object{Kind: deployment, Encoding: inJSON, Data: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"paused":true}}`)}
		if err := h.setDefaults(object, "attributes.object"); err != nil {
			t.Fatal(err)
		}
		var got appsv1.Deployment
		if err := json.Unmarshal(object.GetData(), &got); err != nil {
			t.Fatal(err)
		}
		if got.APIVersion != "apps/v1" || got.Kind != "Deployment" || got.Name != "a" || !got.Spec.Paused {
			t.Errorf("what was given is not there: %s", object.GetData())
		}
		if got.Spec.Replicas == nil || *got.Spec.Replicas != 1 || got.Spec.Template.Spec.RestartPolicy != "Always" {
			t.Errorf("the defaults are not there: %s", object.GetData())
		}
	})
	for name, object := range map[string]*admissionv1.Object{
		"nothing":              nil,
		"a custom resource":    {Kind: kite, Encoding: inJSON, Data: []byte(`{"apiVersion":"example.com/v1","kind":"Kite"}`)},
		"what is not JSON":     {Kind: deployment, Encoding: inCBOR, Data: []byte("\xa0")},
		"a version of no kind": {Kind: &admissionv1.GroupVersionKind{Group: "apps", Version: "v9", Kind: "Deployment"}, Encoding: inJSON, Data: []byte(`{}`)},
	} {
		t.Run(name+" is left alone", func(t *testing.T) {
			before := string(object.GetData())
			if err := h.setDefaults(object, "attributes.object"); err != nil || string(object.GetData()) != before {
				t.Errorf("setDefaults = %v, with %s", err, object.GetData())
			}
		})
	}
	t.Run("a field of another type", func(t *testing.T) {
		object := &admissionv1.Object{Kind: deployment, Encoding: inJSON, Data: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":"many"}}`)}
		err := h.setDefaults(object, "attributes.oldObject")
		var field *fieldError
		if !errors.As(err, &field) || field.field != "attributes.oldObject" {
			t.Errorf("setDefaults = %v, want an error of attributes.oldObject", err)
		}
	})
}
