package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
	"github.com/trigate/trigate/services/admission/internal/chain"
	"github.com/trigate/trigate/services/admission/internal/interest"
	"github.com/trigate/trigate/services/admission/internal/undecided"
	"github.com/trigate/trigate/services/admission/server"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/serve"
)

// resyncPeriod is that of the informer of custom resource definitions in
// kube-apiserver.
const resyncPeriod = 5 * time.Minute

// Run runs the service until ctx ends. When it returns, nothing of it is left.
func Run(ctx context.Context, c CompletedConfig) (err error) {
	if c.close != nil {
		defer func() { err = errors.Join(err, c.close()) }()
	}
	questions := undecided.NewTracker()
	informers := process.NewInformerFactory(c.Kubernetes)
	extensionInformers := apiextensionsinformers.NewSharedInformerFactory(c.Extensions, resyncPeriod)
	plugins, err := chain.New(chain.Config{
		Admission:          c.Admission,
		APIs:               c.APIs,
		Egress:             c.Egress,
		AggregatorRouting:  c.AggregatorRouting,
		Kubernetes:         c.Kubernetes,
		Dynamic:            c.Dynamic,
		Extensions:         c.Extensions,
		Loopback:           c.Loopback,
		TracerProvider:     c.Serve.TracerProvider,
		Informers:          informers,
		ExtensionInformers: extensionInformers,
		Authorizer:         chain.Authorizer(questions.Authorizer(c.Authorizer)),
		LookUpFailed:       questions.LookUpFailed,
	})
	if err != nil {
		return c.explain(err)
	}
	defer plugins.Close()
	interests, err := interest.New(interest.Config{
		Plugins: plugins.Members, ConfigFile: c.Admission.GenericAdmission.ConfigFile, Features: utilfeature.DefaultFeatureGate,
	})
	if err != nil {
		return c.explain(err)
	}
	reading := process.NewInformers(process.InformersConfig{
		API:       c.Kubernetes.Discovery().RESTClient(),
		Factories: []process.InformerFactory{informers, extensionInformers, interest.NewReader(interests, c.Kubernetes)},
	})
	grpcServer, err := serve.New(c.Serve)
	if err != nil {
		return err
	}
	admissionv1.RegisterAdmissionServiceServer(grpcServer, server.New(server.Config{
		Plugins:     plugins.Plugins,
		Settled:     plugins.Settled,
		Definitions: plugins.Definitions,
		Questions:   questions,
		Seen:        c.seen,
		Interest:    interests,
		Synced:      reading.Synced,
	}))
	return grpcServer.Run(ctx,
		reading.Task(grpcServer.Health()),
		serve.Task{Name: "plugins", Run: plugins.Run})
}

// explain puts the flag before an error of building the plugins, if it does not
// begin with one: what can be wrong with them is in their configuration.
func (c CompletedConfig) explain(err error) error {
	file := c.Admission.GenericAdmission.ConfigFile
	switch {
	case strings.HasPrefix(err.Error(), "--"):
		return err
	case file == "":
		return fmt.Errorf("building the admission plugins: %w", err)
	case strings.Contains(err.Error(), file):
		return fmt.Errorf("--%s: %w", flagConfigFile, err)
	}
	return fmt.Errorf("--%s: %s: %w", flagConfigFile, file, err)
}
