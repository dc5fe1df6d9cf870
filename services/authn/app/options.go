package app

import (
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/authn/internal/chain"
	"github.com/trigate/trigate/services/internal/serve"
)

// Names of the flags that messages start with.
const (
	flagKubeconfig     = "kubeconfig"
	flagAuthz          = "authz-endpoint"
	flagIssuer         = "service-account-issuer"
	flagKeyFile        = "service-account-key-file"
	flagSigningKeyFile = "service-account-signing-key-file"
	flagMaxExpiration  = "service-account-max-token-expiration"
	flagJWKSURI        = "service-account-jwks-uri"
	flagConfig         = "authentication-config"
	flagTokenFile      = "token-auth-file"
	flagOIDCCAFile     = "oidc-ca-file"
	flagWebhookFile    = "authentication-token-webhook-config-file"
	flagEgress         = "egress-selector-config-file"
)

// defaultAddress is where the service listens.
const defaultAddress = "127.0.0.1:7441"

// peerAuthz is the service that decides which people may call this one.
const peerAuthz = "authz"

// Options are the flags of the service.
type Options struct {
	// Serve are the flags that all services have.
	Serve *serve.Options
	// Authentication are kube-apiserver's flags for its token authenticators.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	// SigningKeyFile has the key that signs service-account tokens.
	SigningKeyFile string
	// Egress is kube-apiserver's flag for how to reach issuers and webhooks.
	Egress *genericoptions.EgressSelectorOptions
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Serve:          serve.NewOptions(defaultAddress, peerAuthz),
		Authentication: chain.NewOptions(),
		Egress:         genericoptions.NewEgressSelectorOptions(),
	}
}

// AddFlags binds the flags.
func (o *Options) AddFlags(sections *cliflag.NamedFlagSets) {
	o.Serve.AddFlags(sections.FlagSet("service"))
	fs := sections.FlagSet("authentication")
	o.Authentication.AddFlags(fs)
	fs.StringVar(&o.SigningKeyFile, flagSigningKeyFile, o.SigningKeyFile, ""+
		"File with the private key that signs service-account tokens, PEM. Its public half has to be in a "+
		"--"+flagKeyFile+". A new content of these files is used without a restart.")
	fs.Lookup(flagKeyFile).Usage = "" +
		"File with PEM-encoded RSA or ECDSA keys, private or public, that verify service-account tokens. " +
		"It can have several keys, and the flag can be given several times. A new content is used without a restart."
	fs.Lookup(flagMaxExpiration).Usage = "" +
		"The longest validity of a token that is signed here. The gateway, which has this flag too, shortens what " +
		"is requested; with --service-account-extend-token-expiration tokens may be valid for a year."
	// It comes with upstream's flags. Validate tells where it belongs.
	fs.Lookup(flagJWKSURI).Hidden = true
	o.Egress.AddFlags(sections.FlagSet("egress selector"))
}

// CompletedOptions are options that Complete has filled.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct {
	serve          serve.CompletedOptions
	authentication *kubeoptions.BuiltInAuthenticationOptions
	signingKeyFile string
	egress         *genericoptions.EgressSelectorOptions
}

// Complete fills what follows from other options. It opens nothing.
func (o *Options) Complete() CompletedOptions {
	return CompletedOptions{&completedOptions{
		serve:          o.Serve.Complete(),
		authentication: o.Authentication,
		signingKeyFile: o.SigningKeyFile,
		egress:         o.Egress,
	}}
}
