package revocations

import (
	"bytes"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trigate/trigate/services/authn/internal/convert"
)

// WatchedResources returns the resources of the objects that tokens hang on.
func WatchedResources() []string {
	resources := []string{convert.ServiceAccounts, convert.Secrets, convert.Pods}
	if utilfeature.DefaultFeatureGate.Enabled(features.ServiceAccountTokenNodeBindingValidation) {
		resources = append(resources, convert.Nodes)
	}
	return resources
}

// Watch has the hub told of the informers' changes. The caller starts them.
func (h *Hub) Watch(factory informers.SharedInformerFactory) error {
	core := factory.Core().V1()
	all := map[string]func() cache.SharedIndexInformer{
		convert.ServiceAccounts: func() cache.SharedIndexInformer { return core.ServiceAccounts().Informer() },
		convert.Secrets:         func() cache.SharedIndexInformer { return core.Secrets().Informer() },
		convert.Pods:            func() cache.SharedIndexInformer { return core.Pods().Informer() },
		convert.Nodes:           func() cache.SharedIndexInformer { return core.Nodes().Informer() },
	}
	for _, resource := range WatchedResources() {
		if _, err := all[resource]().AddEventHandler(h.handler(resource)); err != nil {
			return fmt.Errorf("watching %s: %w", resource, err)
		}
	}
	return nil
}

func (h *Hub) handler(resource string) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, current any) {
			before, ok := old.(metav1.Object)
			after, is := current.(metav1.Object)
			if !ok || !is {
				return
			}
			switch {
			case before.GetUID() != after.GetUID():
				// The deletion in between was not seen.
				h.Revoke(convert.Revocation{Object: objectOf(resource, before), Deleted: true})
			case before.GetDeletionTimestamp() == nil && after.GetDeletionTimestamp() != nil || tokenChanged(before, after):
				h.Revoke(convert.Revocation{Object: objectOf(resource, after)})
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if object, ok := obj.(metav1.Object); ok {
				h.Revoke(convert.Revocation{Object: objectOf(resource, object), Deleted: true})
			}
		},
	}
}

// tokenChanged tells whether a secret changed what upstream reads in it: the token, or
// that it is not to be used.
func tokenChanged(before, after metav1.Object) bool {
	old, ok := before.(*corev1.Secret)
	current, is := after.(*corev1.Secret)
	if !ok || !is || current.Type != corev1.SecretTypeServiceAccountToken && current.Type != bootstrapapi.SecretTypeBootstrapToken {
		return false
	}
	return old.Type != current.Type || !maps.EqualFunc(old.Data, current.Data, bytes.Equal) ||
		old.Labels[serviceaccount.InvalidSinceLabelKey] != current.Labels[serviceaccount.InvalidSinceLabelKey]
}

func objectOf(resource string, object metav1.Object) convert.Object {
	// What is no number is not known: zero.
	version, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	return convert.Object{
		Resource:        resource,
		Namespace:       object.GetNamespace(),
		Name:            object.GetName(),
		UID:             string(object.GetUID()),
		ResourceVersion: version,
	}
}
