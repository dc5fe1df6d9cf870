package custom

import (
	"context"
	"sync"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/klog/v2"
)

// typed knows the types other than unstructured ones that plugins could ask
// about: none.
var typed = runtime.NewScheme()

// Objects are the object interfaces of a custom resource for one request. They
// look for the definition when something needs it, which few requests do. They
// are safe for concurrent use.
type Objects struct {
	definition  func() (*definition, error)
	equivalents runtime.EquivalentResourceMapper

	// mu guards err.
	mu  sync.Mutex
	err error
}

var (
	_ admission.ObjectInterfaces = (*Objects)(nil)
	_ runtime.ObjectDefaulter    = (*Objects)(nil)
	_ runtime.ObjectConvertor    = (*Objects)(nil)
)

// For returns the object interfaces of a custom resource for a request whose
// context it is.
func (d *Definitions) For(ctx context.Context, resource schema.GroupVersionResource, equivalents runtime.EquivalentResourceMapper) *Objects {
	o := &Objects{equivalents: equivalents}
	o.definition = sync.OnceValues(func() (*definition, error) {
		made, err := d.of(ctx, resource)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not find the definition of a custom resource", "resource", resource)
			o.mu.Lock()
			defer o.mu.Unlock()
			o.err = err
		}
		return made, err
	})
	return o
}

// Err returns why plugins were not told the truth, or nil: there was no
// definition when one was needed.
func (o *Objects) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// GetObjectCreater returns what makes unstructured objects.
func (o *Objects) GetObjectCreater() runtime.ObjectCreater {
	return unstructuredscheme.NewUnstructuredCreator()
}

// GetObjectTyper returns what reads an unstructured object's kind.
func (o *Objects) GetObjectTyper() runtime.ObjectTyper {
	return apiextensionsapiserver.UnstructuredObjectTyper{
		Delegate:          typed,
		UnstructuredTyper: crdserverscheme.NewUnstructuredObjectTyper(),
	}
}

// GetObjectDefaulter returns what applies the defaults of the schemas.
func (o *Objects) GetObjectDefaulter() runtime.ObjectDefaulter { return o }

// GetObjectConvertor returns what converts between the definition's versions.
func (o *Objects) GetObjectConvertor() runtime.ObjectConvertor { return o }

// GetEquivalentResourceMapper returns the mapper of the request.
func (o *Objects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return o.equivalents
}

// Default applies the defaults of the schema to a custom resource.
func (o *Objects) Default(in runtime.Object) {
	u, ok := in.(runtime.Unstructured)
	if !ok {
		return
	}
	made, err := o.definition()
	if err != nil {
		return // Err has it.
	}
	gvk := u.GetObjectKind().GroupVersionKind()
	if gvk.GroupKind() == made.kind {
		structuraldefaulting.Default(u.UnstructuredContent(), made.schemas[gvk.Version])
	}
}

// Convert converts a custom resource into the version of out.
func (o *Objects) Convert(in, out, hint any) error {
	made, err := o.definition()
	if err != nil {
		return err
	}
	return made.convertor.Convert(in, out, hint)
}

// ConvertToVersion converts a custom resource to a version.
func (o *Objects) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	made, err := o.definition()
	if err != nil {
		return nil, err
	}
	return made.convertor.ConvertToVersion(in, gv)
}

// ConvertFieldLabel says which fields can be selected by.
func (o *Objects) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	made, err := o.definition()
	if err != nil {
		return "", "", err
	}
	return made.convertor.ConvertFieldLabel(gvk, label, value)
}
