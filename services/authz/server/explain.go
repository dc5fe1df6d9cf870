package server

import (
	"context"
	"errors"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/explain"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// explainAttempts is how often a question is decided because the policy has changed
// before the decision was explained. That one change comes in between, within far
// less than a millisecond, is rare; that several do hints at trouble.
const explainAttempts = 5

// Explain decides one question, and says by what.
func (s *Server) Explain(ctx context.Context, request *authzv1.ExplainRequest) (*authzv1.ExplainResponse, error) {
	attributes, err := convert.AttributesFromProto("attributes", request.GetAttributes())
	if err != nil {
		return nil, err
	}
	if err := s.awaitExplainer(ctx, request.GetAtLeastAsFreshAs()); err != nil {
		return nil, err
	}
	for range explainAttempts {
		answer, said, err := s.evaluate(ctx, attributes, request.GetAtLeastAsFreshAs())
		if err != nil {
			return nil, err
		}
		explanation, err := s.cfg.Explainer.Explain(ctx, attributes, said)
		if err == nil {
			return convert.ExplanationToProto(answer, *explanation), nil
		}
		if !errors.Is(err, explain.ErrPolicyChanged) {
			return nil, err
		}
	}
	return nil, rpcerr.NotSynced(hop, "its policy changes faster than a decision can be explained")
}

// WhoCan returns a page of the subjects that RBAC allows an action.
func (s *Server) WhoCan(ctx context.Context, request *authzv1.WhoCanRequest) (*authzv1.WhoCanResponse, error) {
	action, err := convert.ActionFromProto("attributes", request.GetAttributes())
	if err != nil {
		return nil, err
	}
	if err := s.awaitExplainer(ctx, request.GetAtLeastAsFreshAs()); err != nil {
		return nil, err
	}
	revision := s.revision(request.GetAtLeastAsFreshAs())
	subjects, err := s.cfg.Explainer.WhoCan(ctx, explain.Question{
		Action:    action,
		PageSize:  int(request.GetPageSize()),
		PageToken: request.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	response := convert.SubjectsToProto(*subjects)
	response.Revision = revision
	return response, nil
}

// awaitExplainer is await for methods that need the explainer.
func (s *Server) awaitExplainer(ctx context.Context, atLeast *authzv1.PolicyRevision) error {
	if s.cfg.Explainer == nil {
		return rpcerr.Unimplemented("%s explains nothing", hop)
	}
	return s.await(ctx, atLeast)
}
