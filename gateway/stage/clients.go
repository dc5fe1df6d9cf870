package stage

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// resync is how often informers hand every object to their handlers anew, as in
// kube-apiserver.
const resync = 10 * time.Minute

// clients returns the external clientset over the loopback client, and the
// informers that the server's own parts share.
func clients(config *genericapiserver.Config, informerName *cache.InformerName) (kubernetes.Interface, informers.SharedInformerFactory, error) {
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("making the external clientset: %w", err)
	}
	if informerName == nil {
		if informerName, err = cache.NewInformerName("trigate-gateway"); err != nil {
			return nil, nil, fmt.Errorf("naming the informers: %w", err)
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, resync,
		informers.WithTransform(trimManagedFields),
		informers.WithInformerName(informerName))
	// Informers that are asked for after the factory has started never run. The hook
	// that makes the system namespaces asks for this one while another hook starts the
	// factory; in kube-apiserver an admission plugin has always done so before.
	factory.Core().V1().Namespaces().Informer()
	return client, factory, nil
}

// trimManagedFields drops what no informer's reader looks at and what makes up
// much of an object.
func trimManagedFields(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}
