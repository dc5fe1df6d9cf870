package policy

import (
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// object is what the policy is made of.
type object interface {
	*rbacv1.ClusterRole | *rbacv1.ClusterRoleBinding | *rbacv1.Role | *rbacv1.RoleBinding
	metav1.Object
}

// key names an object among those of its resource.
type key struct{ namespace, name string }

func keyOf[T object](o T) key { return key{o.GetNamespace(), o.GetName()} }

// roles has roles by name. It is safe for concurrent use.
type roles[T object] struct {
	rulesOf func(T) []rbacv1.PolicyRule

	// mu guards byKey.
	mu    sync.RWMutex
	byKey map[key]knownRole[T]
}

// knownRole is a role.
type knownRole[T object] struct {
	role T
	// names is whether a rule of the role is for some names only.
	names bool
}

func (r *roles[T]) known(role T) knownRole[T] {
	return knownRole[T]{role: role, names: slices.ContainsFunc(r.rulesOf(role), func(rule rbacv1.PolicyRule) bool {
		return len(rule.ResourceNames) > 0
	})}
}

// get returns a role for an evaluation, which may be nil.
func (r *roles[T]) get(e *Evaluation, namespace, name string) (T, bool) {
	r.mu.RLock()
	known, ok := r.byKey[key{namespace, name}]
	r.mu.RUnlock()
	if known.names {
		e.noteRules(r.rulesOf(known.role))
	}
	return known.role, ok
}

func (r *roles[T]) put(role T) {
	known := r.known(role)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey == nil {
		r.byKey = map[key]knownRole[T]{}
	}
	r.byKey[keyOf(role)] = known
}

func (r *roles[T]) remove(role T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, keyOf(role))
}

func (r *roles[T]) replace(all []T) bool {
	byKey := make(map[key]knownRole[T], len(all))
	for _, role := range all {
		byKey[keyOf(role)] = r.known(role)
	}
	r.mu.Lock()
	old := r.byKey
	r.byKey = byKey
	r.mu.Unlock()
	return differ(old, byKey, func(known knownRole[T]) T { return known.role })
}

// differ reports whether an object is not the same before and after.
func differ[E any, T object](before, after map[key]E, objectOf func(E) T) bool {
	for k, old := range before {
		if now, ok := after[k]; !ok || !same(objectOf(old), objectOf(now)) {
			return true
		}
	}
	return len(before) != len(after)
}

// same reports whether two objects of the same name are the same one, unchanged.
func same[T object](a, b T) bool {
	return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion()
}
