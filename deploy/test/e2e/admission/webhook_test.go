package admission

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

// The tests of webhooks run one after the other: audit annotations have the index of
// a webhook among all there are.

// configMaps is a rule for the creation of ConfigMaps.
var configMaps = framework.Rule("create", "", "v1", "configmaps")

func TestMutatingWebhooksChangeObjects(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			response := framework.JSONPatch(`[{"op":"add","path":"/metadata/annotations","value":{"hooked":"ja – 是"}}]`)
			if r.Resource.Resource == "configmaps" {
				response = framework.JSONPatch(`[{"op":"add","path":"/data","value":{"added":"ü"}}]`)
			}
			response.AuditAnnotations = map[string]string{"seen": "yes", "not/allowed": "no"}
			return response
		})
		webhook := hook.Mutating("change", ns, append(
			framework.Rule("create,update", "", "v1", "configmaps"), framework.Rule("*", "apps", "v1", "deployments")...))
		c.RegisterMutating(t, "trigate-test-mutate", webhook)

		created := admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201).
			WantAnnotation(t, "mutation.webhook.admission.k8s.io/round_0_index_0", `{"configuration":"trigate-test-mutate","webhook":"change.trigate.test","mutated":true}`).
			WantAnnotation(t, "patch.webhook.admission.k8s.io/round_0_index_0", `{"configuration":"trigate-test-mutate","webhook":"change.trigate.test","patch":[{"op":"add","path":"/data","value":{"added":"ü"}}],"patchType":"JSONPatch"}`).
			WantAnnotation(t, "change.trigate.test/seen", "yes")
		if got := fmt.Sprint(created.Field(t, "data")); got != "map[added:ü]" {
			t.Errorf("got data %s, want map[added:ü]", got)
		}
		admin.Send(t, "PATCH", core(ns, "configmaps/c1"), `{"data":{"more":"x"}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "PATCH", core(ns, "configmaps/c2"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: c2}, data: {applied: x}}", framework.ServerSideApply,
			framework.Query("fieldManager=me")).Want(t, 201)
		deployed := admin.Send(t, "POST", group("apps/v1", ns, "deployments"), deployment).Want(t, 201)
		if got := deployed.String(t, "metadata", "annotations", "hooked"); got != "ja – 是" {
			t.Errorf("got annotation %q, want ja – 是", got)
		}
		s.Say("webhook requests", hook.Take())
	})
}

func TestWebhooksSayNoInTheirOwnWords(t *testing.T) {
	cases := []struct {
		name   string
		result *metav1.Status
	}{
		{"nothing", nil},
		{"message", &metav1.Status{Message: "not today"}},
		{"reason", &metav1.Status{Reason: "Because"}},
		{"code", &metav1.Status{Code: 403}},
		{"all", &metav1.Status{
			Code: 422, Reason: metav1.StatusReasonInvalid, Message: "nein – 不",
			Details: &metav1.StatusDetails{
				Name: "n", Group: "g", Kind: "k", UID: "u", RetryAfterSeconds: 7,
				Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Message: "m", Field: "spec.f"}},
			},
		}},
		{"success", &metav1.Status{Status: metav1.StatusSuccess, Code: 200, Message: "m"}},
		{"retry", &metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: 3}}},
		{"unauthorized", &metav1.Status{Code: 401, Reason: metav1.StatusReasonUnauthorized}},
		{"unavailable", &metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "down"}},
		{"teapot", &metav1.Status{Code: 418, Message: "teapot"}},
		{"html", &metav1.Status{Message: "<b>\"quoted\" & \\ more\nlines</b>"}},
		{"long", &metav1.Status{Message: strings.Repeat("very long ", 5000)}},
		{"list", &metav1.Status{Message: "m", ListMeta: metav1.ListMeta{
			ResourceVersion: "5", Continue: "c", RemainingItemCount: ptr.To[int64](7), ShardInfo: &metav1.ShardInfo{Selector: "s"},
		}}},
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			_, name, _ := strings.Cut(r.Name, ".")
			for _, tc := range cases {
				if tc.name == name {
					return &admissionv1.AdmissionResponse{Result: tc.result.DeepCopy()}
				}
			}
			return framework.Pass(r)
		})
		first := hook.Mutating("first", ns, configMaps)
		first.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"by": "mutating"}}
		c.RegisterMutating(t, "trigate-test-say-no", first)
		second := hook.Validating("second", ns, configMaps)
		second.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"by": "validating"}}
		c.RegisterValidating(t, "trigate-test-say-no", second)

		for _, tc := range cases {
			for _, by := range []string{"mutating", "validating"} {
				answer := admin.Send(t, "POST", core(ns, "configmaps"), fmt.Sprintf(
					"{apiVersion: v1, kind: ConfigMap, metadata: {name: %s.%s, labels: {by: %s}}}", by, tc.name, by))
				want := 400
				if tc.result != nil && tc.result.Code >= 400 {
					want = int(tc.result.Code)
				}
				answer.Want(t, want)
				name := map[string]string{"mutating": "first", "validating": "second"}[by]
				message := `admission webhook "` + name + `.trigate.test" denied the request`
				switch {
				case tc.result != nil && tc.result.Message != "":
					message += ": " + tc.result.Message
				case tc.result != nil && tc.result.Reason != "":
					message += ": " + string(tc.result.Reason)
				default:
					message += " without explanation"
				}
				answer.WantMessage(t, want, message)
			}
		}
	})
}

func TestWebhooksAreAskedAgainAfterChanges(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		appending := func(value string) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				var object struct {
					Data map[string]string `json:"data"`
				}
				if err := json.Unmarshal(r.Object.Raw, &object); err != nil {
					return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: err.Error()}}
				}
				return framework.JSONPatch(fmt.Sprintf(`[{"op":"add","path":"/data/calls","value":%q}]`, object.Data["calls"]+value))
			}
		}
		once, again, last := framework.StartRecorder(t), framework.StartRecorder(t), framework.StartRecorder(t)
		once.Decide(appending("o"))
		again.Decide(appending("a"))
		last.Decide(appending("l"))
		hooks := []admissionregistrationv1.MutatingWebhook{
			once.Mutating("once", ns, configMaps),
			again.Mutating("again", ns, configMaps),
			last.Mutating("last", ns, configMaps),
		}
		hooks[1].ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
		c.RegisterMutating(t, "trigate-test-again", hooks...)

		created := admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		if got := created.String(t, "data", "calls"); got != "oala" {
			t.Errorf("got calls %q, want oala", got)
		}
		for _, hook := range []*framework.Recorder{once, again, last} {
			s.Say("webhook requests", hook.Take())
		}
	})
}

// A patch that changes nothing counts as a change of an object that was just given
// the time of its managed fields, which JSON cuts to seconds.
func TestPatchesThatChangeNothingCountAsTheyDo(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		again, idle := framework.StartRecorder(t), framework.StartRecorder(t)
		idle.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"replace","path":"/data/a","value":"b"}]`)
		})
		both := framework.Rule("create,update", "", "v1", "configmaps")
		hooks := []admissionregistrationv1.MutatingWebhook{again.Mutating("again", ns, both), idle.Mutating("idle", ns, both)}
		hooks[0].ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
		c.RegisterMutating(t, "trigate-test-idle", hooks...)
		asked := func() {
			t.Helper()
			s.Say("reviews of the first webhook", len(again.Take()))
			s.Say("reviews of the idle webhook", len(idle.Take()))
		}
		created := admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201).
			WantAnnotation(t, "mutation.webhook.admission.k8s.io/round_0_index_1", `{"configuration":"trigate-test-idle","webhook":"idle.trigate.test","mutated":true}`)
		asked()
		// The fields' times stay if nothing changes.
		admin.Send(t, "PUT", core(ns, "configmaps/c1"), configMap).Want(t, 200)
		asked()
		admin.Send(t, "PATCH", core(ns, "configmaps/c1"), `{"data":{"more":"x"}}`, framework.MergePatch).Want(t, 200)
		asked()
		if created.String(t, "data", "a") != "b" {
			t.Errorf("got data %v", created.Field(t, "data"))
		}
	})
}

