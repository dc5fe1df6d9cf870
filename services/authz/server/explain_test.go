package server

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/internal/chain"
	"github.com/trigate/trigate/services/authz/internal/explain"
	"github.com/trigate/trigate/services/authz/internal/policy"
	"github.com/trigate/trigate/services/internal/rpcerr"
)

// flickering is a policy that lets jane do everything, but only in the first lists
// of its bindings.
type flickering struct {
	*policy.Store
	lists atomic.Int32
}

func (f *flickering) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	if f.lists.Add(-1) < 0 {
		return nil, nil
	}
	return []*rbacv1.ClusterRoleBinding{{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "all"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}}, nil
}

func (f *flickering) GetClusterRole(context.Context, string) (*rbacv1.ClusterRole, error) {
	return &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}}}, nil
}

// explaining is a service with RBAC whose policy is empty, and what is explained with
// is a policy that flickers.
func explaining(t *testing.T, lists int32) Config {
	t.Helper()
	options := kubeoptions.NewBuiltInAuthorizationOptions()
	options.Modes = []string{"RBAC"}
	upstream, err := options.ToAuthorizationConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	store := policy.NewStore()
	authorizers, err := chain.New(t.Context(), chain.Config{Upstream: *upstream, Policy: store, ServerID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	flicker := &flickering{Store: store}
	flicker.lists.Store(lists)
	explainer, err := explain.New(explain.Config{Authorizers: authorizers.Authorizers, RBAC: flicker})
	if err != nil {
		t.Fatal(err)
	}
	return Config{Authorizer: authorizers, Rules: authorizers, Policy: store, Explainer: explainer}
}

// TestExplainDecidesAgain has the policy change between a decision and its
// explanation.
func TestExplainDecidesAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		changes int32
		want    codes.Code
	}{
		"no change":      {changes: 0, want: codes.OK},
		"some changes":   {changes: explainAttempts - 1, want: codes.OK},
		"it is restless": {changes: explainAttempts, want: codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			authz := stub(t, explaining(t, tc.changes))
			got, err := authz.Explain(t.Context(), &authzv1.ExplainRequest{Attributes: request().GetAttributes()})
			if status.Code(err) != tc.want {
				t.Fatalf("Explain() = %v, want %v", err, tc.want)
			}
			if err != nil {
				return
			}
			want, err := authz.Authorize(t.Context(), request())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&authzv1.ExplainResponse{Answer: want}, got, protocmp.Transform()); diff != "" {
				t.Errorf("Explain() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhoCan(t *testing.T) {
	got, err := stub(t, explaining(t, 1)).WhoCan(t.Context(), &authzv1.WhoCanRequest{Attributes: &authzv1.Attributes{Verb: "get", Path: "/metrics"}})
	if err != nil {
		t.Fatalf("WhoCan() = %v, want nil", err)
	}
	want := &authzv1.WhoCanResponse{
		Grants: []*authzv1.Grant{{
			Subject: &authzv1.Subject{ApiGroup: rbacv1.GroupName, Kind: "User", Name: "jane"},
			Binding: &authzv1.ObjectName{Kind: "ClusterRoleBinding", Name: "all"},
			Role:    &authzv1.ObjectName{Kind: "ClusterRole", Name: "all"},
			Rule:    &authzv1.Rule{Verbs: []string{"*"}, NonResourceUrls: []string{"*"}},
		}},
		Revision: &authzv1.PolicyRevision{},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("WhoCan() (-want +got):\n%s", diff)
	}
}

// askToExplain calls both methods.
func askToExplain(t *testing.T, cfg Config, attributes *authzv1.Attributes, atLeast *authzv1.PolicyRevision) map[string]error {
	t.Helper()
	authz := stub(t, cfg)
	_, explainErr := authz.Explain(t.Context(), &authzv1.ExplainRequest{Attributes: attributes, AtLeastAsFreshAs: atLeast})
	_, whoCanErr := authz.WhoCan(t.Context(), &authzv1.WhoCanRequest{Attributes: attributes, AtLeastAsFreshAs: atLeast})
	return map[string]error{"Explain": explainErr, "WhoCan": whoCanErr}
}

func TestExplainRefuses(t *testing.T) {
	attributes := request().GetAttributes()
	denying := newChain(t, "AlwaysDeny")
	starting := explaining(t, 0)
	starting.Synced = func() bool { return false }
	for name, tc := range map[string]struct {
		cfg        Config
		attributes *authzv1.Attributes
		atLeast    *authzv1.PolicyRevision
		want       rpcerr.Reason
	}{
		"no attributes":             {cfg: explaining(t, 0), want: rpcerr.ReasonInvalidArgument},
		"nothing to explain with":   {cfg: Config{Authorizer: denying, Rules: denying}, attributes: attributes, want: rpcerr.ReasonUnimplemented},
		"not synced":                {cfg: starting, attributes: attributes, want: rpcerr.ReasonNotSynced},
		"a policy that is not read": {cfg: explaining(t, 0), attributes: attributes, atLeast: &authzv1.PolicyRevision{Roles: 7}, want: rpcerr.ReasonNotSynced},
	} {
		t.Run(name, func(t *testing.T) {
			for method, err := range askToExplain(t, tc.cfg, tc.attributes, tc.atLeast) {
				if e, ok := rpcerr.As(err); !ok || e.Reason != tc.want {
					t.Errorf("%s() = %v, want %v", method, err, tc.want)
				}
			}
		})
	}
	// Only WhoCan does without a user.
	errs := askToExplain(t, explaining(t, 0), &authzv1.Attributes{Verb: "get", Path: "/"}, nil)
	if e, ok := rpcerr.As(errs["Explain"]); !ok || e.Field != "attributes.user" || errs["WhoCan"] != nil {
		t.Errorf("without a user: %v", errs)
	}
}

func TestWhoCanInvalidPages(t *testing.T) {
	authz := stub(t, explaining(t, 0))
	attributes := request().GetAttributes()
	_, sizeErr := authz.WhoCan(t.Context(), &authzv1.WhoCanRequest{Attributes: attributes, PageSize: 1001})
	_, tokenErr := authz.WhoCan(t.Context(), &authzv1.WhoCanRequest{Attributes: attributes, PageToken: "next"})
	for field, err := range map[string]error{"page_size": sizeErr, "page_token": tokenErr} {
		if e, ok := rpcerr.As(err); !ok || e.Code() != codes.InvalidArgument || e.Field != field {
			t.Errorf("err = %v, want an invalid %s", err, field)
		}
	}
}
