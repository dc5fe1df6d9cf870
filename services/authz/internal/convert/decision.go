package convert

import (
	"fmt"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/identity"
)

// Say is what the whole chain or one authorizer of it said.
type Say struct {
	// Name is the authorizer's name in the configuration. Empty for the chain.
	Name string
	// Decision is the decision.
	Decision authorizer.Decision
	// Reason is why. Empty if no reason was given.
	Reason string
	// Err is what went wrong while evaluating, which takes back no decision.
	Err error
}

// SayToProto returns the message for the chain's say and those of its
// authorizers.
func SayToProto(chain Say, authorizers []Say) *authzv1.AuthorizeResponse {
	m := &authzv1.AuthorizeResponse{}
	SayInto(m, chain, authorizers)
	return m
}

// SayInto writes the message that SayToProto returns.
func SayInto(m *authzv1.AuthorizeResponse, chain Say, authorizers []Say) {
	enc := encoderOf(chain, authorizers)
	m.Decision = decisionToProto(chain.Decision)
	m.Reason = enc.String(chain.Reason)
	m.Error = enc.String(ErrorText(chain.Err))
	m.PercentEncoded = enc.Encoded()
	if len(authorizers) == 0 {
		return
	}
	decisions := make([]authzv1.AuthorizerDecision, len(authorizers))
	m.Authorizers = make([]*authzv1.AuthorizerDecision, len(authorizers))
	for i, say := range authorizers {
		decision := &decisions[i]
		decision.Name = enc.String(say.Name)
		decision.Decision = decisionToProto(say.Decision)
		decision.Reason = enc.String(say.Reason)
		decision.Error = enc.String(ErrorText(say.Err))
		m.Authorizers[i] = decision
	}
}

// encoderOf returns the encoder of a message with these says.
func encoderOf(chain Say, authorizers []Say) identity.Encoder {
	enc := identity.NewEncoder(chain.Reason, ErrorText(chain.Err))
	for _, say := range authorizers {
		if enc.Encoded() {
			break
		}
		enc = identity.NewEncoder(say.Name, say.Reason, ErrorText(say.Err))
	}
	return enc
}

// SayFromProto returns the chain's say. An error means that the message holds
// none: a decision that is not known, or text that cannot be read.
func SayFromProto(m *authzv1.AuthorizeResponse) (Say, error) {
	decision, err := decisionFromProto(m.GetDecision())
	if err != nil {
		return Say{}, err
	}
	dec := identity.NewDecoder(m.GetPercentEncoded())
	say := Say{
		Decision: decision,
		Reason:   dec.String("reason", m.GetReason()),
		Err:      ErrorOf(dec.String("error", m.GetError())),
	}
	return say, dec.Err()
}

// decisionToProto returns UNSPECIFIED, which refuses, for what is no decision.
func decisionToProto(decision authorizer.Decision) authzv1.Decision {
	switch decision {
	case authorizer.DecisionDeny:
		return authzv1.Decision_DECISION_DENY
	case authorizer.DecisionAllow:
		return authzv1.Decision_DECISION_ALLOW
	case authorizer.DecisionNoOpinion:
		return authzv1.Decision_DECISION_NO_OPINION
	}
	return authzv1.Decision_DECISION_UNSPECIFIED
}

func decisionFromProto(decision authzv1.Decision) (authorizer.Decision, error) {
	switch decision {
	case authzv1.Decision_DECISION_DENY:
		return authorizer.DecisionDeny, nil
	case authzv1.Decision_DECISION_ALLOW:
		return authorizer.DecisionAllow, nil
	case authzv1.Decision_DECISION_NO_OPINION:
		return authorizer.DecisionNoOpinion, nil
	}
	return authorizer.DecisionDeny, fmt.Errorf("the answer has no decision but %s", decision)
}
