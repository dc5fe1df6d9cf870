package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/dump"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/admission/internal/kindtest"
	"github.com/trigate/trigate/services/admission/server"
)

// iterations is how often each version of each kind is filled anew.
const iterations = 3

// TestEveryKindComesBackAsItWas has no plugin act on any kind: the handler's
// object stays the same one with the same content, and the plugins saw its like.
func TestEveryKindComesBackAsItWas(t *testing.T) {
	var seen atomic.Value
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		seen.Store(box{a.GetObject()})
		return nil
	})})
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		for range iterations {
			for how, object := range map[string]runtime.Object{"protobuf": kind.New(t), "JSON": kind.NewFromJSON(t)} {
				want := object.DeepCopyObject()
				a := create(object, kind.GroupVersionKind, kind.Resource())
				if err := c.Admit(t.Context(), a, nil); err != nil {
					t.Fatal(err)
				}
				if a.GetObject() != object {
					t.Errorf("from %s: another object came back", how)
				}
				mustBeSame(t, "the handler's object from "+how, want, object)
				if how == "protobuf" { // JSON tells more kinds of nothing apart
					mustBeSame(t, "the plugins' object", want, seen.Load().(box).Object)
				}
			}
		}
	})
}

// TestEveryKindInJSONIsLeftAlone has people send objects of every kind in JSON: what
// no plugin acts on does not come back.
func TestEveryKindInJSONIsLeftAlone(t *testing.T) {
	running, _ := start(t, server.Config{Plugins: admission.NewChainHandler()})
	stub := admissionv1.NewAdmissionServiceClient(running.DialReady(t, "gateway"))
	codec := convert.NewCodec()
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		for range iterations {
			like := &admissionv1.Object{Kind: convert.ToKind(kind.GroupVersionKind), Encoding: admissionv1.Encoding_ENCODING_JSON}
			object, err := codec.EncodeLike(kind.NewFromJSON(t), like)
			if err != nil {
				t.Fatal(err)
			}
			var indented bytes.Buffer
			if err := json.Indent(&indented, object.GetData(), "", "\t"); err != nil {
				t.Fatal(err)
			}
			object.Data = indented.Bytes()
			response, err := stub.Admit(t.Context(), &admissionv1.AdmitRequest{Attributes: &admissionv1.Attributes{
				Operation: admissionv1.Operation_OPERATION_CREATE, Kind: object.GetKind(), Resource: convert.ToResource(kind.Resource()), Object: object,
			}})
			if err != nil {
				t.Fatal(err)
			}
			if !response.GetOutcome().GetAllowed() || response.GetObject() != nil {
				t.Errorf("Admit() = %v, want it allowed and no object", response)
			}
		}
	})
}

// TestEveryKindComesBackChanged has a plugin act on every kind: the handler's
// object stays the same one, and only what the plugin changed is changed.
func TestEveryKindComesBackChanged(t *testing.T) {
	change := func(object runtime.Object) bool {
		accessor, ok := object.(metav1.Object)
		if ok {
			accessor.SetLabels(map[string]string{"changed": "é"})
		}
		return ok
	}
	_, c := start(t, server.Config{Plugins: judge(func(_ context.Context, _ string, a admission.Attributes, _ admission.ObjectInterfaces) error {
		change(a.GetObject())
		return nil
	})})
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		for range iterations {
			object := kind.New(t)
			want := object.DeepCopyObject()
			if !change(want) {
				return // options of a connection have no metadata
			}
			if err := c.Admit(t.Context(), create(object, kind.GroupVersionKind, kind.Resource()), nil); err != nil {
				t.Fatal(err)
			}
			mustBeSame(t, "the handler's object", want, object)
		}
	})
}

// box lets an atomic.Value hold objects of any type.
type box struct{ runtime.Object }

func mustBeSame(t *testing.T, what string, want, got runtime.Object) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("%s changed (-want +got):\n%s", what, cmp.Diff(dump.Pretty(want), dump.Pretty(got)))
	}
}
