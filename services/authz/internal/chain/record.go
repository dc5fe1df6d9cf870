package chain

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

type sayingsKey struct{}

// Sayings are what each authorizer said on one question, in their order.
type Sayings struct {
	said []convert.Say
}

// Record returns a context for one question to a Chain, and where the
// authorizers' answers to it will be.
func Record(ctx context.Context) (context.Context, *Sayings) {
	s := &Sayings{}
	return context.WithValue(ctx, sayingsKey{}, s), s
}

// All returns what was said, up to the authorizer that decided. That
// system:masters have no part in the question goes without saying: the
// authorizer for them, which no configuration has, is there only if it decided.
func (s *Sayings) All() []convert.Say { return s.said }

func record(ctx context.Context, name string, decision authorizer.Decision, reason string, err error) {
	s, ok := ctx.Value(sayingsKey{}).(*Sayings)
	if !ok || name == privilegedGroupName && decision == authorizer.DecisionNoOpinion {
		return
	}
	s.said = append(s.said, convert.Say{Name: name, Decision: decision, Reason: reason, Err: err})
}
