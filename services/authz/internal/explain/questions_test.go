package explain

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trigate/trigate/services/authz/internal/convert"
)

// asked is a question whose answer was worked out by hand from the manifests.
type asked struct {
	question authorizer.AttributesRecord
	// grant is the way by which it is allowed. Empty: it is refused, and these are
	// the near misses.
	grant  string
	misses []string
}

func explainAll(t *testing.T, policy *memory, questions map[string]asked) {
	e := newExplainer(t, Config{RBAC: policy})
	for name, q := range questions {
		t.Run(name, func(t *testing.T) {
			got, err := e.find(t.Context(), q.question)
			if err != nil {
				t.Fatalf("find() = %v", err)
			}
			var grant string
			if got.grant != nil {
				grant = wayBy(*got.grant)
			}
			if grant != q.grant {
				t.Errorf("grant = %q, want %q", grant, q.grant)
			}
			if diff := cmp.Diff(q.misses, misses(got.nearMisses)); diff != "" {
				t.Errorf("near misses (-want +got):\n%s", diff)
			}
			if len(got.errors) > 0 {
				t.Errorf("errors = %q, want none", got.errors)
			}
			decision, reason, err := policy.authorizer().Authorize(t.Context(), q.question)
			if !got.agrees(convert.Say{Decision: decision, Reason: reason, Err: err}) {
				t.Errorf("reason = %q, the authorizer says %v, %q, %v", got.reason, decision, reason, err)
			}
		})
	}
}

