package convert

import (
	rbacv1 "k8s.io/api/rbac/v1"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/identity"
)

// Explanation is a decision with the way to it.
type Explanation struct {
	// Answer is what the chain said.
	Answer Say
	// Authorizers are what each authorizer said, in their order up to the one that
	// decided.
	Authorizers []Say
	// Grant is the path by which RBAC allowed the action. Nil if it did not.
	Grant *Grant
	// DecidedBy says what decided if it was not RBAC. Empty if RBAC allowed the
	// action, or nobody decided.
	DecidedBy string
	// NearMisses are the rules that fall short in one respect only, nearest first.
	NearMisses []NearMiss
	// Errors are about roles that the user's bindings name and that cannot be read.
	Errors []string
}

// Grant is the path from a subject to a rule.
type Grant struct {
	// Subject is the subject, as the binding has it.
	Subject rbacv1.Subject
	// Binding is the binding.
	Binding ObjectName
	// Role is the role.
	Role ObjectName
	// Rule is the rule, and RuleIndex its place in the role.
	Rule      rbacv1.PolicyRule
	RuleIndex int
}

// ObjectName names an RBAC object. The namespace of cluster-scoped ones is empty.
type ObjectName struct{ Kind, Namespace, Name string }

// NearMiss is a rule that falls short of an action in one respect.
type NearMiss struct {
	// Grant is the path to the rule.
	Grant Grant
	// Dimension is the respect.
	Dimension authzv1.Dimension
}

// Subjects are a page of those who may do something.
type Subjects struct {
	// Grants are the subjects, each with the way to it.
	Grants []Grant
	// NextPageToken asks for the next page. Empty if this is the last.
	NextPageToken string
	// NotListedBy are the authorizers that cannot tell whom they allow.
	NotListedBy []string
	// Errors are about roles that bindings name and that cannot be read.
	Errors []string
}

// ExplanationToProto returns the message for an explanation. The answer in it is
// a message that there is already, so that it is the same as Authorize gives.
func ExplanationToProto(answer *authzv1.AuthorizeResponse, x Explanation) *authzv1.ExplainResponse {
	strs := append([]string{x.DecidedBy}, x.Errors...)
	if x.Grant != nil {
		strs = appendGrant(strs, *x.Grant)
	}
	for _, miss := range x.NearMisses {
		strs = appendGrant(strs, miss.Grant)
	}
	enc := identity.NewEncoder(strs...)
	m := &authzv1.ExplainResponse{
		Answer:         answer,
		DecidedBy:      enc.String(x.DecidedBy),
		Errors:         enc.Strings(x.Errors),
		PercentEncoded: enc.Encoded(),
	}
	if x.Grant != nil {
		m.Grant = grantToProto(enc, *x.Grant)
	}
	for _, miss := range x.NearMisses {
		m.NearMisses = append(m.NearMisses, &authzv1.NearMiss{Grant: grantToProto(enc, miss.Grant), Dimension: miss.Dimension})
	}
	return m
}

// ExplanationFromProto returns the explanation that a message stands for, or an
// error if it cannot be read.
func ExplanationFromProto(m *authzv1.ExplainResponse) (Explanation, error) {
	answer, err := SayFromProto(m.GetAnswer())
	if err != nil {
		return Explanation{}, err
	}
	authorizers, err := authorizersFromProto(m.GetAnswer())
	if err != nil {
		return Explanation{}, err
	}
	dec := identity.NewDecoder(m.GetPercentEncoded())
	x := Explanation{
		Answer:      answer,
		Authorizers: authorizers,
		DecidedBy:   dec.String("decided_by", m.GetDecidedBy()),
		Errors:      dec.Strings("errors", m.GetErrors()),
	}
	if m.GetGrant() != nil {
		grant := grantFromProto(&dec, "grant", m.GetGrant())
		x.Grant = &grant
	}
	for _, miss := range m.GetNearMisses() {
		x.NearMisses = append(x.NearMisses, NearMiss{Grant: grantFromProto(&dec, "near_misses.grant", miss.GetGrant()), Dimension: miss.GetDimension()})
	}
	return x, dec.Err()
}

func authorizersFromProto(m *authzv1.AuthorizeResponse) ([]Say, error) {
	dec := identity.NewDecoder(m.GetPercentEncoded())
	var says []Say
	for _, authorizer := range m.GetAuthorizers() {
		decision, err := decisionFromProto(authorizer.GetDecision())
		if err != nil {
			return nil, err
		}
		says = append(says, Say{
			Name:     dec.String("authorizers.name", authorizer.GetName()),
			Decision: decision,
			Reason:   dec.String("authorizers.reason", authorizer.GetReason()),
			Err:      ErrorOf(dec.String("authorizers.error", authorizer.GetError())),
		})
	}
	return says, dec.Err()
}

