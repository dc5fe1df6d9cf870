package stage

import (
	"context"
	"sync"

	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationapi "k8s.io/kubernetes/pkg/apis/authentication"
)

// Upstream's storage of TokenReviews asks the authenticator without the context of
// the request: a failure of authn could not be noted for the request, and the
// answer would be a review that says "not authenticated". That is a verdict which
// nobody gave, and clients throw their credentials away on it. Just before that the
// storage has the review validated, with the request's context; so admission is where
// it can be learned which requests a token is reviewed for.

// tokenReviews are the requests under way that review a token. It is safe for
// concurrent use.
type tokenReviews struct {
	mu sync.Mutex
	// requests are the contexts of the requests, by token.
	requests map[string]map[context.Context]struct{}
}

func newTokenReviews() *tokenReviews {
	return &tokenReviews{requests: map[string]map[context.Context]struct{}{}}
}

// add remembers a request until it is over.
func (r *tokenReviews) add(ctx context.Context, token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests[token] == nil {
		r.requests[token] = map[context.Context]struct{}{}
	}
	r.requests[token][ctx] = struct{}{}
	context.AfterFunc(ctx, func() { r.remove(ctx, token) })
}

func (r *tokenReviews) remove(ctx context.Context, token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.requests[token], ctx)
	if len(r.requests[token]) == 0 {
		delete(r.requests, token)
	}
}

// of returns the requests that review token.
func (r *tokenReviews) of(token string) []context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := make([]context.Context, 0, len(r.requests[token]))
	for ctx := range r.requests[token] {
		requests = append(requests, ctx)
	}
	return requests
}

// reviewedToken asks authn for the storage of TokenReviews. A question that fails is
// noted for every request that reviews the same token: it cannot be known which of
// them it was for, and to try again harms none.
type reviewedToken struct {
	next    authenticator.Token
	reviews *tokenReviews
}

var _ authenticator.Token = (*reviewedToken)(nil)

// AuthenticateToken implements authenticator.Token.
func (t *reviewedToken) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if isRequest(ctx) {
		return t.next.AuthenticateToken(ctx, token)
	}
	requests := t.reviews.of(token)
	for _, request := range requests {
		if deadline, ok := request.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
	}
	resp, ok, err := t.next.AuthenticateToken(ctx, token)
	if err != nil {
		for _, request := range requests {
			noteFailure(request, gateAuthn, err)
		}
	}
	return resp, ok, err
}

// noteReviews is admission that remembers the requests which review a token.
type noteReviews struct {
	next    mutatingAndValidating
	reviews *tokenReviews
}

type mutatingAndValidating interface {
	genericadmission.MutationInterface
	genericadmission.ValidationInterface
}

var _ mutatingAndValidating = (*noteReviews)(nil)

// Handles implements admission.Interface.
func (n *noteReviews) Handles(operation genericadmission.Operation) bool {
	return n.next.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (n *noteReviews) Admit(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	return n.next.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (n *noteReviews) Validate(ctx context.Context, a genericadmission.Attributes, o genericadmission.ObjectInterfaces) error {
	if review, ok := a.GetObject().(*authenticationapi.TokenReview); ok && isRequest(ctx) {
		n.reviews.add(ctx, review.Spec.Token)
	}
	return n.next.Validate(ctx, a, o)
}
