// Package chain builds kube-apiserver's chain of admission plugins, from
// kube-apiserver's options and by kube-apiserver's code.
package chain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/tracing"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	controlplaneadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	kubeadmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/admission/internal/custom"
	"github.com/trigate/trigate/services/admission/internal/interest"
)

// mapperResetInterval is how often upstream forgets what discovery said.
const mapperResetInterval = 30 * time.Second

// Config is what New needs.
type Config struct {
	// Admission are the plugins and their configuration.
	Admission *kubeoptions.AdmissionOptions
	// APIs says which APIs are on, for quota.
	APIs *genericoptions.APIEnablementOptions
	// Egress says how webhooks are reached.
	Egress *genericoptions.EgressSelectorOptions
	// AggregatorRouting has webhooks behind a service called at one of its
	// endpoints and not at its cluster IP.
	AggregatorRouting bool

	// Kubernetes, Dynamic and Extensions are clients of the gateway's API.
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
	Extensions apiextensionsclient.Interface
	// Loopback says how the gateway's API is reached. A webhook or conversion
	// that names the service default/kubernetes is called there.
	Loopback *rest.Config
	// TracerProvider gets a span of each call of a webhook that belongs to a trace.
	// Nil: none.
	TracerProvider tracing.TracerProvider
	// Informers and ExtensionInformers are what plugins read. The caller starts
	// them, after New.
	Informers          informers.SharedInformerFactory
	ExtensionInformers apiextensionsinformers.SharedInformerFactory
	// Authorizer answers the plugins' questions on what users may do.
	Authorizer authorizer.Authorizer
	// LookUpFailed is told of a plugin's look-up that neither finds an object nor finds
	// it missing. Plugins may take that for a reason to reject a request.
	LookUpFailed func(error)
}

// Chain is the chain of plugins.
type Chain struct {
	// Plugins is the chain with its metrics and reinvocation.
	Plugins admission.Interface
	// Definitions knows custom resources.
	Definitions *custom.Definitions
	// Members are the plugins one by one, in their order.
	Members []interest.Plugin
	// Settled are those of the validating plugins whose say on new objects is settled
	// when the mutating ones are through, with their metrics.
	Settled admission.ValidationInterface

	settled []admission.Interface

	mapper *restmapper.DeferredDiscoveryRESTMapper
	stop   chan struct{}
}

// New builds the chain. Its plugins start goroutines at once, which Close ends.
func New(cfg Config) (*Chain, error) {
	c := &Chain{
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(cfg.Kubernetes.Discovery())),
		stop:   make(chan struct{}),
	}
	cfg.Informers = newLivePods(cfg.Informers, cfg.Kubernetes, cfg.LookUpFailed)
	generic := genericapiserver.NewConfig(legacyscheme.Codecs)
	generic.EffectiveVersion = compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	generic.FeatureGate = utilfeature.DefaultFeatureGate
	generic.Authorization.Authorizer = cfg.Authorizer
	generic.LoopbackClientConfig = cfg.Loopback
	if cfg.TracerProvider != nil {
		generic.TracerProvider = cfg.TracerProvider
	}
	if err := cfg.Egress.ApplyTo(generic); err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if err := cfg.APIs.ApplyTo(generic, controlplane.DefaultAPIResourceConfigSource(), legacyscheme.Scheme); err != nil {
		return nil, fmt.Errorf("--runtime-config: %w", err)
	}
	resolver, err := serviceResolver(cfg)
	if err != nil {
		return nil, err
	}
	transport := controlplaneapiserver.CreateProxyTransport()
	initializers, err := c.initializers(cfg, generic, transport, resolver)
	if err != nil {
		return nil, err
	}
	c.Definitions, err = custom.New(custom.Config{
		Definitions:     cfg.ExtensionInformers.Apiextensions().V1().CustomResourceDefinitions(),
		Client:          cfg.Extensions,
		ServiceResolver: resolver,
		Authentication:  webhook.NewDefaultAuthenticationInfoResolverWrapper(transport, generic.EgressSelector, cfg.Loopback, generic.TracerProvider),
	})
	if err != nil {
		return nil, err
	}
	err = c.recordMembers(cfg.Admission).ApplyTo(generic, cfg.Informers, cfg.Kubernetes, cfg.Dynamic,
		utilfeature.DefaultFeatureGate, generic.EffectiveVersion, initializers...)
	if err != nil {
		close(c.stop) // some plugins may be running
		return nil, err
	}
	c.Plugins = generic.AdmissionControl
	settled, ok := admissionmetrics.WithStepMetrics(admission.NewChainHandler(c.settled...)).(admission.ValidationInterface)
	if !ok {
		return nil, errors.New("a chain of plugins that does not validate")
	}
	c.Settled = settled
	limitPatchCopies(generic.JSONPatchMaxCopyBytes)
	return c, nil
}

