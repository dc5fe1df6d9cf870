package framework

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// markerLabel is on the objects that only ask whether a configuration is in force.
const markerLabel = "trigate.test/marker"

// ClientConfig is how a control plane calls the webhook at path.
func (w *Webhook) ClientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(w.URL + path), CABundle: w.CABundle}
}

// Mutating is a mutating webhook for one namespace, at the path /name.
func (w *Webhook) Mutating(name, namespace string, rules []admissionregistrationv1.RuleWithOperations) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    name + ".trigate.test",
		ClientConfig:            w.ClientConfig("/" + name),
		Rules:                   rules,
		NamespaceSelector:       InNamespace(namespace),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
}

// Validating is a validating webhook for one namespace, at the path /name.
func (w *Webhook) Validating(name, namespace string, rules []admissionregistrationv1.RuleWithOperations) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name:                    name + ".trigate.test",
		ClientConfig:            w.ClientConfig("/" + name),
		Rules:                   rules,
		NamespaceSelector:       InNamespace(namespace),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
}

// InNamespace selects one namespace. Every webhook of a test has to, or tests
// disturb each other.
func InNamespace(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
}

// RegisterMutating makes a configuration of mutating webhooks, waits until they are
// called, and removes it in the end.
func (c *Cluster) RegisterMutating(tb testing.TB, name string, webhooks ...admissionregistrationv1.MutatingWebhook) {
	tb.Helper()
	marker := startMarker(tb, name).Mutating("marker", metav1.NamespaceDefault, Rule("create", "", "v1", "configmaps"))
	marker.ObjectSelector = markerSelector(name)
	webhooks = append(webhooks, marker)
	client := c.Client(tb).AdmissionregistrationV1().MutatingWebhookConfigurations()
	config := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: webhooks}
	if _, err := client.Create(context.Background(), config, metav1.CreateOptions{}); err != nil {
		tb.Fatalf("%s: making the webhook configuration %s: %v", c.Name, name, err)
	}
	tb.Cleanup(func() { c.removed(tb, client.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	c.awaitMarker(tb, name)
}

// RegisterValidating is RegisterMutating for validating webhooks.
func (c *Cluster) RegisterValidating(tb testing.TB, name string, webhooks ...admissionregistrationv1.ValidatingWebhook) {
	tb.Helper()
	marker := startMarker(tb, name).Validating("marker", metav1.NamespaceDefault, Rule("create", "", "v1", "configmaps"))
	marker.ObjectSelector = markerSelector(name)
	webhooks = append(webhooks, marker)
	client := c.Client(tb).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: webhooks}
	if _, err := client.Create(context.Background(), config, metav1.CreateOptions{}); err != nil {
		tb.Fatalf("%s: making the webhook configuration %s: %v", c.Name, name, err)
	}
	tb.Cleanup(func() { c.removed(tb, client.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	c.awaitMarker(tb, name)
}

// Rule is a webhook's rule for operations on resources, both separated by commas.
func Rule(operations, group, version, resources string) []admissionregistrationv1.RuleWithOperations {
	rule := admissionregistrationv1.RuleWithOperations{Rule: admissionregistrationv1.Rule{
		APIGroups: []string{group}, APIVersions: []string{version}, Resources: strings.Split(resources, ","),
	}}
	for operation := range strings.SplitSeq(strings.ToUpper(operations), ",") {
		rule.Operations = append(rule.Operations, admissionregistrationv1.OperationType(operation))
	}
	return []admissionregistrationv1.RuleWithOperations{rule}
}

// The webhooks of a configuration come into force together. So that a test knows
// when, and its own webhooks are not called for it, each configuration has one more
// webhook: it refuses ConfigMaps with a label that nothing else has.

func markerSelector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{markerLabel: name}}
}

func markerMessage(name string) string { return "the webhooks of " + name + " are in force" }

func startMarker(tb testing.TB, name string) *Webhook {
	tb.Helper()
	return StartWebhook(tb, Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: markerMessage(name)}}
	}))
}

func (c *Cluster) awaitMarker(tb testing.TB, name string) {
	tb.Helper()
	admin := c.Admin(tb)
	marker := fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: marker, labels: {%s: %s}}}", markerLabel, name)
	Eventually(tb, "the webhooks of "+name, func() error {
		answer, err := admin.TrySend(http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", marker)
		if err != nil {
			return err
		}
		if !strings.Contains(string(answer.Body), markerMessage(name)) {
			return fmt.Errorf("are not called yet, the answer is %d: %s", answer.Code, answer.Body)
		}
		return nil
	})
}
