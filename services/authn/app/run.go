package app

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/component-base/metrics/legacyregistry"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/chain"
	"github.com/trigate/trigate/services/authn/internal/keys"
	"github.com/trigate/trigate/services/authn/internal/revocations"
	"github.com/trigate/trigate/services/authn/server"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
)

// Run runs the service until ctx ends. When it returns, nothing of it is left.
func Run(ctx context.Context, c CompletedConfig) (err error) {
	if c.authorizer != nil {
		defer func() { err = errors.Join(err, c.authorizer.Close()) }()
	}
	keys, err := c.loadKeys()
	if err != nil {
		return err
	}
	// Upstream's goroutines fetch the keys of issuers, with which the last calls
	// are answered too.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	factory := process.NewInformerFactory(c.Kubernetes)
	// Only those have tokens as a rule. Any other is looked up.
	process.WatchScheduledPods(factory)
	authenticators, err := chain.New(background, chain.Config{
		Options:        c.Authentication,
		PublicKeys:     keys,
		Client:         c.Kubernetes,
		Informers:      factory,
		EgressSelector: c.EgressSelector,
		ServerID:       program,
	})
	if err != nil {
		return c.explain(err)
	}
	informers := process.NewInformers(process.InformersConfig{
		API:       c.Kubernetes.Discovery().RESTClient(),
		Factories: []process.InformerFactory{factory},
	})
	tokens := syncedTokens{synced: informers.Synced, next: authenticators}
	hub := revocations.NewHub(func() bool { return informers.Synced() && c.watches.Following() })
	if err := hub.Watch(factory); err != nil {
		return err
	}
	configuration, err := c.newConfiguration(hub, keys)
	if err != nil {
		return err
	}

	serveConfig := c.Serve
	serveConfig.Tokens = tokens
	serveConfig.Parts = []string{process.InformersPart}
	if configuration.file != "" {
		serveConfig.Parts = append(serveConfig.Parts, configurationPart)
	}
	grpcServer, err := serve.New(serveConfig)
	if err != nil {
		return err
	}
	authnv1.RegisterAuthenticationServiceServer(grpcServer, server.New(server.Config{
		Tokens:           tokens,
		Keys:             keys,
		Revocations:      hub,
		MaxTokenLifetime: c.MaxTokenLifetime,
	}))
	return grpcServer.Run(ctx,
		serve.Task{Name: "service-account keys", Run: keys.Watch},
		informers.Task(grpcServer.Health()),
		configuration.task(grpcServer.Health()),
		serve.Task{Name: "watches", Run: func(ctx context.Context) error {
			c.watches.Run(ctx, c.Kubernetes.Discovery().RESTClient())
			return nil
		}},
	)
}

// newConfiguration returns what tells the hub which authenticators are in force, and has
// told it already.
func (c CompletedConfig) newConfiguration(hub *revocations.Hub, keys *keys.Keys) (*configuration, error) {
	flags, err := chain.FlagsDigest(c.Authentication)
	if err != nil {
		return nil, err
	}
	configuration := &configuration{
		hub: hub, keys: keys, flags: flags,
		file: c.Authentication.AuthenticationConfigFile, metrics: legacyregistry.DefaultGatherer,
	}
	keys.AddListener(configuration)
	configuration.Enqueue()
	return configuration, nil
}

// explain puts the flag before an error of building the authenticators.
func (c CompletedConfig) explain(err error) error {
	if file := c.Authentication.AuthenticationConfigFile; file != "" {
		return inFile(flagConfig, file, err)
	}
	return fmt.Errorf("building token authenticators: %w", err)
}

// syncedTokens refuses to judge tokens before the informers have read what there
// is: an object that has not been read yet is not one that is missing.
type syncedTokens struct {
	synced func() bool
	next   authenticator.Token
}

var _ authenticator.Token = syncedTokens{}

// AuthenticateToken implements authenticator.Token. An *rpcerr.Error is no
// verdict.
func (t syncedTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !t.synced() {
		return nil, false, rpcerr.NotSynced("authn", process.InformersPart)
	}
	return t.next.AuthenticateToken(ctx, token)
}
