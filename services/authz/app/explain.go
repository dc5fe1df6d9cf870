package app

import (
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/explain"
	"github.com/trigate/trigate/services/authz/internal/policy"
)

// newExplainer returns what explains the authorizers' decisions. It reads the ABAC
// policy once, as upstream does.
func (c CompletedConfig) newExplainer(authorizers *chain.Chain, store *policy.Store) (*explain.Explainer, error) {
	cfg := explain.Config{Authorizers: authorizers.Authorizers, WithUser: policy.WithUser}
	if store != nil {
		cfg.RBAC = store
	}
	if c.has(modes.ModeABAC) {
		cfg.ABACPolicyFile = c.Authorization.PolicyFile
	}
	explainer, err := explain.New(cfg)
	if err != nil {
		return nil, &chain.AuthorizerError{Type: modes.ModeABAC, Name: kubeauthorizer.GetNameForAuthorizerMode(modes.ModeABAC), Err: err}
	}
	return explainer, nil
}
