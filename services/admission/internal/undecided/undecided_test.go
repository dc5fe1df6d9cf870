package undecided_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/admission/internal/undecided"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

func TestMain(m *testing.M) { servetest.Main(m) }

var somebody = &user.DefaultInfo{Name: "somebody", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}

// TestWhichRequestsAreUndecided asks a question during one of two requests, in
// each of the ways in which plugins ask.
func TestWhichRequestsAreUndecided(t *testing.T) {
	unreachable := rpcerr.PeerUnreachable("authz", nil)
	withContext := func(ctx context.Context, a authorizer.UnconditionalAuthorizer, _ user.Info) {
		_, _, _ = a.Authorize(ctx, authorizer.AttributesRecord{})
	}
	withUser := func(_ context.Context, a authorizer.UnconditionalAuthorizer, u user.Info) {
		_, _, _ = a.Authorize(context.Background(), authorizer.AttributesRecord{User: u})
	}
	withNeither := func(_ context.Context, a authorizer.UnconditionalAuthorizer, _ user.Info) {
		_, _, _ = a.Authorize(context.Background(), authorizer.AttributesRecord{User: somebody})
	}
	conditionally := func(ctx context.Context, a authorizer.UnconditionalAuthorizer, _ user.Info) {
		a.(authorizer.Authorizer).ConditionsAwareAuthorize(ctx, authorizer.AttributesRecord{})
	}
	for name, tc := range map[string]struct {
		decision authorizer.Decision
		err      error
		ask      func(context.Context, authorizer.UnconditionalAuthorizer, user.Info)
		// asking and other are whether the request that asked is undecided, and
		// one that did not.
		asking, other bool
	}{
		"an answer":                 {authorizer.DecisionDeny, nil, withContext, false, false},
		"an error with an answer":   {authorizer.DecisionNoOpinion, errors.New("odd role"), withContext, false, false},
		"allowed all the same":      {authorizer.DecisionAllow, unreachable, withContext, false, false},
		"no answer":                 {authorizer.DecisionNoOpinion, unreachable, withContext, true, false},
		"no answer, conditionally":  {authorizer.DecisionNoOpinion, unreachable, conditionally, true, false},
		"no answer, by the user":    {authorizer.DecisionNoOpinion, unreachable, withUser, true, false},
		"no answer, whoever asked":  {authorizer.DecisionNoOpinion, unreachable, withNeither, true, true},
		"time over, as the context": {authorizer.DecisionNoOpinion, context.DeadlineExceeded, withContext, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := undecided.NewTracker()
			asked := tracker.Authorizer(authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return tc.decision, "", tc.err
			}))
			ctx, u, asking := tracker.Begin(t.Context(), somebody)
			_, _, other := tracker.Begin(t.Context(), nil)
			tc.ask(ctx, asked, u)
			if err := asking.Err(); (err != nil) != tc.asking || err != nil && !rpcerr.IsCouldNotDecide(err) {
				t.Errorf("Err() of the request that asked = %v, want one: %t", err, tc.asking)
			}
			if err := other.Err(); (err != nil) != tc.other {
				t.Errorf("Err() of the other request = %v, want one: %t", err, tc.other)
			}
			_, _, later := tracker.Begin(t.Context(), somebody)
			if err := later.Err(); err != nil {
				t.Errorf("Err() of a later request = %v, want nil", err)
			}
		})
	}
}

// TestLookUpFailed has a look-up fail, which no plugin says on whose behalf it made.
func TestLookUpFailed(t *testing.T) {
	tracker := undecided.NewTracker()
	_, _, during := tracker.Begin(t.Context(), somebody)
	outage := errors.New("connection refused")
	tracker.LookUpFailed(outage)
	if err := during.Err(); !errors.Is(err, outage) || !rpcerr.IsCouldNotDecide(err) {
		t.Errorf("Err() = %v, want that of the look-up, and that nothing could be decided", err)
	}
	if _, _, later := tracker.Begin(t.Context(), somebody); later.Err() != nil {
		t.Errorf("Err() of a later request = %v, want nil", later.Err())
	}
}

func TestTheUserStaysTheSame(t *testing.T) {
	_, u, _ := undecided.NewTracker().Begin(t.Context(), somebody)
	if u.GetName() != "somebody" || u.GetUID() != "1" || u.GetGroups()[0] != "g" || u.GetExtra()["k"][0] != "v" {
		t.Errorf("the user is %v", u)
	}
	if _, nobody, _ := undecided.NewTracker().Begin(t.Context(), nil); nobody != nil {
		t.Errorf("nobody became %v", nobody)
	}
}
