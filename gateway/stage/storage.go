package stage

import (
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/kubeapiserver"
)

// storage sets up etcd: where each resource is kept, in which version, and
// encrypted how (--encryption-provider-config). Its writes are told to observers, which
// are all there before the first one.
func storage(config *genericapiserver.Config, etcd *genericoptions.EtcdOptions, observers writeObservers) (*serverstorage.DefaultStorageFactory, error) {
	if config.EgressSelector != nil {
		etcd.StorageConfig.Transport.EgressLookup = config.EgressSelector.Lookup
	}
	etcd.StorageConfig.Transport.TracerProvider = config.TracerProvider

	factoryConfig := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(config.EffectiveVersion)
	factoryConfig.APIResourceConfig = config.MergedResourceConfig
	factoryConfig.DefaultResourceEncoding.SetEffectiveVersion(config.EffectiveVersion)
	factory, err := factoryConfig.Complete(etcd).New()
	if err != nil {
		return nil, err
	}
	// The factory's storage configuration is a copy made before this was set.
	factory.StorageConfig.StorageObjectCountTracker = config.StorageObjectCountTracker
	if err := etcd.ApplyWithStorageFactoryTo(factory, config); err != nil {
		return nil, err
	}
	config.RESTOptionsGetter = observedOptions{RESTOptionsGetter: config.RESTOptionsGetter, observers: observers}
	return factory, nil
}
