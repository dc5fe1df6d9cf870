package limits

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

// oddStrings are what a client can have a header, a path or a query hold, and so the
// names of users, groups, objects and much else.
var oddStrings = []string{
	"zoë", "名前", "😀", "\u202eknil", "\u0085", "\ufeffbom", "\ufffd", "\uffff", `"<&>\'`, "a\tb", "a  b",
	"\xff", "\xfe\xff", "a\xc3", "\xe9", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "zo\xc3\xab\xff",
	"%", "%ff", "%zz", "%25ff", "100%\xff", "a%2Fb", "a/b", "*", "system:anonymous\xff",
}

// frontProxy is the configuration of whoever says who the user is.
func frontProxy(t *testing.T, c *framework.Cluster) *rest.Config {
	t.Helper()
	config := c.Anonymous(t)
	config.CertFile, config.KeyFile = c.PKI.Cert(pki.FrontProxyClient), c.PKI.Key(pki.FrontProxyClient)
	return config
}

func headers(pairs ...string) framework.RequestOption {
	return func(req *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			framework.Header(pairs[i], pairs[i+1])(req)
		}
	}
}

// remote and impersonate are the two ways to be a user by headers.
func remote(user string, groups ...string) framework.RequestOption {
	pairs := []string{"X-Remote-User", user}
	for _, group := range groups {
		pairs = append(pairs, "X-Remote-Group", group)
	}
	return headers(pairs...)
}

func impersonate(user string, groups ...string) framework.RequestOption {
	pairs := []string{"Impersonate-User", user}
	for _, group := range groups {
		pairs = append(pairs, "Impersonate-Group", group)
	}
	return headers(pairs...)
}

const (
	selfSubjectReview = `{apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}`
	accessReview      = `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview,
spec: {resourceAttributes: {verb: list, resource: configmaps, namespace: default}}}`
	rulesReview = `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: default}}`
)

// userInfo asks who the caller is, in protobuf, which keeps all bytes.
func userInfo(t *testing.T, who *framework.Caller, options ...framework.RequestOption) authenticationv1.UserInfo {
	t.Helper()
	var review authenticationv1.SelfSubjectReview
	fromProtobuf(t, who.Send(t, "POST", selfSubjectReviews, selfSubjectReview, append(options, acceptProtobuf)...).Want(t, 201), &review)
	return review.Status.UserInfo
}

// asTheyAre shows the bytes of all strings, which a comparison as JSON does not.
func asTheyAre(value any) string { return fmt.Sprintf("%+q", value) }

func TestUsersNamedByHeaders(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		c.Grant(t, framework.Grant{Name: "limits-odd", Group: "limits:odd", Namespace: ns, Rules: []rbacv1.PolicyRule{
			framework.May("create,list,patch", "", "configmaps"),
		}})
		hook := framework.StartRecorder(t)
		c.RegisterValidating(t, "limits-users", validating(hook.Webhook, ns))
		ways := []struct {
			name   string
			config *rest.Config
			be     func(user string, groups ...string) framework.RequestOption
		}{
			{"front proxy", frontProxy(t, c), remote},
			{"impersonation", c.Config(t), impersonate},
		}
		for _, way := range ways {
			who := s.As(t, way.config)
			for i, name := range oddStrings {
				alone, granted := way.be(name), way.be(name, name, "limits:odd")
				who.Send(t, "POST", selfSubjectReviews, selfSubjectReview, granted).Want(t, 201)
				who.Send(t, "POST", selfSubjectAccess, accessReview, granted).Want(t, 201)
				sayRules(t, c, s, way.config, rulesReview, granted)
				who.Send(t, "GET", core(ns, "configmaps"), "", alone).Want(t, 403)
				who.Send(t, "GET", "/some/where", "", alone).Want(t, 403)
				who.Send(t, "GET", core(ns, "configmaps")+"?labelSelector=none", "", granted).Want(t, 200)
				configMap := fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {generateName: c-, name: %s-%d}}",
					strings.ReplaceAll(way.name, " ", "-"), i)
				who.Send(t, "POST", core(ns, "configmaps"), configMap, granted).Want(t, 201)
				requests := hook.Take()
				s.Say(fmt.Sprintf("webhook for %+q", name), requests)
				if len(requests) != 1 || requests[0].UserInfo.Username != asJSON(name) {
					t.Errorf("%s: the webhook was asked %d times about %+q, want once", way.name, len(requests), asJSON(name))
				}
			}
		}
		// Bytes stay as they are on the way to the answer.
		for _, name := range oddStrings {
			user := userInfo(t, c.As(t, frontProxy(t, c)), remote(name, name, "other"))
			if user.Username != name || len(user.Groups) != 3 || user.Groups[0] != name {
				t.Errorf("the user %+q is said to be %+q of %+q", name, user.Username, user.Groups)
			}
		}
	})
}

