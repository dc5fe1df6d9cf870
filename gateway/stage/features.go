package stage

import (
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubeapiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// features applies priority and fairness and --runtime-config, each of which stands on
// the loopback client or the resource configuration.
func features(
	config *genericapiserver.Config,
	opts kubeapiserveroptions.CompletedOptions,
	client kubernetes.Interface,
	versionedInformers informers.SharedInformerFactory,
	resources *serverstorage.ResourceConfig,
) error {
	if err := opts.Features.ApplyTo(config, client, versionedInformers); err != nil {
		return err
	}
	return opts.APIEnablement.ApplyTo(config, resources, legacyscheme.Scheme)
}
