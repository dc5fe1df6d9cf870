package boundary

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestEvictionsAreReviewedAsEvictions(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		mutate, selecting, deleting := framework.StartRecorder(t), framework.StartRecorder(t), framework.StartRecorder(t)
		c.RegisterMutating(t, "trigate-test-eviction", mutate.Mutating("mutate", ns, framework.Rule("create", "", "v1", "pods/eviction")))
		selects := selecting.Validating("select", ns, framework.Rule("create", "", "v1", "pods/eviction"))
		selects.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"chosen": "yes"}}
		c.RegisterValidating(t, "trigate-test-eviction", selects, deleting.Validating("delete", ns, framework.Rule("delete", "", "v1", "pods")))
		for _, name := range []string{"p1", "p2", "p3"} {
			admin.Send(t, "POST", core(ns, "pods"), "{apiVersion: v1, kind: Pod, metadata: {name: "+name+", labels: {chosen: 'yes', app: "+name+"}}, spec: {automountServiceAccountToken: false, containers: [{name: main, image: i}]}}").Want(t, 201)
		}
		evict := func(pod, fields string) *framework.Answer {
			return admin.Send(t, "POST", core(ns, "pods/"+pod+"/eviction"), "{apiVersion: policy/v1, kind: Eviction, metadata: {name: "+pod+fields+"}")
		}
		asked := func(hook *framework.Recorder, want int) {
			t.Helper()
			requests := hook.Take()
			if len(requests) != want {
				t.Errorf("a webhook was asked %s, want %d requests", summary(requests), want)
			}
			for _, r := range requests {
				if r.Operation == admissionv1.Create && (r.Kind.Group != "policy" || r.Kind.Version != "v1" || r.Kind.Kind != "Eviction" || r.Name == "") {
					t.Errorf("got kind %v and name %q, want policy/v1 Eviction and the Pod's name", r.Kind, r.Name)
				}
			}
			s.Say("webhook requests", requests)
		}

		// With a dry run the Pod stays.
		evict("p1", "}, deleteOptions: {dryRun: [All]}").Want(t, 201)
		admin.Send(t, "GET", core(ns, "pods/p1"), "").Want(t, 200)
		asked(mutate, 1)
		admin.Send(t, "POST", core(ns, "pods/p1/eviction")+"?dryRun=All", "{apiVersion: policy/v1, kind: Eviction, metadata: {name: p1}}").Want(t, 201)
		admin.Send(t, "GET", core(ns, "pods/p1"), "").Want(t, 200)
		asked(mutate, 1)
		// The selector looks at the Eviction and not at the Pod.
		asked(selecting, 0)
		evict("p1", ", labels: {chosen: 'yes'}}").Want(t, 201)
		admin.Send(t, "GET", core(ns, "pods/p1"), "").Want(t, 404)
		asked(mutate, 1)
		asked(selecting, 1)
		asked(deleting, 0)

		evict("missing", "}").Want(t, 404)
		admin.Send(t, "POST", core(ns, "pods/p2/eviction"), "{apiVersion: policy/v1, kind: Eviction, metadata: {name: p3}}").Want(t, 400)
		admin.Send(t, "POST", core(ns, "pods/p2/eviction")+"?dryRun=All", "{apiVersion: policy/v1beta1, kind: Eviction, metadata: {name: p2}}").Want(t, 201)
		asked(mutate, 3)

		// A disruption budget says no in its own way.
		admin.Send(t, "POST", group("policy/v1", ns, "poddisruptionbudgets"), "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: budget}, spec: {minAvailable: 1, selector: {matchLabels: {app: p3}}}}").Want(t, 201)
		admin.Send(t, "PATCH", core(ns, "pods/p3/status"), `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`, framework.StrategicPatch).Want(t, 200)
		refused := c.Admin(t)
		refused.Await(t, "POST", core(ns, "pods/p3/eviction")+"?dryRun=All", "{apiVersion: policy/v1, kind: Eviction, metadata: {name: p3}}", 429)
		mutate.Take()

		// A webhook that refuses, and one that changes the options.
		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/deleteOptions","value":{"dryRun":["All"]}}]`)
		})
		evict("p2", "}").Want(t, 201)
		admin.Send(t, "GET", core(ns, "pods/p2"), "").Want(t, 200)
		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "not now", Code: 429, Reason: metav1.StatusReasonTooManyRequests}}
		})
		evict("p2", "}").WantMessage(t, 429, `admission webhook "mutate.trigate.test" denied the request: not now`)
		admin.Send(t, "GET", core(ns, "pods/p2"), "").Want(t, 200)
	})
}
