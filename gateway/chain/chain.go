// Package chain makes the server that the gateway runs: aggregator → kube API →
// apiextensions → not found.
package chain

import (
	"fmt"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/trigate/trigate/gateway/stage"
)

// New returns the chain over config, ready for PrepareRun.
func New(config *stage.Config) (*aggregatorapiserver.APIAggregator, error) {
	kube, serviceResolver, initializers, err := newKubeConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kube API server: %w", err)
	}
	extensions, err := newExtensionsConfig(config, kube, serviceResolver, initializers)
	if err != nil {
		return nil, fmt.Errorf("apiextensions server: %w", err)
	}
	aggregator, err := newAggregatorConfig(config, kube, serviceResolver, initializers)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	return newServerChain(config, kube, extensions, aggregator)
}

// newKubeConfig returns the configuration of the kube API server, with the token
// issuer of the authn gate.
func newKubeConfig(config *stage.Config) (*controlplane.Config, aggregatorapiserver.ServiceResolver, []admission.PluginInitializer, error) {
	kube, serviceResolver, initializers, err := kubeapiserver.CreateKubeAPIServerConfig(
		config.Options, config.Generic, withoutPods{config.VersionedInformers}, config.StorageFactory)
	if err != nil {
		return nil, nil, nil, err
	}
	kube.ControlPlane.ServiceAccountIssuer = config.Tokens.Issuer
	// The discovery documents are served once authn has told the keys, see
	// Tokens.InstallDiscovery. Without an issuer's URL upstream serves none.
	kube.ControlPlane.ServiceAccountIssuerURL = ""
	kube.ControlPlane.ServiceAccountPublicKeysGetter = nil
	return kube, serviceResolver, initializers, nil
}

// newExtensionsConfig returns the configuration of the server of custom resources.
func newExtensionsConfig(
	config *stage.Config,
	kube *controlplane.Config,
	serviceResolver aggregatorapiserver.ServiceResolver,
	initializers []admission.PluginInitializer,
) (*apiextensionsapiserver.Config, error) {
	generic := kube.ControlPlane.Generic
	return controlplaneapiserver.CreateAPIExtensionsConfig(
		*generic, kube.ControlPlane.VersionedInformers, initializers,
		config.Options.CompletedOptions, config.Options.MasterCount, serviceResolver,
		webhook.NewDefaultAuthenticationInfoResolverWrapper(
			kube.ControlPlane.ProxyTransport, generic.EgressSelector, generic.LoopbackClientConfig, generic.TracerProvider))
}

// newAggregatorConfig returns the configuration of the aggregator. It is the server
// that requests come in by, so its handler chain is the one that ours wrap.
func newAggregatorConfig(
	config *stage.Config,
	kube *controlplane.Config,
	serviceResolver aggregatorapiserver.ServiceResolver,
	initializers []admission.PluginInitializer,
) (*aggregatorapiserver.Config, error) {
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(
		*kube.ControlPlane.Generic, config.Options.CompletedOptions, kube.ControlPlane.VersionedInformers,
		serviceResolver, kube.ControlPlane.ProxyTransport, kube.ControlPlane.PeerProxy, initializers)
	if err != nil {
		return nil, err
	}
	generic := &aggregator.GenericConfig.Config
	generic.BuildHandlerChainFunc = config.WrapHandlers(generic.BuildHandlerChainFunc)
	return aggregator, nil
}

// newServerChain links the servers. The not-found handler and the order of the
// API groups in the aggregator are upstream's, which does not export them by
// themselves.
func newServerChain(
	config *stage.Config,
	kube *controlplane.Config,
	extensions *apiextensionsapiserver.Config,
	aggregator *aggregatorapiserver.Config,
) (*aggregatorapiserver.APIAggregator, error) {
	servers := &kubeapiserver.Config{
		Options:       config.Options,
		KubeAPIs:      kube,
		ApiExtensions: extensions,
		Aggregator:    aggregator,
	}
	completed, err := servers.Complete()
	if err != nil {
		return nil, err
	}
	server, err := kubeapiserver.CreateServerChain(completed)
	if err != nil {
		return nil, err
	}
	if err := holdHooks(server, config.Gates.WaitForWrites); err != nil {
		return nil, err
	}
	accounts := config.Options.Authentication.ServiceAccounts
	config.Tokens.InstallDiscovery(server.GenericAPIServer, accounts.Issuers[0], accounts.JWKSURI, config.Generic.ExternalAddress)
	if err := config.REST.Install(server.GenericAPIServer); err != nil {
		return nil, err
	}
	return server, nil
}
