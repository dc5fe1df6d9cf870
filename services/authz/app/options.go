package app

import (
	"strings"

	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/internal/serve"
)

// Names of the flags that messages start with.
const (
	flagMode          = "authorization-mode"
	flagConfig        = "authorization-config"
	flagPolicyFile    = "authorization-policy-file"
	flagWebhookConfig = "authorization-webhook-config-file"
	flagKubeconfig    = "kubeconfig"
	flagAuthn         = "authn-endpoint"
)

// defaultAddress is where the service listens.
const defaultAddress = "127.0.0.1:7442"

// peerAuthn is the service that knows people's bearer tokens.
const peerAuthn = "authn"

// Options are the flags of the service.
type Options struct {
	// Serve are the flags that all services have.
	Serve *serve.Options
	// Authorization are kube-apiserver's flags for its authorizers. Other than
	// there, one of --authorization-mode and --authorization-config is required:
	// kube-apiserver allows everything without them.
	Authorization *kubeoptions.BuiltInAuthorizationOptions
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Serve:         serve.NewOptions(defaultAddress, peerAuthn),
		Authorization: kubeoptions.NewBuiltInAuthorizationOptions(),
	}
}

// AddFlags binds the flags.
func (o *Options) AddFlags(sections *cliflag.NamedFlagSets) {
	o.Serve.AddFlags(sections.FlagSet("service"))
	fs := sections.FlagSet("authorization")
	o.Authorization.AddFlags(fs)
	mode := fs.Lookup(flagMode)
	mode.Usage = strings.Replace(mode.Usage,
		"Defaults to AlwaysAllow if --authorization-config is not used.",
		"Required if --authorization-config is not used.", 1)
}

// CompletedOptions are options that Complete has filled.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct {
	serve         serve.CompletedOptions
	authorization *kubeoptions.BuiltInAuthorizationOptions
}

// Complete fills what follows from other options. Upstream's own completion is
// left out: all that it does is to allow everything if nothing is said.
func (o *Options) Complete() CompletedOptions {
	return CompletedOptions{&completedOptions{serve: o.Serve.Complete(), authorization: o.Authorization}}
}
