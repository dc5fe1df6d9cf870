package app

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	reviewv1 "k8s.io/api/admission/v1"
	webhookv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trigate/trigate/services/internal/servetest"
)

// hook is a webhook server that remembers what it is asked.
type hook struct {
	*httptest.Server

	// mu guards requests.
	mu       sync.Mutex
	requests []*reviewv1.AdmissionRequest
}

// newHook serves webhooks, whose path says what they do.
func newHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &reviewv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.requests = append(h.requests, review.Request)
		h.mu.Unlock()
		review.Response = respond(r.URL.Path, review.Request)
		review.Response.UID, review.Request = review.Request.UID, nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // a client that went away sees an error itself
	}))
	t.Cleanup(h.Close)
	return h
}

func respond(path string, request *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
	response := &reviewv1.AdmissionResponse{
		Allowed:          true,
		Warnings:         []string{"first", "second", "first", "dritte: ä"},
		AuditAnnotations: map[string]string{"said": "é"},
	}
	jsonPatch := reviewv1.PatchTypeJSONPatch
	switch {
	case strings.Contains(request.Name, "denied") && path == "/validate":
		response.Allowed = false
		response.Result = &metav1.Status{Message: "no", Reason: "MyReason", Code: 418, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "T", Message: "m", Field: "spec.f"}},
		}}
	case strings.Contains(request.Name, "nocode") && path == "/validate":
		response.Allowed = false
	case path == "/mutate" && request.Object.Raw != nil:
		response.PatchType, response.Patch = &jsonPatch, []byte(`[{"op":"add","path":"/metadata/labels","value":{"patched":"yes"}}]`)
	case path == "/delete-patch":
		response.PatchType, response.Patch = &jsonPatch, []byte(`[{"op":"add","path":"/metadata/labels","value":{}}]`)
	}
	return response
}

// taken returns what has been asked since the last time, without the uids.
func (h *hook) taken() []*reviewv1.AdmissionRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	requests := h.requests
	h.requests = nil
	for _, request := range requests {
		request.UID = ""
	}
	return requests
}

func (h *hook) clientConfig(path string) webhookv1.WebhookClientConfig {
	url := h.URL + path
	return webhookv1.WebhookClientConfig{
		URL:      &url,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
	}
}

// webhooks are configurations as the API server defaults them.
func (h *hook) webhooks() []runtime.Object {
	fail, equivalent, none, all := webhookv1.Fail, webhookv1.Equivalent, webhookv1.SideEffectClassNone, webhookv1.AllScopes
	again, timeout := webhookv1.IfNeededReinvocationPolicy, int32(10)
	rules := func(operations []webhookv1.OperationType, groups, versions, resources string) []webhookv1.RuleWithOperations {
		return []webhookv1.RuleWithOperations{{Operations: operations, Rule: webhookv1.Rule{
			APIGroups: []string{groups}, APIVersions: []string{versions}, Resources: []string{resources}, Scope: &all,
		}}}
	}
	writes := []webhookv1.OperationType{webhookv1.Create, webhookv1.Update, webhookv1.Connect}
	everything := []webhookv1.OperationType{webhookv1.OperationAll}
	everywhere := &metav1.LabelSelector{}
	mutating := func(name, path string, rules []webhookv1.RuleWithOperations) webhookv1.MutatingWebhook {
		return webhookv1.MutatingWebhook{
			Name: name, ClientConfig: h.clientConfig(path), Rules: rules, FailurePolicy: &fail, MatchPolicy: &equivalent,
			NamespaceSelector: everywhere, ObjectSelector: everywhere, SideEffects: &none, TimeoutSeconds: &timeout,
			AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: &again,
		}
	}
	return []runtime.Object{
		&webhookv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Webhooks: []webhookv1.MutatingWebhook{
			mutating("m.example.com", "/mutate", rules(everything, "*", "v1", "*/*")),
			mutating("d.example.com", "/delete-patch", rules([]webhookv1.OperationType{webhookv1.Delete}, "", "v1", "secrets")),
		}},
		&webhookv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Webhooks: []webhookv1.ValidatingWebhook{{
			Name: "v.example.com", ClientConfig: h.clientConfig("/validate"), Rules: rules(writes, "*", "v1", "*/*"), FailurePolicy: &fail, MatchPolicy: &equivalent,
			NamespaceSelector: everywhere, ObjectSelector: everywhere, SideEffects: &none, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
		}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}},
	}
}

