// Package kindtest has all kinds that the API servers serve, with content, for
// tests of what becomes of objects on the way through admission. Production code
// does not import it.
package kindtest

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"time"

	apiextensionsfuzzer "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/fuzzer"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	"sigs.k8s.io/randfill"
)

// Kind is a version of a kind of object.
type Kind struct {
	schema.GroupVersionKind
	// Scheme is that of the API server that serves the kind.
	Scheme *runtime.Scheme

	filler *randfill.Filler
}

// Each runs test for every version of every kind of the three API servers.
func Each(t *testing.T, test func(t *testing.T, kind Kind)) {
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
				if isObject(s.scheme, kind) {
					t.Run(kind.String(), func(t *testing.T) { test(t, Kind{kind, s.scheme, filler}) })
				}
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

// Resource returns a resource that has objects of the kind.
func (k Kind) Resource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource("things")
}

// New returns an object filled by upstream's fuzzers, of the internal type, as a
// handler could hold it: it has come from a client or from storage as protobuf in
// the kind's version, and each of its times has a fraction of a second. Fuzzers
// make others too, which no version can express.
func (k Kind) New(t *testing.T) runtime.Object {
	t.Helper()
	return k.newBy(t, func(from, to runtime.Object) error {
		data, err := from.(marshaler).Marshal()
		if err != nil {
			return err
		}
		return to.(unmarshaler).Unmarshal(data)
	})
}

// NewFromJSON is New of an object that has come as JSON.
func (k Kind) NewFromJSON(t *testing.T) runtime.Object {
	t.Helper()
	return k.newBy(t, func(from, to runtime.Object) error {
		data, err := json.Marshal(from)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, to)
	})
}

type (
	marshaler   interface{ Marshal() ([]byte, error) }
	unmarshaler interface{ Unmarshal([]byte) error }
)

// newBy has the object be sent from one external object to another.
func (k Kind) newBy(t *testing.T, send func(from, to runtime.Object) error) runtime.Object {
	t.Helper()
	internal := schema.GroupVersion{Group: k.Group, Version: runtime.APIVersionInternal}
	filled, err := k.Scheme.New(internal.WithKind(k.Kind))
	if err != nil {
		t.Fatal(err)
	}
	k.filler.Fill(filled)
	external, err := k.Scheme.ConvertToVersion(filled, k.GroupVersion())
	if err != nil {
		t.Fatalf("ConvertToVersion(%s) = %v", k.GroupVersion(), err)
	}
	arrived, err := k.Scheme.New(k.GroupVersionKind)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(external, arrived); err != nil {
		t.Fatalf("sending %s: %v", k, err)
	}
	addFractions(reflect.ValueOf(arrived).Elem(), new(time.Duration))
	obj, err := k.Scheme.ConvertToVersion(arrived, internal)
	if err != nil {
		t.Fatalf("ConvertToVersion(internal) = %v", err)
	}
	return obj
}

// addFractions gives each time in v another fraction of a second.
func addFractions(v reflect.Value, last *time.Duration) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			addFractions(v.Elem(), last)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			addFractions(v.Index(i), last)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			addFractions(value, last)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[metav1.Time]() {
			*last++
			v.Set(reflect.ValueOf(metav1.Time{Time: v.Interface().(metav1.Time).Add(*last)}))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				addFractions(v.Field(i), last)
			}
		}
	}
}
