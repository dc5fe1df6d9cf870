package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
)

// fieldManager is whom an object's changes are ascribed to.
const fieldManager = "kubectl-gates"

// admission asks what admission would do to objects.
type admission struct {
	gates *gates
	user  *authnv1.UserInfo
}

// ask asks about one object.
func (a *admission) ask(ctx context.Context, info *resource.Info, operation string) (*admissionItem, error) {
	given, ok := info.Object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("the object is a %T", info.Object)
	}
	old, err := live(info, operation)
	if err != nil {
		return nil, err
	}
	if operation == "" {
		operation = operationCreate
		if old != nil {
			operation = operationUpdate
		}
	}
	if old == nil && operation != operationCreate {
		return nil, fmt.Errorf("to %s an object it has to have a name", operation)
	}
	if operation == operationUpdate {
		given = replacement(given, old)
	}
	attributes, err := a.attributes(info, operation, given, old)
	if err != nil {
		return nil, err
	}
	item := newAdmissionItem(info, operation, given)
	admitted, err := a.admit(ctx, attributes)
	if err != nil {
		return nil, err
	}
	item.add(phaseMutating, admitted.outcome)
	if admitted.asked != nil {
		item.given = admitted.asked
	}
	if item.Object = admitted.object; item.Object != nil {
		if attributes.Object, err = encode(item.Object); err != nil {
			return nil, err
		}
	}
	if !item.Allowed {
		return item, nil
	}
	validated := &admissionv1.ValidateResponse{}
	if err := a.gates.post(ctx, pathValidate, &admissionv1.ValidateRequest{Attributes: attributes}, validated); err != nil {
		return nil, err
	}
	item.add(phaseValidating, validated.GetOutcome())
	return item, nil
}

// admitted is the answer of mutating admission, in which objects stand as they are, and
// not as their messages.
type admitted struct {
	outcome *admissionv1.Outcome
	// asked is the object that admission saw, with its defaults, and object the one that it
	// made of it. Both are nil if it left it alone.
	asked, object *unstructured.Unstructured
}

// admit asks for mutating admission.
func (a *admission) admit(ctx context.Context, attributes *admissionv1.Attributes) (*admitted, error) {
	content, err := a.gates.postRaw(ctx, pathAdmit, &admissionv1.AdmitRequest{Attributes: attributes})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Outcome         json.RawMessage            `json:"outcome"`
		DefaultedObject *unstructured.Unstructured `json:"defaultedObject"`
		Object          *unstructured.Unstructured `json:"object"`
	}
	if err := json.Unmarshal(content, &answer); err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", pathAdmit, err)
	}
	outcome := &admissionv1.Outcome{}
	if err := read(pathAdmit, answer.Outcome, outcome); err != nil {
		return nil, err
	}
	return &admitted{outcome: outcome, asked: answer.DefaultedObject, object: answer.Object}, nil
}

// attributes describe the request that is asked about, as the gateway would for one
// with dryRun=All. It knows itself which other resources hold the same objects.
func (a *admission) attributes(info *resource.Info, operation string, object, old *unstructured.Unstructured) (*admissionv1.Attributes, error) {
	gvk, gvr := info.Mapping.GroupVersionKind, info.Mapping.Resource
	attributes := &admissionv1.Attributes{
		Operation: operations[operation],
		Kind:      kindOf(gvk),
		Resource:  resourceOf(gvr),
		Namespace: info.Namespace,
		Name:      info.Name,
		DryRun:    true,
		User:      a.user,
	}
	if gvr.GroupResource() == (schema.GroupResource{Resource: "namespaces"}) {
		// As the API server has it: a namespace is in itself.
		attributes.Namespace = info.Name
	}
	var err error
	if attributes.Options, err = optionsOf(operation); err != nil {
		return nil, err
	}
	if operation != operationDelete {
		if attributes.Object, err = encode(object); err != nil {
			return nil, err
		}
	}
	if old != nil {
		if attributes.OldObject, err = encode(old); err != nil {
			return nil, err
		}
	}
	return attributes, nil
}

// optionsOf are the options of the request.
func optionsOf(operation string) (*admissionv1.Object, error) {
	kind := strings.ToUpper(operation[:1]) + operation[1:] + "Options"
	options := &unstructured.Unstructured{Object: map[string]any{"dryRun": []any{metav1.DryRunAll}}}
	options.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
	if operation != operationDelete {
		options.Object["fieldManager"] = fieldManager
	}
	return encode(options)
}

// encode makes a message of an object.
func encode(object *unstructured.Unstructured) (*admissionv1.Object, error) {
	content, err := runtime.Encode(unstructured.UnstructuredJSONScheme, object)
	if err != nil {
		return nil, err
	}
	return &admissionv1.Object{
		Kind: kindOf(object.GroupVersionKind()), Encoding: admissionv1.Encoding_ENCODING_JSON, Data: content,
	}, nil
}

func kindOf(gvk schema.GroupVersionKind) *admissionv1.GroupVersionKind {
	return &admissionv1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
}

func resourceOf(gvr schema.GroupVersionResource) *admissionv1.GroupVersionResource {
	return &admissionv1.GroupVersionResource{Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource}
}
