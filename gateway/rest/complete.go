package rest

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	authnclient "github.com/trigate/trigate/services/authn/client"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// complete fills in what a person leaves out of a question. An error is a *fieldError.
func (h *Handler) complete(caller user.Info, m proto.Message, given fields) error {
	switch m := m.(type) {
	case *authzv1.AuthorizeRequest:
		h.completeQuestion(caller, m)
	case *authzv1.BatchAuthorizeRequest:
		return h.completeBatch(caller, m)
	case *authzv1.ExplainRequest:
		completeAction(m.GetAttributes())
		completeUser(caller, m.GetAttributes())
		m.AtLeastAsFreshAs = h.fresh(m.GetAtLeastAsFreshAs())
	case *authzv1.WhoCanRequest:
		completeAction(m.GetAttributes())
		m.AtLeastAsFreshAs = h.fresh(m.GetAtLeastAsFreshAs())
	case *authzv1.ListRulesRequest:
		if m.GetUser() == nil {
			m.User = userOf(caller)
		}
		m.AtLeastAsFreshAs = h.fresh(m.GetAtLeastAsFreshAs())
	case *admissionv1.AdmitRequest:
		m.AuthorizeAtLeastAsFreshAs = h.fresh(nil) // Only what a gateway knows counts there.
		return h.completeAdmission(caller, m.GetAttributes(), given)
	case *admissionv1.ValidateRequest:
		m.AuthorizeAtLeastAsFreshAs = h.fresh(nil)
		return h.completeAdmission(caller, m.GetAttributes(), given)
	}
	return nil
}

func userOf(caller user.Info) *authnv1.UserInfo { return authnclient.UserToProto(caller) }

// fresh returns what an answer has to have seen: what the question asks for, and what
// this gateway knows of.
func (h *Handler) fresh(asked *authzv1.PolicyRevision) *authzv1.PolicyRevision {
	return authzclient.RevisionFromProto(asked).Union(h.cfg.Known()).ToProto()
}

func (h *Handler) completeQuestion(caller user.Info, m *authzv1.AuthorizeRequest) {
	completeAction(m.GetAttributes())
	completeUser(caller, m.GetAttributes())
	m.AtLeastAsFreshAs = h.fresh(m.GetAtLeastAsFreshAs())
}

// maxQuestions is how many questions the gate takes at once.
const maxQuestions = 1_000

// completeBatch takes the caller for whom the questions are about that name nobody.
func (h *Handler) completeBatch(caller user.Info, m *authzv1.BatchAuthorizeRequest) error {
	if n := len(m.GetQuestions()); n > maxQuestions {
		return &fieldError{field: "questions", reason: fmt.Sprintf("has %d items, at most %d are accepted", n, maxQuestions), cause: metav1.CauseTypeTooMany}
	}
	if m.GetUser() == nil {
		m.User = userOf(caller)
	}
	for _, question := range m.GetQuestions() {
		completeAction(question.GetAttributes())
		question.AtLeastAsFreshAs = h.fresh(question.GetAtLeastAsFreshAs())
	}
	if actions := m.GetActions(); actions != nil {
		actions.AtLeastAsFreshAs = h.fresh(actions.GetAtLeastAsFreshAs())
	}
	return nil
}

// completeAction takes an action on a resource for a request to the API.
func completeAction(a *authzv1.Attributes) {
	if a.GetResource() != "" && a.GetPath() == "" {
		a.ResourceRequest = true
	}
}

// completeUser takes the caller for the user if none is given.
func completeUser(caller user.Info, a *authzv1.Attributes) {
	if a != nil && a.GetUser() == nil {
		a.User = userOf(caller)
	}
}

