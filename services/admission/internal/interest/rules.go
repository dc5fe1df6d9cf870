package interest

import (
	"slices"
	"unicode/utf8"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
)

// What a webhook or a policy is not interested in by its selectors, conditions and names
// of resources is left aside: to know that takes the object, which is what the call is
// for.

func validatingWebhookRules(c *admissionregistrationv1.ValidatingWebhookConfiguration) []*admissionv1.InterestRule {
	var rules []*admissionv1.InterestRule
	for i := range c.Webhooks {
		webhook := &c.Webhooks[i]
		rules = append(rules, rulesOf(validatingWebhook, c.Name, webhook.Rules, webhook.MatchPolicy)...)
	}
	return rules
}

func mutatingWebhookRules(c *admissionregistrationv1.MutatingWebhookConfiguration) []*admissionv1.InterestRule {
	var rules []*admissionv1.InterestRule
	for i := range c.Webhooks {
		webhook := &c.Webhooks[i]
		rules = append(rules, rulesOf(mutatingWebhook, c.Name, webhook.Rules, webhook.MatchPolicy)...)
	}
	return rules
}

func validatingPolicyRules(p *admissionregistrationv1.ValidatingAdmissionPolicy) []*admissionv1.InterestRule {
	return policyRules(validatingPolicy, p.Name, p.Spec.MatchConstraints)
}

func mutatingPolicyRules(p *admissionregistrationv1.MutatingAdmissionPolicy) []*admissionv1.InterestRule {
	return policyRules(mutatingPolicy, p.Name, p.Spec.MatchConstraints)
}

// policyRules are those of a policy, bound or not: a binding only narrows them. One
// without rules matches everything.
func policyRules(plugin, name string, match *admissionregistrationv1.MatchResources) []*admissionv1.InterestRule {
	if match == nil || len(match.ResourceRules) == 0 {
		return []*admissionv1.InterestRule{everything(plugin, printable(name))}
	}
	rules := make([]admissionregistrationv1.RuleWithOperations, 0, len(match.ResourceRules))
	for i := range match.ResourceRules {
		rules = append(rules, match.ResourceRules[i].RuleWithOperations)
	}
	return rulesOf(plugin, name, rules, match.MatchPolicy)
}

func rulesOf(plugin, name string, from []admissionregistrationv1.RuleWithOperations, match *admissionregistrationv1.MatchPolicyType) []*admissionv1.InterestRule {
	rules := make([]*admissionv1.InterestRule, 0, len(from))
	for i := range from {
		rule := &admissionv1.InterestRule{
			Plugin: plugin, Source: printable(name),
			Operations: operationsOf(from[i].Operations),
			ApiGroups:  from[i].APIGroups, ApiVersions: from[i].APIVersions, Resources: from[i].Resources,
			Scope:       scopeOf(from[i].Scope),
			Equivalents: match == nil || *match != admissionregistrationv1.Exact,
		}
		if !sendable(rule) {
			rule = everything(plugin, printable(name))
		}
		rules = append(rules, rule)
	}
	return rules
}

// operationsOf returns none, which is all, if not each of them is known.
func operationsOf(from []admissionregistrationv1.OperationType) []admissionv1.Operation {
	var operations []admissionv1.Operation
	for _, operation := range from {
		m := convert.EncodeOperation(admission.Operation(operation))
		if m == admissionv1.Operation_OPERATION_UNSPECIFIED {
			return nil
		}
		operations = append(operations, m)
	}
	return operations
}

func scopeOf(scope *admissionregistrationv1.ScopeType) admissionv1.Scope {
	switch {
	case scope == nil:
	case *scope == admissionregistrationv1.NamespacedScope:
		return admissionv1.Scope_SCOPE_NAMESPACED
	case *scope == admissionregistrationv1.ClusterScope:
		return admissionv1.Scope_SCOPE_CLUSTER
	}
	return admissionv1.Scope_SCOPE_UNSPECIFIED
}

// sendable returns whether a message can carry the rule's texts.
func sendable(rule *admissionv1.InterestRule) bool {
	for _, texts := range [][]string{rule.GetApiGroups(), rule.GetApiVersions(), rule.GetResources()} {
		if slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) }) {
			return false
		}
	}
	return true
}

// printable returns a name, or what stands for one that no message can carry.
func printable(name string) string {
	if !utf8.ValidString(name) {
		return "an object with an unreadable name"
	}
	return name
}

// quotaUpdates are the resources whose updates may use more of a quota. Of all others
// only the creation does.
var quotaUpdates = map[string][]string{
	"":                {"pods", "pods/resize", "services", "persistentvolumeclaims", "persistentvolumeclaims/status"},
	"resource.k8s.io": {"resourceclaims"},
}

// quotaRules are those for the namespaces that have a quota; for all namespaces if
// there are none given.
func quotaRules(namespaces []string) []*admissionv1.InterestRule {
	rule := func(operation admissionv1.Operation, group string, resources []string) *admissionv1.InterestRule {
		return &admissionv1.InterestRule{
			Plugin: resourceQuota, Operations: []admissionv1.Operation{operation},
			ApiGroups: []string{group}, ApiVersions: []string{wildcard}, Resources: resources,
			Scope: admissionv1.Scope_SCOPE_NAMESPACED, Namespaces: namespaces,
		}
	}
	return []*admissionv1.InterestRule{
		rule(admissionv1.Operation_OPERATION_CREATE, wildcard, all),
		rule(admissionv1.Operation_OPERATION_UPDATE, "", quotaUpdates[""]),
		rule(admissionv1.Operation_OPERATION_UPDATE, "resource.k8s.io", quotaUpdates["resource.k8s.io"]),
	}
}
