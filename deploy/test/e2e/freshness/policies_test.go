package freshness

import (
	"context"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trigate/trigate/deploy/test/framework"
)

// policyRounds are of grant, use, revoke and use in a policy's expression.
const policyRounds = 100

// TestPoliciesSeeRevokedRights has a policy ask what its user may do: the answer has
// to be as fresh as that to a request.
func TestPoliciesSeeRevokedRights(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--replicas=2", "--controllers=false"}})
	admin, ann := c.Client(t), framework.ClientFor(t, c.User(t, "ann"))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Grant(t, framework.Grant{Name: "makers", Namespace: namespace, User: "ann", Rules: []rbacv1.PolicyRule{framework.May("create", "", "configmaps")}})
	makePolicy(t, admin)
	framework.Eventually(t, "the policy refuses", func() error {
		if err := try(t.Context(), ann); !apierrors.IsInvalid(err) {
			return fmt.Errorf("got %w, want it refused", err)
		}
		return nil
	})
	grant, revoke := all(makeRole, makeRoleBinding("Role", []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}})), all(deleteRoleBinding, deleteRole)
	for round := range policyRounds {
		if err := grant(t.Context(), admin); err != nil {
			t.Fatal(err)
		}
		if err := try(t.Context(), ann); err != nil {
			t.Fatalf("round %d: after the grant: %v", round, err)
		}
		if err := revoke(t.Context(), admin); err != nil {
			t.Fatal(err)
		}
		if err := try(t.Context(), ann); !apierrors.IsInvalid(err) {
			t.Fatalf("round %d: after the revocation: %v, want it refused", round, err)
		}
	}
}

// try creates a ConfigMap that is not stored.
func try(ctx context.Context, client kubernetes.Interface) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// makePolicy lets only those make ConfigMaps who may list them.
func makePolicy(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	const name = "who-lists-may-make"
	fail := admissionregistrationv1.Fail
	policies := admin.AdmissionregistrationV1()
	_, err := policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "authorizer.group('').resource('configmaps').namespace('" + namespace + "').check('list').allowed()",
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
