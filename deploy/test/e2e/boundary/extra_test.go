package boundary

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	selfSubjectReviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	selfSubjectReview  = "{apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}"
	authenticationAPI  = "authentication.k8s.io"
)

// as are the headers of an impersonation, key and value by turns.
func as(headers ...string) []framework.RequestOption {
	var options []framework.RequestOption
	for i := 0; i < len(headers); i += 2 {
		options = append(options, framework.Header(headers[i], headers[i+1]))
	}
	return options
}

func TestExtraKeysOfImpersonationArrive(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		c.RegisterValidating(t, "trigate-test-extra", hook.Validating("extra", ns, configMaps))
		c.Grant(t, framework.Grant{Name: "extra-alice", User: "extra-alice", Namespace: ns, Rules: rules(framework.May("create", "", "configmaps"))})
		c.Grant(t, framework.Grant{Name: "extra-impersonator", User: "extra-impersonator", Rules: rules(framework.May("impersonate", "", "users", "extra-alice"))})
		impersonator := s.As(t, c.User(t, "extra-impersonator"))
		alice := as("Impersonate-User", "extra-alice",
			"Impersonate-Extra-acme.com%2Fproject", "p1",
			"Impersonate-Extra-Scopes", "view", "Impersonate-Extra-Scopes", "development")

		impersonator.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as("Impersonate-User", "extra-alice")...).Want(t, 201)
		impersonator.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as("Impersonate-User", "extra-alice", "Impersonate-Extra-Scopes", "view")...).
			WantMessage(t, 403, `userextras.authentication.k8s.io "view" is forbidden: User "extra-impersonator" cannot impersonate resource "userextras/scopes" in API group "authentication.k8s.io" at the cluster scope`)
		c.Grant(t, framework.Grant{Name: "extra-impersonator-extras", User: "extra-impersonator", Rules: rules(
			framework.May("impersonate", authenticationAPI, "userextras/acme.com/project", "p1"),
			framework.May("impersonate", authenticationAPI, "userextras/scopes", "view", "development"),
		)})
		impersonator.Send(t, "POST", selfSubjectReviews, selfSubjectReview,
			as("Impersonate-User", "extra-alice", "Impersonate-Extra-acme.com%2Fproject", "p2")...).Want(t, 403)

		want := authenticationv1.UserInfo{
			Username: "extra-alice",
			Groups:   []string{"system:authenticated"},
			Extra:    map[string]authenticationv1.ExtraValue{"acme.com/project": {"p1"}, "scopes": {"view", "development"}},
		}
		var review authenticationv1.SelfSubjectReview
		impersonator.Send(t, "POST", selfSubjectReviews, selfSubjectReview, alice...).Want(t, 201).Decode(t, &review)
		if diff := cmp.Diff(want, review.Status.UserInfo); diff != "" {
			t.Errorf("the review has another user (-want +got):\n%s", diff)
		}
		created := impersonator.Send(t, "POST", core(ns, "configmaps"), configMap, alice...).Want(t, 201)
		if got := created.Audit.ImpersonatedUser; got == nil || len(got.Extra["scopes"]) != 2 {
			t.Errorf("the audit event has the impersonated user %+v", got)
		}
		requests := hook.Take()
		if len(requests) != 1 {
			t.Fatalf("the webhook was asked %d times, want once", len(requests))
		}
		if diff := cmp.Diff(want, requests[0].UserInfo); diff != "" {
			t.Errorf("the webhook was told of another user (-want +got):\n%s", diff)
		}
		s.Say("webhook requests", requests)
	})
}

