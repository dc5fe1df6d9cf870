package app

import (
	"errors"
	"fmt"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/admission/client"
	"github.com/trigate/trigate/services/admission/server"
	authnclient "github.com/trigate/trigate/services/authn/client"
	authzclient "github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/serve"
)

// Config is what the service is run from.
type Config struct {
	// Serve is the server. A test puts its listeners in.
	Serve serve.Config
	// Admission are the plugins and their configuration.
	Admission *kubeoptions.AdmissionOptions
	// APIs says which APIs the gateway serves.
	APIs *genericoptions.APIEnablementOptions
	// Egress says how webhooks are reached.
	Egress *genericoptions.EgressSelectorOptions
	// AggregatorRouting has webhooks called at a service's endpoints.
	AggregatorRouting bool

	// Loopback says how the gateway's API is reached.
	Loopback *rest.Config
	// Kubernetes, Dynamic and Extensions are clients of the gateway's API.
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
	Extensions apiextensionsclient.Interface
	// Authorizer says what users may do, to plugins and of the service's callers.
	Authorizer authorizer.Authorizer
	// Tokens knows the bearer tokens of people who call the service itself. Nil:
	// none is accepted.
	Tokens authenticator.Token

	// seen has the Authorizer's decisions see what a gateway knows of. Nil: it cannot.
	seen func(*authzv1.PolicyRevision)
	// close ends the connections to the peers. Nil: there are none.
	close func() error
}

// CompletedConfig is a configuration that Complete has filled.
type CompletedConfig struct {
	*completedConfig
}

type completedConfig struct{ Config }

// NewConfig reads the files that the options name. It opens no connection but
// those to the peers, in the background; Run closes them.
func NewConfig(o CompletedOptions) (*Config, error) {
	c := &Config{
		Serve:             o.serve.ServerConfig(server.Name),
		Admission:         o.Admission,
		APIs:              o.APIs,
		Egress:            o.Egress,
		AggregatorRouting: o.AggregatorRouting,
	}
	if err := checkPluginFiles(o.Admission); err != nil {
		return nil, err
	}
	var err error
	if c.Serve.TracerProvider, err = process.NewTracerProvider(o.serve.TracingConfigFile, program); err != nil {
		return nil, err
	}
	if err := c.newClients(o.serve.Kubeconfig); err != nil {
		return nil, err
	}
	if err := c.dialPeers(o.serve); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) newClients(kubeconfig string) error {
	var err error
	if c.Loopback, err = process.RESTConfig(kubeconfig, upstreamProgram); err != nil {
		return err
	}
	if c.Kubernetes, err = kubernetes.NewForConfig(c.Loopback); err != nil {
		return fmt.Errorf("--%s: %w", flagKubeconfig, err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Loopback); err != nil {
		return fmt.Errorf("--%s: %w", flagKubeconfig, err)
	}
	if c.Extensions, err = apiextensionsclient.NewForConfig(c.Loopback); err != nil {
		return fmt.Errorf("--%s: %w", flagKubeconfig, err)
	}
	return nil
}

// upstreamProgram is where plugins are upstream. What they write (the status of a quota,
// say) has the field manager that the API takes from the client's name.
const upstreamProgram = "kube-apiserver"

// dialPeers makes the connections to authn, which is optional, and authz.
func (c *Config) dialPeers(o serve.CompletedOptions) error {
	authzClient, err := authzclient.Dial(authzclient.Config{
		Endpoint:       o.Endpoints[peerAuthz],
		CAFile:         o.PeerCAFile,
		CertFile:       o.PeerClientCertFile,
		KeyFile:        o.PeerClientKeyFile,
		Registerer:     legacyregistry.Registerer(),
		TracerProvider: c.Serve.TracerProvider,
	})
	if err != nil {
		return fmt.Errorf("--%s: %w", flagAuthz, err)
	}
	fresh := authzclient.NewFresh(authzClient)
	c.seen = func(revision *authzv1.PolicyRevision) { fresh.Raise(authzclient.RevisionFromProto(revision)) }
	c.Authorizer, c.close = fresh, authzClient.Close
	if o.Endpoints[peerAuthn] == "" {
		return nil
	}
	authnConn, err := authnclient.Dial(authnclient.Config{
		Endpoint:       o.Endpoints[peerAuthn],
		CAFile:         o.PeerCAFile,
		CertFile:       o.PeerClientCertFile,
		KeyFile:        o.PeerClientKeyFile,
		Registerer:     legacyregistry.Registerer(),
		TracerProvider: c.Serve.TracerProvider,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("--%s: %w", flagAuthn, err), authzClient.Close())
	}
	c.Tokens = authnclient.NewToken(authnConn)
	c.close = func() error { return errors.Join(authnConn.Close(), authzClient.Close()) }
	return nil
}

// Complete fills what follows from other fields.
func (c *Config) Complete() CompletedConfig {
	completed := *c
	completed.Serve.Policy = server.Policy()
	completed.Serve.Budgets = client.Budgets()
	completed.Serve.Tokens = c.Tokens
	completed.Serve.Authorizer = c.Authorizer
	if completed.Serve.Registerer == nil {
		completed.Serve.Registerer = legacyregistry.Registerer()
	}
	if completed.Serve.Gatherer == nil {
		completed.Serve.Gatherer = legacyregistry.DefaultGatherer
	}
	return CompletedConfig{&completedConfig{completed}}
}
