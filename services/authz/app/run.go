package app

import (
	"context"
	"errors"

	"k8s.io/client-go/informers"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/server"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/serve"
)

// configPart is the part of health that stands for the authorizers themselves,
// which are there from the start.
const configPart = "authorizers"

// Run runs the service until ctx ends. When it returns, nothing of it is left.
func Run(ctx context.Context, c CompletedConfig) (err error) {
	if c.close != nil {
		defer func() { err = errors.Join(err, c.close()) }()
	}
	authorization := *c.Authorization
	var factory informers.SharedInformerFactory
	if c.Kubernetes != nil {
		factory = process.NewInformerFactory(c.Kubernetes)
		authorization.VersionedInformerFactory = factory
	}
	authorizers, err := chain.New(ctx, chain.Config{Upstream: authorization, ServerID: program})
	if err != nil {
		return c.flags.explain(err)
	}
	serverConfig := server.Config{Authorizer: authorizers, Rules: authorizers}
	var reading *process.Informers
	if factory != nil {
		reading = process.NewInformers(process.InformersConfig{
			API:       c.Kubernetes.Discovery().RESTClient(),
			Factories: []process.InformerFactory{factory},
			Synced:    authorizers.HandlersSynced(),
		})
		serverConfig.Synced = reading.Synced
	}
	handlers := server.New(serverConfig)

	serveConfig := c.Serve
	serveConfig.Authorizer = handlers.CallerAuthorizer()
	serveConfig.Parts = []string{configPart}
	grpcServer, err := serve.New(serveConfig)
	if err != nil {
		return err
	}
	authzv1.RegisterAuthorizationServiceServer(grpcServer, handlers)
	grpcServer.Health().Set(configPart, true, "")
	tasks := []serve.Task{{Name: configPart, Run: authorizers.Run}}
	if reading != nil {
		tasks = append(tasks, reading.Task(grpcServer.Health()))
	}
	return grpcServer.Run(ctx, tasks...)
}
