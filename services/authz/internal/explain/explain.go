// Package explain tells by which way RBAC comes to a decision, what came nearest
// to allowing a refused action, and who may do something.
//
// All evaluating is upstream's. A binding is judged by giving upstream's own rule
// resolver that binding alone, so that it is known which one spoke; a subject, by
// giving it a binding with that subject alone; and the respects in which a rule
// falls short are those that upstream's RuleAllows joins.
package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

// Policy is where upstream's RBAC authorizer reads from. The bindings of all
// namespaces are those of the namespace "". They come in the order in which the
// authorizer evaluates them, and are not changed.
type Policy interface {
	rbacvalidation.RoleGetter
	rbacvalidation.RoleBindingLister
	rbacvalidation.ClusterRoleGetter
	rbacvalidation.ClusterRoleBindingLister
}

// Config is what New needs.
type Config struct {
	// Authorizers returns the authorizers of the chain, which a reload may change.
	Authorizers func() []authzconfig.AuthorizerConfiguration
	// RBAC is what the RBAC authorizer decides by. Nil: there is none.
	RBAC Policy
	// WithUser returns a context with which the policy may leave out bindings that
	// cannot concern the user. Nil: it never does.
	WithUser func(context.Context, user.Info) context.Context
	// ABACPolicyFile is what the ABAC authorizer decides by. Empty: there is none.
	ABACPolicyFile string
}

// Explainer explains decisions. It is safe for concurrent use.
type Explainer struct {
	cfg       Config
	abac      abac.PolicyList
	abacLines []int
}

