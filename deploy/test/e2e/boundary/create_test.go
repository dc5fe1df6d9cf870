package boundary

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestReviewsHaveTheNameThatWillBeStored(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		named := framework.Rule("create", "", "v1", "configmaps,pods,pods/binding,serviceaccounts/token")
		c.RegisterMutating(t, "trigate-test-names", mutate.Mutating("mutate", ns, named))
		c.RegisterValidating(t, "trigate-test-names", validate.Validating("validate", ns, named))
		long := strings.Repeat("n", 250)
		for _, metadata := range []string{"name: given", "generateName: generated-", "name: both, generateName: unused-", "generateName: " + long} {
			created := admin.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {"+metadata+"}}").Want(t, 201)
			name := created.String(t, "metadata", "name")
			generated := strings.HasPrefix(metadata, "generateName")
			if generated {
				s.Hide(name, "GENERATED")
			}
			for _, hook := range []*framework.Recorder{mutate, validate} {
				requests := hook.Take()
				if len(requests) != 1 {
					t.Fatalf("%s: a webhook was asked %d times, want once", metadata, len(requests))
				}
				var reviewed metav1.PartialObjectMetadata
				if err := json.Unmarshal(requests[0].Object.Raw, &reviewed); err != nil {
					t.Fatal(err)
				}
				want := name
				if generated && hook == mutate {
					want = "" // the name is made between mutation and validation
				}
				if requests[0].Name != want || reviewed.Name != want {
					t.Errorf("%s: got %q in the review and %q in its object, want %q", metadata, requests[0].Name, reviewed.Name, want)
				}
				s.Say("webhook requests", requests)
			}
		}
		admin.Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap}").Want(t, 422)
		c.Admin(t).Send(t, "POST", core(ns, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {generateName: 'Not_Valid-'}}").Want(t, 422)
		mutate.Take()

		// What is created for another object has that object's name.
		admin.Send(t, "POST", core(ns, "pods"), "{apiVersion: v1, kind: Pod, metadata: {name: p1}, spec: {automountServiceAccountToken: false, containers: [{name: main, image: i}]}}").Want(t, 201)
		admin.Send(t, "POST", core(ns, "pods/p1/binding"), "{apiVersion: v1, kind: Binding, metadata: {name: p1}, target: {kind: Node, name: none}}").Want(t, 201)
		admin.Send(t, "POST", core(ns, "serviceaccounts/default/token"), "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest}").Want(t, 201)
		s.Say("mutating webhook's requests", mutate.Take())
		s.Say("validating webhook's requests", validate.Take())
	})
}

func TestUpdatesThatCreateNeedTheRightToCreate(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		const api = "coordination.k8s.io"
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		both := framework.Rule("*", api, "v1", "leases")
		c.RegisterMutating(t, "trigate-test-put", mutate.Mutating("mutate", ns, both))
		c.RegisterValidating(t, "trigate-test-put", validate.Validating("validate", ns, both))
		c.Grant(t, framework.Grant{Name: "putter", User: "putter", Namespace: ns, Rules: rules(framework.May("update", api, "leases"))})
		putter := s.As(t, c.User(t, "putter"))
		leases := group(api+"/v1", ns, "leases")
		lease := func(name, metadata string) string {
			return "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: " + name + metadata + "}, spec: {holderIdentity: me}}"
		}

		putter.Send(t, "PUT", leases+"/l1", lease("l1", "")).WantMessage(t, 403, fmt.Sprintf(
			`leases.coordination.k8s.io "l1" is forbidden: User "putter" cannot create resource "leases" in API group "coordination.k8s.io" in the namespace %q`, ns))
		s.Say("mutating webhook's requests", mutate.Take())
		if requests := validate.Take(); len(requests) != 0 {
			t.Errorf("the validating webhook was asked %s about a refused request", summary(requests))
		}
		c.Grant(t, framework.Grant{Name: "putter-creator", User: "putter", Namespace: ns, Rules: rules(framework.May("create", api, "leases"))})
		const uid, created = "12345678-1234-1234-1234-123456789012", "2001-02-03T04:05:06Z"
		got := putter.Send(t, "PUT", leases+"/l1", lease("l1", ", creationTimestamp: '"+created+"'")).Want(t, 201)
		if got.String(t, "metadata", "uid") == "" || got.String(t, "metadata", "creationTimestamp") == created {
			t.Errorf("got metadata %v, want uid and creation time made by the server", got.Field(t, "metadata"))
		}
		for _, hook := range []*framework.Recorder{mutate, validate} {
			requests := hook.Take()
			if len(requests) != 1 || requests[0].Operation != admissionv1.Create || len(requests[0].OldObject.Raw) != 0 {
				t.Errorf("the webhook was asked %s, want CREATE l1, once, without an old object", summary(requests))
			}
			s.Say("webhook requests", requests)
		}
		putter.Send(t, "PUT", leases+"/l2", lease("l2", ", uid: "+uid)).Want(t, 409)
		putter.Send(t, "PUT", leases+"/l1", lease("l1", ", uid: "+uid)).Want(t, 409)
		putter.Send(t, "PUT", leases+"/l1", lease("l1", ", resourceVersion: '1'")).Want(t, 409)
		putter.Send(t, "PUT", leases+"/l1", lease("l1", "")).Want(t, 422) // a Lease is not updated without
		putter.Send(t, "PUT", leases+"/l1", lease("l1", ", resourceVersion: '"+got.String(t, "metadata", "resourceVersion")+"'")).Want(t, 200)
		// A version alone does not keep it from being made.
		putter.Send(t, "PUT", leases+"/l3", lease("l3", ", resourceVersion: '7'")).Want(t, 201)
		putter.Send(t, "PUT", leases+"/l2?dryRun=All", lease("l2", "")).Want(t, 201)
		putter.Send(t, "PUT", leases+"/l2", lease("another", "")).Want(t, 400)
		s.Admin(t).Send(t, "PUT", core(ns, "configmaps/none"), named("none")).Want(t, 404)
		s.Admin(t).Send(t, "PATCH", leases+"/l4", `{"spec":{"holderIdentity":"me"}}`, framework.MergePatch).Want(t, 404)
		s.Say("mutating webhook's requests", mutate.Take())
		s.Say("validating webhook's requests", validate.Take())
	})
}

