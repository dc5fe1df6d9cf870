package app

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/internal/chain"
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

	serveConfig := c.Serve
	serveConfig.Tokens = tokens
	serveConfig.Parts = []string{process.InformersPart}
	grpcServer, err := serve.New(serveConfig)
	if err != nil {
		return err
	}
	authnv1.RegisterAuthenticationServiceServer(grpcServer, server.New(server.Config{
		Tokens:           tokens,
		Keys:             keys,
		MaxTokenLifetime: c.MaxTokenLifetime,
	}))
	return grpcServer.Run(ctx,
		serve.Task{Name: "service-account keys", Run: keys.Watch},
		informers.Task(grpcServer.Health()),
	)
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