func TestPluginsSeeWhatWebhooksAdd(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		admin.Send(t, "POST", core(ns, "limitranges"),
			"{apiVersion: v1, kind: LimitRange, metadata: {name: limits}, spec: {limits: [{type: Container, default: {cpu: 300m}, defaultRequest: {cpu: 100m}}]}}").Want(t, 201)
		hook := framework.StartRecorder(t)
		hook.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/spec/containers/-","value":{"name":"sidecar","image":"i"}}]`)
		})
		c.RegisterMutating(t, "trigate-test-sidecar", hook.Mutating("sidecar", ns, framework.Rule("create", "", "v1", "pods")))
		created := admin.Send(t, "POST", core(ns, "pods"), pod).Want(t, 201)
		if got := created.String(t, "spec", "containers", 1, "resources", "limits", "cpu"); got != "300m" {
			t.Errorf("got a limit of %q for the sidecar, want 300m", got)
		}
		if got := created.String(t, "spec", "containers", 1, "volumeMounts", 0, "mountPath"); got != "/var/run/secrets/kubernetes.io/serviceaccount" {
			t.Errorf("got mount path %q for the sidecar, want the token's", got)
		}
		if got := created.String(t, "spec", "containers", 1, "imagePullPolicy"); got != "Always" {
			t.Errorf("got pull policy %q for the sidecar, want the default", got)
		}
		s.Say("webhook requests", hook.Take())
	})
}