func TestAppliesThatCreateNeedTheRightToCreate(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(fmt.Sprintf(`[{"op":"add","path":"/metadata/labels","value":{"operation":%q}}]`, r.Operation))
		})
		c.RegisterMutating(t, "trigate-test-apply", hook.Mutating("apply", ns, framework.Rule("*", "", "v1", "configmaps")))
		c.Grant(t, framework.Grant{Name: "applier", User: "applier", Namespace: ns, Rules: rules(framework.May("patch", "", "configmaps"))})
		applier := s.As(t, c.User(t, "applier"))
		apply := func(query, object string) *framework.Answer {
			return applier.Send(t, "PATCH", core(ns, "configmaps/c1")+"?fieldManager=me"+query, object, framework.ServerSideApply)
		}
		apply("", configMap).WantMessage(t, 403, fmt.Sprintf(
			`configmaps "c1" is forbidden: User "applier" cannot create resource "configmaps" in API group "" in the namespace %q`, ns))
		c.Grant(t, framework.Grant{Name: "applier-creator", User: "applier", Namespace: ns, Rules: rules(framework.May("create", "", "configmaps"))})
		apply("&dryRun=All", configMap).Want(t, 201)
		applied := apply("", configMap).Want(t, 201)
		if got := applied.String(t, "metadata", "labels", "operation"); got != "CREATE" {
			t.Errorf("got operation %q, want CREATE", got)
		}
		if got := applied.String(t, "metadata", "managedFields", 0, "operation"); got != "Apply" {
			t.Errorf("got operation %q in managedFields, want Apply", got)
		}
		apply("", configMap).Want(t, 200)
		apply("", strings.Replace(configMap, "a: b", "c: d", 1)).Want(t, 200)
		// Another manager's fields are in the way, unless it is forced.
		applier.Send(t, "PATCH", core(ns, "configmaps/c1")+"?fieldManager=other", strings.Replace(configMap, "a: b", "c: e", 1), framework.ServerSideApply).Want(t, 409)
		applier.Send(t, "PATCH", core(ns, "configmaps/c1")+"?fieldManager=other&force=true", strings.Replace(configMap, "a: b", "c: e", 1), framework.ServerSideApply).Want(t, 200)
		applier.Send(t, "PATCH", core(ns, "configmaps/c1"), configMap, framework.ServerSideApply).Want(t, 422)
		applier.Send(t, "PATCH", core(ns, "configmaps/c2")+"?fieldManager=me",
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: c2, uid: 12345678-1234-1234-1234-123456789012}}", framework.ServerSideApply).Want(t, 409)
		applier.Send(t, "PATCH", core(ns, "configmaps/c2"), `{"data":{"a":"b"}}`, framework.MergePatch).Want(t, 404)
		s.Say("webhook requests", hook.Take())
	})
}
