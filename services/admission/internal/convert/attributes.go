package convert

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/internal/identity"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

var operations = map[admission.Operation]admissionv1.Operation{
	admission.Create:  admissionv1.Operation_OPERATION_CREATE,
	admission.Update:  admissionv1.Operation_OPERATION_UPDATE,
	admission.Delete:  admissionv1.Operation_OPERATION_DELETE,
	admission.Connect: admissionv1.Operation_OPERATION_CONNECT,
}

// EncodeAttributes returns the message for a request. Nothing of the request
// is changed, and the message shares nothing with it. The mapper says which
// resources have the same objects, and may be nil.
func (c *Codec) EncodeAttributes(a admission.Attributes, mapper runtime.EquivalentResourceMapper) (*admissionv1.Attributes, error) {
	operation, ok := operations[a.GetOperation()]
	if !ok {
		return nil, fmt.Errorf("operation %q is not known", a.GetOperation())
	}
	m := &admissionv1.Attributes{
		Operation:   operation,
		Kind:        ToKind(a.GetKind()),
		Resource:    ToResource(a.GetResource()),
		Subresource: a.GetSubresource(),
		Namespace:   a.GetNamespace(),
		Name:        a.GetName(),
		DryRun:      a.IsDryRun(),
		User:        identity.ToProto(a.GetUserInfo()),
		Equivalents: encodeEquivalents(a, mapper),
	}
	var err error
	if m.Object, err = c.EncodeObject(orNil(a.GetObject()), a.GetKind()); err != nil {
		return nil, fmt.Errorf("encoding the object: %w", err)
	}
	if m.OldObject, err = c.EncodeObject(orNil(a.GetOldObject()), a.GetKind()); err != nil {
		return nil, fmt.Errorf("encoding the old object: %w", err)
	}
	if m.Options, err = c.EncodeObject(orNil(a.GetOperationOptions()), schema.GroupVersionKind{}); err != nil {
		return nil, fmt.Errorf("encoding the options: %w", err)
	}
	percentEncode(m)
	return m, nil
}

// orNil makes nil of a nil pointer in an interface.
func orNil(obj runtime.Object) runtime.Object {
	if v := reflect.ValueOf(obj); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	return obj
}

func encodeEquivalents(a admission.Attributes, mapper runtime.EquivalentResourceMapper) []*admissionv1.EquivalentResource {
	if mapper == nil {
		return nil
	}
	resources := mapper.EquivalentResourcesFor(a.GetResource(), a.GetSubresource())
	if len(resources) == 1 && resources[0] == a.GetResource() && mapper.KindFor(resources[0], a.GetSubresource()) == a.GetKind() {
		return nil
	}
	var equivalents []*admissionv1.EquivalentResource
	for _, resource := range resources {
		equivalents = append(equivalents, &admissionv1.EquivalentResource{
			Resource: ToResource(resource),
			Kind:     ToKind(mapper.KindFor(resource, a.GetSubresource())),
		})
	}
	return equivalents
}

// Request is a request as the server's plugins see it.
type Request struct {
	// Attributes are upstream's own record.
	admission.Attributes
	// Equivalents knows the resources that hold the same objects as the
	// request's.
	Equivalents runtime.EquivalentResourceMapper
	// BuiltIn is the scheme of the request's resource, nil for a custom one.
	BuiltIn *runtime.Scheme
}

// DecodeAttributes returns the request that a message stands for. The field is
// where the message is in the RPC's request; an error is an InvalidArgument
// that names what cannot be used. The message is not changed, but the request
// may share memory with it.
func (c *Codec) DecodeAttributes(field string, m *admissionv1.Attributes) (*Request, error) {
	if m == nil {
		return nil, rpcerr.InvalidArgument(field, "is required")
	}
	m, err := percentDecode(field, m)
	if err != nil {
		return nil, err
	}
	operation, err := decodeOperation(field, m.GetOperation())
	if err != nil {
		return nil, err
	}
	kind, resource := FromKind(m.GetKind()), FromResource(m.GetResource())
	switch {
	case kind.Kind == "" || kind.Version == "":
		return nil, rpcerr.InvalidArgument(field+".kind", "a kind and a version are needed")
	case resource.Resource == "" || resource.Version == "":
		return nil, rpcerr.InvalidArgument(field+".resource", "a resource and a version are needed")
	}
	user, err := identity.FromProto(field+".user", m.GetUser())
	if err != nil {
		return nil, err
	}
	object, err := c.DecodeObject(field+".object", m.GetObject(), resource)
	if err != nil {
		return nil, err
	}
	oldObject, err := c.DecodeObject(field+".old_object", m.GetOldObject(), resource)
	if err != nil {
		return nil, err
	}
	options, err := c.DecodeOptions(field+".options", m.GetOptions())
	if err != nil {
		return nil, err
	}
	return &Request{
		Attributes: admission.NewAttributesRecord(object, oldObject, kind, m.GetNamespace(), m.GetName(), resource,
			m.GetSubresource(), operation, options, m.GetDryRun(), user),
		Equivalents: decodeEquivalents(m, kind, resource),
		BuiltIn:     c.BuiltIn(resource.GroupVersion()),
	}, nil
}

