package stage

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationapi "k8s.io/kubernetes/pkg/apis/authentication"
)

// passing is admission that lets everything pass.
type passing struct{}

func (passing) Handles(genericadmission.Operation) bool { return true }

func (passing) Admit(context.Context, genericadmission.Attributes, genericadmission.ObjectInterfaces) error {
	return nil
}

func (passing) Validate(context.Context, genericadmission.Attributes, genericadmission.ObjectInterfaces) error {
	return nil
}

// validateReview has the review of a token validated, as its storage does first.
func validateReview(t *testing.T, ctx context.Context, reviews *tokenReviews, token string) {
	t.Helper()
	review := &authenticationapi.TokenReview{Spec: authenticationapi.TokenReviewSpec{Token: token}}
	kind := authenticationapi.SchemeGroupVersion.WithKind("TokenReview")
	attributes := genericadmission.NewAttributesRecord(review, nil, kind, "", "", authenticationapi.SchemeGroupVersion.WithResource("tokenreviews"), "",
		genericadmission.Create, nil, false, nil)
	if err := (&noteReviews{next: passing{}, reviews: reviews}).Validate(ctx, attributes, nil); err != nil {
		t.Fatal(err)
	}
}

// TestTokenReviewWithoutAuthn wants a review that could not be decided to be noted
// for its request, though the authenticator does not get its context.
func TestTokenReviewWithoutAuthn(t *testing.T) {
	undecided := undecidedError(t)
	reviews := newTokenReviews()
	var deadline time.Time
	tokens := &reviewedToken{reviews: reviews, next: authenticator.TokenFunc(
		func(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
			deadline, _ = ctx.Deadline()
			return nil, false, undecided
		})}
	request := func(timeout time.Duration) (context.Context, *failure, context.CancelFunc) {
		f := &failure{requests: newUndecidedRequests()}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), failureKey{}, f), timeout)
		return ctx, f, cancel
	}
	mine, failed, end := request(time.Minute)
	defer end()
	other, unharmed, endOther := request(time.Hour)
	defer endOther()
	validateReview(t, mine, reviews, "mine")
	validateReview(t, other, reviews, "another")

	if _, _, err := tokens.AuthenticateToken(context.Background(), "mine"); err == nil {
		t.Error("AuthenticateToken without authn = nil error")
	}
	if gate, _ := failed.noted(); gate != gateAuthn {
		t.Errorf("the gate that is noted for the request = %q, want authn", gate)
	}
	if gate, _ := unharmed.noted(); gate != "" {
		t.Errorf("the gate that is noted for another request = %q, want none", gate)
	}
	if want, _ := mine.Deadline(); !deadline.Equal(want) {
		t.Errorf("authn was asked with the deadline %v, want the request's, %v", deadline, want)
	}
}

// TestTokenReviewsForget wants a request to be forgotten when it is over.
func TestTokenReviewsForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviews := newTokenReviews()
		first, end := context.WithCancel(t.Context())
		second, endSecond := context.WithCancel(t.Context())
		reviews.add(first, "token")
		reviews.add(second, "token")
		if got := len(reviews.of("token")); got != 2 {
			t.Errorf("requests for the token = %d, want 2", got)
		}
		end()
		synctest.Wait()
		if got := len(reviews.of("token")); got != 1 {
			t.Errorf("after the end of one: %d, want 1", got)
		}
		endSecond()
		synctest.Wait()
		if got := len(reviews.requests); got != 0 {
			t.Errorf("after the end of both: %d tokens, want none", got)
		}
	})
}
