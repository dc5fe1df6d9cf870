package interest

import admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"

// QuotaRules are the rules of a namespace that has a quota.
func QuotaRules(namespace string) []*admissionv1.InterestRule {
	return quotaRules([]string{namespace})
}
