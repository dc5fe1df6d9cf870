package convert

import (
	"bytes"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// EncodeObject returns the message for an object of a request for gvk, and nil
// for nil. The object is not changed, and the message shares nothing with it.
//
// A built-in type travels as protobuf in the version of gvk, or as JSON if it
// has what only JSON can say. A custom resource travels as CBOR: unlike JSON it
// tells 1 from 1.0, which CEL does too.
func (c *Codec) EncodeObject(obj runtime.Object, gvk schema.GroupVersionKind) (*admissionv1.Object, error) {
	if obj == nil {
		return nil, nil
	}
	if u, ok := obj.(runtime.Unstructured); ok {
		return encodeUnstructured(u, admissionv1.Encoding_ENCODING_CBOR)
	}
	typed, err := c.formOf(obj)
	if err != nil {
		return nil, err
	}
	external, kind, err := typed.toExternal(obj, gvk)
	if err != nil {
		return nil, err
	}
	if c.empties.In(external) {
		return typed.types.encode(external, kind, admissionv1.Encoding_ENCODING_JSON)
	}
	out, err := typed.types.encode(external, kind, admissionv1.Encoding_ENCODING_PROTOBUF)
	if protobuf.IsNotMarshalable(err) {
		return typed.types.encode(external, kind, admissionv1.Encoding_ENCODING_JSON)
	}
	return out, err
}

// EncodeLike returns the message for an object that came in as the message
// like, in the same version and encoding. It returns nil if that would say the
// same as like.
func (c *Codec) EncodeLike(obj runtime.Object, like *admissionv1.Object) (*admissionv1.Object, error) {
	kind := FromKind(like.GetKind())
	if u, ok := obj.(runtime.Unstructured); ok {
		out, err := encodeUnstructured(u, like.GetEncoding())
		return unlessSame(out, like), err
	}
	typed, err := c.formOf(obj)
	if err != nil {
		return nil, err
	}
	external, kind, err := typed.toExternal(obj, kind)
	if err != nil {
		return nil, err
	}
	encoding := like.GetEncoding()
	if encoding == admissionv1.Encoding_ENCODING_PROTOBUF && c.empties.In(external) {
		encoding = admissionv1.Encoding_ENCODING_JSON
	}
	out, err := typed.types.encode(external, kind, encoding)
	return unlessSame(out, like), err
}

func unlessSame(out, like *admissionv1.Object) *admissionv1.Object {
	if out != nil && out.GetEncoding() == like.GetEncoding() && bytes.Equal(out.GetData(), like.GetData()) &&
		slices.EqualFunc(out.GetTimeFractions(), like.GetTimeFractions(), sameFraction) {
		return nil
	}
	return out
}

// toExternal returns the object as it travels, and its kind. It shares memory
// with obj.
func (f form) toExternal(obj runtime.Object, gvk schema.GroupVersionKind) (runtime.Object, schema.GroupVersionKind, error) {
	if !f.external.Empty() {
		return obj, f.external, nil
	}
	// The request's version, unless the object is of another kind than it.
	versions := []schema.GroupVersion{gvk.GroupVersion()}
	if gvk.Kind != f.internal.Kind || !f.types.scheme.Recognizes(gvk) {
		versions = f.types.scheme.PrioritizedVersionsForGroup(f.internal.Group)
	}
	err := fmt.Errorf("%s has no version", f.internal)
	for _, version := range versions {
		var external runtime.Object
		if external, err = f.types.scheme.UnsafeConvertToVersion(obj, version); err == nil {
			return external, external.GetObjectKind().GroupVersionKind(), nil
		}
	}
	return nil, schema.GroupVersionKind{}, fmt.Errorf("converting %s for %s: %w", f.internal, gvk, err)
}

func (t *typeSystem) encode(obj runtime.Object, kind schema.GroupVersionKind, encoding admissionv1.Encoding) (*admissionv1.Object, error) {
	var serializer runtime.Encoder
	switch encoding {
	case admissionv1.Encoding_ENCODING_PROTOBUF:
		serializer = t.proto
	case admissionv1.Encoding_ENCODING_JSON:
		serializer = t.json
	case admissionv1.Encoding_ENCODING_CBOR:
		serializer = t.cbor
	default:
		return nil, fmt.Errorf("encoding %v is not known", encoding)
	}
	var data bytes.Buffer
	if err := serializer.Encode(obj, &data); err != nil {
		return nil, err
	}
	return &admissionv1.Object{
		Kind:          ToKind(kind),
		Encoding:      encoding,
		Data:          data.Bytes(),
		TimeFractions: t.fractions.of(obj),
	}, nil
}

func encodeUnstructured(obj runtime.Unstructured, encoding admissionv1.Encoding) (*admissionv1.Object, error) {
	var data bytes.Buffer
	var err error
	switch encoding {
	case admissionv1.Encoding_ENCODING_JSON:
		err = unstructured.UnstructuredJSONScheme.Encode(obj, &data)
	case admissionv1.Encoding_ENCODING_CBOR:
		err = unstructuredCBOR().Encode(obj, &data)
	default:
		err = fmt.Errorf("a custom resource cannot be encoded as %v", encoding)
	}
	if err != nil {
		return nil, err
	}
	return &admissionv1.Object{
		Kind:     ToKind(obj.GetObjectKind().GroupVersionKind()),
		Encoding: encoding,
		Data:     data.Bytes(),
	}, nil
}

// unstructuredCBOR needs neither creater nor typer, since it only sees
// unstructured content.
func unstructuredCBOR() cbor.Serializer { return cbor.NewSerializer(nil, nil) }

// DecodeObject returns the object that the server's plugins see for a request
// for resource, and nil for nil: of a built-in resource the internal type, of a
// custom one unstructured content. The field is where the message is in the
// request; an error is an InvalidArgument that names it.
func (c *Codec) DecodeObject(field string, m *admissionv1.Object, resource schema.GroupVersionResource) (runtime.Object, error) {
	if m == nil {
		return nil, nil
	}
	kind := FromKind(m.GetKind())
	if kind.Kind == "" || kind.Version == "" || kind.Version == runtime.APIVersionInternal {
		return nil, rpcerr.InvalidArgument(field+".kind", "a kind and a version are needed")
	}
	types := c.typesOf(resource.GroupVersion())
	switch {
	case types == nil && kind.GroupVersion() != resource.GroupVersion() && c.external.scheme.Recognizes(kind):
		return c.external.decode(field, m, kind)
	case types == nil:
		return decodeUnstructured(field, m, kind)
	case !types.scheme.Recognizes(kind):
		return nil, rpcerr.InvalidArgument(field+".kind", "%s is not a kind that %s can be of", kind, resource)
	}
	external, err := types.decode(field, m, kind)
	if err != nil {
		return nil, err
	}
	return types.toInternal(field, external, kind)
}

// DecodeOptions returns the options of an operation, and nil for nil.
func (c *Codec) DecodeOptions(field string, m *admissionv1.Object) (runtime.Object, error) {
	if m == nil {
		return nil, nil
	}
	kind := FromKind(m.GetKind())
	if !c.external.scheme.Recognizes(kind) {
		return nil, rpcerr.InvalidArgument(field+".kind", "%s is no kind of options", kind)
	}
	return c.external.decode(field, m, kind)
}

// DecodeLike returns the object of a message as the same Go type as like,
// which it stands for.
func (c *Codec) DecodeLike(field string, m *admissionv1.Object, like runtime.Object) (runtime.Object, error) {
	kind := FromKind(m.GetKind())
	if _, ok := like.(runtime.Unstructured); ok {
		return decodeUnstructured(field, m, kind)
	}
	typed, err := c.formOf(like)
	if err != nil {
		return nil, err
	}
	external, err := typed.types.decode(field, m, kind)
	if err != nil || !typed.external.Empty() {
		return external, err
	}
	return typed.types.toInternal(field, external, kind)
}

func (t *typeSystem) toInternal(field string, external runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	internal, err := t.scheme.UnsafeConvertToVersion(external, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, rpcerr.InvalidArgument(field, "converting %s to its internal type: %v", kind, err)
	}
	return internal, nil
}

// decode returns a new object with its own type meta, which may be empty.
func (t *typeSystem) decode(field string, m *admissionv1.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	obj, err := t.decodeData(field, m, kind)
	if err != nil {
		return nil, err
	}
	if err := t.fractions.restore(field+".time_fractions", obj, m.GetTimeFractions()); err != nil {
		return nil, err
	}
	return obj, nil
}

func (t *typeSystem) decodeData(field string, m *admissionv1.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	var decoder runtime.Decoder
	switch m.GetEncoding() {
	case admissionv1.Encoding_ENCODING_PROTOBUF:
		return t.decodeProtobuf(field, m, kind)
	case admissionv1.Encoding_ENCODING_JSON:
		decoder = t.json
	case admissionv1.Encoding_ENCODING_CBOR:
		decoder = t.cbor
	default:
		return nil, unknownEncoding(field, m)
	}
	obj, actual, err := decoder.Decode(m.GetData(), &kind, nil)
	if err != nil {
		return nil, rpcerr.InvalidArgument(field+".data", "decoding %s: %v", kind, err)
	}
	if *actual != kind {
		return nil, rpcerr.InvalidArgument(field+".data", "the data is of %s, not of %s", actual, kind)
	}
	return obj, nil
}

// decodeProtobuf does what the serializer does, but for the type meta: that is
// part of the object if its type is external, and the serializer would set it.
func (t *typeSystem) decodeProtobuf(field string, m *admissionv1.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	var envelope runtime.Unknown
	if _, _, err := t.proto.Decode(m.GetData(), nil, &envelope); err != nil {
		return nil, rpcerr.InvalidArgument(field+".data", "decoding the envelope of %s: %v", kind, err)
	}
	if envelope.ContentEncoding != "" || envelope.ContentType != "" && envelope.ContentType != runtime.ContentTypeProtobuf {
		return nil, rpcerr.InvalidArgument(field+".data", "the envelope of %s has the content type %q and the encoding %q", kind, envelope.ContentType, envelope.ContentEncoding)
	}
	if actual := envelope.GroupVersionKind(); !actual.Empty() && actual != kind {
		return nil, rpcerr.InvalidArgument(field+".data", "the data is of %s, not of %s", actual, kind)
	}
	obj, err := t.scheme.New(kind)
	if err != nil {
		return nil, rpcerr.InvalidArgument(field+".kind", "%s is not a known kind", kind)
	}
	message, ok := obj.(interface{ Unmarshal([]byte) error })
	if !ok {
		return nil, rpcerr.InvalidArgument(field+".encoding", "%s has no protobuf form", kind)
	}
	if err := message.Unmarshal(envelope.Raw); err != nil {
		return nil, rpcerr.InvalidArgument(field+".data", "decoding %s: %v", kind, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(envelope.GroupVersionKind())
	return obj, nil
}

func decodeUnstructured(field string, m *admissionv1.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	if len(m.GetTimeFractions()) > 0 {
		return nil, rpcerr.InvalidArgument(field+".time_fractions", "%s is a custom resource, whose times are text", kind)
	}
	var obj unstructured.Unstructured
	var err error
	switch m.GetEncoding() {
	case admissionv1.Encoding_ENCODING_JSON:
		_, _, err = unstructured.UnstructuredJSONScheme.Decode(m.GetData(), nil, &obj)
	case admissionv1.Encoding_ENCODING_CBOR:
		_, _, err = unstructuredCBOR().Decode(m.GetData(), nil, &obj)
	case admissionv1.Encoding_ENCODING_PROTOBUF:
		return nil, rpcerr.InvalidArgument(field+".encoding", "%s is a custom resource, which has no protobuf form", kind)
	default:
		return nil, unknownEncoding(field, m)
	}
	if err != nil {
		return nil, rpcerr.InvalidArgument(field+".data", "decoding %s: %v", kind, err)
	}
	if actual := obj.GroupVersionKind(); actual != kind {
		return nil, rpcerr.InvalidArgument(field+".data", "the data is of %s, not of %s", actual, kind)
	}
	return &obj, nil
}

func unknownEncoding(field string, m *admissionv1.Object) error {
	return rpcerr.InvalidArgument(field+".encoding", "%v is not known", m.GetEncoding())
}

// ToKind returns the message for a kind.
func ToKind(gvk schema.GroupVersionKind) *admissionv1.GroupVersionKind {
	return &admissionv1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
}

// FromKind returns the kind that a message stands for.
func FromKind(m *admissionv1.GroupVersionKind) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: m.GetGroup(), Version: m.GetVersion(), Kind: m.GetKind()}
}

// ToResource returns the message for a resource.
func ToResource(gvr schema.GroupVersionResource) *admissionv1.GroupVersionResource {
	return &admissionv1.GroupVersionResource{Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource}
}

// FromResource returns the resource that a message stands for.
func FromResource(m *admissionv1.GroupVersionResource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: m.GetGroup(), Version: m.GetVersion(), Resource: m.GetResource()}
}
