package boundary

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestDeletionsAreReviewedWithTheOldObject(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		deletions := framework.Rule("delete", "", "v1", "configmaps")
		c.RegisterMutating(t, "trigate-test-delete", mutate.Mutating("mutate", ns, deletions))
		c.RegisterValidating(t, "trigate-test-delete", validate.Validating("validate", ns, deletions))
		for _, name := range []string{"c1", "c2", "c3", "c4", "c5", "c6"} {
			admin.Send(t, "POST", core(ns, "configmaps"), strings.Replace(named(name), "{name", "{labels: {set: '"+set(name)+"'}, name", 1)).Want(t, 201)
		}
		reviewed := func(want ...string) {
			t.Helper()
			for _, hook := range []*framework.Recorder{mutate, validate} {
				requests := hook.Take()
				slices.SortStableFunc(requests, func(a, b *admissionv1.AdmissionRequest) int {
					return strings.Compare(string(a.OldObject.Raw), string(b.OldObject.Raw))
				})
				var got []string
				for _, r := range requests {
					if r.Operation != admissionv1.Delete || len(r.Object.Raw) != 0 || !strings.Contains(string(r.OldObject.Raw), `"data":{"a":"b"}`) {
						t.Errorf("got %s with object %s and old object %s, want DELETE with the old object only", r.Operation, r.Object.Raw, r.OldObject.Raw)
					}
					got = append(got, fmt.Sprintf("%q", r.Name))
				}
				if strings.Join(got, " ") != strings.Join(want, " ") {
					t.Errorf("got reviews with names %s, want %s", got, want)
				}
				s.Say("webhook requests", requests)
			}
		}

		admin.Send(t, "DELETE", core(ns, "configmaps/c1"), "").Want(t, 200)
		reviewed(`"c1"`)
		// A collection: one review for each object, without a name.
		admin.Send(t, "DELETE", core(ns, "configmaps")+"?labelSelector=set=first", "").Want(t, 200)
		reviewed(`""`, `""`, `""`)
		admin.Send(t, "GET", core(ns, "configmaps/c2"), "").Want(t, 404)

		// A patch has nothing to change, so that it is an error, and nothing is deleted.
		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/metadata/labels","value":{}}]`)
		})
		admin.Send(t, "DELETE", core(ns, "configmaps/c5"), "").WantMessage(t, 500,
			`Internal error occurred: admission webhook "mutate.trigate.test" attempted to modify the object, which is not supported for this operation`)
		admin.Send(t, "DELETE", core(ns, "configmaps")+"?labelSelector=set=second", "").Want(t, 500)
		admin.Send(t, "GET", core(ns, "configmaps/c5"), "").Want(t, 200)
		admin.Send(t, "GET", core(ns, "configmaps/c6"), "").Want(t, 200)
	})
}

// set is the label of the ConfigMaps of the test.
func set(name string) string {
	if name <= "c4" {
		return "first"
	}
	return "second"
}

func TestDeletionsWithOptions(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if strings.Contains(string(r.OldObject.Raw), `"keep":"me"`) {
				return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "it is to be kept", Code: 403}}
			}
			return framework.Pass(r)
		})
		c.RegisterValidating(t, "trigate-test-options", hook.Validating("options", ns,
			append(framework.Rule("update,delete", "", "v1", "configmaps"), framework.Rule("delete", "", "v1", "pods")...)))
		make := func(name, metadata string) string {
			created := admin.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+", "+metadata+"}}").Want(t, 201)
			return created.String(t, "metadata", "uid")
		}
		options := func(fields string) string { return "{apiVersion: v1, kind: DeleteOptions, " + fields + "}" }

		uid := make("uid", "labels: {a: b}")
		admin.Send(t, "DELETE", core(ns, "configmaps/uid"), options("preconditions: {uid: not-it}")).Want(t, 409)
		admin.Send(t, "DELETE", core(ns, "configmaps/uid"), options("preconditions: {resourceVersion: '1'}")).Want(t, 409)
		admin.Send(t, "DELETE", core(ns, "configmaps/uid"), options("preconditions: {uid: "+uid+"}, propagationPolicy: Orphan")).Want(t, 200)
		admin.Send(t, "DELETE", core(ns, "configmaps/missing"), "").Want(t, 404)
		admin.Send(t, "DELETE", core(ns, "configmaps/missing"), options("gracePeriodSeconds: -1")).Want(t, 404)
		admin.Send(t, "DELETE", core(ns, "configmaps/missing"), options("propagationPolicy: Nonsense")).Want(t, 422)

		// With a finalizer it is an update that ends the object.
		make("held", "finalizers: [trigate.test/hold]")
		admin.Send(t, "DELETE", core(ns, "configmaps/held"), "").Want(t, 200)
		admin.Send(t, "DELETE", core(ns, "configmaps/held"), "").Want(t, 200)
		admin.Send(t, "PATCH", core(ns, "configmaps/held"), `{"metadata":{"finalizers":null}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "GET", core(ns, "configmaps/held"), "").Want(t, 404)

		// One that is denied ends a collection's deletion.
		make("denied", "labels: {keep: me}")
		admin.Send(t, "DELETE", core(ns, "configmaps/denied"), "").WantMessage(t, 403, `admission webhook "options.trigate.test" denied the request: it is to be kept`)
		admin.Send(t, "DELETE", core(ns, "configmaps")+"?labelSelector=keep", "").Want(t, 403)
		admin.Send(t, "GET", core(ns, "configmaps/denied"), "").Want(t, 200)
		admin.Send(t, "DELETE", core(ns, "configmaps")+"?labelSelector=keep&dryRun=All", "").Want(t, 403)

		// A Pod with time to go is deleted twice.
		admin.Send(t, "POST", core(ns, "pods"), "{apiVersion: v1, kind: Pod, metadata: {name: p1}, spec: {nodeName: none, automountServiceAccountToken: false, containers: [{name: main, image: i}]}}").Want(t, 201)
		admin.Send(t, "DELETE", core(ns, "pods/p1"), options("gracePeriodSeconds: 300")).Want(t, 200)
		admin.Send(t, "GET", core(ns, "pods/p1"), "").Want(t, 200)
		admin.Send(t, "DELETE", core(ns, "pods/p1"), options("gracePeriodSeconds: 0")).Want(t, 200)
		admin.Send(t, "GET", core(ns, "pods/p1"), "").Want(t, 404)
		s.Say("webhook requests", distinct(hook.Take()))
	})
}
