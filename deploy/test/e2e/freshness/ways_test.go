package freshness

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// change is a write by the administrator.
type change func(context.Context, kubernetes.Interface) error

// ways are all ways to give ann a right and to take it away.
var ways = []struct {
	name                 string
	grant, revoke, clean change
}{
	{
		name:   "a role binding that is deleted",
		grant:  all(makeRole, makeRoleBinding("Role", ann)),
		revoke: deleteRoleBinding,
		clean:  deleteRole,
	},
	{
		name:   "a role that is deleted",
		grant:  all(makeRole, makeRoleBinding("Role", readers)),
		revoke: deleteRole,
		clean:  deleteRoleBinding,
	},
	{
		name:   "a role whose rules go",
		grant:  all(makeRole, makeRoleBinding("Role", ann)),
		revoke: emptyRole,
		clean:  all(deleteRole, deleteRoleBinding),
	},
	{
		name:   "a role binding whose subjects go",
		grant:  all(makeClusterRole, makeRoleBinding("ClusterRole", readers)),
		revoke: emptyRoleBinding,
		clean:  all(deleteRoleBinding, deleteClusterRole),
	},
	{
		name:   "role bindings that are deleted as a collection",
		grant:  all(makeClusterRole, makeRoleBinding("ClusterRole", ann)),
		revoke: deleteRoleBindings,
		clean:  deleteClusterRole,
	},
	{
		name:   "a cluster role binding that is deleted",
		grant:  all(makeClusterRole, makeClusterRoleBinding(ann)),
		revoke: deleteClusterRoleBinding,
		clean:  deleteClusterRole,
	},
	{
		name:   "a cluster role that is deleted",
		grant:  all(makeClusterRoleBinding(readers), makeClusterRole),
		revoke: deleteClusterRole,
		clean:  deleteClusterRoleBinding,
	},
}

func all(changes ...change) change {
	return func(ctx context.Context, client kubernetes.Interface) error {
		for _, each := range changes {
			if err := each(ctx, client); err != nil {
				return err
			}
		}
		return nil
	}
}

// made takes an object that is there for one that was made: the answer to a write may
// have been lost, and its retry finds it.
func made(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func makeRole(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	return made(err)
}

func makeClusterRole(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	return made(err)
}

func makeRoleBinding(kind string, subjects []rbacv1.Subject) change {
	return func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: object}, Subjects: subjects,
		}, metav1.CreateOptions{})
		return made(err)
	}
}

func makeClusterRoleBinding(subjects []rbacv1.Subject) change {
	return func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: object}, Subjects: subjects,
		}, metav1.CreateOptions{})
		return made(err)
	}
}

func deleteRole(ctx context.Context, client kubernetes.Interface) error {
	return gone(client.RbacV1().Roles(namespace).Delete(ctx, object, metav1.DeleteOptions{}))
}

func deleteClusterRole(ctx context.Context, client kubernetes.Interface) error {
	return gone(client.RbacV1().ClusterRoles().Delete(ctx, object, metav1.DeleteOptions{}))
}

func deleteRoleBinding(ctx context.Context, client kubernetes.Interface) error {
	return gone(client.RbacV1().RoleBindings(namespace).Delete(ctx, object, metav1.DeleteOptions{}))
}

func deleteRoleBindings(ctx context.Context, client kubernetes.Interface) error {
	return client.RbacV1().RoleBindings(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

func deleteClusterRoleBinding(ctx context.Context, client kubernetes.Interface) error {
	return gone(client.RbacV1().ClusterRoleBindings().Delete(ctx, object, metav1.DeleteOptions{}))
}

func emptyRole(ctx context.Context, client kubernetes.Interface) error {
	role := &rbacv1.Role{ObjectMeta: meta}
	_, err := client.RbacV1().Roles(namespace).Update(ctx, role, metav1.UpdateOptions{})
	return err
}

func emptyRoleBinding(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.RbacV1().RoleBindings(namespace).Update(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: object},
	}, metav1.UpdateOptions{})
	return err
}
