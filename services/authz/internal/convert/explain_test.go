package convert

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

// grantOf has everything that a grant can have.
func grantOf(name string) Grant {
	return Grant{
		Subject: rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, APIGroup: "g", Name: name, Namespace: "home"},
		Binding: ObjectName{Kind: "RoleBinding", Namespace: "ns", Name: "binding"},
		Role:    ObjectName{Kind: "Role", Namespace: "ns", Name: "role"},
		Rule: rbacv1.PolicyRule{
			Verbs: []string{"get", "*"}, APIGroups: []string{""}, Resources: []string{"pods/log"},
			ResourceNames: []string{"a", "b"}, NonResourceURLs: []string{"/logs/*"},
		},
		RuleIndex: 3,
	}
}

func TestExplanationRoundTrip(t *testing.T) {
	for name, tc := range map[string]struct {
		explanation Explanation
		wantEncoded bool
	}{
		"nothing": {explanation: Explanation{Answer: Say{Decision: authorizer.DecisionNoOpinion}}},
		"allowed": {explanation: func() Explanation {
			grant := grantOf("é%")
			allowed := Say{Decision: authorizer.DecisionAllow, Reason: "RBAC: allowed"}
			by := allowed
			by.Name = "rbac"
			return Explanation{Answer: allowed, Authorizers: []Say{by}, Grant: &grant}
		}()},
		"refused": {explanation: Explanation{
			Answer: Say{Decision: authorizer.DecisionDeny, Reason: "\xff", Err: errors.New("late")},
			Authorizers: []Say{
				{Name: "node", Decision: authorizer.DecisionNoOpinion},
				{Name: "hook", Decision: authorizer.DecisionDeny, Reason: "\xff", Err: errors.New("late")},
			},
			DecidedBy: "the webhook", Errors: []string{"role not found"},
			NearMisses: []NearMiss{
				{Grant: grantOf("a"), Dimension: authzv1.Dimension_DIMENSION_VERB},
				{Grant: grantOf("b"), Dimension: authzv1.Dimension_DIMENSION_PATH},
			},
		}},
		"a near miss that is not UTF-8": {
			explanation: Explanation{
				Answer: Say{Decision: authorizer.DecisionNoOpinion}, Errors: []string{"100%"},
				NearMisses: []NearMiss{{Grant: grantOf("\xff"), Dimension: authzv1.Dimension_DIMENSION_NAME}},
			},
			wantEncoded: true,
		},
		"a grant that is not UTF-8": {
			explanation: func() Explanation {
				grant := grantOf("j%C3")
				grant.Rule.NonResourceURLs = []string{"/\xc3"}
				return Explanation{Answer: Say{Decision: authorizer.DecisionAllow}, Grant: &grant, DecidedBy: "%"}
			}(),
			wantEncoded: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := SayToProto(tc.explanation.Answer, tc.explanation.Authorizers)
			m := onWire(t, ExplanationToProto(answer, tc.explanation), &authzv1.ExplainResponse{})
			if m.GetPercentEncoded() != tc.wantEncoded {
				t.Errorf("percent_encoded = %v, want %v", m.GetPercentEncoded(), tc.wantEncoded)
			}
			got, err := ExplanationFromProto(m)
			if err != nil {
				t.Fatalf("ExplanationFromProto() = %v, want nil", err)
			}
			if diff := cmp.Diff(tc.explanation, got, sameErrors); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExplanationFromProtoRefuses(t *testing.T) {
	allow := &authzv1.AuthorizeResponse{Decision: authzv1.Decision_DECISION_ALLOW}
	for name, m := range map[string]*authzv1.ExplainResponse{
		"no answer":          {},
		"a bad escape":       {Answer: allow, DecidedBy: "%", PercentEncoded: true},
		"a bad grant":        {Answer: allow, Grant: &authzv1.Grant{Binding: &authzv1.ObjectName{Name: "%"}}, PercentEncoded: true},
		"no decision of one": {Answer: &authzv1.AuthorizeResponse{Decision: authzv1.Decision_DECISION_ALLOW, Authorizers: []*authzv1.AuthorizerDecision{{Name: "rbac"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ExplanationFromProto(m); err == nil {
				t.Errorf("ExplanationFromProto() = %v, want an error", got)
			}
		})
	}
}

func TestSubjectsRoundTrip(t *testing.T) {
	for name, tc := range map[string]struct {
		subjects    Subjects
		wantEncoded bool
	}{
		"nobody": {},
		"a page": {subjects: Subjects{
			Grants: []Grant{grantOf("a"), grantOf("é%")}, NextPageToken: "t%k", NotListedBy: []string{"node", "hook"}, Errors: []string{"role not found"},
		}},
		"an error that is not UTF-8": {
			subjects:    Subjects{Grants: []Grant{grantOf("é%")}, NextPageToken: "t%k", NotListedBy: []string{"node"}, Errors: []string{"\xff not found"}},
			wantEncoded: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := onWire(t, SubjectsToProto(tc.subjects), &authzv1.WhoCanResponse{})
			if m.GetPercentEncoded() != tc.wantEncoded {
				t.Errorf("percent_encoded = %v, want %v", m.GetPercentEncoded(), tc.wantEncoded)
			}
			got, err := SubjectsFromProto(m)
			if err != nil {
				t.Fatalf("SubjectsFromProto() = %v, want nil", err)
			}
			if diff := cmp.Diff(tc.subjects, got); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
	if got, err := SubjectsFromProto(&authzv1.WhoCanResponse{Errors: []string{"%"}, PercentEncoded: true}); err == nil {
		t.Errorf("SubjectsFromProto() = %v for a bad escape, want an error", got)
	}
}
