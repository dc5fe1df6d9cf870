package custom_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/services/admission/internal/custom"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

var (
	v1 = schema.GroupVersion{Group: "example.com", Version: "v1"}
	v2 = schema.GroupVersion{Group: "example.com", Version: "v2"}
)

// start returns what knows the definitions of a clientset, and how to have the
// informer catch up.
func start(t *testing.T, client *fake.Clientset) (*custom.Definitions, externalversions.SharedInformerFactory) {
	t.Helper()
	informers := externalversions.NewSharedInformerFactory(client, 0)
	definitions, err := custom.New(custom.Config{
		Definitions:     informers.Apiextensions().V1().CustomResourceDefinitions(),
		Client:          client,
		ServiceResolver: webhook.NewDefaultServiceResolver(),
		Authentication:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, &rest.Config{}, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	informers.StartWithContext(t.Context())
	t.Cleanup(informers.Shutdown)
	if result := informers.WaitForCacheSyncWithContext(t.Context()); result.Err != nil {
		t.Fatal(result.Err)
	}
	return definitions, informers
}

func definition(resourceVersion, size string, conversion *apiextensionsv1.CustomResourceConversion) *apiextensionsv1.CustomResourceDefinition {
	version := func(name string) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: name == "v1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"size": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"` + size + `"`)}},
				}}},
			}},
		}
	}
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "1", ResourceVersion: resourceVersion},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped, Names: names, Conversion: conversion,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1"), version("v2")},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
}

var noConversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}

func widget(version schema.GroupVersion) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version.String(), "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"n": int64(9007199254740993)},
	}}
}

func size(t *testing.T, d *custom.Definitions) string {
	t.Helper()
	objects := d.For(t.Context(), v1.WithResource("widgets"), nil)
	w := widget(v1)
	objects.GetObjectDefaulter().Default(w)
	if err := objects.Err(); err != nil {
		t.Fatal(err)
	}
	s, _, _ := unstructured.NestedString(w.Object, "spec", "size")
	return s
}

// TestDefinitionsAreFollowed has defaults follow the definition through its
// life, and one that the informer has not seen be read.
func TestDefinitionsAreFollowed(t *testing.T) {
	client := fake.NewClientset()
	d, informers := start(t, client)
	lister := informers.Apiextensions().V1().CustomResourceDefinitions().Lister()
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), definition("1", "large", noConversion), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := size(t, d); got != "large" {
		t.Errorf("the default is %q, want large", got)
	}
	if _, err := definitions.Update(t.Context(), definition("2", "small", noConversion), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	servetest.Eventually(t, func() error {
		if got := size(t, d); got != "small" {
			return errors.New("the default is still " + got)
		}
		return nil
	})
	if err := definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	servetest.Eventually(t, func() error {
		if _, err := lister.Get("widgets.example.com"); err == nil {
			return errors.New("the definition is still there")
		}
		return nil
	})
	objects := d.For(t.Context(), v1.WithResource("widgets"), nil)
	objects.GetObjectDefaulter().Default(widget(v1))
	if objects.Err() == nil {
		t.Error("Err() = nil after the definition is gone, want an error")
	}
}

// TestUntypedInterfaces has what needs no definition work without one.
func TestUntypedInterfaces(t *testing.T) {
	d, _ := start(t, fake.NewClientset())
	objects := d.For(t.Context(), v1.WithResource("widgets"), runtime.NewEquivalentResourceRegistry())
	made, err := objects.GetObjectCreater().New(v1.WithKind("Widget"))
	if err != nil {
		t.Fatal(err)
	}
	kinds, _, err := objects.GetObjectTyper().ObjectKinds(made)
	if err != nil || len(kinds) != 1 || kinds[0] != v1.WithKind("Widget") {
		t.Errorf("ObjectKinds() = %v, %v, want Widget", kinds, err)
	}
	if err := objects.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
}

func TestConversion(t *testing.T) {
	hook := httptest.NewTLSServer(http.HandlerFunc(convertByWebhook))
	t.Cleanup(hook.Close)
	byWebhook := &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{
				URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
			},
		},
	}
	for name, tc := range map[string]struct {
		conversion *apiextensionsv1.CustomResourceConversion
		spec       map[string]any
	}{
		"none":      {noConversion, map[string]any{"n": int64(9007199254740993)}},
		"a webhook": {byWebhook, map[string]any{"n": int64(9007199254740993), "converted": true}},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := start(t, fake.NewClientset(definition("1", "large", tc.conversion)))
			objects := d.For(t.Context(), v2.WithResource("widgets"), nil)
			in, out := widget(v2), widget(v1)
			if err := objects.GetObjectConvertor().Convert(in, out, nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.spec, out.Object["spec"]); diff != "" || out.GetAPIVersion() != "example.com/v1" {
				t.Errorf("the converted object of %s (-want +got):\n%s", out.GetAPIVersion(), diff)
			}
			if diff := cmp.Diff(widget(v2), in); diff != "" {
				t.Errorf("the converted object itself changed (-want +got):\n%s", diff)
			}
		})
	}
}

// convertByWebhook marks what it converts.
func convertByWebhook(w http.ResponseWriter, r *http.Request) {
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(object.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		if err := unstructured.SetNestedField(u.Object, true, "spec", "converted"); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // a client that went away sees an error itself
}