func TestMatchConditionsDecideWhetherAWebhookIsCalled(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "called"}}
		})
		condition := func(name, expression string) admissionregistrationv1.ValidatingWebhook {
			webhook := hook.Validating(name, ns, framework.Rule("create,update,delete", "", "v1", "configmaps"))
			webhook.MatchConditions = []admissionregistrationv1.MatchCondition{
				{Name: "this-one", Expression: fmt.Sprintf("request.name == '%s'", name)},
				{Name: "under-test", Expression: expression},
			}
			return webhook
		}
		failing := condition("failing-open", "object.data.missing == 'x'")
		failing.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		c.RegisterValidating(t, "trigate-test-conditions",
			condition("by-object", "object.data.a == 'b'"),
			condition("by-user", "request.userInfo.username == 'kubernetes-admin' && 'system:masters' in request.userInfo.groups"),
			condition("by-rights", "authorizer.group('').resource('configmaps').namespace(request.namespace).name(request.name).check('update').allowed()"),
			condition("by-others-rights", "authorizer.serviceAccount(request.namespace, 'default').group('').resource('configmaps').check('create').allowed()"),
			condition("by-old", "request.operation == 'UPDATE' && oldObject.data.a == 'b' && object.data.a == 'c'"),
			condition("by-deletion", "object == null && oldObject != null"),
			condition("failing", "object.data.missing == 'x'"),
			failing,
		)
		named := func(name string) string {
			return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}, data: {a: b}}"
		}
		create := func(caller *framework.Caller, name string) *framework.Answer {
			return caller.Send(t, "POST", core(ns, "configmaps"), named(name))
		}
		denied := func(name string) string {
			return `admission webhook "` + name + `.trigate.test" denied the request: called`
		}
		create(admin, "other").Want(t, 201)
		create(admin, "by-object").WantMessage(t, 400, denied("by-object"))
		create(admin, "by-user").WantMessage(t, 400, denied("by-user"))
		create(admin, "by-rights").WantMessage(t, 400, denied("by-rights"))
		create(admin, "by-others-rights").Want(t, 201)
		create(admin, "by-old").Want(t, 201)
		admin.Send(t, "PATCH", core(ns, "configmaps/by-old"), `{"data":{"a":"c"}}`, framework.MergePatch).WantMessage(t, 400, denied("by-old"))
		create(admin, "by-deletion").Want(t, 201)
		admin.Send(t, "DELETE", core(ns, "configmaps/by-deletion"), "").WantMessage(t, 400, denied("by-deletion"))
		create(admin, "failing").WantMessage(t, 403,
			`configmaps "failing" is forbidden: expression 'object.data.missing == 'x'' resulted in error: no such key: missing`)
		create(admin, "failing-open").Want(t, 201)

		// One who may create and not update.
		c.Grant(t, framework.Grant{Name: "creator", User: "creator", Namespace: ns, Rules: rules(framework.May("create", "", "configmaps"))})
		create(s.As(t, c.User(t, "creator")), "by-rights").Want(t, 201)
		s.Say("webhook requests", hook.Take())
	})
}

