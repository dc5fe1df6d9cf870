package chain

import (
	"context"
	"fmt"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// kubernetesHop is who answers look-ups, in errors.
const kubernetesHop = "gateway"

// lookups remembers the failures of one token's look-ups. Upstream's validator
// turns most of them into the same words as a missing object.
type lookups struct {
	mu     sync.Mutex
	failed error
}

type lookupsContextKey struct{}

func withLookups(ctx context.Context) (context.Context, *lookups) {
	l := &lookups{}
	return context.WithValue(ctx, lookupsContextKey{}, l), l
}

// err says that an object could neither be found nor be found missing, so that
// nothing is known of the token that depends on it. Nil if there was none.
func (l *lookups) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		return nil
	}
	return rpcerr.PeerUnreachable(kubernetesHop, fmt.Errorf("looking up what a token depends on: %w", l.failed))
}

// getter is upstream's getter. It notes failures in the context.
type getter struct {
	upstream serviceaccount.ServiceAccountTokenGetter
}

var _ serviceaccount.ServiceAccountTokenGetter = (*getter)(nil)

// newGetter returns the getter that ApplyTo makes if it is not given one: it
// asks the informers, and for what they do not have the API itself.
func newGetter(client kubernetes.Interface, factory informers.SharedInformerFactory) *getter {
	var nodes corelisters.NodeLister
	if utilfeature.DefaultFeatureGate.Enabled(features.ServiceAccountTokenNodeBindingValidation) {
		nodes = factory.Core().V1().Nodes().Lister()
	}
	return &getter{upstream: serviceaccountcontroller.NewGetterFromClient(
		client,
		factory.Core().V1().Secrets().Lister(),
		factory.Core().V1().ServiceAccounts().Lister(),
		factory.Core().V1().Pods().Lister(),
		nodes,
		factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Lister(),
		factory.Admissionregistration().V1().MutatingWebhookConfigurations().Lister(),
	)}
}

func noted[T any](ctx context.Context, kind, name string, object T, err error) (T, error) {
	if err == nil || apierrors.IsNotFound(err) {
		return object, err
	}
	if l, ok := ctx.Value(lookupsContextKey{}).(*lookups); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.failed == nil {
			l.failed = fmt.Errorf("%s %s: %w", kind, name, err)
		}
	}
	return object, err
}

// GetServiceAccount returns a service account.
func (g *getter) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	object, err := g.upstream.GetServiceAccount(ctx, namespace, name)
	return noted(ctx, "service account", namespace+"/"+name, object, err)
}

// GetPod returns a pod.
func (g *getter) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	object, err := g.upstream.GetPod(ctx, namespace, name)
	return noted(ctx, "pod", namespace+"/"+name, object, err)
}

// GetSecret returns a secret.
func (g *getter) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	object, err := g.upstream.GetSecret(ctx, namespace, name)
	return noted(ctx, "secret", namespace+"/"+name, object, err)
}

// GetNode returns a node.
func (g *getter) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	object, err := g.upstream.GetNode(ctx, name)
	return noted(ctx, "node", name, object, err)
}

// GetValidatingWebhookConfiguration returns a validating webhook's configuration.
func (g *getter) GetValidatingWebhookConfiguration(ctx context.Context, name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	object, err := g.upstream.GetValidatingWebhookConfiguration(ctx, name)
	return noted(ctx, "validating webhook configuration", name, object, err)
}

// GetMutatingWebhookConfiguration returns a mutating webhook's configuration.
func (g *getter) GetMutatingWebhookConfiguration(ctx context.Context, name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	object, err := g.upstream.GetMutatingWebhookConfiguration(ctx, name)
	return noted(ctx, "mutating webhook configuration", name, object, err)
}
