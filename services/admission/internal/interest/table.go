package interest

import (
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	podsecurityapi "k8s.io/pod-security-admission/api"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// The plugins that act on what objects of the API say, and NamespaceLifecycle, which
// acts on every write.
const (
	namespaceLifecycle = "NamespaceLifecycle"
	mutatingWebhook    = "MutatingAdmissionWebhook"
	validatingWebhook  = "ValidatingAdmissionWebhook"
	mutatingPolicy     = "MutatingAdmissionPolicy"
	validatingPolicy   = "ValidatingAdmissionPolicy"
	resourceQuota      = "ResourceQuota"
	podSecurityPlugin  = "PodSecurity"
)

// row is one rule of a plugin whose code says on what it acts. Its operations are those
// that the plugin handles.
type row struct {
	group      string
	resources  []string
	namespaced bool
	userGroups []string
	// never is an operation on which the plugin does not act, though it handles it.
	never admissionv1.Operation
	// labelPrefix is of labels of namespaces: in one without any the plugin does nothing,
	// if it is configured as by default.
	labelPrefix string
	// settled says that the plugin's Validate reads nothing of a new object which the
	// API server sets after Admit, and has no effect but its outcome.
	settled bool
}

// wildcard is every group, version or resource.
const wildcard = "*"

// all are all resources and all subresources.
var all = []string{"*/*"}

// table has the rules of every plugin that has any, by its name. A plugin that it does
// not have is interested in everything. Upstream's code is what it is taken from, and a
// test holds it against that.
var table = map[string][]row{
	"AlwaysAdmit":            {},
	"NamespaceAutoProvision": {{group: wildcard, resources: all, namespaced: true}},
	// In a field of its own.
	namespaceLifecycle:                 {},
	"NamespaceExists":                  {{group: wildcard, resources: all, namespaced: true}},
	"LimitPodHardAntiAffinityTopology": pods(),
	"LimitRanger":                      append(settledPods(), row{resources: []string{"pods/resize", "persistentvolumeclaims"}}),
	"ServiceAccount":                   append(settledPods(), row{resources: []string{"pods/ephemeralcontainers"}}),
	// It refuses a node without a name whatever it does.
	"NodeRestriction":       {{group: wildcard, resources: all, userGroups: []string{user.NodesGroup}}},
	"TaintNodesByCondition": {{resources: []string{"nodes"}}},
	"AlwaysPullImages":      pods(),
	"ImagePolicyWebhook":    pods("pods/ephemeralcontainers"),
	podSecurityPlugin:       podSecurity,
	"PodNodeSelector":       pods(),
	"Priority": {
		{resources: []string{"pods"}, never: admissionv1.Operation_OPERATION_DELETE, settled: true},
		{group: "scheduling.k8s.io", resources: []string{"podgroups", "compositepodgroups", "priorityclasses"}, never: admissionv1.Operation_OPERATION_DELETE},
	},
	"DefaultTolerationSeconds": pods(),
	"PodTolerationRestriction": pods(),
	"EventRateLimit": {
		{resources: []string{"events"}},
		{group: "events.k8s.io", resources: []string{"events"}},
	},
	"ExtendedResourceToleration": pods(),
	"DefaultStorageClass":        {{resources: []string{"persistentvolumeclaims"}}},
	"StorageObjectInUseProtection": {
		{resources: []string{"persistentvolumes", "persistentvolumeclaims"}},
		{group: "storage.k8s.io", resources: []string{"volumeattributesclasses"}},
	},
	"PodGroupProtection":                   {{group: "scheduling.k8s.io", resources: []string{"podgroups"}}},
	"OwnerReferencesPermissionEnforcement": {{group: wildcard, resources: all}},
	"PersistentVolumeClaimResize":          {{resources: []string{"persistentvolumeclaims"}}},
	"RuntimeClass":                         settledPods(),
	"CertificateApproval":                  {{group: "certificates.k8s.io", resources: []string{"certificatesigningrequests/approval"}}},
	"CertificateSigning":                   {{group: "certificates.k8s.io", resources: []string{"certificatesigningrequests/status"}}},
	"ClusterTrustBundleAttest":             {{group: "certificates.k8s.io", resources: []string{"clustertrustbundles/*"}}},
	"CertificateSubjectRestriction":        {{group: "certificates.k8s.io", resources: []string{"certificatesigningrequests"}}},
	"DefaultIngressClass":                  {{group: "networking.k8s.io", resources: []string{"ingresses"}}},
	"DenyServiceExternalIPs":               {{resources: []string{"services"}}},
	"PodTopologyLabels":                    pods("pods/binding"),
	"NodeDeclaredFeatureValidator": {
		{resources: []string{"pods"}, never: admissionv1.Operation_OPERATION_CREATE},
		{resources: []string{"pods/resize"}},
		{group: "resource.k8s.io", resources: []string{"resourceslices/*"}},
	},
	"PodResizeValidator": {{resources: []string{"pods/resize"}}},
	mutatingPolicy:       {},
	mutatingWebhook:      {},
	validatingPolicy:     {},
	validatingWebhook:    {},
	resourceQuota:        {},
	"AlwaysDeny":         {{group: wildcard, resources: all}},
}

// podSecurity are namespaces, whose labels it checks, Pods, whose level it annotates, and
// what makes Pods, of which it warns where a label asks for that.
var podSecurity = []row{
	{resources: []string{"pods"}, settled: true},
	{resources: []string{"namespaces", "pods/ephemeralcontainers", "pods/resize"}},
	{resources: []string{"podtemplates", "replicationcontrollers"}, labelPrefix: podSecurityLabels},
	{group: "apps", resources: []string{"daemonsets", "deployments", "replicasets", "statefulsets"}, labelPrefix: podSecurityLabels},
	{group: "batch", resources: []string{"cronjobs", "jobs"}, labelPrefix: podSecurityLabels},
}

// podSecurityLabels is what the keys of all its labels begin with, and those of its
// annotations.
const podSecurityLabels = podsecurityapi.AuditAnnotationPrefix

// pods are Pods themselves and these subresources.
func pods(subresources ...string) []row {
	return []row{{resources: append([]string{"pods"}, subresources...)}}
}

// settledPods are Pods, of which the plugin's say is settled when Admit is through.
func settledPods() []row { return []row{{resources: []string{"pods"}, settled: true}} }

// Settled returns whether the plugin's Validate says of some new objects at the end of
// Admit what it says when they are stored.
func Settled(plugin string) bool {
	return slices.ContainsFunc(table[plugin], func(r row) bool { return r.settled })
}

// rule returns a row as a rule of a plugin.
func (r row) rule(plugin string, operations []admissionv1.Operation) *admissionv1.InterestRule {
	rule := &admissionv1.InterestRule{
		Plugin: plugin, Operations: slices.DeleteFunc(slices.Clone(operations), func(o admissionv1.Operation) bool { return o == r.never }),
		ApiGroups: []string{r.group}, ApiVersions: []string{wildcard}, Resources: r.resources,
		UserGroups: r.userGroups, NamespaceLabelPrefix: r.labelPrefix, Settled: r.settled,
	}
	if r.namespaced {
		rule.Scope = admissionv1.Scope_SCOPE_NAMESPACED
	}
	return rule
}

// everything is the rule of a plugin that may act on anything, for a reason.
func everything(plugin, why string) *admissionv1.InterestRule {
	return &admissionv1.InterestRule{
		Plugin: plugin, Source: why,
		ApiGroups: []string{wildcard}, ApiVersions: []string{wildcard}, Resources: all,
	}
}
