package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/authz/rbactest"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/identity"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// TestCompactBatch asks about one user in random worlds: the answers are those to the
// same questions asked one by one, whatever of them was known from one before.
func TestCompactBatch(t *testing.T) {
	const worlds, users, questions = 4, 25, 120
	rng := rand.New(rand.NewPCG(1, 2))
	for range worlds {
		world := rbactest.Random(rng)
		authz := stub(t, withRBAC(t, apitest.New(t, world.Objects()...)))
		for range users {
			asked := &authzv1.BatchAuthorizeRequest{Compact: true}
			var single []*authzv1.AuthorizeRequest
			who := world.Question(rng).User
			asked.User = identity.ToProto(who)
			for range questions {
				question := world.Question(rng)
				question.User = who
				attributes := convert.AttributesToProto(question)
				single = append(single, &authzv1.AuthorizeRequest{Attributes: attributes})
				attributes = convert.AttributesToProto(question)
				attributes.User = nil
				asked.Questions = append(asked.Questions, &authzv1.AuthorizeRequest{Attributes: attributes})
			}
			got, err := authz.BatchAuthorize(t.Context(), asked)
			if err != nil {
				t.Fatal(err)
			}
			for i, result := range got.GetResults() {
				want, err := authz.Authorize(t.Context(), single[i])
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(got.GetRevision(), want.GetRevision(), protocmp.Transform()); diff != "" || got.GetConfiguration() != want.GetConfiguration() {
					t.Fatalf("revision and configuration = %v, %q, want %v, %q", got.GetRevision(), got.GetConfiguration(), want.GetRevision(), want.GetConfiguration())
				}
				want.Revision, want.Configuration, want.Authorizers = nil, "", nil
				if diff := cmp.Diff(&authzv1.AuthorizeResult{Response: want}, result, protocmp.Transform(), protocmp.IgnoreFields(&authzv1.AuthorizeResponse{}, "reuse")); diff != "" {
					t.Fatalf("%v (-asked alone +in a batch):\n%s", single[i], diff)
				}
			}
		}
	}
}

// TestActions asks of one user in random worlds in columns: the answers are those to the
// same questions asked one by one, and each is there once.
func TestActions(t *testing.T) {
	const worlds, users, questions = 4, 25, 120
	rng := rand.New(rand.NewPCG(3, 4))
	for range worlds {
		world := rbactest.Random(rng)
		authz := stub(t, withRBAC(t, apitest.New(t, world.Objects()...)))
		for range users {
			who := world.Question(rng).User
			var asked []authorizer.AttributesRecord
			for len(asked) < questions {
				if question := world.Question(rng); rbactest.InColumns(question) {
					question.User = who
					if rng.IntN(100) == 0 {
						question.Name = "n\xff%"
					}
					asked = append(asked, question)
				}
			}
			got, err := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{User: identity.ToProto(who), Actions: rbactest.Actions(asked...)})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(got.GetAnswers()); n != questions {
				t.Fatalf("%d answers, want %d", n, questions)
			}
			for i, place := range got.GetAnswers() {
				want, err := authz.Authorize(t.Context(), &authzv1.AuthorizeRequest{Attributes: convert.AttributesToProto(asked[i])})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(got.GetRevision(), want.GetRevision(), protocmp.Transform()); diff != "" || got.GetConfiguration() != want.GetConfiguration() {
					t.Fatalf("revision and configuration = %v, %q, want %v, %q", got.GetRevision(), got.GetConfiguration(), want.GetRevision(), want.GetConfiguration())
				}
				want.Revision, want.Configuration, want.Authorizers = nil, "", nil
				if diff := cmp.Diff(&authzv1.AuthorizeResult{Response: want}, got.GetResults()[place], protocmp.Transform(), protocmp.IgnoreFields(&authzv1.AuthorizeResponse{}, "reuse")); diff != "" {
					t.Fatalf("%v (-asked alone +in columns):\n%s", asked[i], diff)
				}
			}
			for i, result := range got.GetResults() {
				if slices.ContainsFunc(got.GetResults()[:i], func(other *authzv1.AuthorizeResult) bool { return proto.Equal(result, other) }) {
					t.Errorf("%v is there twice", result)
				}
			}
		}
	}
}

