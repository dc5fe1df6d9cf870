package server

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

const (
	// maxQuestions bounds the questions of one message; the proto says so.
	maxQuestions = 1_000
	// maxParallel bounds the questions of one batch that are asked at once where each
	// may wait for a webhook.
	maxParallel = 64
)

// BatchAuthorize decides several questions.
func (s *Server) BatchAuthorize(ctx context.Context, request *authzv1.BatchAuthorizeRequest) (*authzv1.BatchAuthorizeResponse, error) {
	if request.GetActions() != nil {
		return s.authorizeActions(ctx, request)
	}
	questions := request.GetQuestions()
	if err := checkCount(len(questions)); err != nil {
		return nil, err
	}
	if err := s.ready(); err != nil {
		return nil, err
	}
	// All wait together. A question for which that is not long enough says so itself,
	// but if it is so for each, another replica may answer.
	if err := s.await(ctx, freshest(questions)); err != nil && !slices.ContainsFunc(questions, func(question *authzv1.AuthorizeRequest) bool {
		return s.reached(question.GetAtLeastAsFreshAs())
	}) {
		return nil, err
	}
	batch, err := s.newBatch(request)
	if err != nil {
		return nil, err
	}
	results := make([]*authzv1.AuthorizeResult, len(questions))
	if s.cfg.MayWait() {
		atOnce(len(questions), func(i int) {
			_, recording := chain.Record(ctx)
			results[i] = &authzv1.AuthorizeResult{}
			batch.answer(results[i], &authzv1.AuthorizeResponse{}, recording, nil, questions[i])
		})
	} else {
		// One after the other, and with one allocation for all answers.
		_, recording := chain.Record(ctx)
		answers := make([]struct {
			result   authzv1.AuthorizeResult
			response authzv1.AuthorizeResponse
		}, len(questions))
		known := &memory[told]{}
		batch.keepView()
		for i, question := range questions {
			results[i] = &answers[i].result
			batch.answer(results[i], &answers[i].response, recording, known, question)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	response := &authzv1.BatchAuthorizeResponse{Results: results}
	if batch.compact {
		response.Revision, response.Configuration = batch.revision, batch.configuration
	}
	return response, nil
}

// atOnce has all questions of a batch answered, maxParallel of them at a time. It returns
// when the last is.
func atOnce(count int, answer func(i int)) {
	slots := make(chan struct{}, maxParallel)
	var all sync.WaitGroup
	for i := range count {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			answer(i)
		})
	}
	all.Wait()
}

// batch is what the questions of one message have in common.
type batch struct {
	server *Server
	// user is whom the questions are about that name none. Nil: each has to.
	user    user.Info
	compact bool
	// revision is up to where the policy has been read at least, and configuration the
	// one in force when the batch came.
	revision      *authzv1.PolicyRevision
	configuration string
	// view is the policy for the user as the first questions found it, for all that it is
	// fresh enough for. Nil: there is none, or questions are asked at once.
	view *policy.View
}

func (s *Server) newBatch(request *authzv1.BatchAuthorizeRequest) (*batch, error) {
	b := &batch{server: s, compact: request.GetCompact() || request.GetActions() != nil, revision: s.revision(request.GetActions().GetAtLeastAsFreshAs())}
	b.configuration, _ = s.cfg.Configuration()
	if request.GetUser() == nil {
		return b, nil
	}
	var err error
	b.user, err = convert.UserFromProto("user", request.GetUser())
	return b, err
}

