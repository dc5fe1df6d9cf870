package chain

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/policy"
)

// Sayings are what each authorizer said on one question, in their order, and what
// that depended on. It is the question's context itself, so that it costs one
// allocation.
type Sayings struct {
	context.Context

	said []convert.Say
	// room is where said begins: most chains are short.
	room          [3]convert.Say
	reuse         authzv1.Reuse
	configuration string
	view          *policy.View
}

type sayingsKey struct{}

// Record returns a context for one question to a Chain, and where the
// authorizers' answers to it will be.
func Record(ctx context.Context) (context.Context, *Sayings) {
	s := &Sayings{Context: ctx}
	s.Forget()
	return s, s
}

// Forget makes room for the next question with the same context. What All returned
// before is lost.
func (s *Sayings) Forget() {
	s.said, s.reuse, s.configuration = s.room[:0], authzv1.Reuse_REUSE_ANY_NAMESPACE, ""
}

// By has the next questions with the same context decided by a view of the policy, if they
// are its user's. Nil: each by the policy as it is then.
func (s *Sayings) By(view *policy.View) { s.view = view }

// evaluation returns the context for RBAC to decide in.
func (s *Sayings) evaluation(ctx context.Context, a authorizer.Attributes) *policy.Evaluation {
	if s == nil {
		return policy.NewEvaluation(ctx, a)
	}
	return s.view.NewEvaluation(ctx, a)
}

// Value returns what the context is known by to a Chain, or the parent's value.
func (s *Sayings) Value(key any) any {
	if key == (sayingsKey{}) {
		return s
	}
	return s.Context.Value(key)
}

// All returns what was said, up to the authorizer that decided. That
// system:masters have no part in the question goes without saying: the
// authorizer for them, which no configuration has, is there only if it decided.
func (s *Sayings) All() []convert.Say { return s.said }

// Reuse returns which other questions the chain answers alike. If no Chain was
// asked, that is none.
func (s *Sayings) Reuse() authzv1.Reuse {
	if s.configuration == "" {
		return authzv1.Reuse_REUSE_UNSPECIFIED
	}
	return s.reuse
}

// Configuration returns the digest of the configuration that the chain decided by.
// Empty if no Chain was asked.
func (s *Sayings) Configuration() string { return s.configuration }

func sayingsFrom(ctx context.Context) *Sayings {
	s, _ := ctx.Value(sayingsKey{}).(*Sayings)
	return s
}

// record remembers an authorizer's say, and which other questions it says the same
// of. What an error came of is not known, so it may not last.
func (s *Sayings) record(name string, decision authorizer.Decision, reason string, err error, reuse authzv1.Reuse) {
	if s == nil {
		return
	}
	if err != nil {
		reuse = authzv1.Reuse_REUSE_UNSPECIFIED
	}
	s.reuse = min(s.reuse, reuse)
	if name == privilegedGroupName && decision == authorizer.DecisionNoOpinion {
		return
	}
	s.said = append(s.said, convert.Say{Name: name, Decision: decision, Reason: reason, Err: err})
}