// TestActionsReuse wants each answer to say of which others it is the answer, and those not
// to be asked for.
func TestActionsReuse(t *testing.T) {
	objects := binding("ns", "one")
	named := binding("names", "one")
	named[0].(*rbacv1.Role).Rules[0].ResourceNames = []string{"web"}
	cfg := withRBAC(t, apitest.New(t, append(objects, named...)...))
	counting := &changing{UnconditionalAuthorizer: cfg.Authorizer}
	cfg.Authorizer = counting
	response, err := newServer(t, cfg).BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{User: &authnv1.UserInfo{Name: "jane"}, Actions: &authzv1.Actions{
		Verbs: []string{"get"}, Resources: []string{"pods"},
		Namespaces: []string{"ns", "ns", "names", "names", "none", "none"},
		Names:      []string{"a", "b", "web", "other", "a", "b"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, place := range response.GetAnswers() {
		answer := response.GetResults()[place].GetResponse()
		got = append(got, fmt.Sprint(answer.GetDecision(), " ", answer.GetReuse()))
	}
	if diff := cmp.Diff([]string{
		"DECISION_ALLOW REUSE_ANY_NAME", "DECISION_ALLOW REUSE_ANY_NAME", "DECISION_ALLOW REUSE_SAME_NAME",
		"DECISION_NO_OPINION REUSE_SAME_NAME", "DECISION_NO_OPINION REUSE_ANY_NAME", "DECISION_NO_OPINION REUSE_ANY_NAME",
	}, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if counting.asked != 4 {
		t.Errorf("the authorizers were asked %d times, want 4", counting.asked)
	}
}

// TestActionsOfNoUse sends columns that cannot be read.
func TestActionsOfNoUse(t *testing.T) {
	authz := stub(t, Config{Authorizer: byName(nil)})
	jane := &authnv1.UserInfo{Name: "jane"}
	for name, tc := range map[string]struct {
		request *authzv1.BatchAuthorizeRequest
		field   string
	}{
		"beside questions": {field: "questions", request: &authzv1.BatchAuthorizeRequest{User: jane, Actions: &authzv1.Actions{}, Questions: []*authzv1.AuthorizeRequest{request()}}},
		"of no user":       {field: "user", request: &authzv1.BatchAuthorizeRequest{Actions: &authzv1.Actions{Verbs: []string{"get"}}}},
		"of a broken user": {field: "user.name", request: &authzv1.BatchAuthorizeRequest{User: &authnv1.UserInfo{Name: "%", PercentEncoded: true}, Actions: &authzv1.Actions{}}},
		"of two lengths":   {field: "actions.names", request: &authzv1.BatchAuthorizeRequest{User: jane, Actions: &authzv1.Actions{Verbs: []string{"get", "list"}, Names: []string{"a", "b", "c"}}}},
		"too many":         {field: "actions.verbs", request: &authzv1.BatchAuthorizeRequest{User: jane, Actions: &authzv1.Actions{Verbs: make([]string, maxQuestions+1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := authz.BatchAuthorize(t.Context(), tc.request)
			if e, ok := rpcerr.As(rpcerr.FromStatus(err, hop)); !ok || e.Code() != codes.InvalidArgument || e.Field != tc.field {
				t.Errorf("BatchAuthorize() = %v, %v, want an invalid %s", response, err, tc.field)
			}
		})
	}
	empty, err := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{User: jane, Actions: &authzv1.Actions{}})
	if err != nil || len(empty.GetAnswers()) != 0 || len(empty.GetResults()) != 0 {
		t.Errorf("BatchAuthorize() = %v, %v without actions, want no answers", empty, err)
	}
}

// TestActionsFail has an action that cannot be decided among others that can, one after
// the other and all at once.
func TestActionsFail(t *testing.T) {
	for name, mayWait := range map[string]bool{"in turn": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			deciding := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetName() == "bad" {
					panic("a bad name")
				}
				return authorizer.DecisionAllow, a.GetVerb() + " " + a.GetName(), errors.New("of " + a.GetUser().GetName())
			})
			response, err := stub(t, Config{Authorizer: deciding, MayWait: func() bool { return mayWait }}).BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{
				User:    &authnv1.UserInfo{Name: "jane"},
				Actions: &authzv1.Actions{Verbs: []string{"get"}, Names: []string{"a", "bad", "b", "bad", "a"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, place := range response.GetAnswers() {
				result := response.GetResults()[place]
				got = append(got, fmt.Sprintf("%s, %s, %v", result.GetResponse().GetReason(), result.GetResponse().GetError(), codes.Code(result.GetError().GetCode())))
			}
			if diff := cmp.Diff([]string{"get a, of jane, OK", ", , Internal", "get b, of jane, OK", ", , Internal", "get a, of jane, OK"}, got); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			if n := len(response.GetResults()); n != 3 {
				t.Errorf("%d results, want each answer once: %v", n, response.GetResults())
			}
		})
	}
}

// TestActionsCut ends the call while an action is decided: there is no answer at all.
func TestActionsCut(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cutting := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		cancel()
		return authorizer.DecisionNoOpinion, "", nil
	})
	for name, mayWait := range map[string]bool{"in turn": false, "at once": true} {
		response, err := newServer(t, Config{Authorizer: cutting, MayWait: func() bool { return mayWait }}).BatchAuthorize(ctx, &authzv1.BatchAuthorizeRequest{
			User: &authnv1.UserInfo{Name: "jane"}, Actions: &authzv1.Actions{Verbs: []string{"get", "list"}},
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: BatchAuthorize() = %v, %v, want that it was cut off", name, response, err)
		}
	}
}

// TestActionsFreshness asks in columns for a policy that comes, and for one that does not.
func TestActionsFreshness(t *testing.T) {
	api := apitest.New(t, binding("other", "one")...)
	cfg := withRBAC(t, api)
	// comes is closed when the next call has begun.
	var comes chan struct{}
	cfg.Synced = func() bool {
		if comes != nil {
			close(comes)
			comes = nil
		}
		return true
	}
	authz := newServer(t, cfg)
	ask := func(atLeast *authzv1.PolicyRevision) (*authzv1.BatchAuthorizeResponse, error) {
		return authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{User: &authnv1.UserInfo{Name: "jane"}, Actions: &authzv1.Actions{
			Verbs: []string{"get"}, Namespaces: []string{"ns", "other"}, Resources: []string{"pods"}, AtLeastAsFreshAs: atLeast,
		}})
	}
	decisions := func(response *authzv1.BatchAuthorizeResponse) []authzv1.Decision {
		var all []authzv1.Decision
		for _, place := range response.GetAnswers() {
			all = append(all, response.GetResults()[place].GetResponse().GetDecision())
		}
		return all
	}
	allow, none := authzv1.Decision_DECISION_ALLOW, authzv1.Decision_DECISION_NO_OPINION
	response, err := ask(nil)
	if diff := cmp.Diff([]authzv1.Decision{none, allow}, decisions(response)); err != nil || diff != "" {
		t.Fatalf("BatchAuthorize() = %v (-want +got):\n%s", err, diff)
	}
	called, written := make(chan struct{}), make(chan struct{})
	comes = called
	go func() { // The test waits for it.
		defer close(written)
		<-called
		for _, object := range binding("ns", "one") {
			api.Apply(t, object)
		}
	}()
	response, err = ask(&authzv1.PolicyRevision{Roles: 3, RoleBindings: 4})
	<-written
	if diff := cmp.Diff([]authzv1.Decision{allow, allow}, decisions(response)); err != nil || diff != "" {
		t.Errorf("BatchAuthorize() = %v for a policy that came (-want +got):\n%s", err, diff)
	}
	if got := response.GetRevision().GetRoleBindings(); got < 4 {
		t.Errorf("revision = %v, want what was asked for", response.GetRevision())
	}
	response, err = ask(&authzv1.PolicyRevision{Roles: 100})
	if e, ok := rpcerr.As(rpcerr.FromStatus(err, hop)); !ok || e.Reason != rpcerr.ReasonNotSynced {
		t.Errorf("BatchAuthorize() = %v, %v for a policy that does not come, want Unavailable", response, err)
	}
}

// TestBatchUsers has questions of a batch with and without a user of their own.
func TestBatchUsers(t *testing.T) {
	authz := stub(t, withRBAC(t, apitest.New(t, binding("ns", "one")...)))
	anonymous, named, other := getPods("ns", 0), getPods("ns", 0), getPods("ns", 0)
	anonymous.Attributes.User = nil
	other.Attributes.User = &authnv1.UserInfo{Name: "joe"}
	questions := []*authzv1.AuthorizeRequest{anonymous, named, other, {}}
	allow, none, invalid := authzv1.Decision_DECISION_ALLOW, authzv1.Decision_DECISION_NO_OPINION, authzv1.Decision_DECISION_UNSPECIFIED
	for name, tc := range map[string]struct {
		user *authnv1.UserInfo
		want []authzv1.Decision
	}{
		"of the batch": {user: &authnv1.UserInfo{Name: "jane"}, want: []authzv1.Decision{allow, allow, none, invalid}},
		"who may not":  {user: &authnv1.UserInfo{Name: "joe"}, want: []authzv1.Decision{none, allow, none, invalid}},
		"none":         {want: []authzv1.Decision{invalid, allow, none, invalid}},
	} {
		for _, compact := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				response, err := authz.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{Questions: questions, User: tc.user, Compact: compact})
				if err != nil {
					t.Fatal(err)
				}
				var got []authzv1.Decision
				for _, result := range response.GetResults() {
					got = append(got, result.GetResponse().GetDecision())
					if (result.GetResponse() == nil) != (result.GetError() != nil) {
						t.Errorf("result = %v, want a decision or an error", result)
					}
					if whole := len(result.GetResponse().GetAuthorizers()) > 0 && result.GetResponse().GetRevision() != nil; result.GetResponse() != nil && whole == compact {
						t.Errorf("result = %v, compact %v", result, compact)
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("decisions (-want +got):\n%s", diff)
				}
			})
		}
	}
	broken := &authzv1.BatchAuthorizeRequest{User: &authnv1.UserInfo{Name: "%", PercentEncoded: true}}
	if response, err := authz.BatchAuthorize(t.Context(), broken); err == nil {
		t.Errorf("BatchAuthorize() = %v for a user that cannot be read, want an error", response)
	}
}

