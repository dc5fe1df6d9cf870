package stage

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	kubeapiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
)

// apiResources returns the API groups, versions and resources that kube-apiserver
// serves by default; --runtime-config is merged in later.
func apiResources() *serverstorage.ResourceConfig {
	return controlplane.DefaultAPIResourceConfigSource()
}

// generic returns the configuration with the server run and secure serving
// options applied. It opens the TLS listener and makes the loopback client's
// configuration.
func generic(opts kubeapiserveroptions.CompletedOptions, resources *serverstorage.ResourceConfig) (*genericapiserver.Config, error) {
	codecs := legacyscheme.Codecs
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.CBORServingAndStorage) {
		codecs = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	config := genericapiserver.NewConfig(codecs)
	config.Flagz = opts.Flagz
	config.MergedResourceConfig = resources
	if err := opts.GenericServerRunOptions.ApplyTo(config); err != nil {
		return nil, err
	}
	serving := *opts.SecureServing.SecureServingOptions // whose port it changes
	if err := opts.SecureServing.ApplyToConfig(config); err != nil {
		// Upstream's error has the reason, but neither the flag nor the file.
		return nil, fmt.Errorf("--bind-address %s, --secure-port %d, --tls-cert-file %s, --tls-private-key-file %s: %w",
			serving.BindAddress, serving.BindPort, serving.ServerCert.CertKey.CertFile, serving.ServerCert.CertKey.KeyFile, err)
	}
	return config, nil
}