func TestArgoCD(t *testing.T) {
	const ns = "argocd"
	var (
		controller    = account(ns, "argocd-application-controller")
		sets          = account(ns, "argocd-applicationset-controller")
		dex           = account(ns, "argocd-dex-server")
		notifications = account(ns, "argocd-notifications-controller")
		redis         = account(ns, "argocd-redis")
		server        = account(ns, "argocd-server")
	)
	cluster := func(name, rule string) string {
		return "ClusterRoleBinding " + name + " > ClusterRole " + name + " #" + rule
	}
	local := func(name, rule string) string {
		return "RoleBinding argocd/" + name + " > Role argocd/" + name + " #" + rule
	}
	const (
		byController = " by ServiceAccount argocd/argocd-application-controller"
		bySets       = " by ServiceAccount argocd/argocd-applicationset-controller"
		byServer     = " by ServiceAccount argocd/argocd-server"
	)
	explainAll(t, argoCD(t, ns), map[string]asked{
		"a wildcard, cluster-scoped":              {question: resource(controller, "delete", "nodes:n", ""), grant: cluster("argocd-application-controller", "0") + byController},
		"the cluster role comes before the role":  {question: resource(controller, "get", "secrets:s", ns), grant: cluster("argocd-application-controller", "0") + byController},
		"any path":                                {question: path(controller, "post", "/anything"), grant: cluster("argocd-application-controller", "1") + byController},
		"the first rule that allows, not the one": {question: resource(server, "get", "pods/log:p", "default"), grant: cluster("argocd-server", "0") + byServer},
		"any finalizers":                          {question: resource(server, "update", "applications.argoproj.io/finalizers:a", "default"), grant: cluster("argocd-server", "1") + byServer},
		"lists events":                            {question: resource(server, "list", "events", "default"), grant: cluster("argocd-server", "2") + byServer},
		"creates jobs":                            {question: resource(server, "create", "jobs.batch", "default"), grant: cluster("argocd-server", "5") + byServer},
		"creates workflows":                       {question: resource(server, "create", "workflows.argoproj.io", "default"), grant: cluster("argocd-server", "6") + byServer},
		"watches applications":                    {question: resource(server, "watch", "applications.argoproj.io", ns), grant: cluster("argocd-server", "4") + byServer},
		// The role bindings name service accounts of their own namespace without it.
		"only the role allows updates":   {question: resource(server, "update", "secrets:s", ns), grant: local("argocd-server", "0") + " by ServiceAccount argocd-server"},
		"only the role allows projects":  {question: resource(server, "list", "appprojects.argoproj.io", ns), grant: local("argocd-server", "1") + " by ServiceAccount argocd-server"},
		"a lease by its name":            {question: resource(sets, "update", "leases.coordination.k8s.io:58ac56fa.applicationsets.argoproj.io", "kube-system"), grant: cluster("argocd-applicationset-controller", "6") + bySets},
		"a lease without a name":         {question: resource(sets, "create", "leases.coordination.k8s.io", "default"), grant: cluster("argocd-applicationset-controller", "5") + bySets},
		"a subresource":                  {question: resource(sets, "patch", "applicationsets.argoproj.io/status:a", "default"), grant: cluster("argocd-applicationset-controller", "2") + bySets},
		"a config map by its name":       {question: resource(notifications, "get", "configmaps:argocd-notifications-cm", ns), grant: local("argocd-notifications-controller", "2") + " by ServiceAccount argocd-notifications-controller"},
		"a secret to create":             {question: resource(redis, "create", "secrets", ns), grant: local("argocd-redis", "1") + " by ServiceAccount argocd-redis"},
		"config maps to list":            {question: resource(dex, "list", "configmaps", ns), grant: local("argocd-dex-server", "0") + " by ServiceAccount argocd-dex-server"},
		"another secret: verb, and name": {question: resource(notifications, "get", "secrets:argocd-secret", ns), misses: []string{"VERB " + local("argocd-notifications-controller", "1"), "NAME " + local("argocd-notifications-controller", "3")}},
		"a secret elsewhere":             {question: resource(dex, "get", "secrets:x", "default"), misses: []string{"NAMESPACE " + local("argocd-dex-server", "0")}},
		"secrets to update":              {question: resource(dex, "update", "secrets:x", ns), misses: []string{"VERB " + local("argocd-dex-server", "0")}},
		"another resource":               {question: resource(dex, "list", "pods", ns), misses: []string{"RESOURCE " + local("argocd-dex-server", "0")}},
		"another name":                   {question: resource(redis, "get", "secrets:other", ns), misses: []string{"VERB " + local("argocd-redis", "1"), "NAME " + local("argocd-redis", "0")}},
		"the name of another resource":   {question: resource(redis, "get", "configmaps:argocd-redis", ns), misses: []string{"RESOURCE " + local("argocd-redis", "0")}},
		"no binding at all":              {question: resource(account(ns, "argocd-repo-server"), "get", "secrets:x", ns)},
		"the same name, elsewhere":       {question: resource(account("default", "argocd-server"), "get", "secrets:x", ns)},
		"no rule is for paths":           {question: path(server, "get", "/metrics")},
		"another verb":                   {question: resource(server, "create", "deployments.apps", "default"), misses: []string{"VERB " + cluster("argocd-server", "0")}},
		"another verb, and resource":     {question: resource(server, "list", "pods", "default"), misses: []string{"VERB " + cluster("argocd-server", "0"), "VERB " + cluster("argocd-server", "3"), "RESOURCE " + cluster("argocd-server", "2")}},
		"another lease":                  {question: resource(sets, "get", "leases.coordination.k8s.io:other", "default"), misses: []string{"VERB " + cluster("argocd-applicationset-controller", "5"), "NAME " + cluster("argocd-applicationset-controller", "6")}},
		"a subresource that may less":    {question: resource(sets, "delete", "applicationsets.argoproj.io/status:a", "default"), misses: []string{"VERB " + cluster("argocd-applicationset-controller", "2"), "RESOURCE " + cluster("argocd-applicationset-controller", "0")}},
		"deployments of no group":        {question: resource(sets, "get", "deployments:d", "default"), misses: []string{"RESOURCE " + cluster("argocd-applicationset-controller", "3"), "RESOURCE " + cluster("argocd-applicationset-controller", "4")}},
		"another group":                  {question: resource(notifications, "get", "applications.extensions:a", ns), misses: []string{"API_GROUP " + local("argocd-notifications-controller", "0")}},
		"all namespaces":                 {question: resource(notifications, "list", "applications.argoproj.io", ""), misses: []string{"NAMESPACE " + local("argocd-notifications-controller", "0")}},
	})
}

