package stage

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/trigate/trigate/gateway/decisions"
	authzclient "github.com/trigate/trigate/services/authz/client"
)

// publicPaths may be read whatever the gates do: a probe has to learn from /readyz
// that a gate is down. Upstream's bootstrap policy lets everybody read the same paths
// (system:public-info-viewer).
var publicPaths = []string{"/healthz", "/livez", "/readyz", "/version", "/version/"}

// authorization sets up what a user may do. system:masters, the public paths and
// the services' own rights are decided here; everything else is asked of authz, whose
// decisions are kept while no change of the policy concerns them. It returns what
// knows of the changes.
func authorization(
	config *genericapiserver.Config, remote *authzclient.Client, services *serviceCertificates,
	gates GatesConfig, observers writeObservers,
) (*decisions.Cache, error) {
	cache, err := keptDecisions(config, remote, gates, observers)
	if err != nil {
		return nil, err
	}
	public, err := path.NewAuthorizer(publicPaths)
	if err != nil {
		return nil, err
	}
	gate := &gatedAuthorizer{
		local: []authorizer.UnconditionalAuthorizer{
			authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
			authorizer.AuthorizerFunc(services.authorize),
			authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetVerb() != "get" {
					return authorizer.DecisionNoOpinion, "", nil
				}
				return public.Authorize(ctx, a)
			}),
		},
		remote: cache,
		rules:  freshRules{service: remote, known: cache.Known},
	}
	config.Authorization.Authorizer = gate
	config.RuleResolver = gate
	return cache, nil
}

// keptDecisions sets up the cache of decisions. It follows the policy from when the
// server has started.
func keptDecisions(config *genericapiserver.Config, remote *authzclient.Client, gates GatesConfig, observers writeObservers) (*decisions.Cache, error) {
	cache, err := decisions.New(decisions.Config{
		Service: remote, MaxEntries: gates.DecisionCacheEntries, MaxBytes: gates.DecisionCacheBytes,
	})
	if err != nil {
		return nil, err
	}
	observers.add(cache.Observe, decisions.Resources()...)
	if err := legacyregistry.Registerer().Register(cache); err != nil {
		return nil, fmt.Errorf("registering the metrics of the decision cache: %w", err)
	}
	return cache, config.AddPostStartHook("trigate-policy-revisions", func(hook genericapiserver.PostStartHookContext) error {
		go cache.Run(hook)
		return nil
	})
}

// gatedAuthorizer asks the local authorizers in order, and the authz gate if none
// of them has an opinion. The gate's answer is passed on as it is, so that reasons
// and errors are those of a chain in one process.
type gatedAuthorizer struct {
	local  []authorizer.UnconditionalAuthorizer
	remote authorizer.Authorizer
	rules  authorizer.RuleResolver
}

var (
	_ authorizer.Authorizer   = (*gatedAuthorizer)(nil)
	_ authorizer.RuleResolver = (*gatedAuthorizer)(nil)
)

// Authorize implements authorizer.Authorizer.
func (g *gatedAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, local := range g.local {
		decision, reason, err := local.Authorize(ctx, a)
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
	}
	decision, reason, err := g.remote.Authorize(ctx, a)
	if err != nil {
		noteFailure(ctx, gateAuthz, err)
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize implements authorizer.Authorizer, unaware of conditions
// as upstream prescribes it.
func (g *gatedAuthorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(g.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer. It fails closed.
func (g *gatedAuthorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// freshRules lists rules that have seen every change which the gateway knows of.
type freshRules struct {
	service *authzclient.Client
	known   func() authzclient.Revision
}

// RulesFor implements authorizer.RuleResolver.
func (r freshRules) RulesFor(ctx context.Context, info user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return r.service.ListRules(ctx, info, namespace, r.known())
}

// RulesFor implements authorizer.RuleResolver.
func (g *gatedAuthorizer) RulesFor(ctx context.Context, info user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resource, nonResource, incomplete, err := g.rules.RulesFor(ctx, info, namespace)
	if err != nil {
		noteFailure(ctx, gateAuthz, err)
	}
	return resource, nonResource, incomplete, err
}
