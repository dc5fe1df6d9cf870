package boundary

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestReviewsAndPoliciesNeverReachWebhooks(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		rules := framework.Rule("*", "authentication.k8s.io", "*", "*/*")
		rules = append(rules, framework.Rule("*", "authorization.k8s.io", "*", "*/*")...)
		rules = append(rules, framework.Rule("*", "admissionregistration.k8s.io", "*", "*/*")...)
		webhook := hook.Mutating("mutate", ns, rules)
		webhook.NamespaceSelector = nil
		c.RegisterMutating(t, "trigate-test-never", webhook)
		validating := hook.Validating("validate", ns, rules)
		validating.NamespaceSelector = nil
		c.RegisterValidating(t, "trigate-test-never", validating)
		hook.Take()

		const authorization, authentication, registration = "/apis/authorization.k8s.io/v1/", "/apis/authentication.k8s.io/v1/", "/apis/admissionregistration.k8s.io/v1/"
		attributes := "resourceAttributes: {namespace: " + ns + ", verb: get, resource: pods}"
		admin.Send(t, "POST", authorization+"subjectaccessreviews", "{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: u, "+attributes+"}}").Want(t, 201)
		admin.Send(t, "POST", authorization+"selfsubjectaccessreviews", "{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {"+attributes+"}}").Want(t, 201)
		admin.Send(t, "POST", group("authorization.k8s.io/v1", ns, "localsubjectaccessreviews"), "{apiVersion: authorization.k8s.io/v1, kind: LocalSubjectAccessReview, spec: {user: u, "+attributes+"}}").Want(t, 201)
		admin.Send(t, "POST", authorization+"selfsubjectrulesreviews", "{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: "+ns+"}}").Want(t, 201)
		admin.Send(t, "POST", authentication+"tokenreviews", "{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: none}}").Want(t, 201)
		admin.Send(t, "POST", authentication+"selfsubjectreviews", selfSubjectReview).Want(t, 201)
		for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
			admin.Send(t, "POST", registration+map[string]string{"MutatingWebhookConfiguration": "mutating", "ValidatingWebhookConfiguration": "validating"}[kind]+"webhookconfigurations?dryRun=All",
				"{apiVersion: admissionregistration.k8s.io/v1, kind: "+kind+", metadata: {name: trigate-test-more}}").Want(t, 201)
		}
		const constraints = "matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}]}"
		admin.Send(t, "POST", registration+"validatingadmissionpolicies?dryRun=All",
			"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: trigate-test-more}, spec: {"+constraints+", validations: [{expression: 'true'}]}}").Want(t, 201)
		admin.Send(t, "POST", registration+"validatingadmissionpolicybindings?dryRun=All",
			"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: trigate-test-more}, spec: {policyName: p, validationActions: [Deny]}}").Want(t, 201)
		admin.Send(t, "POST", registration+"mutatingadmissionpolicies?dryRun=All",
			"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, metadata: {name: trigate-test-more}, spec: {"+constraints+", reinvocationPolicy: Never, mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: \"test\", path: \"/a\", value: \"b\"}]'}}]}}").Want(t, 201)
		admin.Send(t, "POST", registration+"mutatingadmissionpolicybindings?dryRun=All",
			"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: trigate-test-more}, spec: {policyName: p}}").Want(t, 201)
		if requests := hook.Take(); len(requests) != 0 {
			t.Errorf("a webhook was asked %s, want nothing", summary(requests))
		}
	})
}

func TestFailurePolicyIgnoreIsForCallsAndNotForObjects(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		patches := map[string]string{
			"undecodable":  `nonsense`,
			"no-list":      `{"op":"add"}`,
			"not-applying": `[{"op":"replace","path":"/data/missing/at/all","value":"x"}]`,
			"test-fails":   `[{"op":"test","path":"/data/a","value":"x"}]`,
			"unknown-op":   `[{"op":"shake","path":"/data"}]`,
			"breaking":     `[{"op":"replace","path":"/data","value":7}]`,
		}
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(patches[r.Name])
		})
		webhook := hook.Mutating("ignore", ns, configMaps)
		webhook.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		c.RegisterMutating(t, "trigate-test-ignore", webhook)
		codes := map[string]int{"undecodable": 201, "no-list": 201, "not-applying": 500, "test-fails": 500, "unknown-op": 500, "breaking": 500}
		for name := range sorted(patches) {
			admin.Send(t, "POST", core(ns, "configmaps"), named(name)).Want(t, codes[name])
		}
		admin.Send(t, "GET", core(ns, "configmaps/undecodable"), "").Want(t, 200)
		admin.Send(t, "GET", core(ns, "configmaps/not-applying"), "").Want(t, 404)
	})
}

