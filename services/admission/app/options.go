package app

import (
	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/internal/serve"
)

// Names of the flags that messages start with.
const (
	flagConfigFile        = "admission-control-config-file"
	flagRuntimeConfig     = "runtime-config"
	flagEgress            = "egress-selector-config-file"
	flagAggregatorRouting = "enable-aggregator-routing"
	flagKubeconfig        = "kubeconfig"
	flagAuthn             = "authn-endpoint"
	flagAuthz             = "authz-endpoint"
)

// defaultAddress is where the service listens.
const defaultAddress = "127.0.0.1:7443"

// The peers are who knows people's bearer tokens, and who answers what plugins
// and policies want to know of users' rights.
const (
	peerAuthn = "authn"
	peerAuthz = "authz"
)

// Options are the flags of the service.
type Options struct {
	// Serve are the flags that all services have.
	Serve *serve.Options
	// Admission are kube-apiserver's flags for its plugins.
	Admission *kubeoptions.AdmissionOptions
	// APIs says which APIs the gateway serves. Quota is kept for those.
	APIs *genericoptions.APIEnablementOptions
	// Egress says how webhooks are reached.
	Egress *genericoptions.EgressSelectorOptions
	// AggregatorRouting has webhooks behind a service called at one of its
	// endpoints and not at its cluster IP.
	AggregatorRouting bool
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Serve:     serve.NewOptions(defaultAddress, peerAuthn, peerAuthz),
		Admission: kubeoptions.NewAdmissionOptions(),
		APIs:      genericoptions.NewAPIEnablementOptions(),
		Egress:    genericoptions.NewEgressSelectorOptions(),
	}
}

// AddFlags binds the flags.
func (o *Options) AddFlags(sections *cliflag.NamedFlagSets) {
	o.Serve.AddFlags(sections.FlagSet("service"))
	o.Admission.AddFlags(sections.FlagSet("admission"))
	o.addWebhookFlags(sections.FlagSet("webhooks"))
	fs := sections.FlagSet("API enablement")
	o.APIs.AddFlags(fs)
	runtimeConfig := fs.Lookup(flagRuntimeConfig)
	runtimeConfig.Usage = "The same as the gateway's. " + runtimeConfig.Usage
}

func (o *Options) addWebhookFlags(fs *pflag.FlagSet) {
	o.Egress.AddFlags(fs)
	fs.BoolVar(&o.AggregatorRouting, flagAggregatorRouting, o.AggregatorRouting,
		"Call webhooks behind a service at one of its endpoints rather than at its cluster IP.")
}

// CompletedOptions are options that Complete has filled.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct {
	Options
	serve serve.CompletedOptions
}

// Complete fills what follows from other options. It opens nothing.
func (o *Options) Complete() CompletedOptions {
	return CompletedOptions{&completedOptions{Options: *o, serve: o.Serve.Complete()}}
}
