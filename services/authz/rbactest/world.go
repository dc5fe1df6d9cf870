// Package rbactest makes random RBAC policies, questions about them, and changes
// of them, so that authorizers that should agree can be compared. Production code
// does not import it.
package rbactest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// World is a set of RBAC objects. It has the methods that upstream's
// rbac.New(world, world, world, world) needs: they know no index and return all
// bindings, sorted by name. Its objects are never changed, only replaced. Mutate
// must not be called while the World is used otherwise.
type World struct {
	revision            uint64
	roles               table[*rbacv1.Role]
	clusterRoles        table[*rbacv1.ClusterRole]
	roleBindings        table[*rbacv1.RoleBinding]
	clusterRoleBindings table[*rbacv1.ClusterRoleBinding]
}

// Revision returns the highest resourceVersion that an object of the world has or
// had.
func (w *World) Revision() uint64 { return w.revision }

// Clone returns a world with the same objects, which changes apart.
func (w *World) Clone() *World {
	return &World{
		revision:            w.revision,
		roles:               w.roles.clone(),
		clusterRoles:        w.clusterRoles.clone(),
		roleBindings:        w.roleBindings.clone(),
		clusterRoleBindings: w.clusterRoleBindings.clone(),
	}
}

// Objects returns the objects, sorted, with their resourceVersions. They must not
// be changed.
func (w *World) Objects() []runtime.Object {
	var objects []runtime.Object
	objects = appendAll(objects, &w.clusterRoles)
	objects = appendAll(objects, &w.clusterRoleBindings)
	objects = appendAll(objects, &w.roles)
	return appendAll(objects, &w.roleBindings)
}

func appendAll[T object](objects []runtime.Object, t *table[T]) []runtime.Object {
	for _, o := range t.all() {
		objects = append(objects, o)
	}
	return objects
}

// GetRole returns a role, or the error that upstream's lister returns if there is
// none.
func (w *World) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	if role, ok := w.roles.get(namespace, name); ok {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("role"), name)
}

// GetClusterRole returns a cluster role, or the error that upstream's lister
// returns if there is none.
func (w *World) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	if role, ok := w.clusterRoles.get("", name); ok {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), name)
}

// ListRoleBindings returns the role bindings of a namespace.
func (w *World) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return w.roleBindings.byNamespace[namespace], nil
}

// ListClusterRoleBindings returns the cluster role bindings.
func (w *World) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return w.clusterRoleBindings.byNamespace[""], nil
}

type object interface {
	runtime.Object
	metav1.Object
}

// table has the objects of one type by namespace, sorted by name. The slices are
// never changed, only replaced.
type table[T object] struct {
	byNamespace map[string][]T
}

func (t *table[T]) clone() table[T] { return table[T]{byNamespace: maps.Clone(t.byNamespace)} }

func (t *table[T]) search(namespace, name string) (int, bool) {
	return slices.BinarySearchFunc(t.byNamespace[namespace], name, func(o T, name string) int {
		return cmp.Compare(o.GetName(), name)
	})
}

func (t *table[T]) get(namespace, name string) (T, bool) {
	i, ok := t.search(namespace, name)
	if !ok {
		var none T
		return none, false
	}
	return t.byNamespace[namespace][i], true
}

// put adds or replaces an object, and gives it a resourceVersion.
func (t *table[T]) put(o T, revision uint64) {
	o.SetResourceVersion(strconv.FormatUint(revision, 10))
	if t.byNamespace == nil {
		t.byNamespace = map[string][]T{}
	}
	namespace := o.GetNamespace()
	objects := slices.Clone(t.byNamespace[namespace])
	i, ok := t.search(namespace, o.GetName())
	if ok {
		objects[i] = o
	} else {
		objects = slices.Insert(objects, i, o)
	}
	t.byNamespace[namespace] = objects
}

// remove removes an object that is there.
func (t *table[T]) remove(o T) {
	namespace := o.GetNamespace()
	i, _ := t.search(namespace, o.GetName())
	t.byNamespace[namespace] = slices.Delete(slices.Clone(t.byNamespace[namespace]), i, i+1)
}

// all returns every object, sorted.
func (t *table[T]) all() []T {
	var objects []T
	for _, namespace := range slices.Sorted(maps.Keys(t.byNamespace)) {
		objects = append(objects, t.byNamespace[namespace]...)
	}
	return objects
}