// TestWebhookParity has webhooks be asked the same in process and through the
// service, and their answers end the same.
func TestWebhookParity(t *testing.T) {
	h := newHook(t)
	secretKind, secrets := schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	deploymentKind, deployments := appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithResource("deployments")
	cases := map[string]struct {
		request
		calls int
	}{
		"create":                {request{object: &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "<&>"}}, kind: mapKind, resource: maps, namespace: "plain", name: "c", operation: admission.Create, options: &metav1.CreateOptions{FieldManager: "m"}, user: somebody}, 2},
		"denied":                {request{object: &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "denied"}}, kind: mapKind, resource: maps, namespace: "plain", name: "denied", operation: admission.Create, options: &metav1.CreateOptions{}, user: somebody}, 2},
		"denied without a code": {request{object: &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "nocode"}}, kind: mapKind, resource: maps, namespace: "plain", name: "nocode", operation: admission.Create, options: &metav1.CreateOptions{}, user: somebody}, 2},
		"update with dry run": {request{
			object: decode(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: new}]}}}}`),
			old:    decode(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: old}]}}}}`),
			kind:   deploymentKind, resource: deployments, namespace: "plain", name: "d", operation: admission.Update, options: &metav1.UpdateOptions{DryRun: []string{"All"}}, dryRun: true, user: somebody,
		}, 2},
		"delete":              {request{old: &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "plain"}}, kind: mapKind, resource: maps, namespace: "plain", operation: admission.Delete, options: &metav1.DeleteOptions{}, user: somebody}, 1},
		"a patch of a delete": {request{old: &core.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "plain"}}, kind: secretKind, resource: secrets, namespace: "plain", name: "s", operation: admission.Delete, options: &metav1.DeleteOptions{}, user: somebody}, 2},
		"connect":             {request{object: &core.PodExecOptions{Container: "c", Command: []string{"sh"}}, kind: schema.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}, resource: pods, subresource: "exec", namespace: "plain", name: "p", operation: admission.Connect, user: somebody}, 1},
	}
	local := inProcess(t, newCluster(h.webhooks(), nil), nobodyMay())
	service := start(t, newCluster(h.webhooks(), nil), nobodyMay())
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := judge(t, local, tc.request)
			wantAsked := h.taken()
			got := judge(t, service, tc.request)
			gotAsked := h.taken()
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("through the service (-in process +service):\n%s", diff)
			}
			if diff := cmp.Diff(wantAsked, gotAsked); diff != "" {
				t.Errorf("the webhook was asked (-in process +service):\n%s", diff)
			}
			if len(wantAsked) != tc.calls {
				t.Errorf("webhooks were asked %d times, want %d", len(wantAsked), tc.calls)
			}
		})
	}
}

// widgetDefinition is a definition of two versions that differ in nothing but
// their names, with a default.
func widgetDefinition() *apiextensionsv1.CustomResourceDefinition {
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
					Type: "object", Default: &apiextensionsv1.JSON{Raw: []byte(`{"size":"large"}`)},
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"size": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"large"`)}},
						"n":    {Type: "integer"},
					},
				}},
			}},
		}
	}
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "1", ResourceVersion: "1"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped, Names: names,
			Versions:   []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
}

// TestCustomResourceOfAnotherVersion has a webhook for v1 be asked about an
// object of v2, which is converted there and back with all that is in it, and
// gets its defaults.
func TestCustomResourceOfAnotherVersion(t *testing.T) {
	h := newHook(t)
	service := start(t, newCluster(h.webhooks(), []runtime.Object{widgetDefinition()}), nobodyMay())
	v1, v2 := schema.GroupVersion{Group: "example.com", Version: "v1"}, schema.GroupVersion{Group: "example.com", Version: "v2"}
	registry := runtime.NewEquivalentResourceRegistry()
	for _, version := range []schema.GroupVersion{v1, v2} {
		registry.RegisterKindFor(version.WithResource("widgets"), "", version.WithKind("Widget"))
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v2", "kind": "Widget", "metadata": map[string]any{"name": "w", "namespace": "plain"},
		"spec": map[string]any{"n": int64(9007199254740993), "unknown": "ключ"},
	}}
	attributes := admission.NewAttributesRecord(object, nil, v2.WithKind("Widget"), "plain", "w", v2.WithResource("widgets"), "", admission.Create, &metav1.CreateOptions{}, false, somebody)
	if err := service.Admit(t.Context(), attributes, &mapped{registry}); err != nil {
		t.Fatal(errors.Join(err, errors.Unwrap(err)))
	}
	want := map[string]any{
		"apiVersion": "example.com/v2", "kind": "Widget",
		"metadata": map[string]any{"name": "w", "namespace": "plain", "labels": map[string]any{"patched": "yes"}},
		"spec":     map[string]any{"n": int64(9007199254740993), "unknown": "ключ", "size": "large"},
	}
	if diff := cmp.Diff(want, object.Object); diff != "" {
		t.Errorf("the object (-want +got):\n%s", diff)
	}
	asked := h.taken()
	if len(asked) != 1 || asked[0].Kind.Version != "v1" || asked[0].RequestKind.Version != "v2" || asked[0].Resource.Version != "v1" {
		t.Fatalf("the webhook was asked %v", asked)
	}
	if !strings.Contains(string(asked[0].Object.Raw), `"apiVersion":"example.com/v1"`) || !strings.Contains(string(asked[0].Object.Raw), `9007199254740993`) {
		t.Errorf("the webhook was sent %s", asked[0].Object.Raw)
	}
}

// mapped are object interfaces of which only the mapper is asked.
type mapped struct {
	runtime.EquivalentResourceMapper
}

func (m *mapped) GetObjectCreater() runtime.ObjectCreater     { return nil }
func (m *mapped) GetObjectTyper() runtime.ObjectTyper         { return nil }
func (m *mapped) GetObjectDefaulter() runtime.ObjectDefaulter { return nil }
func (m *mapped) GetObjectConvertor() runtime.ObjectConvertor { return nil }
func (m *mapped) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return m.EquivalentResourceMapper
}

// TestDefinitionThatIsNotKnown has a custom resource whose definition cannot be
// found be undecided when it is needed, and not rejected.
func TestDefinitionThatIsNotKnown(t *testing.T) {
	h := newHook(t)
	service := start(t, newCluster(h.webhooks(), nil), nobodyMay())
	v1 := schema.GroupVersion{Group: "example.com", Version: "v1"}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}}
	attributes := admission.NewAttributesRecord(object, nil, v1.WithKind("Widget"), "plain", "w", v1.WithResource("widgets"), "", admission.Create, &metav1.CreateOptions{}, false, somebody)
	err := service.Admit(t.Context(), attributes, nil)
	if err == nil || !strings.Contains(err.Error(), "the admission gate could not decide") {
		t.Errorf("Admit() = %v, want that nothing was decided", err)
	}
	servetest.Eventually(t, func() error {
		if len(h.taken()) == 0 {
			return errors.New("the webhook was not asked")
		}
		return nil
	})
}
