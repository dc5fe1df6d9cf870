package server

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// authorizeActions decides questions that came in columns.
func (s *Server) authorizeActions(ctx context.Context, request *authzv1.BatchAuthorizeRequest) (*authzv1.BatchAuthorizeResponse, error) {
	if len(request.GetQuestions()) > 0 {
		return nil, rpcerr.InvalidArgument("questions", "are not accepted together with actions")
	}
	if request.GetUser() == nil {
		return nil, rpcerr.InvalidArgument("user", "is required with actions")
	}
	actions, err := convert.ActionsFromProto("actions", request.GetActions(), maxQuestions)
	if err != nil {
		return nil, err
	}
	atLeast := request.GetActions().GetAtLeastAsFreshAs()
	if err := s.await(ctx, atLeast); err != nil {
		return nil, err
	}
	batch, err := s.newBatch(request)
	if err != nil {
		return nil, err
	}
	if !batch.sees(atLeast) {
		return nil, rpcerr.NotSynced(hop, "its policy has gone back behind what the actions ask for")
	}
	response := &authzv1.BatchAuthorizeResponse{
		Revision: batch.revision, Configuration: batch.configuration, Answers: make([]uint32, actions.Len()),
	}
	answers := &answers{places: map[answer]uint32{}}
	if s.cfg.MayWait() {
		batch.askAtOnce(ctx, actions, answers, response.Answers)
	} else {
		batch.askInTurn(ctx, actions, answers, response.Answers)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	response.Results = answers.results
	return response, nil
}

// askInTurn writes down where the answer to each action is. What is known is not asked
// again: all that was said since the batch came has seen what its actions ask for.
func (b *batch) askInTurn(ctx context.Context, actions *convert.Actions, answers *answers, places []uint32) {
	_, recording := chain.Record(ctx)
	b.keepView()
	recording.By(b.view)
	attributes := &authorizer.AttributesRecord{User: b.user}
	known := b.server.memories.get()
	defer b.server.memories.put(known)
	for i := range places {
		actions.Into(attributes, i)
		place, ok := known.find(attributes)
		if !ok {
			answer := b.answerAction(recording, attributes)
			place = answers.place(&answer)
			if answer.configuration == "" {
				known.keep(attributes, answer.reuse, place)
			}
		}
		places[i] = place
	}
}

// askAtOnce is askInTurn for authorizers that may wait for somebody else.
func (b *batch) askAtOnce(ctx context.Context, actions *convert.Actions, answers *answers, places []uint32) {
	all := make([]answer, len(places))
	atOnce(len(places), func(i int) {
		_, recording := chain.Record(ctx)
		attributes := &authorizer.AttributesRecord{User: b.user}
		actions.Into(attributes, i)
		all[i] = b.answerAction(recording, attributes)
	})
	for i := range all {
		places[i] = answers.place(&all[i])
	}
}

// answerAction returns the answer to one action. The recording is for this one only until
// it returns.
func (b *batch) answerAction(recording *chain.Sayings, attributes *authorizer.AttributesRecord) answer {
	answered, failure := settle(recording, func() (answer, error) {
		recording.Forget()
		said, err := b.server.ask(recording, attributes)
		if err != nil {
			return answer{}, err
		}
		a := answer{decision: said.Decision, reason: said.Reason, err: convert.ErrorText(said.Err), reuse: reuseOf(said, recording)}
		if recording.Configuration() != b.configuration {
			a.configuration = recording.Configuration()
		}
		return a, nil
	})
	if failure != nil {
		return answer{code: failure.GetCode(), message: failure.GetMessage()}
	}
	return answered
}

// answer is the answer to an action, such that answers which are equal are the same for
// the caller.
type answer struct {
	decision    authorizer.Decision
	reason, err string
	reuse       authzv1.Reuse
	// configuration is what decided if it is not the batch's.
	configuration string
	// code and message say why nothing could be decided. The code is zero if it could.
	code    int32
	message string
}

func (a *answer) toProto() *authzv1.AuthorizeResult {
	if a.code != 0 {
		return &authzv1.AuthorizeResult{Error: &authzv1.AuthorizeError{Code: a.code, Message: a.message}}
	}
	response := convert.SayToProto(convert.Say{Decision: a.decision, Reason: a.reason, Err: convert.ErrorOf(a.err)}, nil)
	response.Reuse, response.Configuration = a.reuse, a.configuration
	return &authzv1.AuthorizeResult{Response: response}
}

// answers are those of a response, each of them once.
type answers struct {
	results []*authzv1.AuthorizeResult
	places  map[answer]uint32
	// last is the answer that was placed last, and lastPlace where: it often comes again.
	last      answer
	lastPlace uint32
}

// place returns where an answer is.
func (s *answers) place(a *answer) uint32 {
	if len(s.results) == 0 || s.last != *a {
		s.last, s.lastPlace = *a, s.find(a)
	}
	return s.lastPlace
}

func (s *answers) find(a *answer) uint32 {
	place, ok := s.places[*a]
	if !ok {
		place = uint32(len(s.results))
		s.places[*a] = place
		s.results = append(s.results, a.toProto())
	}
	return place
}
