package framework

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Grant lets somebody do something, for the time of a test.
type Grant struct {
	// Name is that of the role and of its binding, unique in the package.
	Name string
	// User or Group may do what Rules say.
	User, Group string
	// Namespace is where they may; everywhere if it is empty.
	Namespace string
	// Rules are RBAC rules, such as May makes.
	Rules []rbacv1.PolicyRule
}

// May is an RBAC rule: verbs and resources, each a list with commas, of an API
// group, and only on the named objects if there are names.
func May(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		Verbs: strings.Split(verbs, ","), APIGroups: []string{group},
		Resources: strings.Split(resources, ","), ResourceNames: names,
	}
}

// Grant makes a role and its binding, and waits until the authorizer knows them.
func (c *Cluster) Grant(tb testing.TB, grant Grant) {
	tb.Helper()
	ctx := context.Background()
	meta := metav1.ObjectMeta{Name: grant.Name, Namespace: grant.Namespace}
	subject := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: grant.User}
	if grant.Group != "" {
		subject.Kind, subject.Name = rbacv1.GroupKind, grant.Group
	}
	kind := "ClusterRole"
	if grant.Namespace != "" {
		kind = "Role"
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: grant.Name}
	rbac := c.Client(tb).RbacV1()
	var errs [2]error
	if grant.Namespace != "" {
		roles, bindings := rbac.Roles(grant.Namespace), rbac.RoleBindings(grant.Namespace)
		_, errs[0] = roles.Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: grant.Rules}, metav1.CreateOptions{})
		_, errs[1] = bindings.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{subject}, RoleRef: ref}, metav1.CreateOptions{})
		tb.Cleanup(func() {
			c.removed(tb, roles.Delete(ctx, grant.Name, metav1.DeleteOptions{}))
			c.removed(tb, bindings.Delete(ctx, grant.Name, metav1.DeleteOptions{}))
		})
	} else {
		roles, bindings := rbac.ClusterRoles(), rbac.ClusterRoleBindings()
		_, errs[0] = roles.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: grant.Rules}, metav1.CreateOptions{})
		_, errs[1] = bindings.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{subject}, RoleRef: ref}, metav1.CreateOptions{})
		tb.Cleanup(func() {
			c.removed(tb, roles.Delete(ctx, grant.Name, metav1.DeleteOptions{}))
			c.removed(tb, bindings.Delete(ctx, grant.Name, metav1.DeleteOptions{}))
		})
	}
	if err := errors.Join(errs[:]...); err != nil {
		tb.Fatalf("%s: granting %s: %v", c.Name, grant.Name, err)
	}
	c.awaitGrant(tb, grant)
}

// awaitGrant asks for one right of each rule.
func (c *Cluster) awaitGrant(tb testing.TB, grant Grant) {
	tb.Helper()
	reviews := c.Client(tb).AuthorizationV1().SubjectAccessReviews()
	for _, rule := range grant.Rules {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: grant.User}}
		if grant.Group != "" {
			review.Spec.Groups = []string{grant.Group}
		}
		if len(rule.NonResourceURLs) > 0 {
			review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: rule.Verbs[0], Path: rule.NonResourceURLs[0]}
		} else {
			resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource, Namespace: grant.Namespace,
			}
			if len(rule.ResourceNames) > 0 {
				review.Spec.ResourceAttributes.Name = rule.ResourceNames[0]
			}
		}
		Eventually(tb, "the grant "+grant.Name, func() error {
			answer, err := reviews.Create(context.Background(), review, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if !answer.Status.Allowed {
				return fmt.Errorf("is not in force: %+v", answer.Status)
			}
			return nil
		})
	}
}

// removed takes the error of a deletion in the end of a test.
func (c *Cluster) removed(tb testing.TB, err error) {
	tb.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		tb.Errorf("%s: cleaning up: %v", c.Name, err)
	}
}
