package chain

import (
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/features"
)

// trim has the informers keep only what the chain reads: of pods, nodes and
// webhooks their metadata, of secrets what makes a token. A cluster's other
// secrets have no business in this process' memory, and its pods are most of
// what there is.
func trim(factory informers.SharedInformerFactory) error {
	trimmed := []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(),
		factory.Core().V1().Secrets().Informer(),
		factory.Core().V1().ServiceAccounts().Informer(),
		factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(),
		factory.Admissionregistration().V1().MutatingWebhookConfigurations().Informer(),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ServiceAccountTokenNodeBindingValidation) {
		trimmed = append(trimmed, factory.Core().V1().Nodes().Informer())
	}
	for _, informer := range trimmed {
		if err := informer.SetTransform(trimObject); err != nil {
			return fmt.Errorf("trimming what informers keep: %w", err)
		}
	}
	return nil
}

func trimObject(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return &corev1.Pod{TypeMeta: o.TypeMeta, ObjectMeta: trimMeta(o.ObjectMeta)}, nil
	case *corev1.Node:
		return &corev1.Node{TypeMeta: o.TypeMeta, ObjectMeta: trimMeta(o.ObjectMeta)}, nil
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return &admissionregistrationv1.ValidatingWebhookConfiguration{TypeMeta: o.TypeMeta, ObjectMeta: trimMeta(o.ObjectMeta)}, nil
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return &admissionregistrationv1.MutatingWebhookConfiguration{TypeMeta: o.TypeMeta, ObjectMeta: trimMeta(o.ObjectMeta)}, nil
	case *corev1.Secret:
		return trimSecret(o), nil
	case *corev1.ServiceAccount:
		o.ManagedFields = nil
		return o, nil
	}
	return object, nil
}

// trimMeta keeps what identifies an object, and whether it is being deleted.
func trimMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              meta.Name,
		Namespace:         meta.Namespace,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
	}
}

// trimSecret keeps a bootstrap token whole, and of any other secret the entry
// that upstream compares a legacy service-account token with.
func trimSecret(secret *corev1.Secret) *corev1.Secret {
	secret.ManagedFields = nil
	if secret.Type == bootstrapapi.SecretTypeBootstrapToken {
		return secret
	}
	trimmed := &corev1.Secret{TypeMeta: secret.TypeMeta, ObjectMeta: trimMeta(secret.ObjectMeta), Type: secret.Type}
	// By a label upstream knows when a legacy token was last used, and by another
	// that it is not to be used.
	trimmed.Labels = secret.Labels
	if token, ok := secret.Data[corev1.ServiceAccountTokenKey]; ok {
		trimmed.Data = map[string][]byte{corev1.ServiceAccountTokenKey: token}
	}
	return trimmed
}
