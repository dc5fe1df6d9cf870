package client

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// InterestUpdate is one message of WatchInterest.
type InterestUpdate struct {
	// Interest is what is of interest now. Nil: what the message before said.
	Interest *Interest
	// Position is up to where the service has read: all changes up to it are in the
	// interest.
	Position InterestPositions
	// Changed has the last object of each resource that the service has read.
	Changed InterestPositions
	// Following is true if the service sees changes as they happen.
	Following bool
}

// InterestPositions are the resourceVersions up to which each resource that interest
// depends on was read.
type InterestPositions struct {
	// MutatingWebhooks and ValidatingWebhooks are configurations of webhooks.
	MutatingWebhooks, ValidatingWebhooks uint64
	// MutatingPolicies and ValidatingPolicies are admission policies.
	MutatingPolicies, ValidatingPolicies uint64
	// Quotas are resource quotas, of all namespaces.
	Quotas uint64
}

// Interest is what plugins, webhooks and policies could act on.
type Interest struct {
	// Mutating and Validating are the rules for the two methods.
	Mutating, Validating []InterestRule
	// NamespaceLifecycle is true if that plugin is enabled, which is in no rule.
	NamespaceLifecycle bool
}

// InterestRule is what one of them could act on: what meets all that it says.
type InterestRule struct {
	admissionregistrationv1.RuleWithOperations
	// Namespaces are those of the request. Nil: any, and none.
	Namespaces sets.Set[string]
	// UserGroups has a group of the user. Nil: any user.
	UserGroups sets.Set[string]
	// NamespaceLabelPrefix is what the key of a label of the request's namespace begins
	// with. Empty: any namespace, and none.
	NamespaceLabelPrefix string
	// Settled is true if Admit can tell what the plugin will say of a new object.
	Settled bool
	// Equivalents is true if a resource with the same objects may meet it, too.
	Equivalents bool
}

// WatchInterest hands what is of interest to handle, in order: all of it first, then at
// each change, and every half second at least. It returns, with a reason, when the stream or
// ctx ends.
func (c *Client) WatchInterest(ctx context.Context, handle func(InterestUpdate)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream if handle panics
	stream, err := c.stub.WatchInterest(ctx, &admissionv1.WatchInterestRequest{})
	if err != nil {
		return rpcerr.FromStatus(err, hop)
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		handle(InterestUpdate{
			Interest:  interestFromProto(message.GetInterest()),
			Position:  positionsFromProto(message.GetPosition()),
			Changed:   positionsFromProto(message.GetChanged()),
			Following: message.GetFollowing(),
		})
	}
}

func positionsFromProto(m *admissionv1.InterestPositions) InterestPositions {
	return InterestPositions{
		MutatingWebhooks:   m.GetMutatingWebhookConfigurations(),
		ValidatingWebhooks: m.GetValidatingWebhookConfigurations(),
		MutatingPolicies:   m.GetMutatingAdmissionPolicies(),
		ValidatingPolicies: m.GetValidatingAdmissionPolicies(),
		Quotas:             m.GetResourceQuotas(),
	}
}

func interestFromProto(m *admissionv1.Interest) *Interest {
	if m == nil {
		return nil
	}
	return &Interest{
		Mutating:           interestRulesFromProto(m.GetMutating()),
		Validating:         interestRulesFromProto(m.GetValidating()),
		NamespaceLifecycle: m.GetNamespaceLifecycle(),
	}
}

func interestRulesFromProto(messages []*admissionv1.InterestRule) []InterestRule {
	rules := make([]InterestRule, 0, len(messages))
	for _, m := range messages {
		rules = append(rules, interestRuleFromProto(m))
	}
	return rules
}

func interestRuleFromProto(m *admissionv1.InterestRule) InterestRule {
	rule := InterestRule{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: interestOperationsFromProto(m.GetOperations()),
			Rule: admissionregistrationv1.Rule{
				APIGroups: m.GetApiGroups(), APIVersions: m.GetApiVersions(), Resources: m.GetResources(),
				Scope: interestScopeFromProto(m.GetScope()),
			},
		},
		NamespaceLabelPrefix: m.GetNamespaceLabelPrefix(),
		Settled:              m.GetSettled(),
		Equivalents:          m.GetEquivalents(),
	}
	if len(m.GetNamespaces()) > 0 {
		rule.Namespaces = sets.New(m.GetNamespaces()...)
	}
	if len(m.GetUserGroups()) > 0 {
		rule.UserGroups = sets.New(m.GetUserGroups()...)
	}
	return rule
}

// interestOperationsFromProto takes what it does not know for all operations: a service
// that is newer may know more.
func interestOperationsFromProto(messages []admissionv1.Operation) []admissionregistrationv1.OperationType {
	every := []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
	if len(messages) == 0 {
		return every
	}
	operations := make([]admissionregistrationv1.OperationType, 0, len(messages))
	for _, m := range messages {
		operation, ok := convert.DecodeOperation(m)
		if !ok {
			return every
		}
		operations = append(operations, admissionregistrationv1.OperationType(operation))
	}
	return operations
}

func interestScopeFromProto(m admissionv1.Scope) *admissionregistrationv1.ScopeType {
	scope := admissionregistrationv1.AllScopes
	switch m {
	case admissionv1.Scope_SCOPE_NAMESPACED:
		scope = admissionregistrationv1.NamespacedScope
	case admissionv1.Scope_SCOPE_CLUSTER:
		scope = admissionregistrationv1.ClusterScope
	}
	return &scope
}
