package decisions

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// outcome is what came of a question.
type outcome struct {
	answer authzclient.Answer
	err    error
}

// ask has the service decide, once for all who ask the same at the same time.
//
// Those who join have asked for at least the same revision, so that nobody is served
// an answer from before a change that was known when he came.
func (c *Cache) ask(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	question := c.policy.ask()
	if a.GetUser() == nil {
		return c.decide(ctx, a, question).parts()
	}
	key := string(appendQuestion(nil, a, question.atLeast))
	waiting, cancel := authzclient.WithReserve(ctx)
	defer cancel()
	answered, err := c.flights.Do(waiting, key, func(shared context.Context) outcome { return c.decide(shared, a, question) })
	if err != nil {
		return authorizer.DecisionNoOpinion, "", authzclient.CouldNotDecide(err)
	}
	return answered.parts()
}

func (o outcome) parts() (authorizer.Decision, string, error) {
	if o.err != nil {
		return authorizer.DecisionNoOpinion, "", o.err
	}
	return o.answer.Decision, o.answer.Reason, o.answer.Err
}

// decide asks the service and keeps the answer if it may.
func (c *Cache) decide(ctx context.Context, a authorizer.Attributes, question asked) outcome {
	answer, err := c.service.Decide(ctx, a, question.atLeast)
	if err != nil {
		return outcome{err: err}
	}
	if len(c.shards) > 0 && a.GetUser() != nil {
		c.keep(a, question, &answer)
	}
	return outcome{answer: answer}
}

func (c *Cache) keep(a authorizer.Attributes, question asked, answer *authzclient.Answer) {
	k := appendKeys(nil, a)
	key := k.of(answer.Reuse)
	if len(key) > maxKey {
		return
	}
	scope, ok := c.policy.admit(question, answer, a.GetNamespace())
	if !ok {
		return
	}
	var shard *shard
	hash := uint64(0)
	for _, reuse := range widestFirst {
		if hash = c.hash(k, reuse, hash); reuse == authzclient.ReuseAnyNamespace {
			shard = c.shard(hash)
		}
		if reuse == answer.Reuse {
			break
		}
	}
	c.release(shard.add(hash, &entry{
		key:      string(key),
		decision: answer.Decision,
		reason:   answer.Reason,
		revision: answer.Revision,
		epoch:    question.epoch,
		scope:    scope,
	}))
}

func (c *Cache) release(dropped []*entry) {
	for _, e := range dropped {
		c.policy.release(e.scope)
	}
}
