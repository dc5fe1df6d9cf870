// Package custom tells plugins about custom resources what kube-apiserver's
// handler of them would: how to convert between the versions of a definition,
// and which defaults its schemas have.
//
// It is driven by an informer of the definitions. A definition that a request
// is about and that the informer has not seen yet is read once from the API.
package custom

import (
	"context"
	"fmt"
	"sync"
	"time"

	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsinternal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
)

// lookupTimeout bounds the reading of a definition that the informer does not
// have. It is a single object by name.
const lookupTimeout = 5 * time.Second

// Config is what New needs.
type Config struct {
	// Definitions is the informer of custom resource definitions. The caller
	// starts it.
	Definitions informers.CustomResourceDefinitionInformer
	// Client reads a definition that the informer does not have.
	Client apiextensionsclient.Interface
	// ServiceResolver and Authentication are how conversion webhooks are called.
	ServiceResolver webhook.ServiceResolver
	Authentication  webhook.AuthenticationInfoResolverWrapper
}

// Definitions knows the custom resource definitions. It is safe for concurrent
// use.
type Definitions struct {
	lister     listers.CustomResourceDefinitionLister
	client     apiextensionsclient.Interface
	converters *conversion.CRConverterFactory

	// mu guards known.
	mu sync.Mutex
	// known are what was made of the definitions, by their uid.
	known map[types.UID]*definition
}

// New returns what knows the definitions of an informer.
func New(cfg Config) (*Definitions, error) {
	converters, err := conversion.NewCRConverterFactory(cfg.ServiceResolver, cfg.Authentication)
	if err != nil {
		return nil, fmt.Errorf("setting up conversion webhooks: %w", err)
	}
	d := &Definitions{
		lister:     cfg.Definitions.Lister(),
		client:     cfg.Client,
		converters: converters,
		known:      map[types.UID]*definition{},
	}
	_, err = cfg.Definitions.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: d.forget})
	if err != nil {
		return nil, fmt.Errorf("watching custom resource definitions: %w", err)
	}
	return d, nil
}

func (d *Definitions) forget(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, crd.UID)
}

// definition is what was made of one version of a CustomResourceDefinition.
type definition struct {
	resourceVersion string
	kind            schema.GroupKind
	// convertor copies what it converts.
	convertor runtime.ObjectConvertor
	// schemas are the schemas by version.
	schemas map[string]*structuralschema.Structural
}

// of returns the definition of a resource, whose version it has.
func (d *Definitions) of(ctx context.Context, resource schema.GroupVersionResource) (*definition, error) {
	name := resource.GroupResource().String()
	crd, err := d.lister.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err != nil || !apiextensionshelpers.HasServedCRDVersion(crd, resource.Version) {
		// The gateway serves it, so the informer is what lags.
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		crd, err = d.client.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading custom resource definition %s: %w", name, err)
		}
	}
	return d.made(crd)
}

// made returns what was made of a definition, or makes it.
func (d *Definitions) made(crd *apiextensionsv1.CustomResourceDefinition) (*definition, error) {
	d.mu.Lock()
	known := d.known[crd.UID]
	d.mu.Unlock()
	if known != nil && known.resourceVersion == crd.ResourceVersion {
		return known, nil
	}
	made, err := d.make(crd)
	if err != nil {
		return nil, fmt.Errorf("reading the schemas of custom resource definition %s: %w", crd.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[crd.UID] = made
	return made, nil
}

func (d *Definitions) make(crd *apiextensionsv1.CustomResourceDefinition) (*definition, error) {
	convertor, _, err := d.converters.NewConverter(crd)
	if err != nil {
		return nil, err
	}
	made := &definition{
		resourceVersion: crd.ResourceVersion,
		kind:            schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		convertor:       convertor,
		schemas:         map[string]*structuralschema.Structural{},
	}
	for _, version := range crd.Spec.Versions {
		structural, err := structuralOf(crd, version.Name)
		if err != nil {
			return nil, fmt.Errorf("version %s: %w", version.Name, err)
		}
		made.schemas[version.Name] = structural
	}
	return made, nil
}

// structuralOf returns a version's schema with its defaults as they are
// applied, or nil if it has none that is structural.
func structuralOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*structuralschema.Structural, error) {
	validation, err := apiextensionshelpers.GetSchemaForVersion(crd, version)
	if err != nil || validation == nil {
		return nil, err
	}
	internal := &apiextensionsinternal.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(validation, internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if crd.Spec.PreserveUnknownFields {
		// Such a schema need not be structural, and has no defaults.
		return structural, nil
	}
	if err != nil {
		return nil, err
	}
	// The defaults still belong to the informer's object.
	structural = structural.DeepCopy()
	if err := structuraldefaulting.PruneDefaults(structural); err != nil {
		return nil, err
	}
	return structural, nil
}