// New returns an explainer. An error is about the policy file.
func New(cfg Config) (*Explainer, error) {
	if cfg.WithUser == nil {
		cfg.WithUser = func(ctx context.Context, _ user.Info) context.Context { return ctx }
	}
	e := &Explainer{cfg: cfg}
	if cfg.ABACPolicyFile != "" {
		var err error
		if e.abac, e.abacLines, err = readABAC(cfg.ABACPolicyFile); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// ErrPolicyChanged says that the policy has changed since a decision was made, so
// that it cannot be told any more how that came.
var ErrPolicyChanged = errors.New("the policy has changed since the decision")

// Explain returns the way to a decision, from what each authorizer has just said. An
// error is ErrPolicyChanged or that of ctx.
func (e *Explainer) Explain(ctx context.Context, a authorizer.Attributes, said []convert.Say) (*convert.Explanation, error) {
	authorizers := e.cfg.Authorizers()
	found, err := e.find(ctx, a)
	if err != nil {
		return nil, err
	}
	x := &convert.Explanation{DecidedBy: e.decidedBy(ctx, a, said, authorizers), Errors: found.errors}
	allowed := false
	for _, say := range said {
		allowed = allowed || say.Decision == authorizer.DecisionAllow
		if typeOf(say.Name, authorizers) != modes.ModeRBAC {
			continue
		}
		if !found.agrees(say) {
			return nil, ErrPolicyChanged
		}
		x.Grant = found.grant
	}
	if !allowed {
		x.NearMisses = found.nearMisses
	}
	return x, nil
}

// finding is how RBAC decides a question.
type finding struct {
	// grant is the path by which RBAC allows the action, and reason what its
	// authorizer says then. Nil if it does not.
	grant  *convert.Grant
	reason string
	// nearMisses are the rules of the user's bindings that fall short in one respect
	// only, nearest first. None if RBAC allows the action.
	nearMisses []convert.NearMiss
	// errors are about the roles that the user's bindings name and that cannot be
	// read: of cluster role bindings, and of role bindings in the namespace in
	// question.
	errors []string
}

// agrees reports whether the finding is how the RBAC authorizer came to what it
// said. If not, the policy has changed in between.
func (f *finding) agrees(said convert.Say) bool {
	if f.grant == nil {
		return said.Decision != authorizer.DecisionAllow
	}
	return said.Decision == authorizer.DecisionAllow && said.Reason == f.reason
}

// find evaluates the bindings of the user, in the authorizer's order.
func (e *Explainer) find(ctx context.Context, a authorizer.Attributes) (*finding, error) {
	ctx = e.cfg.WithUser(ctx, a.GetUser())
	f := &finding{}
	bindings, errs := e.bindings(ctx, a.GetNamespace())
	f.errors = errs
	var misses nearMisses
	for _, b := range bindings {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e.visit(ctx, b, a.GetUser(), func(index int, rule *rbacv1.PolicyRule, err error) {
			switch {
			case err != nil:
				f.errors = append(f.errors, err.Error())
			case f.grant != nil: // The authorizer stops here, and only errors are of interest.
			case rbac.RuleAllows(a, rule):
				f.grant = grantTo(b, b.subjectOf(ctx, a.GetUser()), index, rule)
				f.reason = e.reason(ctx, b, a)
			default:
				misses.consider(a, b, index, rule, true)
			}
		})
	}
	f.errors = unique(f.errors)
	if f.grant != nil {
		return f, nil
	}
	if err := e.lookElsewhere(ctx, a, &misses); err != nil {
		return nil, err
	}
	for _, near := range misses.nearest() {
		grant := grantTo(near.binding, near.binding.subjectOf(ctx, a.GetUser()), near.index, near.rule)
		f.nearMisses = append(f.nearMisses, convert.NearMiss{Grant: *grant, Dimension: near.dimension})
	}
	return f, nil
}

// lookElsewhere considers the role bindings that the authorizer leaves out, since
// they are in other namespaces. What is wrong with them is no matter here.
func (e *Explainer) lookElsewhere(ctx context.Context, a authorizer.Attributes, misses *nearMisses) error {
	if e.cfg.RBAC == nil {
		return nil
	}
	// As with the roles, what cannot be read is not near.
	roleBindings, _ := e.cfg.RBAC.ListRoleBindings(ctx, "")
	elsewhere := slices.DeleteFunc(ofRoleBindings(roleBindings), func(b binding) bool { return b.namespace() == a.GetNamespace() })
	slices.SortStableFunc(elsewhere, byName)
	for _, b := range elsewhere {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.visit(ctx, b, a.GetUser(), func(index int, rule *rbacv1.PolicyRule, err error) {
			if err == nil {
				misses.consider(a, b, index, rule, false)
			}
		})
	}
	return nil
}

// bindings returns the bindings that the authorizer evaluates for a question in a
// namespace, in its order, and why there may be more.
func (e *Explainer) bindings(ctx context.Context, namespace string) ([]binding, []string) {
	if e.cfg.RBAC == nil {
		return nil, nil
	}
	var errs []string
	clusterRoleBindings, err := e.cfg.RBAC.ListClusterRoleBindings(ctx)
	if err != nil {
		errs = append(errs, err.Error())
	}
	bindings := ofClusterRoleBindings(clusterRoleBindings)
	if namespace == "" {
		return bindings, errs
	}
	roleBindings, err := e.cfg.RBAC.ListRoleBindings(ctx, namespace)
	if err != nil {
		errs = append(errs, err.Error())
	}
	return append(bindings, ofRoleBindings(roleBindings)...), errs
}

// visit calls visitor with each rule that a binding gives the user, and its place
// in the role, or with the error of reading the role.
func (e *Explainer) visit(ctx context.Context, b binding, u user.Info, visitor func(index int, rule *rbacv1.PolicyRule, err error)) {
	index := 0
	e.resolver(b).VisitRulesFor(ctx, u, b.namespace(), func(_ fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
		visitor(index, rule, err)
		index++
		return true
	})
}

// resolver returns upstream's resolver of the rules of one binding.
func (e *Explainer) resolver(b binding) *rbacvalidation.DefaultRuleResolver {
	return rbacvalidation.NewDefaultRuleResolver(e.cfg.RBAC, b, e.cfg.RBAC, b)
}

// reason returns what upstream's authorizer says of a question if this binding is
// all that there is.
func (e *Explainer) reason(ctx context.Context, b binding, a authorizer.Attributes) string {
	_, reason, _ := rbac.New(e.cfg.RBAC, b, e.cfg.RBAC, b).Authorize(ctx, a)
	return reason
}

func grantTo(b binding, subject rbacv1.Subject, index int, rule *rbacv1.PolicyRule) *convert.Grant {
	return &convert.Grant{Subject: subject, Binding: b.name(), Role: b.role(), Rule: *rule, RuleIndex: index}
}

// unique returns strings in their order, each once.
func unique(strs []string) []string {
	seen := make(map[string]bool, len(strs))
	return slices.DeleteFunc(strs, func(s string) bool {
		twice := seen[s]
		seen[s] = true
		return twice
	})
}
