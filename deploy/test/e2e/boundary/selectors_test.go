package boundary

import (
	"fmt"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

const subjectAccessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

func TestNameSelectorsNameTheObject(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		s.Admin(t).Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		c.Grant(t, framework.Grant{Name: "selector", User: "selector", Namespace: ns, Rules: rules(framework.May("list,watch,deletecollection", "", "configmaps", "c1"))})
		user := s.As(t, c.User(t, "selector"))
		list := core(ns, "configmaps")
		for query, code := range map[string]int{
			"fieldSelector=metadata.name=c1":   200,
			"fieldSelector=metadata.name%3Dc1": 200,
			"fieldSelector=metadata.name==c1":  200,
			"":                                 403,
			"fieldSelector=metadata.name=c2":   403,
			"fieldSelector=metadata.name!=c1":  403,
			"fieldSelector=metadata.name=c1,metadata.namespace=" + ns:           200,
			"fieldSelector=metadata.name=c1&fieldSelector=metadata.name=c2":     200,
			"fieldSelector=metadata.name=c1,metadata.name=c2":                   200,
			"fieldSelector=metadata.namespace=" + ns:                            403,
			"fieldSelector=nonsense":                                            403,
			"fieldSelector=metadata.name=":                                      403,
			"fieldSelector=metadata.name=c1&labelSelector=a%3Db":                200,
			"fieldSelector=metadata.name=c1&labelSelector=a%20in":               403,
			"labelSelector=metadata.name%3Dc1":                                  403,
			"fieldSelector=metadata.name=c1&limit=1&resourceVersion=0":          200,
			"fieldSelector=metadata.name=%2E%2E":                                403,
			"fieldSelector=metadata.name=c1%2Fx":                                403,
			"fieldSelector=metadata.name=c1&watch=1&timeoutSeconds=1":           200,
			"fieldSelector=metadata.name=c2&watch=1&timeoutSeconds=1":           403,
			"watch=1&timeoutSeconds=1":                                          403,
			"fieldSelector=metadata.name=c1&watch=0":                            200,
			"fieldSelector=metadata.name=c1&watch=nonsense&timeoutSeconds=1":    200,
			"fieldSelector=metadata.name=c1&watch=true&timeoutSeconds=nonsense": 403,
		} {
			// The events of a watch need not be the same, the code does.
			if got := c.As(t, c.User(t, "selector")).Send(t, "GET", list+"?"+query, ""); got.Code != code {
				t.Errorf("GET with %q: got code %d, want %d; the answer was %s", query, got.Code, code, got.Body)
			}
		}
		user.Send(t, "GET", list+"?fieldSelector=metadata.name=c1", "").Want(t, 200)
		user.Send(t, "GET", list, "").Want(t, 403)
		user.Send(t, "GET", list+"?fieldSelector=metadata.name=c2", "").Want(t, 403)
		user.Send(t, "GET", list+"/c1", "").Want(t, 403)
		// A collection's deletion has no name, whatever it selects.
		user.Send(t, "DELETE", list+"?fieldSelector=metadata.name=c1", "").WantMessage(t, 403, fmt.Sprintf(
			`configmaps is forbidden: User "selector" cannot deletecollection resource "configmaps" in API group "" in the namespace %q`, ns))
		user.Send(t, "DELETE", list, "").Want(t, 403)
	})
}

func TestReviewsWithSelectors(t *testing.T) {
	t.Parallel()
	selectors := []string{
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: In, values: [selecting]}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: In, values: [selecting, other]}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: In, values: [other]}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: NotIn, values: [other]}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: Exists}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: Exists, values: [x]}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: Nonsense, values: [x]}]}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: In}]}`,
		`fieldSelector: {requirements: [{key: '', operator: In, values: [x]}]}`,
		`fieldSelector: {requirements: []}`,
		`fieldSelector: {requirements: [{key: spec.nodeName, operator: In, values: [selecting]}, {key: metadata.name, operator: Nonsense, values: [x]}]}`,
		`fieldSelector: {rawSelector: spec.nodeName=selecting}`,
		`fieldSelector: {rawSelector: 'spec.nodeName=selecting,'}`,
		`fieldSelector: {rawSelector: nonsense}`,
		`fieldSelector: {rawSelector: a=b, requirements: [{key: spec.nodeName, operator: In, values: [selecting]}]}`,
		`fieldSelector: {}`,
		`labelSelector: {requirements: [{key: a, operator: In, values: [b, c]}]}`,
		`labelSelector: {requirements: [{key: a, operator: Exists}, {key: b, operator: DoesNotExist}]}`,
		`labelSelector: {requirements: [{key: 'not valid!', operator: In, values: [b]}]}`,
		`labelSelector: {requirements: [{key: a, operator: In, values: ['not valid!']}]}`,
		`labelSelector: {requirements: [{key: a, operator: Gt, values: ['5']}]}`,
		`labelSelector: {rawSelector: 'a in (b, c), !d'}`,
		`labelSelector: {rawSelector: 'a in'}`,
		`labelSelector: {rawSelector: 'ü=ß'}`,
		`fieldSelector: {rawSelector: spec.nodeName=selecting}, labelSelector: {rawSelector: 'a in'}`,
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		node := s.As(t, c.User(t, "system:node:selecting", "system:nodes"))
		const user = "user: 'system:node:selecting', groups: ['system:nodes']"
		review := func(verb, selector string) *framework.Answer {
			return admin.Send(t, "POST", subjectAccessReviews, fmt.Sprintf(
				"{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {%s, resourceAttributes: {verb: %s, version: v1, resource: pods%s}}}", user, verb, selector))
		}
		for _, selector := range selectors {
			review("list", ", "+selector)
		}
		for _, verb := range []string{"watch", "deletecollection", "get"} {
			review(verb, ", "+selectors[0])
		}
		// The Node authorizer lets a node list its Pods, which it knows by the selector.
		for selector, want := range map[string]string{"": "false", ", " + selectors[0]: "true", ", " + selectors[2]: "false"} {
			answer := c.Admin(t).Send(t, "POST", subjectAccessReviews, fmt.Sprintf(
				"{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {%s, resourceAttributes: {verb: list, version: v1, resource: pods%s}}}", user, selector)).Want(t, 201)
			if got := fmt.Sprint(answer.Field(t, "status", "allowed")); got != want {
				t.Errorf("a review with %q: got allowed %s, want %s", selector, got, want)
			}
		}
		node.Send(t, "GET", "/api/v1/pods?fieldSelector=spec.nodeName=selecting", "").Want(t, 200)
		node.Send(t, "GET", "/api/v1/pods?fieldSelector=spec.nodeName=other", "").Want(t, 403)
		node.Send(t, "GET", "/api/v1/pods?fieldSelector=spec.nodeName!=other", "").Want(t, 403)
		node.Send(t, "GET", "/api/v1/pods?fieldSelector=spec.nodeName=selecting&labelSelector=a+in", "").Want(t, 400)
		node.Send(t, "GET", "/api/v1/pods", "").Want(t, 403)
		node.Send(t, "DELETE", "/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName=selecting", "").Want(t, 403)

		// Nodes see themselves only, by name.
		node.Send(t, "GET", "/api/v1/nodes?fieldSelector=metadata.name=selecting", "").Want(t, 200)
		node.Send(t, "GET", "/api/v1/nodes", "").Want(t, 403)
		// As the user of a review of one's own.
		node.Send(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			"{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {resourceAttributes: {verb: list, version: v1, resource: pods, "+selectors[0]+"}}}").Want(t, 201)
		node.Send(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
			"{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: default}}").Want(t, 201)
	})
}
