package server

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/interceptor"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/serve"
)

// patience is how long a question waits for a policy that is not read yet. A watch is
// behind by milliseconds; if it is not, another replica may be better off.
const patience = time.Second

// decide answers one question.
func (s *Server) decide(ctx context.Context, request *authzv1.AuthorizeRequest, patience time.Duration) (*authzv1.AuthorizeResponse, error) {
	attributes, err := convert.AttributesFromProto("attributes", request.GetAttributes())
	if err != nil {
		return nil, err
	}
	if err := s.awaitFor(ctx, request.GetAtLeastAsFreshAs(), patience); err != nil {
		return nil, err
	}
	response, _, err := s.evaluate(ctx, attributes, request.GetAtLeastAsFreshAs())
	return response, err
}

// evaluate asks the authorizer, which decides by a policy that is fresh enough, and
// returns its answer also as what each authorizer said.
func (s *Server) evaluate(ctx context.Context, attributes authorizer.Attributes, atLeast *authzv1.PolicyRevision) (*authzv1.AuthorizeResponse, []convert.Say, error) {
	// What is in force by now is seen; what comes into force meanwhile may not be.
	revision := s.revision(atLeast)
	_, sayings := chain.Record(ctx)
	said, err := s.ask(sayings, attributes)
	if err != nil {
		return nil, nil, err
	}
	response := convert.SayToProto(said, sayings.All())
	response.Revision, response.Configuration, response.Reuse = revision, sayings.Configuration(), reuseOf(said, sayings)
	return response, sayings.All(), nil
}

// ask has the authorizer decide. An error is that of the context.
func (s *Server) ask(recording *chain.Sayings, attributes authorizer.Attributes) (convert.Say, error) {
	start := time.Now()
	decision, reason, err := s.cfg.Authorizer.Authorize(recording, attributes)
	if recording.Err() != nil {
		// What an authorizer says of a question that was cut off is no decision.
		return convert.Say{}, recording.Err()
	}
	s.metrics.decided(decision, time.Since(start))
	return convert.Say{Decision: decision, Reason: reason, Err: err}, nil
}

// reuseOf returns which other questions the chain answers alike. What an error came of
// is not known.
func reuseOf(said convert.Say, sayings *chain.Sayings) authzv1.Reuse {
	if said.Err != nil {
		return authzv1.Reuse_REUSE_UNSPECIFIED
	}
	return sayings.Reuse()
}

// result answers one question on a stream, which has a line of its own in the log.
func (s *Server) result(ctx context.Context, question *authzv1.StreamQuestion, patience time.Duration) *authzv1.AuthorizeResult {
	if patience > 0 {
		// A question that may wait may be asked on, of a webhook.
		ctx = serve.WithQuestion(ctx, question.GetAuditId())
	}
	start := time.Now()
	response, err := attempt(func() (*authzv1.AuthorizeResponse, error) {
		return s.decide(ctx, question.GetRequest(), patience)
	})
	if status := serve.LogQuestion(ctx, question.GetAuditId(), err, time.Since(start)); status != nil {
		return &authzv1.AuthorizeResult{Error: errorOf(status)}
	}
	return &authzv1.AuthorizeResult{Response: response}
}

// settle returns what answer does, or why there is none, for one question of a call that
// has others. It has a line in the log only if that is a fault of ours.
func settle[T any](ctx context.Context, answer func() (T, error)) (T, *authzv1.AuthorizeError) {
	answered, err := attempt(answer)
	if err == nil {
		return answered, nil
	}
	if e, ok := rpcerr.As(err); !ok || e.Reason == rpcerr.ReasonInternal {
		keysAndValues := []any{}
		if p := (*interceptor.PanicError)(nil); errors.As(err, &p) {
			keysAndValues = append(keysAndValues, "stack", string(p.Stack))
		}
		klog.FromContext(ctx).Error(err, "Could not answer one of several questions", keysAndValues...)
	}
	return answered, errorOf(rpcerr.ToStatus(err, serve.AuditIDFrom(ctx)))
}

func errorOf(s *status.Status) *authzv1.AuthorizeError {
	return &authzv1.AuthorizeError{Code: int32(s.Code()), Message: s.Message()}
}

// attempt returns what answer does, and nothing with an error. A panic is the error of
// this answer alone.
func attempt[T any](answer func() (T, error)) (T, error) {
	answered, err := func() (_ T, err error) {
		defer func() {
			if value := recover(); value != nil {
				err = rpcerr.Internal(&interceptor.PanicError{Value: value, Stack: debug.Stack()})
			}
		}()
		return answer()
	}()
	switch {
	case err == nil:
		return answered, nil
	case errors.Is(err, context.DeadlineExceeded):
		err = rpcerr.DeadlineExceeded(hop, err)
	case errors.Is(err, context.Canceled):
		// With the call or the stream, which has its own line in the log.
		err = rpcerr.Canceled(err)
	}
	var none T
	return none, err
}

// mayWait reports whether a question may have to wait for something.
func (s *Server) mayWait(request *authzv1.AuthorizeRequest) bool {
	return s.cfg.MayWait() || !s.reached(request.GetAtLeastAsFreshAs())
}

// await returns nil when everything has been read, and the policy as far as asked
// for. If that takes too long, it is an Unavailable: another replica may answer.
func (s *Server) await(ctx context.Context, atLeast *authzv1.PolicyRevision) error {
	return s.awaitFor(ctx, atLeast, patience)
}

func (s *Server) awaitFor(ctx context.Context, atLeast *authzv1.PolicyRevision, patience time.Duration) error {
	if err := s.ready(); err != nil || s.reached(atLeast) {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.cfg.Policy.Wait(waiting, positionsFromProto(atLeast)); err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return rpcerr.NotSynced(hop, "it has not read the policy as far as the question asks for")
}

// reached reports whether the policy was read as far. A service that does not
// decide by one has nothing to read.
func (s *Server) reached(atLeast *authzv1.PolicyRevision) bool {
	return atLeast == nil || s.cfg.Policy == nil || s.cfg.Policy.Revision().Reached(positionsFromProto(atLeast))
}

// revision is up to where the policy was read. Where nothing is decided by it, whatever a
// question asks for is seen.
func (s *Server) revision(atLeast *authzv1.PolicyRevision) *authzv1.PolicyRevision {
	switch {
	case s.cfg.Policy != nil:
		return positionsToProto(s.cfg.Policy.Revision())
	case atLeast != nil:
		return atLeast
	}
	return &authzv1.PolicyRevision{}
}

func positionsFromProto(m *authzv1.PolicyRevision) policy.Positions {
	return policy.Positions{
		policy.ClusterRoles:        m.GetClusterRoles(),
		policy.ClusterRoleBindings: m.GetClusterRoleBindings(),
		policy.Roles:               m.GetRoles(),
		policy.RoleBindings:        m.GetRoleBindings(),
	}
}

func positionsToProto(p policy.Positions) *authzv1.PolicyRevision {
	return &authzv1.PolicyRevision{
		ClusterRoles:        p[policy.ClusterRoles],
		ClusterRoleBindings: p[policy.ClusterRoleBindings],
		Roles:               p[policy.Roles],
		RoleBindings:        p[policy.RoleBindings],
	}
}
