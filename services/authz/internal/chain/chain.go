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
	"fmt"
	"slices"
	"strings"
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
)

// privilegedGroupName is upstream's name for the authorizer that lets
// system:masters do everything, which is first in every chain.
const privilegedGroupName = "kubernetes.io/system-privileged-group"

// Config is what New needs.
type Config struct {
	// Upstream is what kube-apiserver would build its chain from. Its informers
	// must not be started before New has returned.
	Upstream kubeauthorizer.Config
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
	authorizer authorizer.Authorizer
	rules      authorizer.RuleResolver
}

// NeedsInformers reports whether the configured authorizers decide by what
// informers read. A reload does not change that.
func NeedsInformers(config *authzconfig.AuthorizationConfiguration) bool {
	return slices.ContainsFunc(config.Authorizers, func(configured authzconfig.AuthorizerConfiguration) bool {
		mode := string(configured.Type)
		return mode == modes.ModeNode || mode == modes.ModeRBAC
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
	return c.current.Load().authorizer.Authorize(ctx, a)
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

// newLink builds one authorizer as a chain of upstream.
func (c *Chain) newLink(ctx context.Context, configured authzconfig.AuthorizerConfiguration) (link, error) {
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
	return link{authorizer: named{name: configured.Name, next: authz}, rules: rules}, nil
}

// join joins the configured authorizers in their order.
func (c *Chain) join(ctx context.Context, config *authzconfig.AuthorizationConfiguration) (*joined, error) {
	authorizers := []union.NamedAuthorizer{{
		AuthorizerName: privilegedGroupName,
		Authorizer:     named{name: privilegedGroupName, next: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
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
	return &joined{authorizer: all, rules: union.NewRuleResolvers(rules...)}, nil
}

// lastingTypes are the types that a new configuration has to have too.
func (c *Chain) lastingTypes() sets.Set[authzconfig.AuthorizerType] { return sets.KeySet(c.lasting) }

// named is one member of the chain: it records what the authorizer said.
type named struct {
	name string
	next authorizer.Authorizer
}

var _ authorizer.Authorizer = named{}

// Authorize asks the authorizer.
func (n named) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.next.Authorize(ctx, a)
	if decision == authorizer.DecisionNoOpinion {
		// Upstream's union put the name before the reason, and will do so again.
		reason = strings.TrimPrefix(reason, n.name+": ")
	}
	record(ctx, n.name, decision, reason, err)
	return decision, reason, err
}

// ConditionsAwareAuthorize is not conditions-aware, as no message of ours is.
func (n named) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(n.Authorize(ctx, a))
}

// EvaluateConditions fails closed: there are no conditions to evaluate.
func (n named) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}
