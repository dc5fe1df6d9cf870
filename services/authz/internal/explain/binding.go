package explain

import (
	"cmp"
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

// Kinds of RBAC objects.
const (
	kindClusterRoleBinding = "ClusterRoleBinding"
	kindRoleBinding        = "RoleBinding"
	kindRole               = "Role"
)

// binding is a ClusterRoleBinding or a RoleBinding: one of its fields is set. To
// upstream's resolver it is the list of all bindings, with nothing else in it.
type binding struct {
	cluster    *rbacv1.ClusterRoleBinding
	namespaced *rbacv1.RoleBinding
}

var (
	_ rbacvalidation.ClusterRoleBindingLister = binding{}
	_ rbacvalidation.RoleBindingLister        = binding{}
)

func ofClusterRoleBindings(list []*rbacv1.ClusterRoleBinding) []binding {
	bindings := make([]binding, 0, len(list))
	for _, b := range list {
		bindings = append(bindings, binding{cluster: b})
	}
	return bindings
}

func ofRoleBindings(list []*rbacv1.RoleBinding) []binding {
	bindings := make([]binding, 0, len(list))
	for _, b := range list {
		bindings = append(bindings, binding{namespaced: b})
	}
	return bindings
}

// ListClusterRoleBindings lists the binding, if it is one.
func (b binding) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	if b.cluster == nil {
		return nil, nil
	}
	return []*rbacv1.ClusterRoleBinding{b.cluster}, nil
}

// ListRoleBindings lists the binding, if it is one.
func (b binding) ListRoleBindings(context.Context, string) ([]*rbacv1.RoleBinding, error) {
	if b.namespaced == nil {
		return nil, nil
	}
	return []*rbacv1.RoleBinding{b.namespaced}, nil
}

// namespace returns the binding's namespace, and "" if it has none.
func (b binding) namespace() string { return b.name().Namespace }

func (b binding) name() convert.ObjectName {
	if b.cluster != nil {
		return convert.ObjectName{Kind: kindClusterRoleBinding, Name: b.cluster.Name}
	}
	return convert.ObjectName{Kind: kindRoleBinding, Namespace: b.namespaced.Namespace, Name: b.namespaced.Name}
}

func (b binding) roleRef() rbacv1.RoleRef {
	if b.cluster != nil {
		return b.cluster.RoleRef
	}
	return b.namespaced.RoleRef
}

func (b binding) role() convert.ObjectName {
	ref := b.roleRef()
	role := convert.ObjectName{Kind: ref.Kind, Name: ref.Name}
	if ref.Kind == kindRole {
		role.Namespace = b.namespace()
	}
	return role
}

func (b binding) subjects() []rbacv1.Subject {
	if b.cluster != nil {
		return b.cluster.Subjects
	}
	return b.namespaced.Subjects
}

// withSubject returns the binding as if it had this subject only.
func (b binding) withSubject(subject rbacv1.Subject) binding {
	subjects := []rbacv1.Subject{subject}
	if b.cluster != nil {
		cluster := *b.cluster
		cluster.Subjects = subjects
		return binding{cluster: &cluster}
	}
	namespaced := *b.namespaced
	namespaced.Subjects = subjects
	return binding{namespaced: &namespaced}
}

// appliesTo reports whether upstream takes the binding to be the user's. It asks
// with a role that is always there.
func (b binding) appliesTo(ctx context.Context, u user.Info) bool {
	applies := false
	rbacvalidation.NewDefaultRuleResolver(anyRole{}, b, anyRole{}, b).VisitRulesFor(ctx, u, b.namespace(),
		func(fmt.Stringer, *rbacv1.PolicyRule, error) bool {
			applies = true
			return false
		})
	return applies
}

// subjectOf returns the first subject of the binding that stands for the user,
// which is the one that upstream names in its reason.
func (b binding) subjectOf(ctx context.Context, u user.Info) rbacv1.Subject {
	for _, subject := range b.subjects() {
		if b.withSubject(subject).appliesTo(ctx, u) {
			return subject
		}
	}
	return rbacv1.Subject{}
}

// standsForSomebody reports whether a subject of the binding means anybody.
// Upstream ignores those of other kinds than its own, and service accounts
// without a namespace in a ClusterRoleBinding.
func (b binding) standsForSomebody(ctx context.Context, subject rbacv1.Subject) bool {
	u := &user.DefaultInfo{}
	switch subject.Kind {
	case rbacv1.UserKind:
		u.Name = subject.Name
	case rbacv1.GroupKind:
		u.Groups = []string{subject.Name}
	case rbacv1.ServiceAccountKind:
		u.Name = serviceaccount.MakeUsername(cmp.Or(subject.Namespace, b.namespace()), subject.Name)
	}
	return b.withSubject(subject).appliesTo(ctx, u)
}

// byName orders cluster role bindings before role bindings, and both by their
// namespaces and names.
func byName(a, b binding) int { return compareNames(a.name(), b.name()) }

// compareNames is byName: the kinds are in alphabetical order.
func compareNames(a, b convert.ObjectName) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// anyRole has every role, with one rule.
type anyRole struct{}

var (
	_ rbacvalidation.RoleGetter        = anyRole{}
	_ rbacvalidation.ClusterRoleGetter = anyRole{}
)

// GetRole returns a role with one rule.
func (anyRole) GetRole(context.Context, string, string) (*rbacv1.Role, error) {
	return &rbacv1.Role{Rules: oneRule}, nil
}

// GetClusterRole returns a role with one rule.
func (anyRole) GetClusterRole(context.Context, string) (*rbacv1.ClusterRole, error) {
	return &rbacv1.ClusterRole{Rules: oneRule}, nil
}

// oneRule is a rule that allows nothing. It is never changed.
var oneRule = []rbacv1.PolicyRule{{}}
