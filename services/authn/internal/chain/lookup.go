package chain

import (
	"context"
	"crypto/subtle"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// kubernetesHop is who answers look-ups, in errors.
const kubernetesHop = "gateway"

// lookups remembers what one token's look-ups found, and their failures. Upstream's
// validator turns most of those into the same words as a missing object.
type lookups struct {
	mu     sync.Mutex
	failed error
	found  []foundObject
}

// foundObject is an object that a token hangs on, as the validator saw it.
type foundObject struct {
	convert.Object
	// informed is whether the informers have the object, and so will tell of its end.
	informed bool
	// ending is whether the object is being deleted: upstream lets its tokens live on
	// for a while.
	ending bool
	// secret is the object if it is one.
	secret *corev1.Secret
}

// keeps tells whether the object is the secret that a legacy token is kept in, and is
// in use.
func (f *foundObject) keeps(token string) bool {
	return f.secret != nil && f.secret.Labels[serviceaccount.InvalidSinceLabelKey] == "" &&
		subtle.ConstantTimeCompare(f.secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) == 1
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

// objects returns what was found.
func (l *lookups) objects() []foundObject {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found
}

// getter is upstream's getter. It notes in the context what it finds, and failures.
type getter struct {
	upstream        serviceaccount.ServiceAccountTokenGetter
	serviceAccounts corelisters.ServiceAccountLister
	secrets         corelisters.SecretLister
	pods            corelisters.PodLister
	// nodes is nil if tokens cannot be bound to nodes.
	nodes corelisters.NodeLister
}

var _ serviceaccount.ServiceAccountTokenGetter = (*getter)(nil)

// newGetter returns the getter that ApplyTo makes if it is not given one: it
// asks the informers, and for what they do not have the API itself.
func newGetter(client kubernetes.Interface, factory informers.SharedInformerFactory) *getter {
	g := &getter{
		serviceAccounts: factory.Core().V1().ServiceAccounts().Lister(),
		secrets:         factory.Core().V1().Secrets().Lister(),
		pods:            factory.Core().V1().Pods().Lister(),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ServiceAccountTokenNodeBindingValidation) {
		g.nodes = factory.Core().V1().Nodes().Lister()
	}
	g.upstream = serviceaccountcontroller.NewGetterFromClient(
		client,
		g.secrets,
		g.serviceAccounts,
		g.pods,
		g.nodes,
		factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Lister(),
		factory.Admissionregistration().V1().MutatingWebhookConfigurations().Lister(),
	)
	return g
}

// key is a namespace and a name, or a name alone.
type key []string

// nameable reports whether an object can have the key. A token may say anything; what
// client-go asks of no server for that reason is not there, and is no failure.
func (k key) nameable() bool {
	return !slices.ContainsFunc(k, func(part string) bool { return part == "" || len(content.IsPathSegmentName(part)) > 0 })
}

// noted notes a look-up in the context. What the informers have is told by cached.
func noted[T metav1.Object](ctx context.Context, resource string, k key, object T, err error, cached func() (T, error)) (T, error) {
	l, ok := ctx.Value(lookupsContextKey{}).(*lookups)
	if !ok || err != nil && (apierrors.IsNotFound(err) || !k.nameable()) {
		return object, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if l.failed == nil {
			l.failed = fmt.Errorf("%s %s: %w", resource, strings.Join(k, "/"), err)
		}
		return object, err
	}
	f := newFound(resource, object)
	if cached != nil {
		known, err := cached()
		f.informed = err == nil && known.GetUID() == object.GetUID()
	}
	l.found = append(l.found, f)
	return object, nil
}

func newFound(resource string, object metav1.Object) foundObject {
	f := foundObject{ending: object.GetDeletionTimestamp() != nil, Object: convert.Object{
		Resource:  resource,
		Namespace: object.GetNamespace(),
		Name:      object.GetName(),
		UID:       string(object.GetUID()),
	}}
	// What is no number is not known: zero.
	f.ResourceVersion, _ = strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	f.secret, _ = object.(*corev1.Secret)
	return f
}

// GetServiceAccount returns a service account.
func (g *getter) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	object, err := g.upstream.GetServiceAccount(ctx, namespace, name)
	return noted(ctx, convert.ServiceAccounts, key{namespace, name}, object, err, func() (*corev1.ServiceAccount, error) {
		return g.serviceAccounts.ServiceAccounts(namespace).Get(name)
	})
}

// GetPod returns a pod.
func (g *getter) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	object, err := g.upstream.GetPod(ctx, namespace, name)
	return noted(ctx, convert.Pods, key{namespace, name}, object, err, func() (*corev1.Pod, error) {
		return g.pods.Pods(namespace).Get(name)
	})
}

// GetSecret returns a secret.
func (g *getter) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	object, err := g.upstream.GetSecret(ctx, namespace, name)
	return noted(ctx, convert.Secrets, key{namespace, name}, object, err, func() (*corev1.Secret, error) {
		return g.secrets.Secrets(namespace).Get(name)
	})
}

// GetNode returns a node.
func (g *getter) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	object, err := g.upstream.GetNode(ctx, name)
	if g.nodes == nil {
		return object, err
	}
	return noted(ctx, convert.Nodes, key{name}, object, err, func() (*corev1.Node, error) { return g.nodes.Get(name) })
}

// GetValidatingWebhookConfiguration returns a validating webhook's configuration.
func (g *getter) GetValidatingWebhookConfiguration(ctx context.Context, name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	object, err := g.upstream.GetValidatingWebhookConfiguration(ctx, name)
	return noted(ctx, "validatingwebhookconfigurations", key{name}, object, err, nil)
}

// GetMutatingWebhookConfiguration returns a mutating webhook's configuration.
func (g *getter) GetMutatingWebhookConfiguration(ctx context.Context, name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	object, err := g.upstream.GetMutatingWebhookConfiguration(ctx, name)
	return noted(ctx, "mutatingwebhookconfigurations", key{name}, object, err, nil)
}