func TestImpersonationInAllItsForms(t *testing.T) {
	cases := map[string][]string{
		"user":             {"Impersonate-User", "somebody"},
		"user-empty":       {"Impersonate-User", ""},
		"group-only":       {"Impersonate-Group", "g"},
		"uid-only":         {"Impersonate-Uid", "u"},
		"extra-only":       {"Impersonate-Extra-A", "b"},
		"groups":           {"Impersonate-User", "somebody", "Impersonate-Group", "g2", "Impersonate-Group", "g1", "Impersonate-Group", "g2"},
		"authenticated":    {"Impersonate-User", "somebody", "Impersonate-Group", "system:authenticated", "Impersonate-Group", "g"},
		"unauthenticated":  {"Impersonate-User", "somebody", "Impersonate-Group", "system:unauthenticated"},
		"anonymous":        {"Impersonate-User", "system:anonymous"},
		"masters":          {"Impersonate-User", "somebody", "Impersonate-Group", "system:masters"},
		"uid":              {"Impersonate-User", "somebody", "Impersonate-Uid", "u-1"},
		"service-account":  {"Impersonate-User", "system:serviceaccount:default:robot"},
		"account-groups":   {"Impersonate-User", "system:serviceaccount:default:robot", "Impersonate-Group", "g"},
		"not-an-account":   {"Impersonate-User", "system:serviceaccount:default"},
		"node":             {"Impersonate-User", "system:node:n1"},
		"node-group":       {"Impersonate-User", "system:node:n1", "Impersonate-Group", "system:nodes"},
		"extra-case":       {"Impersonate-User", "somebody", "Impersonate-Extra-ACME.com%2FProject", "P1"},
		"extra-malformed":  {"Impersonate-User", "somebody", "Impersonate-Extra-A%zz", "b"},
		"extra-no-key":     {"Impersonate-User", "somebody", "Impersonate-Extra-", "b"},
		"extra-empty":      {"Impersonate-User", "somebody", "Impersonate-Extra-A", ""},
		"extra-repeated":   {"Impersonate-User", "somebody", "Impersonate-Extra-A", "2", "Impersonate-Extra-A", "1", "Impersonate-Extra-A", "2"},
		"extra-percent":    {"Impersonate-User", "somebody", "Impersonate-Extra-100%25", "50%25"},
		"extra-reserved":   {"Impersonate-User", "somebody", "Impersonate-Extra-authentication.kubernetes.io%2Fpod-name", "p"},
		"extra-not-ascii":  {"Impersonate-User", "somebody", "Impersonate-Extra-f%C3%BCr", "wert"},
		"twice":            {"Impersonate-User", "somebody", "Impersonate-User", "another"},
		"spaces":           {"Impersonate-User", "some body", "Impersonate-Group", "a group", "Impersonate-Extra-A", "b, c"},
		"comma":            {"Impersonate-User", "some,body", "Impersonate-Group", "a,b"},
		"not-ascii":        {"Impersonate-User", "jürgen-不", "Impersonate-Group", "größe"},
		"unknown-header":   {"Impersonate-User", "somebody", "Impersonate-Something", "x"},
		"system-bootstrap": {"Impersonate-User", "system:bootstrap:abc"},
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		// One who may impersonate some, and says who is meant in other words.
		c.Grant(t, framework.Grant{Name: "forms-impersonator", User: "forms-impersonator", Rules: rules(
			framework.May("impersonate", "", "users", "somebody"),
			framework.May("impersonate", "", "groups", "g1", "g2"),
			framework.May("impersonate", "", "serviceaccounts", "robot"),
			framework.May("impersonate", authenticationAPI, "uids", "u-1"),
			framework.May("impersonate", authenticationAPI, "userextras/a"),
		)})
		limited := s.As(t, c.User(t, "forms-impersonator"))
		for name := range sorted(cases) {
			admin.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as(cases[name]...)...)
			limited.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as(cases[name]...)...)
		}
		admin.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as(cases["group-only"]...)...).Want(t, 400)
		limited.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as(cases["masters"]...)...).Want(t, 403)
		got := limited.Send(t, "POST", selfSubjectReviews, selfSubjectReview, as(cases["groups"]...)...).Want(t, 201).Field(t, "status", "userInfo", "groups")
		if want := "[g2 g1 g2 system:authenticated]"; fmt.Sprint(got) != want {
			t.Errorf("got groups %v, want %s", got, want)
		}
	})
}

// Since 1.36 there is impersonation that is limited to some requests.
func TestConstrainedImpersonation(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		c.Grant(t, framework.Grant{Name: "constrained-alice", User: "constrained-alice", Namespace: ns, Rules: rules(framework.May("create,list", "", "configmaps"))})
		c.Grant(t, framework.Grant{Name: "constrained-robot", User: "constrained-robot", Rules: rules(
			framework.May("impersonate:user-info", authenticationAPI, "users", "constrained-alice"),
			framework.May("impersonate:user-info", authenticationAPI, "userextras/acme.com/scopes", "view"),
		)})
		c.Grant(t, framework.Grant{Name: "constrained-robot", User: "constrained-robot", Namespace: ns, Rules: rules(
			framework.May("impersonate-on:user-info:list", "", "configmaps"),
		)})
		robot := s.As(t, c.User(t, "constrained-robot"))
		alice := as("Impersonate-User", "constrained-alice")
		robot.Send(t, "GET", core(ns, "configmaps")+"?fieldSelector=metadata.name=none", "", alice...).Want(t, 200)
		robot.Send(t, "GET", core(ns, "configmaps")+"?fieldSelector=metadata.name=none", "",
			as("Impersonate-User", "constrained-alice", "Impersonate-Extra-Acme.com%2Fscopes", "view")...).Want(t, 200)
		robot.Send(t, "GET", core(ns, "configmaps"), "", as("Impersonate-User", "constrained-alice", "Impersonate-Extra-Acme.com%2Fscopes", "more")...).Want(t, 403)
		robot.Send(t, "POST", core(ns, "configmaps"), configMap, alice...).Want(t, 403)
		robot.Send(t, "GET", core(ns, "configmaps"), "").Want(t, 403)
	})
}
