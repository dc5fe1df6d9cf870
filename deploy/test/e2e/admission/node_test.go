package admission

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestNodesMayTouchOnlyWhatIsTheirs(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		node := s.As(t, c.User(t, "system:node:trigate-n1", "system:nodes"))
		const nodes = "/api/v1/nodes"
		for _, name := range []string{"trigate-n1", "trigate-n2"} {
			t.Cleanup(func() { c.Admin(t).Send(t, "DELETE", nodes+"/"+name, "").Want(t, 200) })
		}

		created := node.Send(t, "POST", nodes, "{apiVersion: v1, kind: Node, metadata: {name: trigate-n1}}").Want(t, 201)
		if got := created.String(t, "spec", "taints", 0, "key"); got != "node.kubernetes.io/not-ready" {
			t.Errorf("got taint %q, want node.kubernetes.io/not-ready", got)
		}
		uid := created.String(t, "metadata", "uid")
		node.Send(t, "POST", nodes, "{apiVersion: v1, kind: Node, metadata: {name: trigate-n2}}").
			WantMessage(t, 403, `nodes "trigate-n2" is forbidden: node "trigate-n1" is not allowed to modify node "trigate-n2"`)
		admin.Send(t, "POST", nodes, "{apiVersion: v1, kind: Node, metadata: {name: trigate-n2}}").Want(t, 201)
		node.Send(t, "PATCH", nodes+"/trigate-n2", `{"metadata":{"labels":{"a":"b"}}}`, framework.MergePatch).Want(t, 403)
		node.Send(t, "PATCH", nodes+"/trigate-n1?dryRun=All", `{"metadata":{"labels":{"node-restriction.kubernetes.io/a":"b"}}}`, framework.MergePatch).
			WantMessage(t, 403, `nodes "trigate-n1" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/a`)
		node.Send(t, "PATCH", nodes+"/trigate-n1?dryRun=All", `{"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`, framework.MergePatch).
			WantMessage(t, 403, `nodes "trigate-n1" is forbidden: node "trigate-n1" is not allowed to modify taints`)

		// Pods: mirrors of its own only.
		pods := core(ns, "pods")
		node.Send(t, "POST", pods, pod).WantMessage(t, 403,
			`pods "p1" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "trigate-n1" can only create mirror pods`)
		mirror := func(name, nodeName string) string {
			return podWith(name, "annotations: {kubernetes.io/config.mirror: x}, ownerReferences: [{apiVersion: v1, kind: Node, name: "+nodeName+", uid: "+uid+", controller: true}]",
				"nodeName: "+nodeName)
		}
		node.Send(t, "POST", pods, mirror("m2", "trigate-n2")).WantMessage(t, 403,
			`pods "m2" is forbidden: node "trigate-n1" can only create pods with spec.nodeName set to itself`)
		c.As(t, c.User(t, "system:node:trigate-n1", "system:nodes")).Await(t, "POST", pods+"?dryRun=All", mirror("m1", "trigate-n1"), 201)
		node.Send(t, "POST", pods, mirror("m1", "trigate-n1")).Want(t, 201)

		admin.Send(t, "POST", pods, podWith("other", "", "nodeName: trigate-n2")).Want(t, 201)
		c.As(t, c.User(t, "system:node:trigate-n1", "system:nodes")).Await(t, "DELETE", pods+"/other?dryRun=All", "", 403)
		node.Send(t, "DELETE", pods+"/other?dryRun=All", "").WantMessage(t, 403,
			`pods "other" is forbidden: node "trigate-n1" can only delete pods with spec.nodeName set to itself`)

		admin.Send(t, "POST", pods, podWith("unscheduled", "", "")).Want(t, 201)
		c.As(t, c.User(t, "system:node:trigate-n1", "system:nodes")).Await(t, "DELETE", pods+"/unscheduled?dryRun=All", "", 403)
		node.Send(t, "DELETE", pods+"/unscheduled?dryRun=All", "").WantMessage(t, 403,
			`pods "unscheduled" is forbidden: node "trigate-n1" can only delete pods with spec.nodeName set to itself`)

		// Tokens: for the Pods that run on it only.
		token := func(spec string) string {
			return "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, spec: {" + spec + "}}"
		}
		tokens := core(ns, "serviceaccounts/default/token")
		node.Send(t, "POST", tokens, token("")).Want(t, 403)
		running := admin.Send(t, "POST", pods, podWith("running", "", "nodeName: trigate-n1")).Want(t, 201).String(t, "metadata", "uid")
		bound := token("boundObjectRef: {kind: Pod, apiVersion: v1, name: running, uid: " + running + "}")
		c.As(t, c.User(t, "system:node:trigate-n1", "system:nodes")).Await(t, "POST", tokens, bound, 201)
		node.Send(t, "POST", tokens, token("")).WantMessage(t, 403,
			`serviceaccounts "default" is forbidden: node requested token not bound to a pod`)
		node.Send(t, "POST", tokens, token("audiences: [mine], boundObjectRef: {kind: Pod, apiVersion: v1, name: running, uid: "+running+"}")).Want(t, 403)
		node.Send(t, "POST", tokens, token("boundObjectRef: {kind: Pod, apiVersion: v1, name: running, uid: not-it}")).Want(t, 403)

		// Leases: its own only.
		lease := func(name string) string {
			return "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: " + name + "}}"
		}
		leases := group("coordination.k8s.io/v1", "kube-node-lease", "leases") + "?dryRun=All"
		node.Send(t, "POST", leases, lease("trigate-n2")).Want(t, 403)
		node.Send(t, "POST", leases, lease("trigate-n1")).Want(t, 201)
	})
}

// TestTheGatesDoNotWatchEveryPod looks at who watches pods. They are most of what a
// cluster has: those that are on a node are what tokens and the Node authorizer hang on,
// and plugins look up the few that they need.
func TestTheGatesDoNotWatchEveryPod(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	watchers := map[string]bool{}
	for _, event := range c.AuditEvents(t, func(e *auditv1.Event) bool {
		return e.Verb == "watch" && e.ObjectRef != nil && e.ObjectRef.Resource == "pods" &&
			(strings.HasPrefix(e.User.Username, "system:trigate:") || e.User.Username == user.APIServerUser)
	}) {
		watchers[event.User.Username] = true
		if u, err := url.Parse(event.RequestURI); err != nil || u.Query().Get("fieldSelector") != "spec.nodeName!=" {
			t.Errorf("%s watches %s, want only pods that are on a node", event.User.Username, event.RequestURI)
		}
	}
	want := map[string]bool{"system:trigate:authn": true, "system:trigate:authz": true}
	if diff := cmp.Diff(want, watchers); diff != "" {
		t.Errorf("who watches pods (-want +got):\n%s", diff)
	}
}

func TestNodesWithoutANameMayNothing(t *testing.T) {
	t.Parallel()
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		c.Grant(t, framework.Grant{
			Name: "nameless-node", User: "system:node:", Namespace: ns,
			Rules: rules(framework.May("create", "", "configmaps")),
		})
		nameless := s.As(t, c.User(t, "system:node:", "system:nodes"))
		nameless.Send(t, "POST", core(ns, "configmaps"), configMap).
			WantMessage(t, 403, `configmaps "c1" is forbidden: could not determine node from user "system:node:"`)
		// The same name without the group is an ordinary user's.
		s.As(t, c.User(t, "system:node:")).Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
	})
}
