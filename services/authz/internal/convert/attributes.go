// Package convert turns what Kubernetes' authorizers are asked and say into the
// messages of trigate.authz.v1, and back. The client and the server of the
// service use both directions.
//
// What the messages cannot tell apart is alike for every authorizer upstream:
// nil and empty lists, and errors with the same text.
package convert

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/identity"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// AttributesToProto returns the message for an action. A selector that does not
// parse may still have requirements: upstream's reviews drop the terms that
// they do not understand, and keep the others with the error.
func AttributesToProto(a authorizer.Attributes) *authzv1.Attributes {
	fieldTerms, fieldErr := a.GetFieldSelector()
	labelTerms, labelErr := a.GetLabelSelector()
	fieldError, labelError := ErrorText(fieldErr), ErrorText(labelErr)
	strs := make([]string, 0, 12)
	strs = append(strs, a.GetVerb(), a.GetNamespace(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(),
		a.GetSubresource(), a.GetName(), a.GetPath(), fieldError, labelError)
	strs = appendFieldTerms(strs, fieldTerms)
	strs = appendLabelTerms(strs, labelTerms)
	enc := identity.NewEncoder(strs...)
	return &authzv1.Attributes{
		User:               identity.ToProto(a.GetUser()),
		Verb:               enc.String(a.GetVerb()),
		ResourceRequest:    a.IsResourceRequest(),
		Namespace:          enc.String(a.GetNamespace()),
		ApiGroup:           enc.String(a.GetAPIGroup()),
		ApiVersion:         enc.String(a.GetAPIVersion()),
		Resource:           enc.String(a.GetResource()),
		Subresource:        enc.String(a.GetSubresource()),
		Name:               enc.String(a.GetName()),
		Path:               enc.String(a.GetPath()),
		FieldSelector:      fieldTermsToProto(enc, fieldTerms),
		FieldSelectorError: enc.String(fieldError),
		LabelSelector:      labelTermsToProto(enc, labelTerms),
		LabelSelectorError: enc.String(labelError),
		PercentEncoded:     enc.Encoded(),
	}
}

func appendFieldTerms(strs []string, terms fields.Requirements) []string {
	for _, term := range terms {
		strs = append(strs, term.Field, string(term.Operator), term.Value)
	}
	return strs
}

func appendLabelTerms(strs []string, terms labels.Requirements) []string {
	for _, term := range terms {
		strs = append(strs, term.Key(), string(term.Operator()))
		strs = append(strs, term.ValuesUnsorted()...)
	}
	return strs
}

func fieldTermsToProto(enc identity.Encoder, terms fields.Requirements) []*authzv1.FieldSelectorRequirement {
	if len(terms) == 0 {
		return nil
	}
	out := make([]*authzv1.FieldSelectorRequirement, 0, len(terms))
	for _, term := range terms {
		out = append(out, &authzv1.FieldSelectorRequirement{
			Field:    enc.String(term.Field),
			Operator: enc.String(string(term.Operator)),
			Value:    enc.String(term.Value),
		})
	}
	return out
}

func labelTermsToProto(enc identity.Encoder, terms labels.Requirements) []*authzv1.LabelSelectorRequirement {
	if len(terms) == 0 {
		return nil
	}
	out := make([]*authzv1.LabelSelectorRequirement, 0, len(terms))
	for _, term := range terms {
		out = append(out, &authzv1.LabelSelectorRequirement{
			Key:      enc.String(term.Key()),
			Operator: enc.String(string(term.Operator())),
			// In the caller's order, which webhooks and CEL conditions see.
			Values: enc.Strings(term.ValuesUnsorted()),
		})
	}
	return out
}

// AttributesFromProto returns the action that a message stands for. The field
// is where the message is in the request ("attributes"); an error is an
// InvalidArgument that names what in it is missing, too large, or cannot be
// read.
func AttributesFromProto(field string, m *authzv1.Attributes) (authorizer.AttributesRecord, error) {
	record, err := ActionFromProto(field, m)
	if err != nil {
		return authorizer.AttributesRecord{}, err
	}
	if record.User, err = UserFromProto(field+".user", m.GetUser()); err != nil {
		return authorizer.AttributesRecord{}, err
	}
	return record, nil
}

// ActionFromProto returns the action that a message stands for as
// AttributesFromProto does, and leaves out who wants to act.
func ActionFromProto(field string, m *authzv1.Attributes) (authorizer.AttributesRecord, error) {
	if m == nil {
		return authorizer.AttributesRecord{}, rpcerr.InvalidArgument(field, "is required")
	}
	r := newReader(m.GetPercentEncoded())
	record := authorizer.AttributesRecord{
		Verb:                      r.string(field, ".verb", m.GetVerb()),
		ResourceRequest:           m.GetResourceRequest(),
		Namespace:                 r.string(field, ".namespace", m.GetNamespace()),
		APIGroup:                  r.string(field, ".api_group", m.GetApiGroup()),
		APIVersion:                r.string(field, ".api_version", m.GetApiVersion()),
		Resource:                  r.string(field, ".resource", m.GetResource()),
		Subresource:               r.string(field, ".subresource", m.GetSubresource()),
		Name:                      r.string(field, ".name", m.GetName()),
		Path:                      r.string(field, ".path", m.GetPath()),
		FieldSelectorRequirements: r.fieldTerms(field, m.GetFieldSelector()),
		FieldSelectorParsingErr:   ErrorOf(r.string(field, ".field_selector_error", m.GetFieldSelectorError())),
		LabelSelectorRequirements: r.labelTerms(field, m.GetLabelSelector()),
		LabelSelectorParsingErr:   ErrorOf(r.string(field, ".label_selector_error", m.GetLabelSelectorError())),
	}
	if err := r.failure(); err != nil {
		return authorizer.AttributesRecord{}, err
	}
	return record, nil
}

func (r *reader) fieldTerms(parent string, terms []*authzv1.FieldSelectorRequirement) fields.Requirements {
	if len(terms) == 0 {
		return nil
	}
	field := parent + ".field_selector"
	if !r.count(field, len(terms)) {
		return nil
	}
	out := make(fields.Requirements, 0, len(terms))
	for i, term := range terms {
		at := fmt.Sprintf("%s[%d]", field, i)
		operator := selection.Operator(r.string(at, ".operator", term.GetOperator()))
		if !knownOperators[operator] {
			r.fail(at+".operator", "%q is no operator", operator)
		}
		out = append(out, fields.Requirement{
			Field:    r.string(at, ".field", term.GetField()),
			Operator: operator,
			Value:    r.string(at, ".value", term.GetValue()),
		})
	}
	return out
}

// knownOperators are all that k8s.io/apimachinery has. Upstream's authorizers
// ignore terms that they do not know, which no caller of ours can mean.
var knownOperators = map[selection.Operator]bool{
	selection.DoesNotExist: true, selection.Equals: true, selection.DoubleEquals: true, selection.In: true,
	selection.NotEquals: true, selection.NotIn: true, selection.Exists: true, selection.GreaterThan: true,
	selection.LessThan: true,
}

func (r *reader) labelTerms(parent string, terms []*authzv1.LabelSelectorRequirement) labels.Requirements {
	if len(terms) == 0 {
		return nil
	}
	field := parent + ".label_selector"
	if !r.count(field, len(terms)) {
		return nil
	}
	out := make(labels.Requirements, 0, len(terms))
	for i, term := range terms {
		at := fmt.Sprintf("%s[%d]", field, i)
		requirement, err := labels.NewRequirement(
			r.string(at, ".key", term.GetKey()),
			selection.Operator(r.string(at, ".operator", term.GetOperator())),
			r.strings(at+".values", term.GetValues()),
		)
		if err != nil {
			r.fail(at, "%v", err)
			return nil
		}
		out = append(out, *requirement)
	}
	return out
}

// ErrorText returns an error's text, never empty for an error: an error
// without a text must not become no error on the way.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	if text := err.Error(); text != "" {
		return text
	}
	return "unknown error"
}

// ErrorOf returns an error with a text, and nil for none.
func ErrorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
