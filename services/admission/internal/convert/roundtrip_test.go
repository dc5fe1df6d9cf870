package convert_test

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsfuzzer "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/fuzzer"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/utils/dump"
	"sigs.k8s.io/randfill"

	"github.com/trigate/trigate/services/admission/internal/convert"
)

// fuzzIterations is how often each version of each kind is filled anew.
const fuzzIterations = 20

// TestBuiltInKindsRoundTrip has every kind of every version of the three API
// servers go to the service and back, filled with upstream's fuzzers.
func TestBuiltInKindsRoundTrip(t *testing.T) {
	for name, s := range map[string]struct {
		scheme *runtime.Scheme
		codecs serializer.CodecFactory
		funcs  fuzzer.FuzzerFuncs
	}{
		"kube": {legacyscheme.Scheme, legacyscheme.Codecs, kubetesting.FuzzerFuncs},
		"apiextensions": {
			apiextensionsapiserver.Scheme, apiextensionsapiserver.Codecs,
			fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, apiextensionsfuzzer.Funcs),
		},
		"aggregator": {aggregatorscheme.Scheme, aggregatorscheme.Codecs, metafuzzer.Funcs},
	} {
		t.Run(name, func(t *testing.T) {
			filler := fuzzer.FuzzerFor(s.funcs, rand.NewSource(1), s.codecs)
			for kind := range s.scheme.AllKnownTypes() {
				if !isObject(s.scheme, kind) {
					continue
				}
				t.Run(kind.String(), func(t *testing.T) { roundTrip(t, s.scheme, kind, filler) })
			}
		})
	}
}

// isObject returns whether admission can be asked about a kind: an external
// version whose internal type is known, and which is no list.
func isObject(scheme *runtime.Scheme, kind schema.GroupVersionKind) bool {
	internal := schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal, Kind: kind.Kind}
	switch {
	case kind.Version == runtime.APIVersionInternal, strings.HasSuffix(kind.Kind, "List"):
		return false
	case kind.Kind == "WatchEvent" || strings.HasSuffix(kind.Kind, "Options") && !strings.HasPrefix(kind.Kind, "Pod"):
		return false
	}
	return scheme.Recognizes(internal)
}

func roundTrip(t *testing.T, scheme *runtime.Scheme, kind schema.GroupVersionKind, filler *randfill.Filler) {
	codec := convert.NewCodec()
	for range fuzzIterations {
		original, err := scheme.New(schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal, Kind: kind.Kind})
		if err != nil {
			t.Fatal(err)
		}
		filler.Fill(original)
		original = normal(t, scheme, original, kind.GroupVersion())
		before := original.DeepCopyObject()

		m, err := codec.EncodeObject(original, kind)
		if err != nil {
			t.Fatalf("EncodeObject() = %v", err)
		}
		if diff := cmp.Diff(convert.ToKind(kind).String(), m.GetKind().String()); diff != "" {
			t.Fatalf("the kind of the message: %s", diff)
		}
		decoded, err := codec.DecodeObject("object", m, kind.GroupVersion().WithResource("things"))
		if err != nil {
			t.Fatalf("DecodeObject() = %v", err)
		}
		mustBeSame(t, "on the server", before, decoded)
		mustBeSame(t, "after encoding", before, original)

		same, err := codec.EncodeLike(decoded, m)
		if err != nil || same != nil {
			t.Fatalf("EncodeLike() of an unchanged object = %v, %v, want nil, nil", same, err)
		}
		back, err := codec.DecodeLike("object", m, original)
		if err != nil {
			t.Fatalf("DecodeLike() = %v", err)
		}
		mustBeSame(t, "on the client", before, back)
	}
}

// normal returns an object as a handler could hold it: one that has come from a
// client or from storage in some version. Fuzzers make others too, which no
// version can express.
func normal(t *testing.T, scheme *runtime.Scheme, obj runtime.Object, version schema.GroupVersion) runtime.Object {
	t.Helper()
	external, err := scheme.ConvertToVersion(obj, version)
	if err != nil {
		t.Fatalf("ConvertToVersion(%s) = %v", version, err)
	}
	message, ok := external.(interface {
		Marshal() ([]byte, error)
		Unmarshal([]byte) error
	})
	if !ok {
		t.Fatalf("%T has no protobuf form", external)
	}
	data, err := message.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	fresh := reflect.New(reflect.TypeOf(external).Elem()).Interface().(runtime.Object)
	if err := fresh.(interface{ Unmarshal([]byte) error }).Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	internal, err := scheme.ConvertToVersion(fresh, schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		t.Fatalf("ConvertToVersion(internal) = %v", err)
	}
	return internal
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