// answer writes the answer to a question into result. The recording and what is known
// are for this question only until answer returns.
func (b *batch) answer(result *authzv1.AuthorizeResult, response *authzv1.AuthorizeResponse, recording *chain.Sayings, known *memory[told], question *authzv1.AuthorizeRequest) {
	result.Response, result.Error = settle(recording, func() (*authzv1.AuthorizeResponse, error) {
		attributes, err := b.attributes(question.GetAttributes())
		if err != nil {
			return nil, err
		}
		if err := b.server.awaitFor(recording, question.GetAtLeastAsFreshAs(), 0); err != nil {
			return nil, err
		}
		recording.Forget()
		if b.compact {
			return response, b.decide(response, recording, known, attributes, question)
		}
		revision := b.server.revision(question.GetAtLeastAsFreshAs())
		said, err := b.server.ask(recording, attributes)
		if err != nil {
			return nil, err
		}
		convert.SayInto(response, said, recording.All())
		response.Revision, response.Configuration, response.Reuse = revision, recording.Configuration(), reuseOf(said, recording)
		return response, nil
	})
}

// decide writes a compact answer. What the batch has been told already is not asked
// again if it holds for this question too.
func (b *batch) decide(response *authzv1.AuthorizeResponse, recording *chain.Sayings, known *memory[told], attributes *authorizer.AttributesRecord, question *authzv1.AuthorizeRequest) error {
	atLeast := question.GetAtLeastAsFreshAs()
	recording.By(b.view)
	// Whatever was told since the batch came has seen the batch's revision.
	mayKnow := known != nil && question.GetAttributes().GetUser() == nil
	if !b.sees(atLeast) {
		response.Revision, mayKnow = b.server.revision(atLeast), false
		recording.By(nil)
	}
	if mayKnow {
		if told, ok := known.find(attributes); ok {
			convert.SayInto(response, told.said, nil)
			response.Reuse = told.reuse
			return nil
		}
	}
	said, err := b.server.ask(recording, attributes)
	if err != nil {
		return err
	}
	convert.SayInto(response, said, nil)
	response.Reuse = reuseOf(said, recording)
	switch {
	case recording.Configuration() != b.configuration:
		response.Configuration = recording.Configuration()
	case mayKnow:
		known.keep(attributes, response.GetReuse(), told{said: said, reuse: response.GetReuse()})
	}
	return nil
}

// keepView has the questions of the batch's user decided by one view of the policy if
// nothing that is said of the policy is of one question only.
func (b *batch) keepView() {
	if b.user != nil && b.compact && b.server.cfg.Policy != nil {
		b.view = b.server.cfg.Policy.View(b.user)
	}
}

// sees reports whether what is decided from now on has seen as much.
func (b *batch) sees(atLeast *authzv1.PolicyRevision) bool {
	return atLeast == nil || positionsFromProto(b.revision).Reached(positionsFromProto(atLeast))
}

// attributes returns what a question is about.
func (b *batch) attributes(m *authzv1.Attributes) (*authorizer.AttributesRecord, error) {
	if b.user == nil || m == nil || m.GetUser() != nil {
		record, err := convert.AttributesFromProto("attributes", m)
		return &record, err
	}
	record, err := convert.ActionFromProto("attributes", m)
	record.User = b.user
	return &record, err
}

// told is an answer, and which other questions it answers.
type told struct {
	said  convert.Say
	reuse authzv1.Reuse
}

func checkCount(questions int) error {
	if questions > maxQuestions {
		return rpcerr.InvalidArgument("questions", "has %d items, at most %d are accepted", questions, maxQuestions)
	}
	return nil
}

// freshest returns the policy that is fresh enough for all questions.
func freshest(questions []*authzv1.AuthorizeRequest) *authzv1.PolicyRevision {
	var highest *authzv1.PolicyRevision
	for _, question := range questions {
		asked := question.GetAtLeastAsFreshAs()
		if asked == nil {
			continue
		}
		if highest == nil {
			highest = &authzv1.PolicyRevision{}
		}
		highest.ClusterRoles = max(highest.GetClusterRoles(), asked.GetClusterRoles())
		highest.ClusterRoleBindings = max(highest.GetClusterRoleBindings(), asked.GetClusterRoleBindings())
		highest.Roles = max(highest.GetRoles(), asked.GetRoles())
		highest.RoleBindings = max(highest.GetRoleBindings(), asked.GetRoleBindings())
	}
	return highest
}
