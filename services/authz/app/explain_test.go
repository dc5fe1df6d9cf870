package app

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/authz/client"
	"github.com/trigate/trigate/services/authz/rbactest"
	"github.com/trigate/trigate/services/internal/apitest"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

// explaining runs the service with Node, ABAC and RBAC, and returns a client.
func explaining(t *testing.T) *client.Client {
	t.Helper()
	policy := write(t, "policy.jsonl", `# people
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"abby","resource":"pods","namespace":"ns"}}
`)
	api := apitest.New(t, world()...)
	return start(t, nil, "--kubeconfig="+api.Kubeconfig(t), "--authorization-mode=Node,ABAC,RBAC", "--authorization-policy-file="+policy).gateway(t)
}

// TestExplainEveryDecision wants the answer that Authorize gives, and a grant if and
// only if RBAC gave it.
func TestExplainEveryDecision(t *testing.T) {
	c := explaining(t)
	for name, question := range questions(t) {
		t.Run(name, func(t *testing.T) {
			want := ask(t.Context(), c, question)
			got, err := c.Explain(t.Context(), question, client.Revision{})
			if err != nil {
				t.Fatalf("Explain() = %v", err)
			}
			if answer := (said{got.Answer.Decision, got.Answer.Reason, text(got.Answer.Err)}); answer != want {
				t.Errorf("answer = %v, want %v", answer, want)
			}
			allowed := want.Decision == authorizer.DecisionAllow
			byRBAC := allowed && strings.HasPrefix(want.Reason, "RBAC: ")
			if (got.Grant != nil) != byRBAC || (got.DecidedBy != "") != (allowed && !byRBAC) {
				t.Errorf("grant = %v, decided by %q, and the reason is %q", got.Grant, got.DecidedBy, want.Reason)
			}
			last := got.Authorizers[len(got.Authorizers)-1]
			if allowed && last.Decision != authorizer.DecisionAllow || !allowed && len(got.Authorizers) != 3 {
				t.Errorf("authorizers = %v of %v", got.Authorizers, want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	c := explaining(t)
	all := questions(t)
	abby := getPod
	abby.User = &user.DefaultInfo{Name: "abby"}
	grant := func(subject rbacv1.Subject, namespace, name, kind string, index int, rule rbacv1.PolicyRule) client.Grant {
		g := client.Grant{
			Subject: subject, Binding: client.ObjectName{Kind: "ClusterRoleBinding", Name: name},
			Role: client.ObjectName{Kind: kind, Name: name}, Rule: rule, RuleIndex: index,
		}
		if namespace != "" {
			g.Binding.Kind, g.Binding.Namespace, g.Role.Namespace = "RoleBinding", namespace, namespace
		}
		return g
	}
	paths := grant(rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}, "", "paths", "ClusterRole", 0,
		rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics", "/logs/*"}})
	editWeb := grant(rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "ns", Name: "deployer"}, "ns", "edit-web", "Role", 0,
		rbacv1.PolicyRule{
			Verbs: []string{"update", "patch"}, APIGroups: []string{"apps"},
			Resources: []string{"deployments", "deployments/scale"}, ResourceNames: []string{"web"},
		})
	near := func(g client.Grant, dimension authzv1.Dimension) client.NearMiss {
		return client.NearMiss{Grant: g, Dimension: dimension}
	}
	for name, tc := range map[string]struct {
		question authorizer.AttributesRecord
		want     client.Explanation
	}{
		"system:masters": {all["masters"], client.Explanation{DecidedBy: `group "system:masters" may do everything`}},
		"ABAC":           {abby, client.Explanation{DecidedBy: "line 2 of the ABAC policy allows it"}},
		"a path":         {all["path"], client.Explanation{Grant: &paths}},
		"another path": {all["other path"], client.Explanation{
			NearMisses: []client.NearMiss{near(paths, authzv1.Dimension_DIMENSION_PATH)},
		}},
		"a path that is not UTF-8": {all["a path that is not UTF-8"], client.Explanation{Grant: &paths}},
		"a service account":        {all["role by service account"], client.Explanation{Grant: &editWeb}},
		"elsewhere":                {all["role elsewhere"], client.Explanation{NearMisses: []client.NearMiss{near(editWeb, authzv1.Dimension_DIMENSION_NAMESPACE)}}},
		"another name":             {all["other name"], client.Explanation{NearMisses: []client.NearMiss{near(editWeb, authzv1.Dimension_DIMENSION_NAME)}}},
		"a role that is not there": {all["binding to a role not there"], client.Explanation{Errors: []string{`clusterrole.rbac.authorization.k8s.io "gone" not found`}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.Explain(t.Context(), tc.question, client.Revision{})
			if err != nil {
				t.Fatalf("Explain() = %v", err)
			}
			got.Answer, got.Authorizers = client.Say{}, nil
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Explain() (-want +got):\n%s", diff)
			}
		})
	}
	// The graph of nodes is filled a moment after its informers.
	servetest.Eventually(t, func() error {
		got, err := c.Explain(t.Context(), all["own secret of a node"], client.Revision{})
		if err == nil && got.DecidedBy != `the Node authorizer allows it to node "node-1"` {
			return errors.New(got.DecidedBy)
		}
		return err
	})
}

// TestExplainWebhook has a webhook decide before RBAC is asked, or leave it to RBAC.
func TestExplainWebhook(t *testing.T) {
	config := write(t, "authorization.yaml", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: hook.example.com
  webhook:
    timeout: 10s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
- {type: RBAC, name: rbac}
`, newWebhook(t)))
	api := apitest.New(t, world()...)
	c := start(t, nil, "--kubeconfig="+api.Kubeconfig(t), "--authorization-config="+config).gateway(t)
	all := questions(t)
	for name, tc := range map[string]struct {
		question authorizer.AttributesRecord
		// wantDecidedBy is how the sentence begins: it goes on with the reason.
		wantDecidedBy string
		wantGrant     bool
	}{
		"it allows":            {question: all["other path"], wantDecidedBy: `webhook "hook.example.com" allows it: webhook: {`},
		"it refuses":           {question: all["a user beyond ASCII"], wantDecidedBy: `webhook "hook.example.com" refuses it: webhook: {`},
		"it leaves it to RBAC": {question: all["role by service account"], wantGrant: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.Explain(t.Context(), tc.question, client.Revision{})
			if err != nil {
				t.Fatalf("Explain() = %v", err)
			}
			if !strings.HasPrefix(got.DecidedBy, tc.wantDecidedBy) || (got.DecidedBy == "") != (tc.wantDecidedBy == "") || (got.Grant != nil) != tc.wantGrant {
				t.Errorf("decided by %q, grant = %v, want %q and a grant: %v", got.DecidedBy, got.Grant, tc.wantDecidedBy, tc.wantGrant)
			}
		})
	}
	want := []string{"hook.example.com"}
	if page, err := c.WhoCan(t.Context(), client.WhoCanQuestion{Action: all["path"]}); err != nil || !slices.Equal(page.NotListedBy, want) {
		t.Errorf("WhoCan() = %v, %v, want it not listed by %q", page, err, want)
	}
}

func TestWhoCan(t *testing.T) {
	c := explaining(t)
	q := client.WhoCanQuestion{Action: questions(t)["path"], PageSize: 1}
	var names []string
	for {
		page, err := c.WhoCan(t.Context(), q)
		if err != nil {
			t.Fatalf("WhoCan() = %v", err)
		}
		for _, g := range page.Grants {
			names = append(names, g.Subject.Name)
		}
		if want := []string{"node", "abac"}; !slices.Equal(page.NotListedBy, want) {
			t.Errorf("not listed by %q, want %q", page.NotListedBy, want)
		}
		if q.PageToken = page.NextPageToken; q.PageToken == "" {
			break
		}
	}
	if want := []string{"jane", "j\u00e9"}; !slices.Equal(names, want) {
		t.Errorf("who can: %q, want %q", names, want)
	}
	gone := client.WhoCanQuestion{Action: questions(t)["binding to a role not there"]}
	want := []string{`clusterrole.rbac.authorization.k8s.io "gone" not found`}
	if page, err := c.WhoCan(t.Context(), gone); err != nil || !slices.Equal(page.Errors, want) {
		t.Errorf("WhoCan() = %v, %v, want errors %q", page, err, want)
	}
	for field, bad := range map[string]client.WhoCanQuestion{
		"page_size":  {Action: q.Action, PageSize: -1},
		"page_token": {Action: q.Action, PageToken: "?"},
	} {
		_, err := c.WhoCan(t.Context(), bad)
		if e, ok := rpcerr.As(err); !ok || e.Reason != rpcerr.ReasonInvalidArgument || e.Field != field {
			t.Errorf("WhoCan() = %v, want an invalid %s", err, field)
		}
	}
}

// TestExplainRandomPolicies asks services with random policies, which keep them in an
// index by subject: explanations are of what Authorize decides, and whoever is listed
// is allowed.
func TestExplainRandomPolicies(t *testing.T) {
	allowed, listed := 0, 0
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 11))
		policy := rbactest.Random(rng)
		api := apitest.New(t, policy.Objects()...)
		c := start(t, nil, "--authorization-mode=RBAC", "--kubeconfig="+api.Kubeconfig(t)).gateway(t)
		for range 150 {
			question := policy.Question(rng)
			want := ask(t.Context(), c, question)
			got, err := c.Explain(t.Context(), question, client.Revision{})
			if err != nil {
				t.Fatalf("Explain() = %v", err)
			}
			if answer := (said{got.Answer.Decision, got.Answer.Reason, text(got.Answer.Err)}); answer != want {
				t.Errorf("%+v: answer = %v, want %v", question, answer, want)
			}
			if isAllowed := want.Decision == authorizer.DecisionAllow; (got.Grant != nil) != isAllowed {
				t.Errorf("%+v: grant = %v, the reason is %q", question, got.Grant, want.Reason)
			} else if isAllowed {
				allowed++
			}
			page, err := c.WhoCan(t.Context(), client.WhoCanQuestion{Action: question})
			if err != nil {
				t.Fatalf("WhoCan() = %v", err)
			}
			for _, g := range page.Grants {
				listed++
				question.User = memberOf(g)
				if said := ask(t.Context(), c, question); said.Decision != authorizer.DecisionAllow {
					t.Errorf("%+v: %v is listed, and refused: %v", question, g, said)
				}
			}
		}
	}
	if allowed < 20 || listed < 200 {
		t.Errorf("%d questions were allowed and %d subjects listed, too few to tell", allowed, listed)
	}
}

// memberOf returns a user for whom a grant's subject stands.
func memberOf(g client.Grant) user.Info {
	switch g.Subject.Kind {
	case rbacv1.GroupKind:
		return &user.DefaultInfo{Name: "somebody", Groups: []string{g.Subject.Name}}
	case rbacv1.ServiceAccountKind:
		namespace := g.Subject.Namespace
		if namespace == "" {
			namespace = g.Binding.Namespace
		}
		return &user.DefaultInfo{Name: serviceaccount.MakeUsername(namespace, g.Subject.Name)}
	}
	return &user.DefaultInfo{Name: g.Subject.Name}
}

// TestExplainCallers has each kind of caller ask for explanations.
func TestExplainCallers(t *testing.T) {
	const (
		ok     rpcerr.Reason = ""
		denied               = rpcerr.ReasonPermissionDenied
	)
	api := apitest.New(t,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ask"}, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"post"}, NonResourceURLs: []string{authzv1.AuthorizationService_Explain_FullMethodName},
		}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "ask"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ask"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "asker"}},
		})
	s := start(t, nil, "--authorization-mode=RBAC", "--kubeconfig="+api.Kubeconfig(t))
	s.gateway(t) // waits until the service is ready
	for name, tc := range map[string]struct {
		cert servetest.Cert
		// wantExplain and wantWhoCan are why a call is refused.
		wantExplain, wantWhoCan rpcerr.Reason
	}{
		"gateway":             {s.pki.Process(t, "gateway"), ok, ok},
		"authn":               {s.pki.Process(t, "authn"), denied, denied},
		"authz":               {s.pki.Process(t, "authz"), denied, denied},
		"admission":           {s.pki.Process(t, "admission"), denied, denied},
		"masters":             {s.pki.User(t, "root", user.SystemPrivilegedGroup), ok, ok},
		"a user with a right": {s.pki.User(t, "asker"), ok, denied},
		"a user":              {s.pki.User(t, "jane"), denied, denied},
		"nobody":              {servetest.Cert{}, rpcerr.ReasonUnauthenticated, rpcerr.ReasonUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.dial(t, tc.cert)
			waitReady(t, c)
			_, explainErr := c.Explain(t.Context(), getPod, client.Revision{})
			_, whoCanErr := c.WhoCan(t.Context(), client.WhoCanQuestion{Action: getPod})
			if got := reasonOf(explainErr); got != tc.wantExplain {
				t.Errorf("Explain() = %v, want %q", explainErr, tc.wantExplain)
			}
			if got := reasonOf(whoCanErr); got != tc.wantWhoCan {
				t.Errorf("WhoCan() = %v, want %q", whoCanErr, tc.wantWhoCan)
			}
		})
	}
}