func TestSelectorsDecideWhetherAWebhookIsCalled(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.LabelledNamespace(t, map[string]string{"tier": "one"})
		other := c.LabelledNamespace(t, map[string]string{"tier": "two"})
		s.Hide(other, "OTHER")
		hook := framework.StartRecorder(t)
		byNamespace := hook.Validating("by-namespace", ns, framework.Rule("*", "", "v1", "configmaps"))
		byNamespace.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"one"}},
		}}
		byObject := hook.Validating("by-object", ns, framework.Rule("*", "", "v1", "secrets"))
		byObject.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"watched": "yes"}}
		itself := hook.Validating("itself", ns, framework.Rule("update", "", "v1", "namespaces"))
		itself.NamespaceSelector = byNamespace.NamespaceSelector
		scoped := hook.Validating("scoped", ns, framework.Rule("*", "*", "*", "*"))
		scoped.Rules[0].Scope = ptr.To(admissionregistrationv1.ClusterScope)
		scoped.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"trigate": "scoped"}}
		scoped.NamespaceSelector = nil
		c.RegisterValidating(t, "trigate-test-selectors", byNamespace, byObject, itself, scoped)

		admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		admin.Send(t, "POST", core(other, "configmaps"), configMap).Want(t, 201)
		secret := func(labels string) string {
			return "{apiVersion: v1, kind: Secret, metadata: {name: s1, labels: {" + labels + "}}}"
		}
		admin.Send(t, "POST", core(ns, "secrets"), secret("a: b")).Want(t, 201)
		admin.Send(t, "PUT", core(ns, "secrets/s1"), secret("watched: 'yes'")).Want(t, 200)
		admin.Send(t, "PUT", core(ns, "secrets/s1"), secret("watched: 'no'")).Want(t, 200) // the old one has it
		// A deletion is judged by what the watch cache has.
		framework.Eventually(t, "the watch cache to have the change", func() error {
			cached := c.Admin(t).Send(t, "GET", core(ns, "secrets/s1")+"?resourceVersion=0", "").Want(t, 200)
			if label := cached.String(t, "metadata", "labels", "watched"); label != "no" {
				return fmt.Errorf("the label is still %q", label)
			}
			return nil
		})
		admin.Send(t, "DELETE", core(ns, "secrets/s1"), "").Want(t, 200) // nothing has it
		admin.Send(t, "PATCH", "/api/v1/namespaces/"+ns, `{"metadata":{"annotations":{"a":"b"}}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "PATCH", "/api/v1/namespaces/"+other, `{"metadata":{"annotations":{"a":"b"}}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses?dryRun=All",
			"{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: trigate-scoped, labels: {trigate: scoped}}, value: 1}").Want(t, 201)
		admin.Send(t, "POST", core(ns, "services")+"?dryRun=All",
			"{apiVersion: v1, kind: Service, metadata: {name: s, labels: {trigate: scoped}}, spec: {clusterIP: None}}").Want(t, 201)

		taken := hook.Take()
		s.Say("webhook requests", taken)
		var got []string
		for _, r := range taken {
			got = append(got, fmt.Sprintf("%s %s", r.Operation, r.Resource.Resource))
		}
		want := []string{"CREATE configmaps", "UPDATE secrets", "UPDATE secrets", "UPDATE namespaces", "CREATE priorityclasses"}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("the webhook was asked for %v, want %v", got, want)
		}
	})
}

