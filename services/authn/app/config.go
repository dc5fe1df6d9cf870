package app

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics/legacyregistry"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authnclient "github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/keys"
	"github.com/trigate/trigate/services/authn/internal/revocations"
	"github.com/trigate/trigate/services/authn/server"
	authzclient "github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/serve"
)

// Config is what the service is run from.
type Config struct {
	// Serve is the server. A test puts its listeners in.
	Serve serve.Config
	// Authentication is what upstream builds the authenticators from.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	// SigningKeyFile has the key that signs service-account tokens.
	SigningKeyFile string
	// MaxTokenLifetime is how long a token may be valid that is signed here. 0: as
	// long as the API allows.
	MaxTokenLifetime time.Duration
	// EgressSelector dials issuers and webhooks. Nil: directly.
	EgressSelector *egressselector.EgressSelector
	// Kubernetes is the client of the gateway's Kubernetes API.
	Kubernetes kubernetes.Interface

	// authorizer decides which people may call the service itself. Nil: none but
	// members of system:masters.
	authorizer *authzclient.Client
	// watches sees whether Kubernetes' watches are open.
	watches *revocations.Watches
}

// CompletedConfig is a configuration that Complete has filled.
type CompletedConfig struct {
	*completedConfig
}

type completedConfig struct{ Config }

// NewConfig reads the files that the options name, but for the service-account
// keys, which Run reads. It opens no connection but that to the authorization
// service, in the background; Run closes it.
func NewConfig(o CompletedOptions) (*Config, error) {
	if err := checkFiles(o.authentication); err != nil {
		return nil, err
	}
	c := &Config{
		Serve:            o.serve.ServerConfig("authn"),
		Authentication:   o.authentication,
		SigningKeyFile:   o.signingKeyFile,
		MaxTokenLifetime: o.maxTokenLifetime(),
	}
	var err error
	if c.Serve.TracerProvider, err = process.NewTracerProvider(o.serve.TracingConfigFile, program); err != nil {
		return nil, err
	}
	if c.EgressSelector, err = newEgressSelector(o.egress); err != nil {
		return nil, err
	}
	restConfig, err := process.RESTConfig(o.serve.Kubeconfig, program)
	if err != nil {
		return nil, err
	}
	c.watches = revocations.NewWatches(revocations.WatchedResources())
	restConfig.Wrap(c.watches.Wrap)
	if c.Kubernetes, err = kubernetes.NewForConfig(restConfig); err != nil {
		return nil, fmt.Errorf("--%s: %w", flagKubeconfig, err)
	}
	if endpoint := o.serve.Endpoints[peerAuthz]; endpoint != "" {
		c.authorizer, err = authzclient.Dial(authzclient.Config{
			Endpoint:       endpoint,
			CAFile:         o.serve.PeerCAFile,
			CertFile:       o.serve.PeerClientCertFile,
			KeyFile:        o.serve.PeerClientKeyFile,
			Registerer:     legacyregistry.Registerer(),
			TracerProvider: c.Serve.TracerProvider,
		})
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flagAuthz, err)
		}
	}
	return c, nil
}

// checkFiles reads those files of which upstream's errors do not say the name.
func checkFiles(o *kubeoptions.BuiltInAuthenticationOptions) error {
	if file := o.TokenFile.TokenFile; file != "" {
		if _, err := tokenfile.NewCSV(file); err != nil {
			return inFile(flagTokenFile, file, err)
		}
	}
	if file := o.WebHook.ConfigFile; file != "" {
		if _, err := webhookutil.LoadKubeconfig(file, nil); err != nil {
			return inFile(flagWebhookFile, file, err)
		}
	}
	if file := o.OIDC.CAFile; file != "" {
		if _, err := certutil.NewPool(file); err != nil {
			return inFile(flagOIDCCAFile, file, err)
		}
	}
	return nil
}

func newEgressSelector(o *genericoptions.EgressSelectorOptions) (*egressselector.EgressSelector, error) {
	var generic genericapiserver.Config
	if err := o.ApplyTo(&generic); err != nil {
		return nil, inFile(flagEgress, o.ConfigFile, err)
	}
	return generic.EgressSelector, nil
}

// Complete fills what follows from other fields.
func (c *Config) Complete() CompletedConfig {
	completed := *c
	completed.Serve.Policy = server.Policy()
	completed.Serve.Budgets = authnclient.Service().Budgets
	if c.authorizer != nil {
		completed.Serve.Authorizer = c.authorizer
	}
	if completed.Serve.Registerer == nil {
		completed.Serve.Registerer = legacyregistry.Registerer()
	}
	if completed.Serve.Gatherer == nil {
		completed.Serve.Gatherer = legacyregistry.DefaultGatherer
	}
	return CompletedConfig{&completedConfig{completed}}
}

// loadKeys reads the keys of service-account tokens.
func (c CompletedConfig) loadKeys() (*keys.Keys, error) {
	loaded, err := keys.Load(keys.Config{
		Issuer:               c.Authentication.ServiceAccounts.Issuers[0],
		SigningKeyFile:       c.SigningKeyFile,
		VerificationKeyFiles: c.Authentication.ServiceAccounts.KeyFiles,
		Registerer:           c.Serve.Registerer,
	})
	if err != nil {
		flag := flagSigningKeyFile
		if e := (*keys.VerificationKeyError)(nil); errors.As(err, &e) {
			flag = flagKeyFile
		}
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return loaded, nil
}
