package app

import (
	"context"
	"errors"

	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/policy"
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
	authorization, from := *c.Authorization, c.newSources()
	if from.factory != nil {
		authorization.VersionedInformerFactory = from.factory
	}
	authorizers, err := chain.New(ctx, chain.Config{Upstream: authorization, Policy: from.policy, ServerID: program})
	if err != nil {
		return c.flags.explain(err)
	}
	explainer, err := c.newExplainer(authorizers, from.policy)
	if err != nil {
		return c.flags.explain(err)
	}
	serverConfig := server.Config{
		Authorizer:    authorizers,
		Rules:         authorizers,
		Policy:        from.policy,
		Explainer:     explainer,
		MayWait:       authorizers.MayWait,
		Configuration: authorizers.Configuration,
		Registerer:    c.Serve.Registerer,
	}
	var reading *process.Informers
	if c.Kubernetes != nil {
		reading = process.NewInformers(process.InformersConfig{
			API:       c.Kubernetes.Discovery().RESTClient(),
			Factories: from.all,
			Synced:    authorizers.HandlersSynced(),
		})
		serverConfig.Synced = reading.Synced
	}
	handlers, err := server.New(serverConfig)
	if err != nil {
		return err
	}

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

// sources are what the authorizers read from the Kubernetes API.
type sources struct {
	// factory has the informers of the Node authorizer. Nil without it.
	factory informers.SharedInformerFactory
	// policy is what RBAC decides by. Nil without it.
	policy *policy.Store
	// all are to be started and waited for.
	all []process.InformerFactory
}

func (c CompletedConfig) newSources() sources {
	var from sources
	if c.has(modes.ModeNode) {
		from.factory = process.NewInformerFactory(c.Kubernetes)
		process.WatchScheduledPods(from.factory) // the others are in no node's graph
		from.all = append(from.all, from.factory)
	}
	if c.has(modes.ModeRBAC) {
		from.policy = policy.NewStore()
		from.all = append(from.all, policy.NewReader(from.policy, c.Kubernetes))
	}
	return from
}

func (c Config) has(mode string) bool {
	return chain.Has(c.Authorization.AuthorizationConfiguration, mode)
}