func TestBootstrapPolicy(t *testing.T) {
	var (
		anonymous = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
		jane      = person("jane")
		scheduler = person(user.KubeScheduler)
	)
	const lease = "leases.coordination.k8s.io:"
	cluster := func(name, rule string) string {
		return "ClusterRoleBinding " + name + " > ClusterRole " + name + " #" + rule
	}
	local := func(namespace, name, rule string) string {
		return "RoleBinding " + namespace + "/" + name + " > Role " + namespace + "/" + name + " #" + rule
	}
	explainAll(t, bootstrap(), map[string]asked{
		"system:masters":               {question: resource(person("root", user.SystemPrivilegedGroup), "delete", "nodes:n", ""), grant: cluster("cluster-admin", "0") + " by Group system:masters"},
		"anonymous may see the health": {question: path(anonymous, "get", "/healthz"), grant: cluster("system:public-info-viewer", "0") + " by Group system:unauthenticated"},
		"the first binding by name":    {question: path(jane, "get", "/healthz"), grant: cluster("system:discovery", "0") + " by Group system:authenticated"},
		"a self review":                {question: resource(jane, "create", "selfsubjectaccessreviews.authorization.k8s.io", ""), grant: cluster("system:basic-user", "0") + " by Group system:authenticated"},
		"the scheduler's lease":        {question: resource(scheduler, "update", lease+"kube-scheduler", "kube-system"), grant: cluster("system:kube-scheduler", "2") + " by User system:kube-scheduler"},
		"another lease":                {question: resource(scheduler, "update", lease+"other", "kube-system"), grant: local("kube-system", "system::leader-locking-kube-scheduler", "0") + " by User system:kube-scheduler"},
		"custom resources to list":     {question: resource(person(user.KubeControllerManager), "list", "widgets.example.com", ""), grant: cluster("system:kube-controller-manager", "9") + " by User system:kube-controller-manager"},
		"a token to clean":             {question: resource(account("kube-system", "token-cleaner"), "delete", "secrets:s", "kube-system"), grant: local("kube-system", "system:controller:token-cleaner", "0") + " by ServiceAccount kube-system/token-cleaner"},
		"keys, by group":               {question: path(account("default", "default"), "get", "/openid/v1/jwks"), grant: cluster("system:service-account-issuer-discovery", "0") + " by Group system:serviceaccounts"},
		"the scale of anything":        {question: resource(account("kube-system", "horizontal-pod-autoscaler"), "get", "deployments.apps/scale:d", "default"), grant: cluster("system:controller:horizontal-pod-autoscaler", "2") + " by ServiceAccount kube-system/horizontal-pod-autoscaler"},
		"a lease elsewhere": {question: resource(scheduler, "update", lease+"other", "default"), misses: []string{
			"VERB " + cluster("system:kube-scheduler", "1"),
			"NAME " + cluster("system:kube-scheduler", "2"),
			"NAMESPACE " + local("kube-system", "system::leader-locking-kube-scheduler", "0"),
			"RESOURCE " + cluster("system:kube-scheduler", "3"),
		}},
		"another path":      {question: path(anonymous, "get", "/metrics"), misses: []string{"PATH " + cluster("system:public-info-viewer", "0")}},
		"another method":    {question: path(anonymous, "post", "/healthz"), misses: []string{"VERB " + cluster("system:public-info-viewer", "0")}},
		"a service to get":  {question: resource(account("kube-system", "kube-dns"), "get", "services:s", "default"), misses: []string{"VERB " + cluster("system:kube-dns", "0")}},
		"nobody's business": {question: resource(jane, "get", "pods:p", "default")},
		"another config map": {question: resource(account("kube-system", "bootstrap-signer"), "update", "configmaps:other", "kube-public"), misses: []string{
			"VERB " + local("kube-public", "system:controller:bootstrap-signer", "0"),
			"NAME " + local("kube-public", "system:controller:bootstrap-signer", "1"),
			"RESOURCE " + local("kube-public", "system:controller:bootstrap-signer", "2"),
		}},
	})
}

