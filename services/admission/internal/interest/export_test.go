package interest

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// QuotaRules are the rules of a namespace that has a quota.
func QuotaRules(namespace string) []*admissionv1.InterestRule {
	return quotaRules([]string{namespace})
}

// PutWebhook has a hub read a configuration.
func PutWebhook(h *Hub, c *admissionregistrationv1.ValidatingWebhookConfiguration) {
	h.put(ValidatingWebhooks, keyOf(c), validatingWebhookRules(c), 1)
}
