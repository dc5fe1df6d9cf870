package convert

import (
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/identity"
)

// Rules are what a rule resolver returns.
type Rules struct {
	// Resource are the rules on resources.
	Resource []authorizer.ResourceRuleInfo
	// NonResource are the rules on paths.
	NonResource []authorizer.NonResourceRuleInfo
	// Incomplete is whether there may be more.
	Incomplete bool
	// Err is what went wrong while collecting.
	Err error
}

// RulesRequestToProto returns the message that asks for a user's rules.
func RulesRequestToProto(u user.Info, namespace string) *authzv1.ListRulesRequest {
	enc := identity.NewEncoder(namespace)
	return &authzv1.ListRulesRequest{
		User:           identity.ToProto(u),
		Namespace:      enc.String(namespace),
		PercentEncoded: enc.Encoded(),
	}
}

// RulesRequestFromProto returns whose rules a message asks for, and where. An
// error is an InvalidArgument that names the field.
func RulesRequestFromProto(m *authzv1.ListRulesRequest) (user.Info, string, error) {
	r := newReader(m.GetPercentEncoded())
	namespace := r.string("", "namespace", m.GetNamespace())
	if err := r.failure(); err != nil {
		return nil, "", err
	}
	u, err := UserFromProto("user", m.GetUser())
	if err != nil {
		return nil, "", err
	}
	return u, namespace, nil
}

// RulesToProto returns the message for rules.
func RulesToProto(rules Rules) *authzv1.ListRulesResponse {
	strs := []string{ErrorText(rules.Err)}
	for _, rule := range rules.Resource {
		strs = append(strs, rule.GetVerbs()...)
		strs = append(strs, rule.GetAPIGroups()...)
		strs = append(strs, rule.GetResources()...)
		strs = append(strs, rule.GetResourceNames()...)
	}
	for _, rule := range rules.NonResource {
		strs = append(strs, rule.GetVerbs()...)
		strs = append(strs, rule.GetNonResourceURLs()...)
	}
	enc := identity.NewEncoder(strs...)
	m := &authzv1.ListRulesResponse{
		Incomplete:     rules.Incomplete,
		Error:          enc.String(ErrorText(rules.Err)),
		PercentEncoded: enc.Encoded(),
	}
	for _, rule := range rules.Resource {
		m.ResourceRules = append(m.ResourceRules, &authzv1.ResourceRule{
			Verbs:         enc.Strings(rule.GetVerbs()),
			ApiGroups:     enc.Strings(rule.GetAPIGroups()),
			Resources:     enc.Strings(rule.GetResources()),
			ResourceNames: enc.Strings(rule.GetResourceNames()),
		})
	}
	for _, rule := range rules.NonResource {
		m.NonResourceRules = append(m.NonResourceRules, &authzv1.NonResourceRule{
			Verbs:           enc.Strings(rule.GetVerbs()),
			NonResourceUrls: enc.Strings(rule.GetNonResourceURLs()),
		})
	}
	return m
}

// RulesFromProto returns the rules that a message stands for, or an error if
// it cannot be read.
func RulesFromProto(m *authzv1.ListRulesResponse) (Rules, error) {
	dec := identity.NewDecoder(m.GetPercentEncoded())
	rules := Rules{
		Incomplete: m.GetIncomplete(),
		Err:        ErrorOf(dec.String("error", m.GetError())),
	}
	for _, rule := range m.GetResourceRules() {
		rules.Resource = append(rules.Resource, &authorizer.DefaultResourceRuleInfo{
			Verbs:         dec.Strings("resource_rules.verbs", rule.GetVerbs()),
			APIGroups:     dec.Strings("resource_rules.api_groups", rule.GetApiGroups()),
			Resources:     dec.Strings("resource_rules.resources", rule.GetResources()),
			ResourceNames: dec.Strings("resource_rules.resource_names", rule.GetResourceNames()),
		})
	}
	for _, rule := range m.GetNonResourceRules() {
		rules.NonResource = append(rules.NonResource, &authorizer.DefaultNonResourceRuleInfo{
			Verbs:           dec.Strings("non_resource_rules.verbs", rule.GetVerbs()),
			NonResourceURLs: dec.Strings("non_resource_rules.non_resource_urls", rule.GetNonResourceUrls()),
		})
	}
	return rules, dec.Err()
}