// completeAdmission takes from the object what the question does not say. Without a word
// on it, nothing is created but for trial.
func (h *Handler) completeAdmission(caller user.Info, a *admissionv1.Attributes, given fields) error {
	if a == nil {
		return nil // The gate says what is missing.
	}
	if a.GetOperation() == admissionv1.Operation_OPERATION_UNSPECIFIED {
		a.Operation = admissionv1.Operation_OPERATION_CREATE
	}
	if !given["attributes.dry_run"] {
		a.DryRun = true
	}
	if a.GetUser() == nil {
		a.User = userOf(caller)
	}
	name, object := "object", a.GetObject()
	if object == nil {
		name, object = "oldObject", a.GetOldObject()
	}
	if object == nil || a.GetOperation() == admissionv1.Operation_OPERATION_CONNECT {
		return nil // What is connected with are options.
	}
	if a.GetKind() == nil {
		a.Kind = object.GetKind()
	}
	var head struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if object.GetEncoding() == admissionv1.Encoding_ENCODING_JSON {
		if err := json.Unmarshal(object.GetData(), &head); err != nil {
			return &fieldError{field: "attributes." + name + ".metadata", reason: "is not the metadata of an object"}
		}
	}
	if a.GetName() == "" {
		a.Name = head.Metadata.Name
	}
	if a.GetNamespace() == "" {
		a.Namespace = head.Metadata.Namespace
	}
	if err := h.completeResource(a, "attributes."+name); err != nil {
		return err
	}
	if err := completeNamespace(a); err != nil {
		return err
	}
	if err := h.setDefaults(a.GetObject(), "attributes.object"); err != nil {
		return err
	}
	return h.setDefaults(a.GetOldObject(), "attributes.oldObject")
}

// completeResource finds the resource of the object's kind, and those that hold the same
// objects.
func (h *Handler) completeResource(a *admissionv1.Attributes, field string) error {
	kind := schema.GroupVersionKind{Group: a.GetKind().GetGroup(), Version: a.GetKind().GetVersion(), Kind: a.GetKind().GetKind()}
	if a.GetResource() == nil {
		mapping, err := h.cfg.Kinds.RESTMapping(kind.GroupKind(), kind.Version)
		switch {
		case meta.IsNoMatchError(err):
			return &fieldError{
				field: field + ".kind", cause: metav1.CauseTypeFieldValueNotFound,
				reason: fmt.Sprintf("the server has no resource of the kind %s in %s", kind.Kind, kind.GroupVersion()),
			}
		case err != nil:
			return fmt.Errorf("finding the resource of %s: %w", kind, err)
		}
		a.Resource = resourceToProto(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameRoot {
			a.Namespace = ""
		} else if a.GetNamespace() == "" {
			a.Namespace = metav1.NamespaceDefault
		}
	}
	if len(a.GetEquivalents()) > 0 {
		return nil
	}
	resource := schema.GroupVersionResource{
		Group: a.GetResource().GetGroup(), Version: a.GetResource().GetVersion(), Resource: a.GetResource().GetResource(),
	}
	for _, other := range h.cfg.Equivalents.EquivalentResourcesFor(resource, a.GetSubresource()) {
		a.Equivalents = append(a.Equivalents, &admissionv1.EquivalentResource{
			Resource: resourceToProto(other),
			Kind:     kindToProto(h.cfg.Equivalents.KindFor(other, a.GetSubresource())),
		})
	}
	return nil
}

// completeNamespace puts the namespace into an object that is created without one, as the
// API server does before admission.
func completeNamespace(a *admissionv1.Attributes) error {
	object := a.GetObject()
	if a.GetNamespace() == "" || a.GetSubresource() != "" || object.GetEncoding() != admissionv1.Encoding_ENCODING_JSON {
		return nil
	}
	var members, metadata map[string]json.RawMessage
	if err := json.Unmarshal(object.GetData(), &members); err != nil || members == nil {
		return &fieldError{field: "attributes.object", reason: "has to be an object"}
	}
	if raw, ok := members["metadata"]; ok && json.Unmarshal(raw, &metadata) != nil {
		return &fieldError{field: "attributes.object.metadata", reason: "has to be an object"}
	}
	if _, ok := metadata["namespace"]; ok {
		return nil
	}
	if metadata == nil {
		metadata = map[string]json.RawMessage{}
	}
	var err error
	if metadata["namespace"], err = json.Marshal(a.GetNamespace()); err != nil {
		return err
	}
	if members["metadata"], err = json.Marshal(metadata); err != nil {
		return err
	}
	object.Data, err = json.Marshal(members)
	return err
}

func resourceToProto(r schema.GroupVersionResource) *admissionv1.GroupVersionResource {
	return &admissionv1.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}

func kindToProto(k schema.GroupVersionKind) *admissionv1.GroupVersionKind {
	return &admissionv1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}