// validating is a webhook for all writes of ConfigMaps in a namespace, but for the one
// that a controller makes there sooner or later.
func validating(hook *framework.Webhook, ns string) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: "limits.trigate.test", ClientConfig: hook.ClientConfig("/"),
		Rules: framework.Rule("*", "", "v1", "configmaps"),
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "of-a-test", Expression: "request.name != 'kube-root-ca.crt'",
		}},
		NamespaceSelector:       framework.InNamespace(ns),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
}

// asJSON is what is left of a string in JSON.
func asJSON(s string) string { return string([]rune(s)) }

func TestOddUIDsAndExtras(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		c.RegisterValidating(t, "limits-extras", validating(hook.Webhook, ns))
		proxy, admin := s.As(t, frontProxy(t, c)), s.Admin(t)
		for i, value := range oddStrings {
			key := headerName(value)
			byProxy := headers("X-Remote-User", "jane", "X-Remote-Group", "system:masters", "X-Remote-Uid", value,
				"X-Remote-Extra-"+key, value, "X-Remote-Extra-"+key, "second", "X-Remote-Extra-Other", value)
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, byProxy).Want(t, 201)
			s.Say("extra "+key, asTheyAre(userInfo(t, c.As(t, frontProxy(t, c)), byProxy)))
			proxy.Send(t, "POST", core(ns, "configmaps"), fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: c-%d}}", i), byProxy).Want(t, 201)
			s.Say("webhook for the extra "+key, hook.Take())
			impersonated := headers("Impersonate-User", "jane", "Impersonate-Uid", value,
				"Impersonate-Extra-"+key, value, "Impersonate-Extra-"+key, "second")
			admin.Send(t, "POST", selfSubjectReviews, selfSubjectReview, impersonated)
			// Who may not impersonate is told what.
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, impersonated, remote(value)).Want(t, 403)
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, headers("Impersonate-User", value), remote("jane")).Want(t, 403)
			proxy.Send(t, "POST", selfSubjectReviews, selfSubjectReview, impersonate("system:serviceaccount:"+ns+":"+value), remote("jane")).Want(t, 403)
		}
	})
}

// TestBytesOfNamesAreNotMixedUp wants no rights for users whose names only look like
// those of others once they are JSON or percent-encoded.
func TestBytesOfNamesAreNotMixedUp(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		names := []string{"\xff", "\ufffd", "%FF", "%ff", "%25FF", "zoë", "zoe\u0308", "zo\xeb", "zo%C3%AB", "ZOË"}
		bindings := c.As(t, c.Config(t))
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{framework.May("get", "", "configmaps")}}
		bindings.Send(t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/roles", inProtobuf(t, role), asProtobuf).Want(t, 201)
		for i, bound := range names {
			binding := &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("binding-%d", i)},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: bound}},
			}
			path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns + "/rolebindings"
			bindings.Send(t, "POST", path, inProtobuf(t, binding), asProtobuf).Want(t, 201)
			may := func(who *framework.Caller, name string) int {
				return who.Send(t, "GET", core(ns, "configmaps/none"), "", remote(name)).Code
			}
			framework.Eventually(t, fmt.Sprintf("%+q may read", bound), func() error {
				if code := may(c.As(t, frontProxy(t, c)), bound); code != http.StatusNotFound {
					return fmt.Errorf("code %d", code)
				}
				return nil
			})
			for _, name := range names {
				want := http.StatusForbidden
				if name == bound {
					want = http.StatusNotFound
				}
				if got := may(s.As(t, frontProxy(t, c)), name); got != want {
					t.Errorf("with rights for %+q: code %d for %+q, want %d", bound, got, name, want)
				}
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User:               name,
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Namespace: ns},
				}}
				var answer authorizationv1.SubjectAccessReview
				fromProtobuf(t, c.Admin(t).Send(t, "POST", subjectAccessReviews, inProtobuf(t, review), asProtobuf, acceptProtobuf).Want(t, 201), &answer)
				if answer.Status.Allowed != (name == bound) {
					t.Errorf("with rights for %+q: the review of %+q says %v", bound, name, answer.Status.Allowed)
				}
				s.Say("review", asTheyAre(answer.Spec.User)+answer.Status.Reason)
			}
			c.Admin(t).Send(t, "DELETE", path+"/"+binding.Name, "").Want(t, 200)
			framework.Eventually(t, fmt.Sprintf("%+q may read no longer", bound), func() error {
				if code := may(c.As(t, frontProxy(t, c)), bound); code != http.StatusForbidden {
					return fmt.Errorf("code %d", code)
				}
				return nil
			})
		}
	})
}

