package app

import (
	"context"
	"errors"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	policyv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/yaml"

	"github.com/trigate/trigate/services/admission/client"
	"github.com/trigate/trigate/services/admission/internal/chain"
	"github.com/trigate/trigate/services/internal/process"
	"github.com/trigate/trigate/services/internal/rpcerr"
	"github.com/trigate/trigate/services/internal/servetest"
)

// inProcess is upstream's chain with nothing between it and the caller.
func inProcess(t *testing.T, cluster *cluster, authorizer authorizer.Authorizer, args ...string) admission.Interface {
	t.Helper()
	o := parse(t, args...)
	informers := process.NewInformerFactory(cluster.kubernetes)
	extensionInformers := apiextensionsinformers.NewSharedInformerFactory(cluster.extensions, resyncPeriod)
	plugins, err := chain.New(chain.Config{
		Admission: o.Admission, APIs: o.APIs, Egress: o.Egress,
		Loopback:   &rest.Config{Host: "https://127.0.0.1:1"},
		Kubernetes: cluster.kubernetes, Dynamic: cluster.dynamic, Extensions: cluster.extensions,
		Informers: informers, ExtensionInformers: extensionInformers,
		Authorizer: chain.Authorizer(authorizer),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- plugins.Run(ctx) }() // The cleanup waits for it.
	for _, factory := range []process.InformerFactory{informers, extensionInformers} {
		factory.StartWithContext(ctx)
		if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	t.Cleanup(func() {
		cancel()
		plugins.Close()
		informers.Shutdown()
		extensionInformers.Shutdown()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return plugins.Plugins
}

// request is one request of a case.
type request struct {
	object, old runtime.Object
	kind        schema.GroupVersionKind
	resource    schema.GroupVersionResource
	subresource string
	namespace   string
	name        string
	operation   admission.Operation
	options     runtime.Object
	dryRun      bool
	user        user.Info
}

// verdict is all that a client and the audit log get to know.
type verdict struct {
	Object      runtime.Object
	Warnings    []string
	Annotations map[string]string
	Status      *metav1.Status
}

type recorder []string

func (r *recorder) AddWarning(agent, text string) { *r = append(*r, agent+": "+text) }

// judge has a chain judge a request as kube-apiserver's handlers do: first the
// mutating plugins, then the validating ones on what they left.
func judge(t *testing.T, plugins admission.Interface, r request) verdict {
	t.Helper()
	var warnings recorder
	ctx := audit.WithAuditContext(warning.WithWarningRecorder(t.Context(), &warnings))
	if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditinternal.LevelRequestResponse}, nil); err != nil {
		t.Fatal(err)
	}
	var object, old runtime.Object
	if r.object != nil {
		object = r.object.DeepCopyObject()
		if accessor, ok := object.(metav1.Object); ok {
			accessor.SetNamespace(r.namespace) // as the handlers see to it
		}
	}
	if r.old != nil {
		old = r.old.DeepCopyObject()
	}
	attributes := func() admission.Attributes {
		return admission.NewAttributesRecord(object, old, r.kind, r.namespace, r.name, r.resource, r.subresource, r.operation, r.options, r.dryRun, r.user)
	}
	audited := admission.WithAudit(plugins)
	objects := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	err := audited.(admission.MutationInterface).Admit(ctx, attributes(), objects)
	if err == nil {
		err = audited.(admission.ValidationInterface).Validate(ctx, attributes(), objects)
	}
	v := verdict{Object: object, Warnings: warnings, Annotations: audit.AuditContextFrom(ctx).GetEventAnnotations()}
	if err != nil {
		v.Status, v.Object = responsewriters.ErrorToAPIStatus(err), nil
	}
	if client.IsCouldNotDecide(err) {
		t.Fatalf("nothing was decided: %v", errors.Unwrap(err))
	}
	return v
}

var (
	podKind   = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	pods      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	claimKind = schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaim"}
	claims    = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	mapKind   = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	maps      = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	nsKind    = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	nss       = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	somebody  = &user.DefaultInfo{Name: "somebody", Groups: []string{"system:authenticated"}}
)

// decode returns the internal object for YAML, with defaults, as a handler has
// it.
func decode(t *testing.T, manifest string) runtime.Object {
	t.Helper()
	json, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := legacyscheme.Codecs.UniversalDecoder().Decode(json, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// worldObjects are what the plugins decide from.
func worldObjects() []runtime.Object {
	namespace := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	}
	terminating := namespace("ending", nil)
	terminating.DeletionTimestamp, terminating.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"kubernetes"}
	terminating.Status.Phase = corev1.NamespaceTerminating
	account := func(namespace string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}}
	}
	quantities := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	fail, equivalent := policyv1.Fail, policyv1.Equivalent
	return []runtime.Object{
		namespace("plain", nil), namespace("no-account", nil), terminating,
		namespace("restricted", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}),
		namespace("watched", map[string]string{"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/audit": "baseline"}),
		namespace("full", nil), namespace("limited", nil),
		account("plain"), account("restricted"), account("watched"), account("full"), account("limited"),
		&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits", Namespace: "limited"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: quantities("500m", "128Mi"), DefaultRequest: quantities("250m", "64Mi"), Max: quantities("1", "1Gi"),
		}}}},
		&corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "quota", Namespace: "full"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("2")}},
			Status: corev1.ResourceQuotaStatus{
				Hard: corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("2")},
				Used: corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("0")},
			},
		},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000, PreemptionPolicy: new(corev1.PreemptLowerPriority)},
		&storagev1.StorageClass{
			ObjectMeta:  metav1.ObjectMeta{Name: "standard", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
			Provisioner: "example.com/p",
		},
		&policyv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "no-bad-names"},
			Spec: policyv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: &fail,
				MatchConstraints: &policyv1.MatchResources{
					NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, MatchPolicy: &equivalent,
					ResourceRules: []policyv1.NamedRuleWithOperations{{RuleWithOperations: policyv1.RuleWithOperations{
						Operations: []policyv1.OperationType{policyv1.Create},
						Rule:       policyv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
					}}},
				},
				Validations: []policyv1.Validation{
					{Expression: "!object.metadata.name.startsWith('bad')", MessageExpression: "'no ' + object.metadata.name"},
					{Expression: "!object.metadata.name.startsWith('warn')", Message: "a warning"},
					{Expression: "!object.metadata.name.startsWith('ask') || authorizer.group('').resource('pods').check('get').allowed()", Message: "you may not"},
				},
				AuditAnnotations: []policyv1.AuditAnnotation{{Key: "name", ValueExpression: "string(object.metadata.name)"}},
			},
		},
		&policyv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "binding"},
			Spec: policyv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: "no-bad-names", ValidationActions: []policyv1.ValidationAction{policyv1.Deny, policyv1.Audit},
			},
		},
	}
}

