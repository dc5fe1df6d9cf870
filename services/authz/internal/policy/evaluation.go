package policy

import (
	"context"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// Evaluation is the context of one question to an authorizer over a Store: it
// tells the Store who is asked about, and remembers what the Store was asked for.
// It is a context itself, so that it costs one allocation. It is for one goroutine.
type Evaluation struct {
	context.Context

	user user.Info
	// attributes are nil if there is no question, only a user.
	attributes authorizer.Attributes
	// view is what the question is decided by. Nil: the policy as it is now.
	view *View

	namespaceMattered bool
	nameMattered      bool
}

type evaluationKey struct{}

// NewEvaluation returns the context for the evaluation of one question.
func NewEvaluation(ctx context.Context, a authorizer.Attributes) *Evaluation {
	return &Evaluation{Context: ctx, user: a.GetUser(), attributes: a}
}

// WithUser returns a context by which a Store lists only the bindings that have a
// subject which matches the user.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return &Evaluation{Context: ctx, user: u}
}

// Value returns what the context is known by to a Store, or the parent's value.
func (e *Evaluation) Value(key any) any {
	if key == (evaluationKey{}) {
		return e
	}
	return e.Context.Value(key)
}

// evaluationFrom returns the evaluation that asks, or nil.
func evaluationFrom(ctx context.Context) *Evaluation {
	e, _ := ctx.Value(evaluationKey{}).(*Evaluation)
	return e
}

// NamespaceMattered reports whether role bindings were listed, so that the answer
// may be another one in another namespace.
func (e *Evaluation) NamespaceMattered() bool { return e.namespaceMattered }

// NameMattered reports whether the answer may be another one for another name.
func (e *Evaluation) NameMattered() bool { return e.nameMattered }

// noteRules remembers whether what rules say depends on the question's name: they
// allow it for some names only. That one of several rules of a role allows is all
// that an answer tells, so a rule for all names makes the others meaningless.
func (e *Evaluation) noteRules(rules []rbacv1.PolicyRule) {
	if e == nil || e.attributes == nil || e.nameMattered || !e.attributes.IsResourceRequest() {
		return
	}
	forAll := slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return len(rule.ResourceNames) == 0 && rbac.RuleAllows(e.attributes, &rule)
	})
	e.nameMattered = !forAll && slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return len(rule.ResourceNames) > 0 && allowsSomeName(e.attributes, &rule)
	})
}

// allowsSomeName reports whether a rule on resources allows a question if the name
// is left out.
func allowsSomeName(a authorizer.Attributes, rule *rbacv1.PolicyRule) bool {
	combined := a.GetResource()
	if a.GetSubresource() != "" {
		combined += "/" + a.GetSubresource()
	}
	return rbacv1helpers.VerbMatches(rule, a.GetVerb()) &&
		rbacv1helpers.APIGroupMatches(rule, a.GetAPIGroup()) &&
		rbacv1helpers.ResourceMatches(rule, combined, a.GetSubresource())
}