func TestReviewsOfOddSubjects(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		for _, odd := range append([]string{"\x00", "\n", " ", strings.Repeat("\xff", 10<<10)}, oddStrings...) {
			spec := authorizationv1.SubjectAccessReviewSpec{
				User: odd, Groups: []string{odd, "limits:odd"}, UID: odd,
				Extra: map[string]authorizationv1.ExtraValue{odd: {odd, ""}},
			}
			resource, path := spec, spec
			resource.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Verb: odd, Group: odd, Version: odd, Resource: odd, Subresource: odd, Namespace: odd, Name: odd,
			}
			path.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: odd, Path: odd}
			for _, spec := range []authorizationv1.SubjectAccessReviewSpec{resource, path} {
				review := &authorizationv1.SubjectAccessReview{Spec: spec}
				// JSON replaces what is no UTF-8.
				admin.Send(t, "POST", subjectAccessReviews, toJSON(t, withKind(review)), framework.ContentType(typeJSON)).Want(t, 201)
				admin.Send(t, "POST", subjectAccessReviews, inProtobuf(t, review), asProtobuf).Want(t, 201)
				var answer authorizationv1.SubjectAccessReview
				fromProtobuf(t, c.Admin(t).Send(t, "POST", subjectAccessReviews, inProtobuf(t, review), asProtobuf, acceptProtobuf).Want(t, 201), &answer)
				s.Say("status", asTheyAre(answer.Status))
			}
			selectors := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: "list", Version: "v1", Resource: "pods",
					LabelSelector: &authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{
						{Key: odd, Operator: metav1.LabelSelectorOpIn, Values: []string{odd}},
					}},
					FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
						{Key: odd, Operator: metav1.FieldSelectorOpIn, Values: []string{odd}},
					}},
				},
			}}
			admin.Send(t, "POST", selfSubjectAccess, inProtobuf(t, selectors), asProtobuf)
			rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: odd}}
			sayRules(t, c, s, c.Config(t), inProtobuf(t, rules), asProtobuf)
		}
	})
}

func withKind(review *authorizationv1.SubjectAccessReview) *authorizationv1.SubjectAccessReview {
	review = review.DeepCopy()
	review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SubjectAccessReview"
	return review
}

// headerName is text as the part of a header's name that stands for it.
func headerName(text string) string {
	return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
}

// sayRules asks for the rules of a user. They have no order: it is that in which the
// authorizer heard of the bindings.
func sayRules(t *testing.T, c *framework.Cluster, s *framework.Transcript, config *rest.Config, review string, options ...framework.RequestOption) {
	t.Helper()
	var answer authorizationv1.SelfSubjectRulesReview
	c.As(t, config).Send(t, "POST", selfSubjectRulesReview, review, options...).Want(t, 201).Decode(t, &answer)
	rules := []string{answer.Status.EvaluationError, fmt.Sprint(answer.Status.Incomplete)}
	for _, rule := range answer.Status.ResourceRules {
		rules = append(rules, rule.String())
	}
	for _, rule := range answer.Status.NonResourceRules {
		rules = append(rules, rule.String())
	}
	slices.Sort(rules)
	s.Say("rules", rules)
}
