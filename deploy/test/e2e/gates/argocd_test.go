package gates

import (
	"strings"
	"testing"

	"github.com/trigate/trigate/deploy/test/framework"
)

// The rules of argo-cd.yaml in one line, as they are read there. Each is in several
// roles.
const (
	controllerAll  = `verbs: *; API groups: *; resources: *`
	readsSecrets   = `verbs: get, list, watch; API groups: ""; resources: secrets, configmaps`
	writesSecrets  = `verbs: create, get, list, watch, update, patch, delete; API groups: ""; resources: secrets, configmaps`
	serverEvery    = `verbs: delete, get, patch; API groups: *; resources: *`
	serverJobs     = `verbs: create; API groups: batch; resources: jobs`
	redisSecret    = `verbs: get; API groups: ""; resources: secrets; names: argocd-redis`
	appSetLease    = `verbs: get, update, create; API groups: coordination.k8s.io; resources: leases; names: 58ac56fa.applicationsets.argoproj.io`
	appSetStatus   = `verbs: get, patch, update; API groups: argoproj.io; resources: applicationsets/status`
	notifiesConfig = `verbs: get; API groups: ""; resources: configmaps; names: argocd-notifications-cm`
)

// TestExplainArgoCD asks twenty questions about what Argo CD's own manifest allows its
// service accounts. The answers were worked out by hand from its roles and bindings,
// which are listed here:
//
//   - application-controller: everything everywhere, by a ClusterRole.
//   - applicationset-controller: the same rules by a Role in argocd and by a ClusterRole.
//   - server: Secrets, ConfigMaps, Applications and events in argocd by a Role; delete,
//     get and patch of everything everywhere, and some more, by a ClusterRole.
//   - dex-server, notifications-controller and redis: a few things in argocd by Roles.
//   - repo-server: nothing.
func TestExplainArgoCD(t *testing.T) {
	c := framework.Shared(t, framework.Trigate)
	c.MustKubectl(t, "create", "namespace", "argocd")
	c.MustKubectl(t, "apply", "--server-side", "-n", "argocd", "-f", framework.Real(t, "argo-cd.yaml"))
	const account = "system:serviceaccount:argocd:argocd-"
	// granted is the whole of an answer that is yes.
	granted := func(who, action, binding, role, rule, place string) string {
		return "yes: " + account + who + " may " + action + "\n\n" +
			"  authorizer  rbac\n" +
			"  binding     " + binding + "\n" +
			"  subject     ServiceAccount argocd/argocd-" + who + "\n" +
			"  role        " + role + "\n" +
			"  " + place + "    " + rule + "\n"
	}
	// refused is how an answer that is no begins.
	refused := func(who, action string) string {
		return "no: " + account + who + " may not " + action + "\n\n  node  no opinion\n  rbac  no opinion\n"
	}
	for _, q := range []struct {
		name, who string
		args      []string
		code      int
		// exact is all that is printed; the others are parts of it.
		exact string
		parts []string
	}{
		{
			name: "1: the controller deletes nodes", who: "application-controller", args: []string{"delete", "nodes"},
			exact: granted("application-controller", "delete nodes", "ClusterRoleBinding argocd-application-controller", "ClusterRole argocd-application-controller", controllerAll, "rules[0]"),
		},
		{
			name: "2: the controller reads the metrics", who: "application-controller", args: []string{"get", "/metrics"},
			exact: granted("application-controller", "get /metrics", "ClusterRoleBinding argocd-application-controller", "ClusterRole argocd-application-controller", "verbs: *; URLs: *", "rules[1]"),
		},
		{
			name: "3: the controller becomes somebody else", who: "application-controller", args: []string{"impersonate", "users", "jane"},
			exact: granted("application-controller", `impersonate users "jane"`, "ClusterRoleBinding argocd-application-controller", "ClusterRole argocd-application-controller", controllerAll, "rules[0]"),
		},
		{
			name: "4: dex lists the Secrets of its namespace", who: "dex-server", args: []string{"list", "secrets", "-n", "argocd"},
			exact: granted("dex-server", "list secrets in namespace argocd", "RoleBinding argocd/argocd-dex-server", "Role argocd/argocd-dex-server", readsSecrets, "rules[0]"),
		},
		{
			name: "5: but not those of another one", who: "dex-server", args: []string{"list", "secrets", "-n", "kube-system"}, code: 1,
			exact: refused("dex-server", "list secrets in namespace kube-system") +
				"\nNearest rules:\n  rules[0] of Role argocd/argocd-dex-server, by RoleBinding argocd/argocd-dex-server:\n    " + readsSecrets + "\n" +
				"    is bound in namespace \"argocd\", not in \"kube-system\"\n" +
				"\nHint: it would be allowed if a RoleBinding in namespace \"kube-system\" bound a role with that rule; Role argocd/argocd-dex-server cannot be bound there.\n",
		},
		{
			name: "6: nor of all at once", who: "dex-server", args: []string{"list", "secrets", "-A"}, code: 1,
			parts: []string{"may not list secrets in all namespaces\n", "is bound in namespace \"argocd\" only, and the request is not in a namespace\n"},
		},
		{
			name: "7: and it deletes none", who: "dex-server", args: []string{"delete", "secrets", "argocd-secret", "-n", "argocd"}, code: 1,
			exact: refused("dex-server", `delete secrets "argocd-secret" in namespace argocd`) +
				"\nNearest rules:\n  rules[0] of Role argocd/argocd-dex-server, by RoleBinding argocd/argocd-dex-server:\n    " + readsSecrets + "\n" +
				"    lacks the verb \"delete\"\n" +
				"\nHint: it would be allowed if rules[0] of Role argocd/argocd-dex-server did not lack that. Whoever else is bound to the role would be allowed it too.\n",
		},
		{
			name: "8: redis reads its own Secret", who: "redis", args: []string{"get", "secrets", "argocd-redis", "-n", "argocd"},
			exact: granted("redis", `get secrets "argocd-redis" in namespace argocd`, "RoleBinding argocd/argocd-redis", "Role argocd/argocd-redis", redisSecret, "rules[0]"),
		},
		{
			name: "9: and no other", who: "redis", args: []string{"get", "secret/argocd-secret", "-n", "argocd"}, code: 1,
			parts: []string{"rules[0] of Role argocd/argocd-redis, by RoleBinding argocd/argocd-redis:\n    " + redisSecret + "\n    lacks the name \"argocd-secret\"\n"},
		},
		{
			name: "10: redis lists no Secrets", who: "redis", args: []string{"list", "secrets", "-n", "argocd"}, code: 1,
			parts: []string{"rules[1] of Role argocd/argocd-redis, by RoleBinding argocd/argocd-redis:\n    verbs: create; API groups: \"\"; resources: secrets\n    lacks the verb \"list\"\n"},
		},
		{
			name: "11: the server changes ConfigMaps in its namespace, by its Role", who: "server", args: []string{"update", "cm", "argocd-cm", "-n", "argocd"},
			exact: granted("server", `update configmaps "argocd-cm" in namespace argocd`, "RoleBinding argocd/argocd-server", "Role argocd/argocd-server", writesSecrets, "rules[0]"),
		},
		{
			name: "12: and not in others", who: "server", args: []string{"update", "cm", "x", "-n", "default"}, code: 1,
			parts: []string{
				"rules[0] of ClusterRole argocd-server, by ClusterRoleBinding argocd-server:\n    " + serverEvery + "\n    lacks the verb \"update\"\n",
				"rules[0] of Role argocd/argocd-server, by RoleBinding argocd/argocd-server:\n    " + writesSecrets + "\n    is bound in namespace \"argocd\", not in \"default\"\n",
			},
		},
		{
			name: "13: but it patches and deletes everything everywhere", who: "server", args: []string{"delete", "deployments.apps", "web", "-n", "default"},
			exact: granted("server", `delete deployments.apps "web" in namespace default`, "ClusterRoleBinding argocd-server", "ClusterRole argocd-server", serverEvery, "rules[0]"),
		},
		{
			name: "14: it reads the logs of Pods, which the first of its rules allows already", who: "server", args: []string{"get", "pods/log", "web", "-n", "default"},
			parts: []string{"yes: " + account + `server may get pods/log "web" in namespace default`, "ClusterRoleBinding argocd-server\n", "  rules[0]    " + serverEvery + "\n"},
		},
		{
			name: "15: it does not exec into them", who: "server", args: []string{"create", "pods/exec", "-n", "default"}, code: 1,
			parts: []string{"may not create pods/exec in namespace default\n", serverEvery + "\n    lacks the verb \"create\"\n"},
		},
		{
			name: "16: it starts Jobs", who: "server", args: []string{"create", "jobs.batch", "-n", "default"},
			exact: granted("server", "create jobs.batch in namespace default", "ClusterRoleBinding argocd-server", "ClusterRole argocd-server", serverJobs, "rules[5]"),
		},
		{
			name: "17: the applicationset controller changes the status of its objects", who: "applicationset-controller", args: []string{"update", "applicationsets/status", "-n", "default"},
			exact: granted("applicationset-controller", "update applicationsets.argoproj.io/status in namespace default", "ClusterRoleBinding argocd-applicationset-controller", "ClusterRole argocd-applicationset-controller", appSetStatus, "rules[2]"),
		},
		{
			name: "18: it renews its own lease only", who: "applicationset-controller", args: []string{"update", "leases", "other", "-n", "argocd"}, code: 1,
			parts: []string{"may not update leases.coordination.k8s.io \"other\" in namespace argocd\n", appSetLease + "\n    lacks the name \"other\"\n"},
		},
		{
			name: "19: the notifications controller reads one ConfigMap by name, and others not", who: "notifications-controller", args: []string{"get", "cm", "argocd-cm", "-n", "argocd"}, code: 1,
			parts: []string{notifiesConfig + "\n    lacks the name \"argocd-cm\"\n", "verbs: list, watch; API groups: \"\"; resources: configmaps, secrets\n    lacks the verb \"get\"\n"},
		},
		{
			name: "20: the repo server, which no role is bound to, may do nothing", who: "repo-server", args: []string{"get", "secrets", "-n", "argocd"}, code: 1,
			exact: refused("repo-server", "get secrets in namespace argocd") +
				"\nNo rule that is bound to this user comes near. Its groups are system:serviceaccounts, system:serviceaccounts:argocd, system:authenticated.\n" +
				"\nHint: a binding that names the user or one of the groups, with a role that has\n  verbs: get; API groups: \"\"; resources: secrets\n",
		},
	} {
		t.Run(q.name, func(t *testing.T) {
			result := gates(t, c, append([]string{"explain", "--as", account + q.who}, q.args...)...)
			want(t, result, q.code, q.parts...)
			if q.exact != "" && result.Stdout != q.exact {
				t.Errorf("printed:\n%s\nwant:\n%s", result.Stdout, q.exact)
			}
			// The server decides as it is told.
			canI := c.Kubectl(t, append([]string{"auth", "can-i", "--as", account + q.who}, canIArgs(q.args)...)...)
			if canI.Code != q.code {
				t.Errorf("kubectl auth can-i %v: exit code %d, want %d: %s%s", q.args, canI.Code, q.code, canI.Stdout, canI.Stderr)
			}
		})
	}
}

// canIArgs are the arguments of `kubectl auth can-i` for those of `kubectl gates
// explain`: it has no names and subresources of their own.
func canIArgs(args []string) []string {
	verb, resource, rest := args[0], args[1], args[2:]
	var flags []string
	if what, sub, ok := strings.Cut(resource, "/"); ok && what != "" && what != "secret" {
		resource, flags = what, []string{"--subresource", sub}
	}
	if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		resource, rest = resource+"/"+rest[0], rest[1:]
	}
	return append(append([]string{verb, resource}, flags...), rest...)
}
