// Package stage builds the generic API server configuration of the gateway, one
// stage a file. A stage takes what it needs as parameters and returns what it
// provides, so that the compiler holds their order.
package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	kubeapiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

// Config is all that the server chain is made from.
type Config struct {
	// Options are the flags.
	Options kubeapiserveroptions.CompletedOptions
	// Generic is shared by the three servers of the chain.
	Generic *genericapiserver.Config
	// VersionedInformers watch through the loopback client.
	VersionedInformers informers.SharedInformerFactory
	// StorageFactory says where and how each resource is stored.
	StorageFactory *serverstorage.DefaultStorageFactory
	// Gates are the connections to the three services.
	Gates *Gates
	// REST serves the gates under /gates/.
	REST *REST
	// Tokens issue service-account tokens and publish their keys.
	Tokens *Tokens

	undecided *undecidedRequests
	closers   []func() error
}

// Close ends what the stages opened, the last first.
func (c *Config) Close() error {
	var errs []error
	for i := len(c.closers) - 1; i >= 0; i-- {
		errs = append(errs, c.closers[i]())
	}
	c.closers = nil
	return errors.Join(errs...)
}

// schemes are those of the three servers of the chain.
func schemes() []*runtime.Scheme {
	return []*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme}
}

// BuildGenericConfig runs the stages, top to bottom. They open a TLS listener, start
// to connect to the gates, and wait for etcd, for at most etcdTimeout. If a stage
// fails, what the ones before it opened is closed, and the error names the stage.
func BuildGenericConfig(
	ctx context.Context,
	opts kubeapiserveroptions.CompletedOptions,
	gatesConfig GatesConfig,
	etcdTimeout time.Duration,
) (_ *Config, err error) {
	c := &Config{Options: opts, undecided: newUndecidedRequests()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()

	resources := apiResources()
	if c.Generic, err = generic(opts, resources); err != nil {
		return nil, fmt.Errorf("generic server: %w", err)
	}
	tracer, err := tracing(c.Generic, opts)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	if c.Gates, err = dialGates(gatesConfig, tracer); err != nil {
		return nil, fmt.Errorf("gates: %w", err)
	}
	c.closers = append(c.closers, c.Gates.Close)
	if err = loopback(ctx, c.Generic, c.Gates.WaitForWrites); err != nil {
		return nil, fmt.Errorf("loopback client: %w", err)
	}
	externalClient, versionedInformers, err := clients(c.Generic, opts.InformerName)
	if err != nil {
		return nil, fmt.Errorf("clients: %w", err)
	}
	c.VersionedInformers = versionedInformers
	if err = features(c.Generic, opts, externalClient, versionedInformers, resources); err != nil {
		return nil, fmt.Errorf("features: %w", err)
	}
	openAPI(c.Generic, schemes())
	longRunning(c.Generic)
	observers := writeObservers{}
	if c.StorageFactory, err = storage(c.Generic, opts.Etcd, observers); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	reviews := newTokenReviews()
	services, identities, err := authentication(c.Generic, opts.Authentication, authnclient.NewToken(c.Gates.Authn), reviews, gatesConfig.CAFile, observers)
	if err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	policy, err := authorization(c.Generic, c.Gates.Authz, services, gatesConfig, observers)
	if err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	if err = audit(c.Generic, opts.Audit, c.undecided); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if err = admission(c.Generic, c.Gates.Admission, reviews, policy.Known, gatesConfig, observers, externalClient, versionedInformers); err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	if c.Tokens, err = tokens(c.Generic, c.Gates.Authn); err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	if err = readiness(c.Generic, c.Gates); err != nil {
		return nil, fmt.Errorf("readiness: %w", err)
	}
	if c.REST, err = newREST(c.Generic, c.Gates, identities, policy); err != nil {
		return nil, fmt.Errorf("REST: %w", err)
	}
	c.Generic.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	// Last, so that mistakes in the configuration are told at once.
	if err = awaitEtcd(ctx, opts.Etcd.StorageConfig, etcdTimeout); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	return c, nil
}
