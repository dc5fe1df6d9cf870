package server

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/convert"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/authz/rbactest"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/identity"
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

// changing has the policy change right after the first question.
type changing struct {
	authorizer.UnconditionalAuthorizer
	change func()
	asked  int
}

func (c *changing) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := c.UnconditionalAuthorizer.Authorize(ctx, a)
	if c.asked++; c.asked == 1 {
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
	granting := &changing{UnconditionalAuthorizer: cfg.Authorizer, change: func() {
		for _, object := range binding("ns", "one") {
			api.Apply(t, object)
		}
		if err := cfg.Policy.Wait(t.Context(), policy.Positions{policy.Roles: 3, policy.RoleBindings: 4}); err != nil {
			t.Error(err)
		}
	}}
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
