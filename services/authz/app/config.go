package app

import (
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/server"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/serve"
)

// Config is what the service is run from.
type Config struct {
	// Serve is the server. A test puts its listeners in.
	Serve serve.Config
	// Authorization is what upstream builds the authorizers from.
	Authorization *kubeauthorizer.Config
	// Kubernetes is the client of the gateway's Kubernetes API. Nil if no
	// authorizer reads from there.
	Kubernetes kubernetes.Interface
	// Tokens knows the bearer tokens of people who call the service itself. Nil:
	// none is accepted.
	Tokens authenticator.Token

	// flags says which flag an authorizer comes from.
	flags authorizerFlags
	// close ends the connection to the authentication service. Nil: there is none.
	close func() error
}

// CompletedConfig is a configuration that Complete has filled.
type CompletedConfig struct {
	*completedConfig
}

type completedConfig struct{ Config }

// NewConfig reads the files that the options name. It opens no connection but
// that to the authentication service, in the background; Run closes it.
func NewConfig(o CompletedOptions) (*Config, error) {
	c := &Config{
		Serve: o.serve.ServerConfig("authz"),
		flags: authorizerFlags{
			configFile:  o.authorization.AuthorizationConfigurationFile,
			policyFile:  o.authorization.PolicyFile,
			webhookFile: o.authorization.WebhookConfigFile,
		},
	}
	var err error
	if c.Serve.TracerProvider, err = process.NewTracerProvider(o.serve.TracingConfigFile, program); err != nil {
		return nil, err
	}
	// The informer factory is the server's, which Run has.
	if c.Authorization, err = o.authorization.ToAuthorizationConfig(nil); err != nil {
		return nil, c.flags.explain(err)
	}
	if c.has(modes.ModeNode) || c.has(modes.ModeRBAC) {
		if c.Kubernetes, err = newKubernetesClient(o.serve.Kubeconfig); err != nil {
			return nil, err
		}
	}
	if err := c.dialAuthn(o.serve); err != nil {
		return nil, err
	}
	return c, nil
}

func newKubernetesClient(kubeconfig string) (kubernetes.Interface, error) {
	if kubeconfig == "" {
		return nil, fmt.Errorf("--%s: is required by the authorizers %s and %s", flagKubeconfig, modes.ModeNode, modes.ModeRBAC)
	}
	restConfig, err := process.RESTConfig(kubeconfig, program)
	if err != nil {
		return nil, err
	}
	kubernetesClient, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flagKubeconfig, err)
	}
	return kubernetesClient, nil
}

// Complete fills what follows from other fields.
func (c *Config) Complete() CompletedConfig {
	completed := *c
	completed.Serve.Policy = server.Policy()
	completed.Serve.Budgets = client.Service().Budgets
	completed.Serve.Tokens = c.Tokens
	if completed.Serve.Registerer == nil {
		completed.Serve.Registerer = legacyregistry.Registerer()
	}
	if completed.Serve.Gatherer == nil {
		completed.Serve.Gatherer = legacyregistry.DefaultGatherer
	}
	return CompletedConfig{&completedConfig{completed}}
}

// authorizerFlags are the files that authorizers come from.
type authorizerFlags struct{ configFile, policyFile, webhookFile string }

// explain puts the flag, and the file if there is one, before an error of
// building the authorizers.
func (f authorizerFlags) explain(err error) error {
	if f.configFile != "" {
		return inFile(flagConfig, f.configFile, err)
	}
	var of *chain.AuthorizerError
	if errors.As(err, &of) {
		switch {
		case of.Type == modes.ModeABAC && f.policyFile != "":
			return inFile(flagPolicyFile, f.policyFile, of.Err)
		case of.Type == modes.ModeWebhook && f.webhookFile != "":
			return inFile(flagWebhookConfig, f.webhookFile, of.Err)
		}
	}
	return fmt.Errorf("--%s: %w", flagMode, err)
}
