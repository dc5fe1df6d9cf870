// Package convert turns an admission request and its outcome into messages and
// back, for the client in the gateway and for the server.
//
// The objects are what kube-apiserver's handlers hold: internal types of the
// three API servers that share one chain (the Kubernetes APIs, apiextensions
// and the aggregator), custom resources as unstructured content, and a few
// types that the handlers use in their external form. Each arrives as the same
// Go type with the same content: nothing is defaulted, pruned or reordered.
package convert

import (
	"fmt"
	"reflect"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/controlplane" // registers every API in legacyscheme
)

// typeSystem is a scheme with the serializers of its types. They decode as
// they find it, without defaults and without conversion.
type typeSystem struct {
	scheme *runtime.Scheme
	proto  *protobuf.Serializer
	json   runtime.Serializer
	cbor   runtime.Serializer
	// fractions carries what the serializers drop.
	fractions *fractions
}

func newTypeSystem(scheme *runtime.Scheme, fractions *fractions) *typeSystem {
	return &typeSystem{
		scheme:    scheme,
		proto:     protobuf.NewSerializer(scheme, scheme),
		json:      json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		cbor:      cbor.NewSerializer(scheme, scheme),
		fractions: fractions,
	}
}

// Codec encodes and decodes objects. It is safe for concurrent use.
type Codec struct {
	// builtIn are the type systems of the three API servers.
	builtIn []*typeSystem
	// external are the types that some handlers use in their external form.
	external *typeSystem
	empties  *emptiesFinder
	// forms has the form of each type that was asked for, by reflect.Type. No scheme
	// changes any more, and they answer slowly for a type that they do not know.
	forms sync.Map
}

// NewCodec returns a codec for the types of this Kubernetes version.
func NewCodec() *Codec {
	// Each operation has its options, and the scale of a custom resource is
	// this type whatever the group of the resource.
	external := runtime.NewScheme()
	external.AddKnownTypes(metav1.SchemeGroupVersion,
		&metav1.CreateOptions{}, &metav1.UpdateOptions{}, &metav1.PatchOptions{}, &metav1.DeleteOptions{})
	external.AddKnownTypes(autoscalingv1.SchemeGroupVersion, &autoscalingv1.Scale{})
	fractions := newFractions()
	return &Codec{
		builtIn: []*typeSystem{
			newTypeSystem(legacyscheme.Scheme, fractions),
			newTypeSystem(apiextensionsapiserver.Scheme, fractions),
			newTypeSystem(aggregatorscheme.Scheme, fractions),
		},
		external: newTypeSystem(external, fractions),
		empties:  newEmptiesFinder(),
	}
}

// BuiltIn returns the scheme of the API server that serves a group and
// version, or nil if it is one of custom resources.
func (c *Codec) BuiltIn(gv schema.GroupVersion) *runtime.Scheme {
	if types := c.typesOf(gv); types != nil {
		return types.scheme
	}
	return nil
}

func (c *Codec) typesOf(gv schema.GroupVersion) *typeSystem {
	for _, types := range c.builtIn {
		if types.scheme.IsVersionRegistered(gv) {
			return types
		}
	}
	return nil
}

// form is how an object of a Go type travels.
type form struct {
	types *typeSystem
	// external is the object's kind if it travels as it is.
	external schema.GroupVersionKind
	// internal is the object's kind if it is converted to travel.
	internal schema.GroupVersionKind
}

// formOf finds the type system of a typed object. An internal type is known to
// one of the API servers; an external one is taken as it is.
func (c *Codec) formOf(obj runtime.Object) (form, error) {
	t := reflect.TypeOf(obj)
	if known, ok := c.forms.Load(t); ok {
		return known.(form), nil
	}
	found, err := c.findForm(obj)
	if err == nil {
		c.forms.Store(t, found)
	}
	return found, err
}

func (c *Codec) findForm(obj runtime.Object) (form, error) {
	for _, types := range c.builtIn {
		kinds, unversioned, err := types.scheme.ObjectKinds(obj)
		if err != nil || unversioned {
			continue
		}
		for _, kind := range kinds {
			if kind.Version == runtime.APIVersionInternal {
				return form{types: types, internal: kind}, nil
			}
		}
	}
	for _, types := range append([]*typeSystem{c.external}, c.builtIn...) {
		kinds, _, err := types.scheme.ObjectKinds(obj)
		if err == nil && len(kinds) > 0 {
			return form{types: types, external: kinds[0]}, nil
		}
	}
	return form{}, fmt.Errorf("no scheme knows %v", reflect.TypeOf(obj))
}
