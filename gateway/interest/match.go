package interest

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"

	admissionclient "github.com/trigate/trigate/services/admission/client"
)

// intelligible returns whether the request can be held against rules.
func intelligible(a admission.Attributes, o admission.ObjectInterfaces) bool {
	switch a.GetOperation() {
	case admission.Create, admission.Update, admission.Delete, admission.Connect:
	default:
		return false
	}
	resource := a.GetResource()
	return resource.Resource != "" && resource.Version != "" && o != nil && o.GetEquivalentResourceMapper() != nil
}

// matchRules returns nobody if none of the rules matches the request, ahead if each that
// does is settled, else interested. Upstream's matcher decides; what it does not have are
// namespaces and their labels, users, and the other resources that hold the same objects.
func matchRules(all []admissionclient.InterestRule, a admission.Attributes, o admission.ObjectInterfaces, namespaces *Namespaces) verdict {
	equivalents, found := equivalents{attributes: a, objects: o}, nobody
	for i := range all {
		rule := &all[i]
		switch {
		case rule.Namespaces != nil && !rule.Namespaces.Has(a.GetNamespace()):
		case rule.UserGroups != nil && !inGroup(rule, a):
		case found == ahead && rule.Settled:
		case !matches(rule, a) && (!rule.Equivalents || !equivalents.match(rule)):
		case rule.NamespaceLabelPrefix != "" && !namespaces.mayHaveLabel(a.GetNamespace(), rule.NamespaceLabelPrefix):
		case rule.Settled:
			found = ahead
		default:
			return interested
		}
	}
	return found
}

func matches(rule *admissionclient.InterestRule, a admission.Attributes) bool {
	matcher := rules.Matcher{Rule: rule.RuleWithOperations, Attr: a}
	return matcher.Matches()
}

// inGroup returns whether the user is in one of the rule's groups. Who is not known may
// be in any.
func inGroup(rule *admissionclient.InterestRule, a admission.Attributes) bool {
	user := a.GetUserInfo()
	return user == nil || slices.ContainsFunc(user.GetGroups(), rule.UserGroups.Has)
}

// equivalents are the other resources that hold the request's objects. They are looked
// up when they are needed.
type equivalents struct {
	attributes admission.Attributes
	objects    admission.ObjectInterfaces
	known      bool
	requests   []admission.Attributes
}

func (e *equivalents) match(rule *admissionclient.InterestRule) bool {
	if !e.known {
		e.known = true
		resource := e.attributes.GetResource()
		for _, other := range e.objects.GetEquivalentResourceMapper().EquivalentResourcesFor(resource, e.attributes.GetSubresource()) {
			if other != resource {
				e.requests = append(e.requests, &ofResource{Attributes: e.attributes, resource: other})
			}
		}
	}
	return slices.ContainsFunc(e.requests, func(a admission.Attributes) bool { return matches(rule, a) })
}

// ofResource is a request as if it were of another resource.
type ofResource struct {
	admission.Attributes
	resource schema.GroupVersionResource
}

// GetResource implements admission.Attributes.
func (o *ofResource) GetResource() schema.GroupVersionResource { return o.resource }
