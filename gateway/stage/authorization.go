package stage

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	genericapiserver "k8s.io/apiserver/pkg/server"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// publicPaths may be read whatever the gates do: a probe has to learn from /readyz
// that a gate is down. Upstream's bootstrap policy lets everybody read the same paths
// (system:public-info-viewer).
var publicPaths = []string{"/healthz", "/livez", "/readyz", "/version", "/version/"}

// authorization sets up what a user may do. system:masters, the public paths and
// the services' own rights are decided here; everything else is asked of authz.
func authorization(config *genericapiserver.Config, remote *authzclient.Client, services *serviceCertificates) error {
	public, err := path.NewAuthorizer(publicPaths)
	if err != nil {
		return err
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
		remote: remote,
		rules:  remote,
	}
	config.Authorization.Authorizer = gate
	config.RuleResolver = gate
	return nil
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

// RulesFor implements authorizer.RuleResolver.
func (g *gatedAuthorizer) RulesFor(ctx context.Context, info user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resource, nonResource, incomplete, err := g.rules.RulesFor(ctx, info, namespace)
	if err != nil {
		noteFailure(ctx, gateAuthz, err)
	}
	return resource, nonResource, incomplete, err
}
