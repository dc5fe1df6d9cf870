package policy

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// View is the policy for one user at one time, which is when it is first asked about a
// namespace for the second time. Evaluations that share it find the user's bindings
// once. It is for one goroutine.
type View struct {
	store      *Store
	user       user.Info
	namespaces map[string]*snapshot
	// evaluation is the one that runs, so that it costs no allocation.
	evaluation Evaluation
}

// View returns the view for a user.
func (s *Store) View(u user.Info) *View {
	return &View{store: s, user: u, namespaces: map[string]*snapshot{}}
}

// NewEvaluation returns the context for the evaluation of one question, which ends before
// the next begins. The view is left out for another user's question.
func (v *View) NewEvaluation(ctx context.Context, a authorizer.Attributes) *Evaluation {
	if v == nil || a.GetUser() != v.user {
		return NewEvaluation(ctx, a)
	}
	v.evaluation = Evaluation{Context: ctx, user: v.user, attributes: a, view: v}
	return &v.evaluation
}

// of returns what binds the user in a namespace. It is nil for the first to ask: what is
// asked once is not worth being written down.
func (v *View) of(ctx context.Context, namespace string) *snapshot {
	s, asked := v.namespaces[namespace]
	switch {
	case !asked:
		v.namespaces[namespace] = nil
	case s == nil:
		s = v.store.snapshot(ctx, v.user, namespace)
		v.namespaces[namespace] = s
	}
	return s
}

// Authorizer is upstream's RBAC authorizer over a Store. Of questions with the same View,
// those that the same binding allows are the same to it, as are those that none does: it
// answers the first, and its answer is given to the others. It is safe for concurrent use.
type Authorizer struct {
	store    *Store
	upstream *rbac.RBACAuthorizer
}

var _ authorizer.Authorizer = (*Authorizer)(nil)

// NewAuthorizer returns an authorizer over a Store.
func NewAuthorizer(s *Store) *Authorizer {
	return &Authorizer{store: s, upstream: rbac.New(s, s, s, s)}
}

// Authorize decides.
func (z *Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if e := evaluationFrom(ctx); e != nil && e.view != nil && e.view.store == z.store {
		if s := e.view.of(ctx, a.GetNamespace()); s != nil {
			return s.authorize(e, a)
		}
	}
	return z.upstream.Authorize(ctx, a)
}

// ConditionsAwareAuthorize is not conditions-aware, as upstream's is not.
func (z *Authorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(z.Authorize(ctx, a))
}

// EvaluateConditions fails closed, as upstream's does.
func (z *Authorizer) EvaluateConditions(ctx context.Context, decision authorizer.ConditionsAwareDecision, data authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return z.upstream.EvaluateConditions(ctx, decision, data)
}

// RulesFor returns a user's rules.
func (z *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return z.upstream.RulesFor(ctx, u, namespace)
}

// snapshot is what binds a user in a namespace, and what upstream's authorizer has said by
// it. It implements the listers of that authorizer: while it is taken, they write down
// what a Store has, and then they return that.
type snapshot struct {
	store *Store
	taken bool

	clusterRoleBindings []*rbacv1.ClusterRoleBinding
	roleBindings        []*rbacv1.RoleBinding
	clusterRoles        map[string]lookup[*rbacv1.ClusterRole]
	roles               map[key]lookup[*rbacv1.Role]

	// grants are the roles of the user's bindings, in the order in which upstream looks at
	// them, without those that are not there.
	grants []grant
	// inNamespace is whether the grants that are found by now are those of role bindings.
	inNamespace bool
	// refusal is what upstream says if no grant allows a question.
	refusal *answer
	// upstream decides by the snapshot.
	upstream *rbac.RBACAuthorizer
}

var (
	_ validation.RoleGetter               = (*snapshot)(nil)
	_ validation.RoleBindingLister        = (*snapshot)(nil)
	_ validation.ClusterRoleGetter        = (*snapshot)(nil)
	_ validation.ClusterRoleBindingLister = (*snapshot)(nil)
)

// lookup is a role, or why there is none.
type lookup[T object] struct {
	role T
	err  error
}

// grant is the role of one binding.
type grant struct {
	rules []rbacv1.PolicyRule
	// names is whether a rule is for some names only.
	names       bool
	inNamespace bool
	// answer is what upstream says if this is the first grant that allows a question. Nil:
	// it has not been asked yet.
	answer *answer
}

// answer is what upstream's authorizer said.
type answer struct {
	decision authorizer.Decision
	reason   string
	err      error
}

// snapshot takes down what binds a user in a namespace, by having upstream visit all of it.
func (s *Store) snapshot(ctx context.Context, u user.Info, namespace string) *snapshot {
	taking := &snapshot{store: s, clusterRoles: map[string]lookup[*rbacv1.ClusterRole]{}, roles: map[key]lookup[*rbacv1.Role]{}}
	validation.NewDefaultRuleResolver(taking, taking, taking, taking).VisitRulesFor(
		WithUser(ctx, u), u, namespace, func(fmt.Stringer, *rbacv1.PolicyRule, error) bool { return true })
	taking.taken = true
	taking.upstream = rbac.New(taking, taking, taking, taking)
	return taking
}

// authorize answers a question of the user in the namespace.
func (s *snapshot) authorize(e *Evaluation, a authorizer.Attributes) (authorizer.Decision, string, error) {
	known := &s.refusal
	e.namespaceMattered = true
	for i := range s.grants {
		g := &s.grants[i]
		if g.names {
			e.noteRules(g.rules)
		}
		if rbac.RulesAllow(a, g.rules...) {
			known, e.namespaceMattered = &g.answer, g.inNamespace
			break
		}
	}
	if told := *known; told != nil {
		return told.decision, told.reason, told.err
	}
	decision, reason, err := s.upstream.Authorize(e, a)
	*known = &answer{decision: decision, reason: reason, err: err}
	return decision, reason, err
}

// GetRole returns a role as the Store had it: of the namespace, or of none, which cluster
// role bindings may name in vain.
func (s *snapshot) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	k := key{namespace, name}
	r, ok := s.roles[k]
	if !ok && !s.taken {
		r.role, r.err = s.store.GetRole(ctx, namespace, name)
		s.roles[k] = r
	}
	if !s.taken && r.err == nil {
		s.found(r.role.Rules)
	}
	return r.role, r.err
}

// GetClusterRole returns a cluster role as the Store had it.
func (s *snapshot) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	r, ok := s.clusterRoles[name]
	if !ok && !s.taken {
		r.role, r.err = s.store.GetClusterRole(ctx, name)
		s.clusterRoles[name] = r
	}
	if !s.taken && r.err == nil {
		s.found(r.role.Rules)
	}
	return r.role, r.err
}

// found writes down the role of the next binding.
func (s *snapshot) found(rules []rbacv1.PolicyRule) {
	names := slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return len(rule.ResourceNames) > 0 })
	s.grants = append(s.grants, grant{rules: rules, names: names, inNamespace: s.inNamespace})
}

// ListRoleBindings returns the user's role bindings as the Store had them.
func (s *snapshot) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	var err error
	if !s.taken {
		s.inNamespace = true
		s.roleBindings, err = s.store.ListRoleBindings(ctx, namespace)
	}
	return s.roleBindings, err
}

// ListClusterRoleBindings returns the user's cluster role bindings as the Store had them.
func (s *snapshot) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	var err error
	if !s.taken {
		s.clusterRoleBindings, err = s.store.ListClusterRoleBindings(ctx)
	}
	return s.clusterRoleBindings, err
}
