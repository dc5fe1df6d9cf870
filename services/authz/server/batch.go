package server

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
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
	results := make([]*authzv1.AuthorizeResult, len(questions))
	if s.cfg.MayWait() {
		var group errgroup.Group
		group.SetLimit(maxParallel)
		for i, question := range questions {
			group.Go(func() error {
				results[i] = s.result(ctx, question, 0)
				return nil
			})
		}
		_ = group.Wait() // no question fails the others
	} else {
		for i, question := range questions {
			results[i] = s.result(ctx, question, 0)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return &authzv1.BatchAuthorizeResponse{Results: results}, nil
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