func TestDryRunsCallOnlyWebhooksWithoutSideEffects(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		webhook := hook.Mutating("none-on-dry-run", ns, framework.Rule("create,delete", "", "v1", "configmaps"))
		webhook.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun)
		c.RegisterMutating(t, "trigate-test-dry-run", webhook)
		admin.Send(t, "POST", core(ns, "configmaps")+"?dryRun=All", configMap).Want(t, 201)
		admin.Send(t, "GET", core(ns, "configmaps/c1"), "").Want(t, 404)
		admin.Send(t, "POST", core(ns, "configmaps"), configMap).Want(t, 201)
		admin.Send(t, "DELETE", core(ns, "configmaps/c1"), "{apiVersion: v1, kind: DeleteOptions, dryRun: [All]}").Want(t, 200)
		admin.Send(t, "GET", core(ns, "configmaps/c1"), "").Want(t, 200)
		taken := hook.Take()
		s.Say("webhook requests", taken)
		var got []string
		for _, r := range taken {
			got = append(got, fmt.Sprintf("%s %v", r.Operation, *r.DryRun))
		}
		if want := "CREATE true, CREATE false, DELETE true"; strings.Join(got, ", ") != want {
			t.Errorf("the webhook was asked for %v, want %s", got, want)
		}

		// Whoever has side effects cannot be registered any more.
		admin.Send(t, "POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: trigate-test-side-effects}
webhooks:
- {name: some.trigate.test, clientConfig: {url: "https://example.com"}, admissionReviewVersions: [v1], sideEffects: Some}
`).Want(t, 422)
	})
}

func TestWebhooksMatchEquivalentResources(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		equivalent, exact, scale := framework.StartRecorder(t), framework.StartRecorder(t), framework.StartRecorder(t)
		equivalent.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/spec/targetCPUUtilizationPercentage","value":44}]`)
		})
		autoscalers := framework.Rule("create", "autoscaling", "v1", "horizontalpodautoscalers")
		hooks := []admissionregistrationv1.MutatingWebhook{
			equivalent.Mutating("equivalent", ns, autoscalers),
			exact.Mutating("exact", ns, autoscalers),
			scale.Mutating("scale", ns, framework.Rule("update", "*", "*", "*/scale")),
		}
		hooks[1].MatchPolicy = ptr.To(admissionregistrationv1.Exact)
		c.RegisterMutating(t, "trigate-test-equivalent", hooks...)

		created := admin.Send(t, "POST", group("autoscaling/v2", ns, "horizontalpodautoscalers"), `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: h1}
spec:
  minReplicas: 1
  maxReplicas: 2
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d1}
  metrics: [{type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 50}}}]
`).Want(t, 201)
		if got := fmt.Sprint(created.Field(t, "spec", "metrics", 0, "resource", "target", "averageUtilization")); got == "<nil>" {
			t.Errorf("got metrics %v", created.Field(t, "spec", "metrics"))
		}
		requests := equivalent.Take()
		if len(requests) != 1 || requests[0].Kind.Version != "v1" || requests[0].RequestKind.Version != "v2" {
			t.Errorf("the webhook was asked %+v, want once, in v1 for a request in v2", requests)
		}
		s.Say("equivalent webhook's requests", requests)
		if got := exact.Take(); len(got) != 0 {
			t.Errorf("the webhook for exactly v1 was asked %+v", got)
		}

		// The controller changes the Deployment meanwhile, so that only reviews of its scale
		// are compared.
		deployments := group("apps/v1", ns, "deployments")
		c.Admin(t).Send(t, "POST", deployments, deployment).Want(t, 201)
		c.Admin(t).Send(t, "PATCH", deployments+"/d1/scale?dryRun=All", `{"spec":{"replicas":3}}`, framework.MergePatch).Want(t, 200)
		c.Admin(t).Send(t, "PATCH", deployments+"/d1?dryRun=All", `{"spec":{"replicas":4}}`, framework.MergePatch).Want(t, 200)
		requests = scale.Take()
		if len(requests) != 1 || requests[0].SubResource != "scale" || requests[0].Kind.Kind != "Scale" {
			t.Errorf("the webhook was asked %+v, want once, for a Scale", requests)
		}
		s.Say("scale webhook's requests", requests)
	})
}

func TestWebhooksGuardConnections(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		changing, refusing := framework.StartRecorder(t), framework.StartRecorder(t)
		changing.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/container","value":"other"}]`)
		})
		refusing.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no way in"}}
		})
		c.RegisterMutating(t, "trigate-test-connect", changing.Mutating("change", ns, framework.Rule("connect", "", "v1", "pods/exec")))
		c.RegisterValidating(t, "trigate-test-connect", refusing.Validating("refuse", ns,
			framework.Rule("connect", "", "v1", "pods/attach,pods/portforward,pods/proxy,services/proxy")))
		admin.Send(t, "POST", core(ns, "pods"), pod).Want(t, 201)
		admin.Send(t, "POST", core(ns, "services"), "{apiVersion: v1, kind: Service, metadata: {name: s1}, spec: {clusterIP: None}}").Want(t, 201)

		admin.Send(t, "POST", core(ns, "pods/p1/exec")+"?command=ls&command=-l&container=main&stdin=true&tty=true", "").
			WantMessage(t, 400, "container other is not valid for pod p1")
		const refused = `admission webhook "refuse.trigate.test" denied the request: no way in`
		admin.Send(t, "POST", core(ns, "pods/p1/attach")+"?stdout=true&container=main", "").WantMessage(t, 400, refused)
		admin.Send(t, "POST", core(ns, "pods/p1/portforward")+"?ports=80&ports=443", "").WantMessage(t, 400, refused)
		admin.Send(t, "GET", core(ns, "pods/p1:80/proxy/some/path")+"?q=1", "").WantMessage(t, 400, refused)
		admin.Send(t, "PUT", core(ns, "services/https:s1:443/proxy/some/path"), "{a: b}").WantMessage(t, 400, refused)
		s.Say("mutating webhook's requests", changing.Take())
		s.Say("validating webhook's requests", refusing.Take())
	})
}

