package stage

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/component-base/version"

	"github.com/trigate/trigate/gateway/decisions"
	"github.com/trigate/trigate/gateway/identities"
	"github.com/trigate/trigate/gateway/rest"
	"github.com/trigate/trigate/gateway/rest/ui"
	authnclient "github.com/trigate/trigate/services/authn/client"
)

// restHook ends the streams of the gates' REST face when the server stops.
const restHook = "trigate-rest-streams"

const (
	// kindsHook has the REST face forget from time to time which kinds there are.
	kindsHook = "trigate-rest-kinds"
	// kindsPeriod is how long it may not know of a new version of a kind; it is as long
	// for admission.
	kindsPeriod = 30 * time.Second
	// kindsPause is how often at most it looks for a kind that it does not know.
	kindsPause = time.Second
)

// freshKinds knows the resources of kinds. It looks for one that it does not know, since
// that may be new.
type freshKinds struct {
	*restmapper.DeferredDiscoveryRESTMapper

	mu     sync.Mutex
	looked time.Time // guarded by mu
}

// RESTMapping implements meta.RESTMapper.
func (k *freshKinds) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := k.DeferredDiscoveryRESTMapper.RESTMapping(kind, versions...)
	if !meta.IsNoMatchError(err) || !k.mayLook() {
		return mapping, err
	}
	k.Reset()
	return k.DeferredDiscoveryRESTMapper.RESTMapping(kind, versions...)
}

func (k *freshKinds) mayLook() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.looked) < kindsPause {
		return false
	}
	k.looked = time.Now()
	return true
}

// REST is the gates' REST face, and what it is made of.
type REST struct {
	handler     *rest.Handler
	kinds       *freshKinds
	equivalents *equivalents
}

// newREST sets up the REST face over the gates' connections. What a gate keeps of its
// own rights does not matter to it: requests come to it by the server's filters.
func newREST(config *genericapiserver.Config, gates *Gates, tokens *identities.Cache, policy *decisions.Cache) (*REST, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("making the discovery client: %w", err)
	}
	kinds := &freshKinds{DeferredDiscoveryRESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}
	r := &REST{kinds: kinds, equivalents: &equivalents{kinds: kinds}}
	r.handler, err = rest.New(rest.Config{
		Authn:        gates.Authn,
		Authz:        gates.Authz.Calls(),
		Admission:    gates.Admission.Calls(),
		Kinds:        kinds,
		Schemes:      schemes(),
		Equivalents:  r.equivalents,
		Known:        policy.Known,
		MaxBodyBytes: config.MaxRequestBodyBytes,
		Status:       (&gatesStatus{gates: gates, tokens: tokens, policy: policy}).get,
	})
	return r, err
}

// Install serves it on server, which requests come in by. The server's index lists each
// path.
func (r *REST) Install(server *genericapiserver.GenericAPIServer) error {
	for target := genericapiserver.DelegationTarget(server); target != nil; target = target.NextDelegate() {
		if s, ok := target.(*genericapiserver.GenericAPIServer); ok && s.EquivalentResourceRegistry != nil {
			r.equivalents.registries = append(r.equivalents.registries, s.EquivalentResourceRegistry)
		}
	}
	mux := server.Handler.NonGoRestfulMux
	for _, path := range slices.Concat(rest.Paths(), ui.Paths()) {
		mux.Handle(path, r.handler)
	}
	mux.UnlistedHandlePrefix(rest.Prefix, r.handler)
	if err := server.AddPostStartHook(kindsHook, func(hook genericapiserver.PostStartHookContext) error {
		// It ends with the server.
		go wait.UntilWithContext(hook.Context, func(context.Context) { r.kinds.Reset() }, kindsPeriod)
		return nil
	}); err != nil {
		return err
	}
	return server.AddPreShutdownHook(restHook, func() error {
		r.handler.Stop()
		return nil
	})
}

// equivalents knows the resources that hold the same objects as another: of the three
// servers, and the versions of custom resources.
type equivalents struct {
	kinds      meta.RESTMapper
	registries []runtime.EquivalentResourceMapper
}

var _ runtime.EquivalentResourceMapper = (*equivalents)(nil)

// EquivalentResourcesFor implements runtime.EquivalentResourceMapper.
func (e *equivalents) EquivalentResourcesFor(resource schema.GroupVersionResource, subresource string) []schema.GroupVersionResource {
	for _, registry := range e.registries {
		if found := registry.EquivalentResourcesFor(resource, subresource); len(found) > 0 {
			return found
		}
	}
	kind, err := e.kinds.KindFor(resource)
	if err != nil || subresource != "" {
		return nil
	}
	mappings, err := e.kinds.RESTMappings(kind.GroupKind())
	if err != nil {
		return nil // The resource stands alone.
	}
	var found []schema.GroupVersionResource
	for _, mapping := range mappings {
		if mapping.Resource.Resource == resource.Resource {
			found = append(found, mapping.Resource)
		}
	}
	return found
}

// KindFor implements runtime.EquivalentResourceMapper.
func (e *equivalents) KindFor(resource schema.GroupVersionResource, subresource string) schema.GroupVersionKind {
	for _, registry := range e.registries {
		if kind := registry.KindFor(resource, subresource); !kind.Empty() {
			return kind
		}
	}
	kind, err := e.kinds.KindFor(resource)
	if err != nil {
		return schema.GroupVersionKind{}
	}
	return kind
}

// gatesStatus gathers how the gates are.
type gatesStatus struct {
	gates  *Gates
	tokens *identities.Cache
	policy *decisions.Cache
}

func (g *gatesStatus) get(ctx context.Context) rest.Status {
	links := []struct {
		name string
		get  func(context.Context) authnclient.Status
	}{
		{gateAuthn, g.gates.Authn.Status},
		{gateAuthz, g.gates.Authz.Status},
		{gateAdmission, g.gates.Admission.Status},
	}
	gates := make([]rest.Gate, len(links))
	var wg sync.WaitGroup
	for i, link := range links {
		wg.Go(func() { gates[i] = gateOf(link.name, link.get(ctx)) })
	}
	wg.Wait()
	tokens, policy := g.tokens.Stats(), g.policy.Stats()
	gates[0].Configuration, gates[1].Configuration = tokens.Configuration, policy.Configuration
	gates[0].Stream, gates[1].Stream = streamOf(tokens.Following, tokens.Age), streamOf(policy.Following, policy.Age)
	gates[0].Cache = &rest.Cache{Entries: tokens.Entries, Bytes: tokens.Bytes, Hits: tokens.Hits, Misses: tokens.Misses}
	if policy.Enabled {
		gates[1].Cache = &rest.Cache{
			Entries: policy.Entries, Bytes: policy.Bytes, Hits: policy.Hits, Misses: policy.Misses, Bypassed: policy.Bypassed,
		}
	}
	return rest.Status{Version: version.Get().GitVersion, Gates: gates}
}

func gateOf(name string, status authnclient.Status) rest.Gate {
	gate := rest.Gate{
		Name: name, Endpoint: status.Endpoint, Target: status.Target,
		Ready: status.Reason == "", State: status.State, Reason: status.Reason,
		Replicas: []rest.Replica{},
	}
	for _, replica := range status.Replicas {
		gate.Replicas = append(gate.Replicas, rest.Replica{Address: replica.Address, Health: replica.Health})
	}
	return gate
}

func streamOf(following bool, age time.Duration) *rest.Stream {
	if !following {
		return &rest.Stream{AgeSeconds: -1}
	}
	return &rest.Stream{Following: true, AgeSeconds: age.Seconds()}
}