const (
	plainPod = `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: "i"}]}}`
	claim    = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
)

// TestParity has upstream's real plugins judge the same requests in process and
// through the service: the answers must not differ.
func TestParity(t *testing.T) {
	createPod := func(namespace, manifest string) request {
		return request{object: decode(t, manifest), kind: podKind, resource: pods, namespace: namespace, name: "p", operation: admission.Create, options: &metav1.CreateOptions{}, user: somebody}
	}
	createMap := func(namespace, name string, dryRun bool) request {
		return request{
			object: &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}, kind: mapKind, resource: maps,
			namespace: namespace, name: name, operation: admission.Create, options: &metav1.CreateOptions{}, dryRun: dryRun, user: somebody,
		}
	}
	cases := []struct {
		name string
		request
		// code is that of the answer, 0 for none: the case is of some use.
		code int32
	}{
		{"a namespace that is not there", createPod("missing", plainPod), 404},
		{"a namespace that is ending", createPod("ending", plainPod), 403},
		{"no service account", createPod("no-account", plainPod), 403},
		{"a plain pod", createPod("plain", plainPod), 0},
		{"a pod with a priority", createPod("plain", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priorityClassName: high, containers: [{name: c, image: "i"}]}}`), 0},
		{"a pod with an unknown priority", createPod("plain", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priorityClassName: none, containers: [{name: c, image: "i"}]}}`), 403},
		{"a pod with an unknown runtime", createPod("plain", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {runtimeClassName: none, containers: [{name: c, image: "i"}]}}`), 403},
		{"a pod that is not restricted", createPod("restricted", plainPod), 403},
		{"a pod that is warned of", createPod("watched", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {hostNetwork: true, containers: [{name: c, image: "i"}]}}`), 0},
		{"a pod within limits", createPod("limited", plainPod), 0},
		{"a pod beyond limits", createPod("limited", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: "i", resources: {limits: {cpu: "2"}}}]}}`), 403},
		{"quota left", createPod("full", plainPod), 0},
		{"quota used up", createMap("full", "c", false), 403},
		{"quota used up, dry run", createMap("full", "c", true), 403},
		{"a policy denies", createMap("plain", "bad-name", false), 422},
		{"a policy lets pass", createMap("plain", "good-name", false), 0},
		{"a policy asks the authorizer", createMap("plain", "ask-me", false), 422},
		{"a claim without a class", request{object: decode(t, claim), kind: claimKind, resource: claims, namespace: "plain", name: "c", operation: admission.Create, options: &metav1.CreateOptions{}, user: somebody}, 0},
		{"delete in an ending namespace", request{old: decode(t, plainPod), kind: podKind, resource: pods, namespace: "ending", name: "p", operation: admission.Delete, options: &metav1.DeleteOptions{}, user: somebody}, 0},
		{"delete of the namespace default", request{old: &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, kind: nsKind, resource: nss, namespace: "default", name: "default", operation: admission.Delete, options: &metav1.DeleteOptions{}, user: somebody}, 403},
		{"update of a pod", request{object: decode(t, plainPod), old: decode(t, plainPod), kind: podKind, resource: pods, namespace: "plain", name: "p", operation: admission.Update, options: &metav1.UpdateOptions{}, user: somebody}, 0},
		{"exec", request{object: &core.PodExecOptions{Container: "c"}, kind: schema.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}, resource: pods, subresource: "exec", namespace: "plain", name: "p", operation: admission.Connect, user: somebody}, 0},
		{"a node's own pod", func() request {
			r := createPod("plain", plainPod)
			r.user = &user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes"}}
			return r
		}(), 403},
	}
	flags := []string{"--enable-admission-plugins=NodeRestriction,AlwaysPullImages"}
	local := inProcess(t, newCluster(worldObjects(), nil), nobodyMay(), flags...)
	service := start(t, newCluster(worldObjects(), nil), nobodyMay(), flags...)
	// The policy takes effect some time after its informer has seen it.
	for _, plugins := range []admission.Interface{local, service} {
		servetest.Eventually(t, func() error {
			if v := judge(t, plugins, createMap("plain", "bad-name", true)); v.Status == nil {
				return errors.New("the policy is not in force")
			}
			return nil
		})
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			want, got := judge(t, local, tc.request), judge(t, service, tc.request)
			if diff := cmp.Diff(want, got, sameButForRandomNames, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("through the service (-in process +service):\n%s", diff)
			}
			if want.Status == nil && tc.code != 0 || want.Status != nil && want.Status.Code != tc.code {
				t.Errorf("the answer is %+v, want the code %d", want.Status, tc.code)
			}
		})
	}
}

// sameButForRandomNames evens out what plugins make up at random.
var sameButForRandomNames = cmp.Transformer("names", func(s string) string {
	return regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`).ReplaceAllString(s, "kube-api-access-*")
})