func TestWebhooksAreToldWhoAsks(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		c.RegisterValidating(t, "trigate-test-who", hook.Validating("who", ns, framework.Rule("*", "", "v1", "configmaps")))
		c.Grant(t, framework.Grant{
			Name: "who", User: "system:serviceaccount:" + ns + ":default", Namespace: ns,
			Rules: rules(framework.May("create,update,patch,delete", "", "configmaps")),
		})
		account := s.As(t, c.Token(t, c.ServiceAccountToken(t, ns, "default")))
		account.Send(t, "POST", core(ns, "configmaps")+"?fieldManager=who&fieldValidation=Strict", configMap).Want(t, 201)
		account.Send(t, "PATCH", core(ns, "configmaps/c1")+"?fieldManager=applier&force=true", configMap, framework.ServerSideApply).Want(t, 200)
		account.Send(t, "DELETE", core(ns, "configmaps/c1"),
			"{apiVersion: v1, kind: DeleteOptions, gracePeriodSeconds: 7, propagationPolicy: Background}").Want(t, 200)
		requests := hook.Take()
		if len(requests) != 3 {
			t.Fatalf("the webhook was asked %d times, want 3", len(requests))
		}
		for _, r := range requests {
			if r.UserInfo.UID == "" || len(r.UserInfo.Extra["authentication.kubernetes.io/credential-id"]) != 1 || len(r.UserInfo.Groups) != 3 {
				t.Errorf("got user %+v, want uid, credential id and three groups", r.UserInfo)
			}
		}
		s.Say("webhook requests", requests)
	})
}

func TestWebhooksMayNotBreakObjects(t *testing.T) {
	patches := map[string]string{
		"unknown-field":  `[{"op":"add","path":"/spec","value":{"a":1}}]`,
		"wrong-type":     `[{"op":"add","path":"/data","value":"text"}]`,
		"invalid-label":  `[{"op":"add","path":"/metadata/labels","value":{"a":"not valid!"}}]`,
		"rename":         `[{"op":"replace","path":"/metadata/name","value":"renamed"}]`,
		"move":           `[{"op":"replace","path":"/metadata/namespace","value":"default"}]`,
		"other-kind":     `[{"op":"replace","path":"/kind","value":"Secret"}]`,
		"no-kind":        `[{"op":"remove","path":"/kind"}]`,
		"whole":          `[{"op":"replace","path":"","value":{}}]`,
		"missing-path":   `[{"op":"replace","path":"/data/nothing/there","value":"x"}]`,
		"failed-test":    `[{"op":"test","path":"/metadata/name","value":"another"}]`,
		"remove-missing": `[{"op":"remove","path":"/data/missing"}]`,
		"unknown-op":     `[{"op":"shake","path":"/data"}]`,
		"no-list":        `{"op":"add"}`,
		"no-json":        `nonsense`,
		"empty":          `[]`,
		"null":           `null`,
		"uid":            `[{"op":"add","path":"/metadata/uid","value":"mine"}]`,
		"managed":        `[{"op":"replace","path":"/metadata/managedFields","value":[]}]`,
		"finalizer":      `[{"op":"add","path":"/metadata/finalizers","value":["no/finalizer/at/all"]}]`,
		"no-change":      `[{"op":"replace","path":"/data/a","value":"b"}]`,
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(patches[r.Name])
		})
		c.RegisterMutating(t, "trigate-test-break", hook.Mutating("break", ns, configMaps))
		for name := range sorted(patches) {
			admin.Send(t, "POST", core(ns, "configmaps"), strings.ReplaceAll(configMap, "c1", name))
		}
		// Some of the answers in words; the transcript has them all.
		admin.Send(t, "POST", core(ns, "configmaps"), strings.ReplaceAll(configMap, "c1", "invalid-label")).Want(t, 422)
		admin.Send(t, "POST", core(ns, "configmaps"), strings.ReplaceAll(configMap, "c1", "missing-path")).Want(t, 500)
		admin.Send(t, "POST", core(ns, "configmaps"), strings.ReplaceAll(configMap, "c1", "no-json")).Want(t, 500)
		admin.Send(t, "GET", core(ns, "configmaps/invalid-label"), "").Want(t, 404)
	})
}

