package convert_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/dump"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/admission/internal/kindtest"
)

// fuzzIterations is how often each version of each kind is filled anew.
const fuzzIterations = 20

// TestBuiltInKindsRoundTrip has every kind of every version of the three API
// servers go to the service and back.
func TestBuiltInKindsRoundTrip(t *testing.T) {
	codec := convert.NewCodec()
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		for range fuzzIterations {
			original := kind.New(t)
			before := original.DeepCopyObject()
			m, err := codec.EncodeObject(original, kind.GroupVersionKind)
			if err != nil {
				t.Fatalf("EncodeObject() = %v", err)
			}
			if diff := cmp.Diff(convert.ToKind(kind.GroupVersionKind).String(), m.GetKind().String()); diff != "" {
				t.Fatalf("the kind of the message: %s", diff)
			}
			mustRoundTrip(t, codec, kind, before, m)
			mustBeSame(t, "after encoding", before, original)
		}
	})
}

// TestBuiltInKindsRoundTripAsJSON has every kind go as JSON, which people write,
// and in which objects go that protobuf cannot express.
func TestBuiltInKindsRoundTripAsJSON(t *testing.T) {
	codec := convert.NewCodec()
	kindtest.Each(t, func(t *testing.T, kind kindtest.Kind) {
		for range fuzzIterations {
			original := kind.NewFromJSON(t)
			like := &admissionv1.Object{Kind: convert.ToKind(kind.GroupVersionKind), Encoding: admissionv1.Encoding_ENCODING_JSON}
			m, err := codec.EncodeLike(original, like)
			if err != nil {
				t.Fatalf("EncodeLike() = %v", err)
			}
			mustRoundTrip(t, codec, kind, original, m)
		}
	})
}

// mustRoundTrip wants an object to be what its message says.
func mustRoundTrip(t *testing.T, codec *convert.Codec, kind kindtest.Kind, want runtime.Object, m *admissionv1.Object) {
	t.Helper()
	decoded, err := codec.DecodeObject("object", m, kind.Resource())
	if err != nil {
		t.Fatalf("DecodeObject() = %v", err)
	}
	mustBeSame(t, "on the server", want, decoded)
	same, err := codec.EncodeLike(decoded, m)
	if err != nil || same != nil {
		t.Fatalf("EncodeLike() of an unchanged object = %v, %v, want nil, nil", same, err)
	}
	back, err := codec.DecodeLike("object", m, want)
	if err != nil {
		t.Fatalf("DecodeLike() = %v", err)
	}
	mustBeSame(t, "on the client", want, back)
}

func mustBeSame(t *testing.T, where string, want, got runtime.Object) {
	t.Helper()
	if reflect.TypeOf(want) != reflect.TypeOf(got) {
		t.Fatalf("%s: a %T, want a %T", where, got, want)
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("%s: the object changed (-want +got):\n%s", where, cmp.Diff(dump.Pretty(want), dump.Pretty(got)))
	}
}

func mustBeSameJSON(t *testing.T, want, got runtime.Object) {
	t.Helper()
	wantJSON, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	gotJSON, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(wantJSON), string(gotJSON)); diff != "" {
		t.Fatalf("the object changed (-want +got):\n%s", diff)
	}
}