func TestDenialsWithoutACodeAreBadRequests(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no"}}
		})
		c.RegisterValidating(t, "trigate-test-bad-request", hook.Validating("deny", ns, framework.Rule("*", "", "v1", "configmaps,pods,pods/exec")))
		const message = `admission webhook "deny.trigate.test" denied the request: no`
		admin.Send(t, "POST", core(ns, "configmaps"), configMap).WantMessage(t, 400, message)
		admin.Send(t, "POST", core(ns, "configmaps")+"?dryRun=All", configMap).WantMessage(t, 400, message)
		admin.Send(t, "PATCH", core(ns, "configmaps/c1")+"?fieldManager=me", configMap, framework.ServerSideApply).WantMessage(t, 400, message)
		admin.Send(t, "PATCH", core(ns, "configmaps/kube-root-ca.crt"), `{"data":{"x":"y"}}`, framework.MergePatch)
		shown := s.KubectlInput(t, configMap, "create", "-n", ns, "-f", "-")
		if want := "Error from server: error when creating \"STDIN\": " + message + "\n"; shown.Code != 1 || shown.Stderr != want {
			t.Errorf("kubectl create: got code %d and stderr %q, want 1 and %q", shown.Code, shown.Stderr, want)
		}
	})
}

func TestValidationSeesTheOldObjectAsStored(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		defineCounters(t, c, "olds", counterVersion("v1", "    storage: true\n"))
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/metadata/annotations","value":{"hooked":"yes"}}]`)
		})
		updates := append(framework.Rule("update", "", "v1", "configmaps,pods,pods/status,services"), framework.Rule("update", "apps", "v1", "deployments,deployments/status,deployments/scale")...)
		updates = append(updates, framework.Rule("update", customGroup, "v1", "*/*")...)
		c.RegisterMutating(t, "trigate-test-old", mutate.Mutating("mutate", ns, updates))
		c.RegisterValidating(t, "trigate-test-old", validate.Validating("validate", ns, updates))
		deployments, olds := group("apps/v1", ns, "deployments"), group(customGroup+"/v1", ns, "olds")
		admin.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1, labels: {l: old}, annotations: {an: old}, finalizers: [trigate.test/f]}, data: {a: old, b: old}}").Want(t, 201)
		t.Cleanup(func() {
			c.Admin(t).Send(t, "PATCH", core(ns, "configmaps/c1"), `{"metadata":{"finalizers":null}}`, framework.MergePatch).Want(t, 200)
		})
		admin.Send(t, "POST", core(ns, "services"), "{apiVersion: v1, kind: Service, metadata: {name: s1, annotations: {an: old}}, spec: {clusterIP: None, selector: {a: old}, ports: [{name: http, port: 80}]}}").Want(t, 201)
		admin.Send(t, "POST", core(ns, "pods"), "{apiVersion: v1, kind: Pod, metadata: {name: p1, labels: {l: old}}, spec: {automountServiceAccountToken: false, containers: [{name: main, image: 'old:1', env: [{name: A, value: b}]}]}}").Want(t, 201)
		admin.Send(t, "POST", deployments, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d1}, spec: {paused: true, replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: main, image: 'old:1', ports: [{containerPort: 80}]}, {name: second, image: 'old:1'}]}}}}").Want(t, 201)
		admin.Send(t, "POST", olds, "{apiVersion: "+customGroup+"/v1, kind: Counter, metadata: {name: o1, labels: {l: old}}, spec: {large: 1, list: [1, 2], free: {deep: {deeper: [old]}}, text: old}}").Want(t, 201)

		for _, change := range []struct {
			path, subresource, patch string
			option                   framework.RequestOption
		}{
			{core(ns, "configmaps/c1"), "", `{"metadata":{"labels":{"l":"new"},"annotations":null},"data":{"a":"new","b":null,"c":"new"}}`, framework.MergePatch},
			{core(ns, "configmaps/c1"), "", `[{"op":"replace","path":"/metadata/labels/l","value":"newer"},{"op":"move","from":"/data/a","path":"/data/moved"}]`, framework.JSONPatchType},
			{core(ns, "services/s1"), "", `{"spec":{"selector":{"a":"new"},"ports":[{"port":80,"targetPort":8080},{"name":"https","port":443}]}}`, framework.StrategicPatch},
			{core(ns, "pods/p1"), "", `{"metadata":{"labels":{"l":"new"}},"spec":{"containers":[{"name":"main","image":"new:1"}]}}`, framework.StrategicPatch},
			{core(ns, "pods/p1"), "/status", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`, framework.StrategicPatch},
			{deployments + "/d1", "", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"new:1","ports":[{"containerPort":80,"name":"web"}]},{"name":"second","$patch":"delete"}]}}}}`, framework.StrategicPatch},
			{deployments + "/d1", "/status", `{"status":{"conditions":[{"type":"Mine","status":"True","reason":"r","message":"m"}]}}`, framework.StrategicPatch},
			{olds + "/o1", "", `{"spec":{"list":[3],"free":{"deep":{"deeper":["new"]}},"text":null}}`, framework.MergePatch},
			{olds + "/o1", "", `[{"op":"add","path":"/spec/free/deep/deeper/0","value":"first"},{"op":"remove","path":"/metadata/labels"}]`, framework.JSONPatchType},
			{olds + "/o1", "/status", `{"status":{"seen":5}}`, framework.MergePatch},
		} {
			quiesce(t, c, change.path)
			before := object(t, c.Admin(t).Send(t, "GET", change.path, "").Want(t, 200).Body)
			mutate.Take()
			validate.Take()
			c.Admin(t).Send(t, "PATCH", change.path+change.subresource, change.patch, change.option).Want(t, 200)
			for _, hook := range []*framework.Recorder{mutate, validate} {
				requests := hook.Take()
				if len(requests) == 0 {
					t.Fatalf("%s%s: no webhook was asked", change.path, change.subresource)
				}
				last := requests[len(requests)-1]
				if diff := cmp.Diff(before, object(t, last.OldObject.Raw)); diff != "" {
					t.Errorf("%s%s: a webhook's old object is not what was stored (-want +got):\n%s", change.path, change.subresource, diff)
				}
				if cmp.Equal(before, object(t, last.Object.Raw)) {
					t.Errorf("%s%s: a webhook's object is the old one", change.path, change.subresource)
				}
			}
		}
	})
}