// recordMembers returns the options with decorators that change nothing, and see each
// plugin before and after the others wrap it.
func (c *Chain) recordMembers(o *kubeoptions.AdmissionOptions) *kubeoptions.AdmissionOptions {
	generic := *o.GenericAdmission
	record := admission.DecoratorFunc(func(handler admission.Interface, name string) admission.Interface {
		c.Members = append(c.Members, interest.Plugin{Name: name, Handler: handler})
		return handler
	})
	recordSettled := admission.DecoratorFunc(func(handler admission.Interface, name string) admission.Interface {
		if interest.Settled(name) {
			c.settled = append(c.settled, handler)
		}
		return handler
	})
	generic.Decorators = slices.Concat(admission.Decorators{record}, generic.Decorators, admission.Decorators{recordSettled})
	return &kubeoptions.AdmissionOptions{GenericAdmission: &generic, PluginNames: o.PluginNames}
}

// limitPatchCopies bounds what the copy operations of a webhook's patch may
// add up to. An API server sets the same variable when it is made; if one of
// this process has, it stays.
func limitPatchCopies(bytes int64) {
	atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, bytes)
}

// initializers returns what kube-apiserver gives its plugins beyond what the
// generic options give them.
func (c *Chain) initializers(cfg Config, generic *genericapiserver.Config, transport *http.Transport, resolver webhook.ServiceResolver) ([]admission.PluginInitializer, error) {
	forGeneric := controlplaneadmission.Config{
		ExternalInformers:    cfg.Informers,
		LoopbackClientConfig: cfg.Loopback,
		APIResourceConfig:    generic.MergedResourceConfig,
	}
	initializers, err := forGeneric.New(transport, generic.EgressSelector, resolver, generic.TracerProvider)
	if err != nil {
		return nil, fmt.Errorf("preparing the plugins: %w", err)
	}
	forKube := kubeadmission.Config{}
	kubeInitializers, err := forKube.New()
	if err != nil {
		return nil, fmt.Errorf("preparing the plugins: %w", err)
	}
	// The first of them tells quota's workers to start.
	return append([]admission.PluginInitializer{lifecycle{c}}, append(initializers, kubeInitializers...)...), nil
}

// lifecycle ties the plugins to the chain. Upstream ties them to an API server: they
// end when its requests have drained, and a post-start hook of it makes them
// forget what discovery said. Neither happens to a server that never runs, so
// this comes right after upstream's generic initializer and says otherwise.
type lifecycle struct{ chain *Chain }

var _ admission.PluginInitializer = lifecycle{}

// Initialize tells a plugin when it has to end, and how kinds are found.
func (l lifecycle) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsDrainedNotification); ok {
		wants.SetDrainedNotification(l.chain.stop)
	}
	if wants, ok := plugin.(initializer.WantsRESTMapper); ok {
		wants.SetRESTMapper(l.chain.mapper)
	}
}

// Run makes the plugins forget now and then what discovery said, as upstream's
// post-start hook does, until ctx ends.
func (c *Chain) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { c.mapper.Reset() }, mapperResetInterval)
	return nil
}

// Close ends the plugins. It is called once, when they have answered.
func (c *Chain) Close() { close(c.stop) }

// serviceResolver returns how kube-apiserver finds the webhooks that are behind
// a service.
func serviceResolver(cfg Config) (webhook.ServiceResolver, error) {
	services := cfg.Informers.Core().V1().Services().Lister()
	var resolver webhook.ServiceResolver
	if cfg.AggregatorRouting {
		slices, err := proxy.NewEndpointSliceIndexerGetter(cfg.Informers.Discovery().V1().EndpointSlices())
		if err != nil {
			return nil, fmt.Errorf("--enable-aggregator-routing: %w", err)
		}
		resolver = aggregatorapiserver.NewEndpointServiceResolver(services, slices)
	} else {
		resolver = aggregatorapiserver.NewClusterIPServiceResolver(services)
	}
	gateway, err := url.Parse(cfg.Loopback.Host)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: server %q: %w", cfg.Loopback.Host, err)
	}
	return aggregatorapiserver.NewLoopbackServiceResolver(resolver, gateway), nil
}

// privileged lets the members of system:masters do everything without asking
// anybody, as kube-apiserver does.
type privileged struct {
	authorizer.Authorizer
	masters authorizer.UnconditionalAuthorizer
}

// Authorizer returns what plugins are to ask: next, but not about the members
// of system:masters.
func Authorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return &privileged{Authorizer: next, masters: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}
}

// Authorize decides.
func (p *privileged) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if decision, reason, err := p.masters.Authorize(ctx, a); decision == authorizer.DecisionAllow {
		return decision, reason, err
	}
	return p.Authorizer.Authorize(ctx, a)
}

// ConditionsAwareAuthorize decides.
func (p *privileged) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	if decision, reason, err := p.masters.Authorize(ctx, a); decision == authorizer.DecisionAllow {
		return authorizer.ConditionsAwareDecisionFromParts(decision, reason, err)
	}
	return p.Authorizer.ConditionsAwareAuthorize(ctx, a)
}