// TestWhoCanByHand asks about policies that people really have. The answers were
// worked out by hand from the manifests.
func TestWhoCanByHand(t *testing.T) {
	boot, argo := bootstrap(), argoCD(t, "argocd")
	for name, tc := range map[string]struct {
		policy *memory
		action authorizer.AttributesRecord
		want   []string
	}{
		"review their own rules": {policy: boot, action: resource(nil, "create", "selfsubjectrulesreviews.authorization.k8s.io", ""), want: []string{
			"ClusterRoleBinding cluster-admin > ClusterRole cluster-admin #0 by Group system:masters",
			"ClusterRoleBinding system:basic-user > ClusterRole system:basic-user #0 by Group system:authenticated",
		}},
		"see the health": {policy: boot, action: path(nil, "get", "/healthz"), want: []string{
			"ClusterRoleBinding cluster-admin > ClusterRole cluster-admin #1 by Group system:masters",
			"ClusterRoleBinding system:discovery > ClusterRole system:discovery #0 by Group system:authenticated",
			"ClusterRoleBinding system:monitoring > ClusterRole system:monitoring #0 by Group system:monitoring",
			"ClusterRoleBinding system:public-info-viewer > ClusterRole system:public-info-viewer #0 by Group system:authenticated",
			"ClusterRoleBinding system:public-info-viewer > ClusterRole system:public-info-viewer #0 by Group system:unauthenticated",
		}},
		"get the system's secrets": {policy: boot, action: resource(nil, "get", "secrets:s", "kube-system"), want: []string{
			"ClusterRoleBinding cluster-admin > ClusterRole cluster-admin #0 by Group system:masters",
			"ClusterRoleBinding system:controller:generic-garbage-collector > ClusterRole system:controller:generic-garbage-collector #0 by ServiceAccount kube-system/generic-garbage-collector",
			"ClusterRoleBinding system:controller:namespace-controller > ClusterRole system:controller:namespace-controller #2 by ServiceAccount kube-system/namespace-controller",
			"ClusterRoleBinding system:kube-controller-manager > ClusterRole system:kube-controller-manager #5 by User system:kube-controller-manager",
			"RoleBinding kube-system/system:controller:bootstrap-signer > Role kube-system/system:controller:bootstrap-signer #0 by ServiceAccount kube-system/bootstrap-signer",
			"RoleBinding kube-system/system:controller:token-cleaner > Role kube-system/system:controller:token-cleaner #0 by ServiceAccount kube-system/token-cleaner",
		}},
		"get the password of Redis": {policy: argo, action: resource(nil, "get", "secrets:argocd-redis", "argocd"), want: []string{
			"ClusterRoleBinding argocd-application-controller > ClusterRole argocd-application-controller #0 by ServiceAccount argocd/argocd-application-controller",
			"ClusterRoleBinding argocd-applicationset-controller > ClusterRole argocd-applicationset-controller #4 by ServiceAccount argocd/argocd-applicationset-controller",
			"ClusterRoleBinding argocd-server > ClusterRole argocd-server #0 by ServiceAccount argocd/argocd-server",
			"RoleBinding argocd/argocd-application-controller > Role argocd/argocd-application-controller #0 by ServiceAccount argocd-application-controller",
			"RoleBinding argocd/argocd-applicationset-controller > Role argocd/argocd-applicationset-controller #4 by ServiceAccount argocd-applicationset-controller",
			"RoleBinding argocd/argocd-dex-server > Role argocd/argocd-dex-server #0 by ServiceAccount argocd-dex-server",
			"RoleBinding argocd/argocd-redis > Role argocd/argocd-redis #0 by ServiceAccount argocd-redis",
			"RoleBinding argocd/argocd-server > Role argocd/argocd-server #0 by ServiceAccount argocd-server",
		}},
		"delete nodes": {policy: argo, action: resource(nil, "delete", "nodes:n", ""), want: []string{
			"ClusterRoleBinding argocd-application-controller > ClusterRole argocd-application-controller #0 by ServiceAccount argocd/argocd-application-controller",
			"ClusterRoleBinding argocd-server > ClusterRole argocd-server #0 by ServiceAccount argocd/argocd-server",
		}},
		"update applications elsewhere": {policy: argo, action: resource(nil, "update", "applications.argoproj.io:a", "default"), want: []string{
			"ClusterRoleBinding argocd-application-controller > ClusterRole argocd-application-controller #0 by ServiceAccount argocd/argocd-application-controller",
			"ClusterRoleBinding argocd-applicationset-controller > ClusterRole argocd-applicationset-controller #0 by ServiceAccount argocd/argocd-applicationset-controller",
		}},
		"ask Argo CD for metrics": {policy: argo, action: path(nil, "get", "/metrics"), want: []string{
			"ClusterRoleBinding argocd-application-controller > ClusterRole argocd-application-controller #1 by ServiceAccount argocd/argocd-application-controller",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newExplainer(t, Config{RBAC: tc.policy}).WhoCan(t.Context(), Question{Action: tc.action})
			if err != nil {
				t.Fatalf("WhoCan() = %v", err)
			}
			if diff := cmp.Diff(tc.want, ways(got.Grants)); diff != "" {
				t.Errorf("who can (-want +got):\n%s", diff)
			}
			if got.NextPageToken != "" || len(got.Errors) > 0 {
				t.Errorf("next page %q, errors %q, want none", got.NextPageToken, got.Errors)
			}
		})
	}
}
