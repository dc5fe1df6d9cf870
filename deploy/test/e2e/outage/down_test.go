package outage

import (
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestDown kills each gate in turn, and has it stay away for a while.
func TestDown(t *testing.T) {
	p := framework.NewParts(t, framework.PartsOptions{})
	p.Start(t, p.Names()...)
	p.AwaitReady(t)
	who := settle(t, p.Cluster)
	kept := configMaps + "/kept"
	p.As(t, who.ann).Send(t, http.MethodPost, configMaps, configMap("kept", "a")).Want(t, http.StatusCreated)

	for _, test := range []struct {
		gate string
		test func(t *testing.T, c *framework.Cluster, who *people)
	}{
		{authz, testWithoutAuthz},
		{authn, testWithoutAuthn},
		{admission, testWithoutAdmission},
	} {
		t.Run(test.gate, func(t *testing.T) {
			p.Kill(t, test.gate)
			wantHealth(t, p.Cluster, test.gate)
			test.test(t, p.Cluster, who)

			p.Start(t, test.gate)
			wantWhole(t, p.Cluster, who)
			p.AwaitReady(t)
			if got := ask(t, p.Cluster, who.ann, kept).Want(t, http.StatusOK).String(t, "data", "datum"); got != "a" {
				t.Errorf("the ConfigMap that was there before has %q, want a", got)
			}
		})
	}
}

func testWithoutAuthz(t *testing.T, c *framework.Cluster, who *people) {
	for name, config := range map[string]*rest.Config{
		"who may":     who.ann,
		"a token":     who.robot,
		"who may not": who.nobody,
		"anonymous":   who.anonymous,
	} {
		t.Run(name, func(t *testing.T) {
			wantUnavailable(t, ask(t, c, config, configMaps), authz)
			wantUnavailable(t, ask(t, c, config, configMaps+"?watch=true"), authz)
			wantUnavailable(t, c.As(t, config).Send(t, http.MethodPost, configMaps, configMap("undecided", "b")), authz)
		})
	}
	t.Run("system:masters", func(t *testing.T) {
		admin := c.As(t, who.admin)
		admin.Send(t, http.MethodGet, configMaps, "").Want(t, http.StatusOK)
		admin.Send(t, http.MethodGet, configMaps+"/undecided", "").Want(t, http.StatusNotFound)
		admin.Send(t, http.MethodPost, configMaps, configMap("admins", "b")).Want(t, http.StatusCreated)
		admin.Send(t, http.MethodDelete, configMaps+"/admins", "").Want(t, http.StatusOK)
	})
	t.Run("reviews", func(t *testing.T) {
		// An answer would be a verdict, and there is none.
		const attributes = "{namespace: outage, verb: list, resource: configmaps}"
		admin, reviews := c.As(t, who.admin), "/apis/authorization.k8s.io/v1/"
		wantUnavailable(t, admin.Send(t, http.MethodPost, reviews+"subjectaccessreviews",
			"{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: ann, resourceAttributes: "+attributes+"}}"), authz)
		wantUnavailable(t, admin.Send(t, http.MethodPost, reviews+"selfsubjectrulesreviews",
			"{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: outage}}"), authz)
		wantUnavailable(t, c.As(t, who.ann).Send(t, http.MethodPost, reviews+"selfsubjectaccessreviews",
			"{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {resourceAttributes: "+attributes+"}}"), authz)
	})
	t.Run("impersonation", func(t *testing.T) {
		as := framework.Header("Impersonate-User", "ann")
		wantUnavailable(t, c.As(t, who.admin).Send(t, http.MethodGet, configMaps, "", as), authz)
	})
}

func testWithoutAuthn(t *testing.T, c *framework.Cluster, who *people) {
	for name, config := range map[string]*rest.Config{
		"a good token": who.robot,
		"a bad token":  who.stranger,
	} {
		t.Run(name, func(t *testing.T) {
			wantUnavailable(t, ask(t, c, config, configMaps), authn)
			wantUnavailable(t, ask(t, c, config, configMaps+"?watch=true"), authn)
			// Anonymous may read this, but who has a token is not anonymous.
			wantUnavailable(t, ask(t, c, config, "/version"), authn)
			wantUnavailable(t, c.As(t, config).Send(t, http.MethodPost, configMaps, configMap("undecided", "b")), authn)
		})
	}
	t.Run("certificates", func(t *testing.T) {
		ann := c.As(t, who.ann)
		ann.Send(t, http.MethodGet, configMaps, "").Want(t, http.StatusOK)
		ann.Send(t, http.MethodGet, configMaps+"/undecided", "").Want(t, http.StatusNotFound)
		ann.Send(t, http.MethodPost, configMaps, configMap("anns", "b")).Want(t, http.StatusCreated)
		ann.Send(t, http.MethodDelete, configMaps+"/anns", "").Want(t, http.StatusOK)
		ask(t, c, who.nobody, configMaps).Want(t, http.StatusForbidden)
	})
	t.Run("no credentials", func(t *testing.T) {
		ask(t, c, who.anonymous, configMaps).Want(t, http.StatusForbidden)
	})
	t.Run("issuing and reviewing tokens", func(t *testing.T) {
		admin := c.As(t, who.admin)
		wantUnavailable(t, admin.Send(t, http.MethodPost, "/api/v1/namespaces/outage/serviceaccounts/robot/token",
			"{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, spec: {}}"), authn)
		wantUnavailable(t, admin.Send(t, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews",
			"{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: "+who.robot.BearerToken+"}}"), authn)
	})
}

func testWithoutAdmission(t *testing.T, c *framework.Cluster, who *people) {
	for name, config := range map[string]*rest.Config{
		"a certificate":  who.ann,
		"a token":        who.robot,
		"system:masters": who.admin,
	} {
		t.Run(name, func(t *testing.T) {
			caller := c.As(t, config)
			kept := configMaps + "/kept"
			wantUnavailable(t, caller.Send(t, http.MethodPost, configMaps, configMap("undecided", "b")), admission)
			wantUnavailable(t, caller.Send(t, http.MethodPost, configMaps, configMap("undecided", "b"), framework.Query("dryRun=All")), admission)
			wantUnavailable(t, caller.Send(t, http.MethodPut, kept, configMap("kept", "b")), admission)
			wantUnavailable(t, caller.Send(t, http.MethodPatch, kept, `{"data": {"datum": "b"}}`, framework.MergePatch), admission)
			wantUnavailable(t, caller.Send(t, http.MethodPatch, kept, configMap("kept", "b"), framework.ServerSideApply, framework.Query("fieldManager=test&force=true")), admission)
			wantUnavailable(t, caller.Send(t, http.MethodDelete, kept, ""), admission)
			wantUnavailable(t, caller.Send(t, http.MethodDelete, configMaps, ""), admission)

			caller.Send(t, http.MethodGet, configMaps, "").Want(t, http.StatusOK)
			caller.Send(t, http.MethodGet, configMaps+"/undecided", "").Want(t, http.StatusNotFound)
			if got := caller.Send(t, http.MethodGet, kept, "").Want(t, http.StatusOK).String(t, "data", "datum"); got != "a" {
				t.Errorf("the ConfigMap has %q, want a as before the refused writes", got)
			}
		})
	}
	t.Run("who may not", func(t *testing.T) {
		c.As(t, who.nobody).Send(t, http.MethodPost, configMaps, configMap("undecided", "b")).Want(t, http.StatusForbidden)
	})
}
