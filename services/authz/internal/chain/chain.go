// Package chain builds the authorizers that the flags or an
// AuthorizationConfiguration ask for, and can tell what each of them said.
//
// Every authorizer is upstream's. Upstream's own chain is closed, so that who
// said what cannot be seen from outside of it; therefore each configured
// authorizer is a chain of upstream with one member, and upstream's union joins
// them in their order. Decisions, reasons and errors are those of the one chain
// that kube-apiserver would have built.
package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	authzconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/tools/cache"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/trigate/trigate/services/authz/internal/policy"
)

// privilegedGroupName is upstream's name for the authorizer that lets
// system:masters do everything, which is first in every chain.
const privilegedGroupName = "kubernetes.io/system-privileged-group"

// Config is what New needs.
type Config struct {
	// Upstream is what kube-apiserver would build its chain from. Its informers
	// must not be started before New has returned.
	Upstream kubeauthorizer.Config
	// Policy is what RBAC decides by. Needed if RBAC is configured.
	Policy *policy.Store
	// ServerID tells this server from others in the metrics of reloads.
	ServerID string
}

// Chain is the configured authorizers, joined in their order. It is safe for
// concurrent use. Run keeps it up to date with the configuration file.
type Chain struct {
	cfg      Config
	compiler authorizationcel.Compiler
	// lasting are the authorizers of all types but Webhook. They outlive reloads,
	// since they have state, and a reload can neither add nor remove one.
	lasting  map[authzconfig.AuthorizerType]link
	handlers *handlerFactory

	// lastData and lastConfig are what was loaded last. Only New and Run use them.
	lastData   []byte
	lastConfig *authzconfig.AuthorizationConfiguration

	// abac is the content of the ABAC policy, which is read once, as upstream does.
	abac []byte

	current atomic.Pointer[joined]
}

var (
	_ authorizer.UnconditionalAuthorizer = (*Chain)(nil)
	_ authorizer.RuleResolver            = (*Chain)(nil)
)

// link is one configured authorizer.
type link struct {
	authorizer authorizer.Authorizer
	rules      authorizer.RuleResolver
}

// joined is a whole chain.
type joined struct {
	config     *authzconfig.AuthorizationConfiguration
	authorizer authorizer.Authorizer
	rules      authorizer.RuleResolver
	// digest tells the configuration from others.
	digest string
	// waits is whether a question may wait for somebody else, a webhook.
	waits bool
	// replaced is closed when another chain is in force.
	replaced chan struct{}
}

// Has reports whether an authorizer of a type (of upstream's modes) is configured.
// A reload changes that for no type but Webhook.
func Has(config *authzconfig.AuthorizationConfiguration, mode string) bool {
	return slices.ContainsFunc(config.Authorizers, func(configured authzconfig.AuthorizerConfiguration) bool {
		return string(configured.Type) == mode
	})
}

// AuthorizerError says which of the configured authorizers cannot be built.
type AuthorizerError struct {
	// Type and Name are the authorizer's in the configuration.
	Type, Name string
	// Err is why.
	Err error
}

// Error names the authorizer and says why.
func (e *AuthorizerError) Error() string {
	return fmt.Sprintf("building authorizer %s: %v", e.Name, e.Err)
}

// Unwrap returns why.
func (e *AuthorizerError) Unwrap() error { return e.Err }

// New builds the chain. It starts nothing. An error is an *AuthorizerError if
// it is about one of the authorizers.
func New(ctx context.Context, cfg Config) (*Chain, error) {
	c := &Chain{
		cfg:        cfg,
		compiler:   authorizationcel.NewDefaultCompiler(),
		lasting:    map[authzconfig.AuthorizerType]link{},
		lastData:   []byte(cfg.Upstream.InitialAuthorizationConfigurationData),
		lastConfig: cfg.Upstream.AuthorizationConfiguration,
	}
	if cfg.Upstream.VersionedInformerFactory != nil {
		c.handlers = &handlerFactory{SharedInformerFactory: cfg.Upstream.VersionedInformerFactory}
	}
	for _, configured := range c.lastConfig.Authorizers {
		if configured.Type == authzconfig.TypeWebhook {
			continue
		}
		l, err := c.newLink(ctx, configured)
		if err != nil {
			return nil, err
		}
		c.lasting[configured.Type] = l
	}
	var err error
	if c.abac, err = c.abacPolicy(); err != nil {
		return nil, &AuthorizerError{Type: modes.ModeABAC, Name: kubeauthorizer.GetNameForAuthorizerMode(modes.ModeABAC), Err: err}
	}
	j, err := c.join(ctx, c.lastConfig)
	if err != nil {
		return nil, err
	}
	c.current.Store(j)
	return c, nil
}