// changing has the policy change right after so many questions.
type changing struct {
	authorizer.UnconditionalAuthorizer
	after  int
	change func()
	asked  int
}

func (c *changing) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := c.UnconditionalAuthorizer.Authorize(ctx, a)
	if c.asked++; c.asked == c.after {
		c.change()
	}
	return decision, reason, err
}

// TestBatchForgets has the policy change while a batch is answered: what was known is
// good enough for a question of no particular freshness, and not for one that asks for
// the new policy.
func TestBatchForgets(t *testing.T) {
	api := apitest.New(t, binding("other", "one")...)
	cfg := withRBAC(t, api)
	granting := &changing{UnconditionalAuthorizer: cfg.Authorizer, after: 1, change: func() { grant(t, api, cfg.Policy) }}
	cfg.Authorizer = granting
	asked := &authzv1.BatchAuthorizeRequest{User: &authnv1.UserInfo{Name: "jane"}, Compact: true}
	for _, atLeast := range []*authzv1.PolicyRevision{nil, nil, {RoleBindings: 4}} {
		question := getPods("ns", 0)
		question.Attributes.User, question.AtLeastAsFreshAs = nil, atLeast
		asked.Questions = append(asked.Questions, question)
	}
	response, err := newServer(t, cfg).BatchAuthorize(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	none := &authzv1.AuthorizeResult{Response: &authzv1.AuthorizeResponse{Decision: authzv1.Decision_DECISION_NO_OPINION, Reuse: authzv1.Reuse_REUSE_ANY_NAME}}
	want := []*authzv1.AuthorizeResult{none, none, {Response: &authzv1.AuthorizeResponse{
		Decision: authzv1.Decision_DECISION_ALLOW, Reuse: authzv1.Reuse_REUSE_ANY_NAME,
		Revision: &authzv1.PolicyRevision{ClusterRoles: 2, ClusterRoleBindings: 2, Roles: 3, RoleBindings: 4},
	}}}
	if diff := cmp.Diff(want, response.GetResults(), protocmp.Transform(), protocmp.IgnoreFields(&authzv1.AuthorizeResponse{}, "reason")); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if granting.asked != 2 {
		t.Errorf("the authorizers were asked %d times, want 2", granting.asked)
	}
}

// grant lets jane get pods in ns, which are the third and fourth change of the policy.
func grant(t *testing.T, api *apitest.Server, store *policy.Store) {
	t.Helper()
	for _, object := range binding("ns", "one") {
		api.Apply(t, object)
	}
	if err := store.Wait(t.Context(), policy.Positions{policy.Roles: 3, policy.RoleBindings: 4}); err != nil {
		t.Error(err)
	}
}

// TestBatchLeavesItsView has the policy change when the bindings of a batch's user have been
// looked up: they are good enough for the questions of no particular freshness, and not
// for one that asks for the new policy, nor for another user's.
func TestBatchLeavesItsView(t *testing.T) {
	api := apitest.New(t, binding("other", "one")...)
	cfg := withRBAC(t, api)
	cfg.Authorizer = &changing{UnconditionalAuthorizer: cfg.Authorizer, after: 2, change: func() { grant(t, api, cfg.Policy) }}
	asked := &authzv1.BatchAuthorizeRequest{User: &authnv1.UserInfo{Name: "jane"}, Compact: true}
	for _, q := range []struct {
		version string
		atLeast *authzv1.PolicyRevision
		user    *authnv1.UserInfo
	}{
		{version: "v1"},
		{version: "v2"}, // now they are looked up, and then the policy changes
		{version: "v3"},
		{version: "v3", atLeast: &authzv1.PolicyRevision{RoleBindings: 4}},
		{version: "v4"},
		{version: "v4", user: asked.User},
	} {
		question := getPods("ns", 0)
		question.Attributes.User, question.Attributes.ApiVersion, question.AtLeastAsFreshAs = q.user, q.version, q.atLeast
		asked.Questions = append(asked.Questions, question)
	}
	response, err := newServer(t, cfg).BatchAuthorize(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	var got []authzv1.Decision
	for _, result := range response.GetResults() {
		got = append(got, result.GetResponse().GetDecision())
	}
	allow, none := authzv1.Decision_DECISION_ALLOW, authzv1.Decision_DECISION_NO_OPINION
	if diff := cmp.Diff([]authzv1.Decision{none, none, none, allow, none, allow}, got); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
}