// SubjectsToProto returns the message for a page of subjects.
func SubjectsToProto(s Subjects) *authzv1.WhoCanResponse {
	var strs []string
	strs = append(strs, s.NotListedBy...)
	strs = append(strs, s.Errors...)
	for _, grant := range s.Grants {
		strs = appendGrant(strs, grant)
	}
	enc := identity.NewEncoder(strs...)
	m := &authzv1.WhoCanResponse{
		NextPageToken:  s.NextPageToken,
		NotListedBy:    enc.Strings(s.NotListedBy),
		Errors:         enc.Strings(s.Errors),
		PercentEncoded: enc.Encoded(),
	}
	for _, grant := range s.Grants {
		m.Grants = append(m.Grants, grantToProto(enc, grant))
	}
	return m
}

// SubjectsFromProto returns the page that a message stands for, or an error if
// it cannot be read.
func SubjectsFromProto(m *authzv1.WhoCanResponse) (Subjects, error) {
	dec := identity.NewDecoder(m.GetPercentEncoded())
	s := Subjects{
		NextPageToken: m.GetNextPageToken(),
		NotListedBy:   dec.Strings("not_listed_by", m.GetNotListedBy()),
		Errors:        dec.Strings("errors", m.GetErrors()),
	}
	for _, grant := range m.GetGrants() {
		s.Grants = append(s.Grants, grantFromProto(&dec, "grants", grant))
	}
	return s, dec.Err()
}

func appendGrant(strs []string, g Grant) []string {
	strs = append(strs, g.Subject.Kind, g.Subject.APIGroup, g.Subject.Name, g.Subject.Namespace)
	for _, object := range []ObjectName{g.Binding, g.Role} {
		strs = append(strs, object.Kind, object.Namespace, object.Name)
	}
	for _, list := range [][]string{g.Rule.Verbs, g.Rule.APIGroups, g.Rule.Resources, g.Rule.ResourceNames, g.Rule.NonResourceURLs} {
		strs = append(strs, list...)
	}
	return strs
}

func grantToProto(enc identity.Encoder, g Grant) *authzv1.Grant {
	object := func(o ObjectName) *authzv1.ObjectName {
		return &authzv1.ObjectName{Kind: enc.String(o.Kind), Namespace: enc.String(o.Namespace), Name: enc.String(o.Name)}
	}
	return &authzv1.Grant{
		Subject: &authzv1.Subject{
			Kind:      enc.String(g.Subject.Kind),
			ApiGroup:  enc.String(g.Subject.APIGroup),
			Name:      enc.String(g.Subject.Name),
			Namespace: enc.String(g.Subject.Namespace),
		},
		Binding: object(g.Binding),
		Role:    object(g.Role),
		Rule: &authzv1.Rule{
			Verbs:           enc.Strings(g.Rule.Verbs),
			ApiGroups:       enc.Strings(g.Rule.APIGroups),
			Resources:       enc.Strings(g.Rule.Resources),
			ResourceNames:   enc.Strings(g.Rule.ResourceNames),
			NonResourceUrls: enc.Strings(g.Rule.NonResourceURLs),
		},
		RuleIndex: int32(g.RuleIndex),
	}
}

func grantFromProto(dec *identity.Decoder, field string, m *authzv1.Grant) Grant {
	object := func(field string, o *authzv1.ObjectName) ObjectName {
		return ObjectName{
			Kind:      dec.String(field+".kind", o.GetKind()),
			Namespace: dec.String(field+".namespace", o.GetNamespace()),
			Name:      dec.String(field+".name", o.GetName()),
		}
	}
	subject, rule := m.GetSubject(), m.GetRule()
	return Grant{
		Subject: rbacv1.Subject{
			Kind:      dec.String(field+".subject.kind", subject.GetKind()),
			APIGroup:  dec.String(field+".subject.api_group", subject.GetApiGroup()),
			Name:      dec.String(field+".subject.name", subject.GetName()),
			Namespace: dec.String(field+".subject.namespace", subject.GetNamespace()),
		},
		Binding: object(field+".binding", m.GetBinding()),
		Role:    object(field+".role", m.GetRole()),
		Rule: rbacv1.PolicyRule{
			Verbs:           dec.Strings(field+".rule.verbs", rule.GetVerbs()),
			APIGroups:       dec.Strings(field+".rule.api_groups", rule.GetApiGroups()),
			Resources:       dec.Strings(field+".rule.resources", rule.GetResources()),
			ResourceNames:   dec.Strings(field+".rule.resource_names", rule.GetResourceNames()),
			NonResourceURLs: dec.Strings(field+".rule.non_resource_urls", rule.GetNonResourceUrls()),
		},
		RuleIndex: int(m.GetRuleIndex()),
	}
}