// quiesce waits until a Deployment's controller has seen it.
func quiesce(t *testing.T, c *framework.Cluster, path string) {
	t.Helper()
	admin := c.Admin(t)
	framework.Eventually(t, "observed generation of "+path, func() error {
		answer := admin.Send(t, "GET", path, "").Want(t, 200)
		if answer.String(t, "kind") != "Deployment" {
			return nil
		}
		want, got := fmt.Sprint(answer.Field(t, "metadata", "generation")), fmt.Sprint(answer.Field(t, "status", "observedGeneration"))
		if got != want {
			return errors.New("it is " + got)
		}
		return nil
	})
}

// object is decoded JSON.
func object(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var decoded map[string]any
	if err := json.Unmarshal(raw, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func TestValidationComesAgainWhenAnotherWriteWasFirst(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		admin := c.Admin(t)
		ns := c.Namespace(t)
		admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		hook := framework.StartRecorder(t)
		// While the first review is answered, another write goes through.
		var once sync.Once
		var other error
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			once.Do(func() {
				answer, err := admin.TrySend("PATCH", core(ns, "configmaps/c1"), `{"data":{"other":"write"}}`, framework.MergePatch)
				if err == nil && answer.Code != 200 {
					err = fmt.Errorf("got code %d: %s", answer.Code, answer.Body)
				}
				other = err
			})
			return framework.Pass(r)
		})
		webhook := hook.Validating("first", ns, framework.Rule("update", "", "v1", "configmaps"))
		webhook.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "'mine' in object.data"}}
		c.RegisterValidating(t, "trigate-test-retry", webhook)

		// A patch starts again from what is stored.
		patched := admin.Send(t, "PATCH", core(ns, "configmaps/c1"), `{"data":{"mine":"too"}}`, framework.MergePatch).Want(t, 200)
		if other != nil {
			t.Fatalf("the other write: %v", other)
		}
		if got := fmt.Sprint(patched.Field(t, "data")); got != "map[a:b mine:too other:write]" {
			t.Errorf("got data %s, want both writes", got)
		}
		requests := hook.Take()
		if len(requests) < 2 {
			t.Fatalf("the webhook was asked %s, want two requests", summary(requests))
		}
		if got := fmt.Sprint(object(t, requests[len(requests)-1].OldObject.Raw)["data"]); got != "map[a:b other:write]" {
			t.Errorf("the last review has old data %s, want those of the other write", got)
		}

		// An update with a version does not.
		version := patched.String(t, "metadata", "resourceVersion")
		admin.Send(t, "PUT", core(ns, "configmaps/c1"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1, resourceVersion: '"+version+"'}, data: {mine: three}}").Want(t, 200)
		stale := admin.Send(t, "PUT", core(ns, "configmaps/c1"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1, resourceVersion: '"+version+"'}, data: {mine: four}}")
		stale.WantMessage(t, 409, `Operation cannot be fulfilled on configmaps "c1": the object has been modified; please apply your changes to the latest version and try again`)
	})
}

func TestManyPatchesAtOnceAllArrive(t *testing.T) {
	t.Parallel()
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		admin := c.Admin(t)
		ns := c.Namespace(t)
		admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		const writers = 20
		errs := make([]error, writers)
		var all sync.WaitGroup
		for i := range writers {
			all.Go(func() {
				// Five attempts are the server's own; a conflict after them is the client's.
				answer, err := admin.TrySend("PATCH", core(ns, "configmaps/c1"), fmt.Sprintf(`{"data":{"k%d":"v"}}`, i), framework.MergePatch)
				for err == nil && answer.Code == 409 {
					answer, err = admin.TrySend("PATCH", core(ns, "configmaps/c1"), fmt.Sprintf(`{"data":{"k%d":"v"}}`, i), framework.MergePatch)
				}
				if err == nil && answer.Code != 200 {
					err = fmt.Errorf("got code %d: %s", answer.Code, answer.Body)
				}
				errs[i] = err
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		data, _ := admin.Send(t, "GET", core(ns, "configmaps/c1"), "").Want(t, 200).Field(t, "data").(map[string]any)
		if len(data) != writers+1 {
			t.Errorf("got %d keys, want %d", len(data), writers+1)
		}
	})
}
