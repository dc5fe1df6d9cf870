// Package undecided keeps track of what plugins asked the authorization gate, or
// looked up, while they judged a request, and were not told.
//
// A plugin that gets an error for an answer takes it for a part of its own
// judgement: a policy's expression fails, and its failurePolicy says whether
// that rejects the request or lets it pass. Neither is meant when the gate was
// not there to be asked: the request is not decided then.
package undecided

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Tracker sees the questions of all requests. It is safe for concurrent use.
type Tracker struct {
	// strays counts the unanswered questions of which nothing says to which
	// request they belong, and stray is the last of them.
	strays atomic.Uint64
	stray  atomic.Pointer[rpcerr.Error]
}

// NewTracker returns a tracker.
func NewTracker() *Tracker { return &Tracker{} }

// Request is one request under judgement. It is safe for concurrent use.
type Request struct {
	tracker *Tracker
	strays  uint64
	missed  atomic.Pointer[rpcerr.Error]
}

type contextKey struct{}

// asker is the request's user, by which a question can be told that comes
// without the request's context: CEL's come with none.
type asker struct {
	user.Info
	request *Request
}

// Begin returns the context and the user for the judgement of a request, and
// the request itself. The user is u in all that can be asked of it, and nil for
// nil.
func (t *Tracker) Begin(ctx context.Context, u user.Info) (context.Context, user.Info, *Request) {
	r := &Request{tracker: t, strays: t.strays.Load()}
	if u != nil {
		u = asker{Info: u, request: r}
	}
	return context.WithValue(ctx, contextKey{}, r), u, r
}

// Err returns why the judgement cannot be trusted, or nil. It is asked when the
// plugins have returned. A question that nothing ties to a request (a policy
// asked about a service account) counts for all that were under way.
func (r *Request) Err() error {
	if missed := r.missed.Load(); missed != nil {
		return missed
	}
	if r.tracker.strays.Load() != r.strays {
		return r.tracker.stray.Load()
	}
	return nil
}

// LookUpFailed notes that an object could neither be found nor be found missing. It
// counts for all requests that are under way.
func (t *Tracker) LookUpFailed(err error) { t.lost(rpcerr.PeerUnreachable("gateway", err)) }

// lost notes an unanswered question that nothing ties to a request.
func (t *Tracker) lost(missed *rpcerr.Error) {
	t.stray.Store(missed) // first: whoever sees the count sees an error
	t.strays.Add(1)
}

// Authorizer returns an authorizer that does what next does, and keeps track.
func (t *Tracker) Authorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return &tracking{Authorizer: next, tracker: t}
}

type tracking struct {
	authorizer.Authorizer
	tracker *Tracker
}

// Authorize asks the next authorizer.
func (a *tracking) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.Authorizer.Authorize(ctx, attributes)
	if decision != authorizer.DecisionAllow {
		a.tracker.note(ctx, attributes, err)
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize asks the next authorizer.
func (a *tracking) ConditionsAwareAuthorize(ctx context.Context, attributes authorizer.Attributes) authorizer.ConditionsAwareDecision {
	decision := a.Authorizer.ConditionsAwareAuthorize(ctx, attributes)
	if !decision.IsAllow() {
		a.tracker.note(ctx, attributes, decision.Error())
	}
	return decision
}

func (t *Tracker) note(ctx context.Context, attributes authorizer.Attributes, err error) {
	if !rpcerr.IsCouldNotDecide(err) {
		return
	}
	missed, ok := rpcerr.As(err)
	if !ok {
		missed = rpcerr.PeerUnreachable("authz", err)
	}
	request, ok := ctx.Value(contextKey{}).(*Request)
	if !ok {
		if who, tied := attributes.GetUser().(asker); tied {
			request, ok = who.request, true
		}
	}
	if !ok {
		t.lost(missed)
		return
	}
	request.missed.CompareAndSwap(nil, missed)
}
