package client

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Fresh is a client for who hears from others of changes of the policy: each decision
// has seen all that Raise was told before. It is safe for concurrent use.
type Fresh struct {
	client *Client

	mu    sync.Mutex
	floor Revision
}

var (
	_ authorizer.Authorizer   = (*Fresh)(nil)
	_ authorizer.RuleResolver = (*Fresh)(nil)
)

// NewFresh returns a Fresh that asks c.
func NewFresh(c *Client) *Fresh { return &Fresh{client: c} }

// Raise has all later decisions see what revision has seen. A revision that is ahead of
// every change makes decisions impossible, so it has to come from who can be trusted.
func (f *Fresh) Raise(revision Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.floor = f.floor.Union(revision)
}

func (f *Fresh) known() Revision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.floor
}

// Authorize is Client's.
func (f *Fresh) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	answer, err := f.client.Decide(ctx, a, f.known())
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return answer.Decision, answer.Reason, answer.Err
}

// ConditionsAwareAuthorize is Client's.
func (f *Fresh) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(f.Authorize(ctx, a))
}

// EvaluateConditions is Client's.
func (f *Fresh) EvaluateConditions(ctx context.Context, decision authorizer.ConditionsAwareDecision, data authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return f.client.EvaluateConditions(ctx, decision, data)
}

// RulesFor is Client's.
func (f *Fresh) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return f.client.ListRules(ctx, u, namespace, f.known())
}