// TestPoliciesNeedAuthz has a request whose policy asks what a user may do be
// undecided while the authorization gate cannot be asked, and neither rejected
// nor let pass. Other requests go on.
func TestPoliciesNeedAuthz(t *testing.T) {
	unreachable := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", rpcerr.PeerUnreachable("authz", nil)
	})
	world := worldObjects()
	for _, object := range world {
		policy, ok := object.(*policyv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		policy.Spec.FailurePolicy = new(policyv1.Ignore)
		policy.Spec.Validations = append(policy.Spec.Validations, policyv1.Validation{
			Expression: "!object.metadata.name.startsWith('account') || authorizer.serviceAccount('plain', 'default').group('').resource('pods').check('get').allowed()",
		})
	}
	service := start(t, newCluster(world, nil), unreachable)
	create := func(name string, u user.Info) error {
		object := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "plain"}}
		return service.Validate(t.Context(), admission.NewAttributesRecord(object, nil, mapKind, "plain", name, maps, "", admission.Create, &metav1.CreateOptions{}, false, u), nil)
	}
	servetest.Eventually(t, func() error {
		if create("bad-name", somebody) == nil {
			return errors.New("the policy is not in force")
		}
		return nil
	})
	for name, undecided := range map[string]bool{"good-name": false, "ask-me": true, "account": true} {
		if err := create(name, somebody); client.IsCouldNotDecide(err) != undecided || !undecided && err != nil {
			t.Errorf("Validate(%s) = %v, want it undecided: %t", name, err, undecided)
		}
	}
	masters := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	if err := create("ask-me", masters); err != nil {
		t.Errorf("Validate() of a member of system:masters = %v, want nil", err)
	}
}