// Webhooks behind a Service are called at an endpoint of the port that their
// configuration names. An EndpointSlice of addresses may not hold the loopback one, and
// one of names may.
func TestWebhooksAreReachedByThePortOfAService(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		const service = "hooks"
		first, second := startBehindService(t, service, ns, "first"), startBehindService(t, service, ns, "second")
		c.Admin(t).Send(t, "POST", core(ns, "services"), `
apiVersion: v1
kind: Service
metadata: {name: hooks}
spec: {ports: [{name: first, port: 443}, {name: second, port: 8443}]}
`).Want(t, 201)
		c.Admin(t).Send(t, "POST", group("discovery.k8s.io/v1", ns, "endpointslices"), fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hooks, labels: {kubernetes.io/service-name: hooks}}
addressType: FQDN
endpoints: [{addresses: [127.0.0.1]}]
ports: [{name: first, port: %s}, {name: second, port: %s}]
`, first.port, second.port)).Want(t, 201)

		behind := func(name string, hook *behindService, port *int32) admissionregistrationv1.MutatingWebhook {
			webhook := hook.Mutating(name, ns, configMaps)
			webhook.ObjectSelector = forCase(name)
			webhook.ClientConfig = admissionregistrationv1.WebhookClientConfig{
				CABundle: hook.CABundle,
				Service:  &admissionregistrationv1.ServiceReference{Namespace: ns, Name: service, Path: ptr.To("/some/path"), Port: port},
			}
			return webhook
		}
		distrusted := behind("port-distrusted", first, ptr.To[int32](443))
		distrusted.ClientConfig.CABundle = foreignAuthority(t, c)
		c.RegisterMutating(t, "trigate-test-service-port",
			behind("port-none", first, nil),
			behind("port-443", first, ptr.To[int32](443)),
			behind("port-8443", second, ptr.To[int32](8443)),
			behind("port-8444", second, ptr.To[int32](8444)),
			distrusted,
		)
		c.Admin(t).Await(t, "POST", core(ns, "configmaps")+"?dryRun=All", caseMap("port-8443"), 201)

		for _, tc := range []struct{ name, want string }{
			{"port-none", "first at hooks." + ns + ".svc:443/some/path"},
			{"port-443", "first at hooks." + ns + ".svc:443/some/path"},
			{"port-8443", "second at hooks." + ns + ".svc:8443/some/path"},
		} {
			created := admin.Send(t, "POST", core(ns, "configmaps"), caseMap(tc.name)).Want(t, 201)
			if got := created.String(t, "data", "called"); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
			}
		}
		admin.Send(t, "POST", core(ns, "configmaps"), caseMap("port-8444")).WantMessage(t, 500,
			`Internal error occurred: failed calling webhook "port-8444.trigate.test": failed to call webhook: Post "https://hooks.`+ns+
				`.svc:8444/some/path?timeout=10s": no service port 8444 found for service "hooks"`)
		admin.Send(t, "POST", core(ns, "configmaps"), caseMap("port-distrusted")).Want(t, 500)
	})
}

// behindService is a webhook with a certificate for the name of a Service. Its patches
// say who it is and at what address it was asked.
type behindService struct {
	*framework.Webhook
	port string
}

func startBehindService(t *testing.T, service, namespace, name string) *behindService {
	t.Helper()
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey(service+"."+namespace+".svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		framework.Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(fmt.Sprintf(`[{"op":"add","path":"/data","value":{"called":%q}}]`, name+" at "+req.Host+req.URL.Path))
		}).ServeHTTP(w, req)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return &behindService{Webhook: &framework.Webhook{URL: server.URL, CABundle: certPEM}, port: port}
}
