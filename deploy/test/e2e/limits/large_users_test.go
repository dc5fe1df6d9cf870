package limits

import (
	"encoding/asn1"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

// manyGroups are 5,000 groups.
func manyGroups() []string {
	groups := make([]string, 5000)
	for i := range groups {
		groups[i] = fmt.Sprintf("limits:group-%04d", i)
	}
	return groups
}

func TestUserInFiveThousandGroups(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, groups := s.Namespace(t), manyGroups()
		c.Grant(t, framework.Grant{Name: "limits-many", Group: groups[len(groups)-1], Namespace: ns, Rules: []rbacv1.PolicyRule{
			framework.May("create,list", "", "configmaps"),
		}})
		hook := framework.StartRecorder(t)
		c.RegisterValidating(t, "limits-many", validating(hook.Webhook, ns))

		for _, way := range []struct {
			name    string
			config  *rest.Config
			options []framework.RequestOption
		}{
			{"certificate", c.User(t, "jane", groups...), nil},
			{"proxy", frontProxy(t, c), []framework.RequestOption{remote("jane", groups...)}},
			{"impersonation", c.Config(t), []framework.RequestOption{impersonate("jane", groups...)}},
		} {
			who := s.As(t, way.config)
			user := userInfo(t, c.As(t, way.config), way.options...)
			if got := strings.Join(user.Groups[:len(user.Groups)-1], " "); got != strings.Join(groups, " ") {
				t.Errorf("%s: the user has %d groups, want %d, or others", way.name, len(user.Groups)-1, len(groups))
			}
			who.Send(t, "GET", core(ns, "configmaps")+"?labelSelector=none", "", way.options...).Want(t, 200)
			who.Send(t, "GET", core(ns, "secrets"), "", way.options...).Want(t, 403)
			who.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+way.name+"}}", way.options...).Want(t, 201)
			sayRules(t, c, s, way.config, strings.Replace(rulesReview, "default", ns, 1), way.options...)
		}
		requests := hook.Take()
		s.Say("webhook", requests)
		if len(requests) != 3 || len(requests[0].UserInfo.Groups) != len(groups)+1 {
			t.Errorf("the webhook was asked %d times, want 3 times, about a user of %d groups", len(requests), len(groups)+1)
		}
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "jane", Groups: groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "configmaps", Namespace: ns},
		}}
		answer := s.Admin(t).Send(t, "POST", subjectAccessReviews, inProtobuf(t, review), asProtobuf).Want(t, 201)
		if allowed, _ := answer.Field(t, "status", "allowed").(bool); !allowed {
			t.Errorf("the review says no: %v", answer.Field(t, "status"))
		}
	})
}

// TestNamesNearTheLimitOfHeaders has names of 900 KB where the server takes 1 MiB of
// headers.
func TestNamesNearTheLimitOfHeaders(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		const size = 900 << 10
		ns := s.Namespace(t)
		c.Grant(t, framework.Grant{Name: "limits-long", Group: "limits:long", Namespace: ns, Rules: []rbacv1.PolicyRule{
			framework.May("create", "", "configmaps"),
		}})
		proxy, admin := s.As(t, frontProxy(t, c)), s.Admin(t)
		for i, long := range []string{strings.Repeat("n", size), text("", size/8), strings.Repeat("\xff", size/8)} {
			s.Hide(long, fmt.Sprintf("LONG-%d", i))
			s.Hide(asJSON(long), fmt.Sprintf("LONG-IN-JSON-%d", i))
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, remote(long)).Want(t, 201)
			proxy.Send(t, "GET", core(ns, "secrets"), "", remote(long)).Want(t, 403)
			proxy.Send(t, "POST", core(ns, "configmaps"), fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: c-%d}}", i),
				remote(long, "limits:long")).Want(t, 201)
			admin.Send(t, "POST", selfSubjectReviews, selfSubjectReview, impersonate(long)).Want(t, 201)
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, remote("jane"), impersonate(long)).Want(t, 403)
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, remote("jane", long)).Want(t, 201)
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, remote("jane"), headers("X-Remote-Extra-K", long)).Want(t, 201)
			s.As(t, c.Anonymous(t)).Send(t, "GET", "/api", "", headers("Authorization", "Bearer "+long)).Want(t, 401)
		}
		path := strings.Repeat("p", size)
		s.Hide(path, "LONG-PATH")
		jane := s.As(t, c.User(t, "jane"))
		jane.Send(t, "GET", "/"+path, "").Want(t, 403)
		jane.Send(t, "GET", core(ns, "configmaps/"+path), "").Want(t, 403)
		jane.Send(t, "GET", core(ns, "configmaps")+"?labelSelector=a="+path, "").Want(t, 403)
		admin.Send(t, "GET", "/"+path, "").Want(t, 404)
		admin.Send(t, "GET", core(ns, "configmaps/"+path), "").Want(t, 404)
		admin.Send(t, "POST", core(path, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1}}").Want(t, 404)
		admin.Send(t, "POST", core(ns, "pods/none/exec?command="+path), "").Want(t, 404)
		admin.Send(t, "PATCH", core(ns, "configmaps/"+path)+"?fieldManager=me", "{apiVersion: v1, kind: ConfigMap}", framework.ServerSideApply)

		// The same name in a certificate, as long as TLS lets it be.
		name := strings.Repeat("zoë", 60<<10)
		s.Hide(name, "LONG-NAME")
		user := certificateOf(t, c, subjectOf(t, attribute{commonName, asn1.TagUTF8String, name}))
		code, body, err := user.get("/api/v1/nodes")
		if err != nil {
			t.Fatal(err)
		}
		s.Say("answer", fmt.Sprint(code, body))
	})
}