// EncodeOperation returns the message for one of upstream's operations, or
// OPERATION_UNSPECIFIED for anything else.
func EncodeOperation(operation admission.Operation) admissionv1.Operation {
	return operations[operation]
}

// DecodeOperation returns upstream's operation, and false for what is none.
func DecodeOperation(m admissionv1.Operation) (admission.Operation, bool) {
	for operation, message := range operations {
		if message == m {
			return operation, true
		}
	}
	return "", false
}

func decodeOperation(field string, m admissionv1.Operation) (admission.Operation, error) {
	operation, ok := DecodeOperation(m)
	if !ok {
		return "", rpcerr.InvalidArgument(field+".operation", "%v is no operation", m)
	}
	return operation, nil
}

// equivalents is the mapper for one request: it knows the request's resource
// and subresource, which are all that plugins ask for.
type equivalents struct {
	subresource string
	resources   []schema.GroupVersionResource
	kinds       map[schema.GroupVersionResource]schema.GroupVersionKind
}

var _ runtime.EquivalentResourceMapper = (*equivalents)(nil)

func decodeEquivalents(m *admissionv1.Attributes, kind schema.GroupVersionKind, resource schema.GroupVersionResource) *equivalents {
	e := &equivalents{subresource: m.GetSubresource(), kinds: map[schema.GroupVersionResource]schema.GroupVersionKind{}}
	for _, equivalent := range m.GetEquivalents() {
		r := FromResource(equivalent.GetResource())
		e.resources = append(e.resources, r)
		e.kinds[r] = FromKind(equivalent.GetKind())
	}
	if len(e.resources) == 0 {
		e.resources = []schema.GroupVersionResource{resource}
		e.kinds[resource] = kind
	}
	return e
}

// EquivalentResourcesFor returns the request's equivalents.
func (e *equivalents) EquivalentResourcesFor(resource schema.GroupVersionResource, subresource string) []schema.GroupVersionResource {
	if _, ok := e.kinds[resource]; !ok || subresource != e.subresource {
		return nil
	}
	return e.resources
}

// KindFor returns the kind of one of the request's equivalents.
func (e *equivalents) KindFor(resource schema.GroupVersionResource, subresource string) schema.GroupVersionKind {
	if subresource != e.subresource {
		return schema.GroupVersionKind{}
	}
	return e.kinds[resource]
}

// eachString visits every string that percent_encoded speaks of. The field is
// the string's path in the message.
func eachString(m *admissionv1.Attributes, visit func(field string, s *string)) {
	kind := func(field string, k *admissionv1.GroupVersionKind) {
		if k != nil {
			visit(field+".group", &k.Group)
			visit(field+".version", &k.Version)
			visit(field+".kind", &k.Kind)
		}
	}
	resource := func(field string, r *admissionv1.GroupVersionResource) {
		if r != nil {
			visit(field+".group", &r.Group)
			visit(field+".version", &r.Version)
			visit(field+".resource", &r.Resource)
		}
	}
	kind("kind", m.GetKind())
	resource("resource", m.GetResource())
	visit("subresource", &m.Subresource)
	visit("namespace", &m.Namespace)
	visit("name", &m.Name)
	kind("object.kind", m.GetObject().GetKind())
	kind("old_object.kind", m.GetOldObject().GetKind())
	kind("options.kind", m.GetOptions().GetKind())
	for _, equivalent := range m.GetEquivalents() {
		resource("equivalents.resource", equivalent.GetResource())
		kind("equivalents.kind", equivalent.GetKind())
	}
}

// percentEncode encodes the message's strings if one of them is not UTF-8.
func percentEncode(m *admissionv1.Attributes) {
	// Only what a client writes into a URL can be anything but ASCII; kinds are
	// looked at for custom resources, whose objects name their own.
	needed := false
	eachString(m, func(_ string, s *string) { needed = needed || identity.NeedsEncoding(*s) })
	if needed {
		m.PercentEncoded = true
		eachString(m, func(_ string, s *string) { *s = identity.Encode(*s) })
	}
}

// percentDecode returns a message whose strings are what they stand for. It is
// a copy if anything had to be decoded.
func percentDecode(field string, m *admissionv1.Attributes) (*admissionv1.Attributes, error) {
	if !m.GetPercentEncoded() {
		return m, nil
	}
	// The copy keeps the objects' bytes to itself too; such requests are rare.
	decoded := proto.CloneOf(m)
	decoder := identity.NewDecoder(true)
	eachString(decoded, func(path string, s *string) { *s = decoder.String(field+"."+path, *s) })
	return decoded, decoder.Err()
}