// Authorize decides, and records what each authorizer said if ctx comes from
// Record.
func (c *Chain) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	j := c.current.Load()
	if s := sayingsFrom(ctx); s != nil {
		s.configuration = j.digest
	}
	return j.authorizer.Authorize(ctx, a)
}

// MayWait reports whether a question may have to wait for somebody else (a webhook)
// before it is decided.
func (c *Chain) MayWait() bool { return c.current.Load().waits }

// Authorizers returns the configured authorizers in force, in their order. The
// caller must not change them.
func (c *Chain) Authorizers() []authzconfig.AuthorizerConfiguration {
	return c.current.Load().config.Authorizers
}

// Configuration returns the digest of the configuration in force, and a channel that
// is closed when another one is.
func (c *Chain) Configuration() (string, <-chan struct{}) {
	j := c.current.Load()
	return j.digest, j.replaced
}

// RulesFor returns the rules of all authorizers.
func (c *Chain) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return c.current.Load().rules.RulesFor(ctx, u, namespace)
}

// HandlersSynced are true when the authorizers' event handlers have seen every
// object that was there when the informers were started.
func (c *Chain) HandlersSynced() []cache.InformerSynced {
	if c.handlers == nil {
		return nil
	}
	return c.handlers.synced()
}

// newLink builds one authorizer as a chain of upstream. RBAC is built from what that
// is made of, since the chain's listers do not know who is asked about.
func (c *Chain) newLink(ctx context.Context, configured authzconfig.AuthorizerConfiguration) (link, error) {
	if string(configured.Type) == modes.ModeRBAC {
		if c.cfg.Policy == nil {
			return link{}, &AuthorizerError{Type: string(configured.Type), Name: configured.Name, Err: errors.New("there is no policy to decide by")}
		}
		member := newRBAC(configured.Name, c.cfg.Policy)
		return link{authorizer: member, rules: member}, nil
	}
	one := c.cfg.Upstream
	one.AuthorizationConfiguration = &authzconfig.AuthorizationConfiguration{
		Authorizers: []authzconfig.AuthorizerConfiguration{configured},
	}
	one.ReloadFile, one.InitialAuthorizationConfigurationData = "", ""
	if c.handlers != nil {
		one.VersionedInformerFactory = c.handlers
	}
	authz, rules, err := one.New(ctx, c.cfg.ServerID)
	if err != nil {
		return link{}, &AuthorizerError{Type: string(configured.Type), Name: configured.Name, Err: err}
	}
	return link{authorizer: named{name: configured.Name, next: authz, reuse: reuseOf(configured.Type)}, rules: rules}, nil
}

// join joins the configured authorizers in their order.
func (c *Chain) join(ctx context.Context, config *authzconfig.AuthorizationConfiguration) (*joined, error) {
	authorizers := []union.NamedAuthorizer{{
		AuthorizerName: privilegedGroupName,
		Authorizer: named{
			name:  privilegedGroupName,
			next:  authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
			reuse: anyNamespace,
		},
	}}
	var rules []authorizer.RuleResolver
	for _, configured := range config.Authorizers {
		l, ok := c.lasting[configured.Type]
		switch {
		case ok:
		case configured.Type == authzconfig.TypeWebhook:
			var err error
			if l, err = c.newLink(ctx, configured); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", configured.Type)
		}
		authorizers = append(authorizers, union.NamedAuthorizer{AuthorizerName: configured.Name, Authorizer: l.authorizer})
		rules = append(rules, l.rules)
	}
	all, err := union.New(authorizers...)
	if err != nil {
		return nil, err
	}
	digest, err := digest(config, c.abac)
	if err != nil {
		return nil, err
	}
	return &joined{
		config: config, authorizer: all, rules: union.NewRuleResolvers(rules...),
		digest: digest, waits: Has(config, modes.ModeWebhook), replaced: make(chan struct{}),
	}, nil
}

// lastingTypes are the types that a new configuration has to have too.
func (c *Chain) lastingTypes() sets.Set[authzconfig.AuthorizerType] { return sets.KeySet(c.lasting) }
