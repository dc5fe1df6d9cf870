package chain

import (
	"context"
	"strings"

	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/policy"
)

// named is one member of the chain: it records what the authorizer said.
type named struct {
	name string
	next authorizer.Authorizer
	// reuse returns which other questions the authorizer says the same of.
	reuse func(a authorizer.Attributes) authzv1.Reuse
}

var _ authorizer.Authorizer = named{}

// Authorize asks the authorizer.
func (n named) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.next.Authorize(ctx, a)
	if decision == authorizer.DecisionNoOpinion && reason != "" {
		// Upstream's union put the name before the reason, and will do so again.
		reason = strings.TrimPrefix(reason, n.name+": ")
	}
	sayingsFrom(ctx).record(n.name, decision, reason, err, n.reuse(a))
	return decision, reason, err
}

// ConditionsAwareAuthorize is not conditions-aware, as no message of ours is.
func (n named) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(n.Authorize(ctx, a))
}

// EvaluateConditions fails closed: there are no conditions to evaluate.
func (n named) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// reuseOf returns which other questions an authorizer of a type says the same of.
// What is not known to depend only on what all those questions have in common, as a
// webhook, is never reused.
func reuseOf(authorizerType authzconfig.AuthorizerType) func(authorizer.Attributes) authzv1.Reuse {
	switch string(authorizerType) {
	case modes.ModeNode:
		nodes := nodeidentifier.NewDefaultNodeIdentifier()
		return func(a authorizer.Attributes) authzv1.Reuse {
			if _, isNode := nodes.NodeIdentity(a.GetUser()); isNode {
				return authzv1.Reuse_REUSE_UNSPECIFIED // it depends on pods, volumes and claims
			}
			return authzv1.Reuse_REUSE_ANY_NAMESPACE
		}
	case modes.ModeABAC:
		return func(a authorizer.Attributes) authzv1.Reuse {
			if a.IsResourceRequest() {
				return authzv1.Reuse_REUSE_ANY_NAME
			}
			return authzv1.Reuse_REUSE_ANY_NAMESPACE
		}
	case modes.ModeAlwaysAllow, modes.ModeAlwaysDeny:
		return anyNamespace
	}
	return func(authorizer.Attributes) authzv1.Reuse { return authzv1.Reuse_REUSE_UNSPECIFIED }
}

func anyNamespace(authorizer.Attributes) authzv1.Reuse { return authzv1.Reuse_REUSE_ANY_NAMESPACE }

// rbacMember is upstream's RBAC authorizer over a policy. It records what it said as
// named does; which of the policy it was asked for says what that depended on.
type rbacMember struct {
	named
	rules authorizer.RuleResolver
}

var (
	_ authorizer.Authorizer   = rbacMember{}
	_ authorizer.RuleResolver = rbacMember{}
)

func newRBAC(name string, store *policy.Store) rbacMember {
	upstream := policy.NewAuthorizer(store)
	return rbacMember{
		named: named{name: name, next: authorizationmetrics.InstrumentedAuthorizer(modes.ModeRBAC, name, upstream)},
		rules: upstream,
	}
}

// Authorize asks the authorizer.
func (m rbacMember) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	sayings := sayingsFrom(ctx)
	evaluation := sayings.evaluation(ctx, a)
	decision, reason, err := m.next.Authorize(evaluation, a)
	reuse := authzv1.Reuse_REUSE_ANY_NAMESPACE
	switch {
	case evaluation.NameMattered():
		reuse = authzv1.Reuse_REUSE_SAME_NAME
	case decision != authorizer.DecisionAllow || evaluation.NamespaceMattered():
		// Without a namespace no role bindings were looked at, but others may have some.
		reuse = authzv1.Reuse_REUSE_ANY_NAME
	}
	sayings.record(m.name, decision, reason, err, reuse)
	return decision, reason, err
}

// ConditionsAwareAuthorize is not conditions-aware, as no message of ours is.
func (m rbacMember) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(m.Authorize(ctx, a))
}

// RulesFor returns a user's rules.
func (m rbacMember) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return m.rules.RulesFor(policy.WithUser(ctx, u), u, namespace)
}
