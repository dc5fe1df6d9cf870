package boundary

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	crds         = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	customGroup  = "boundary.trigate.test"
	jsonContent  = "application/json"
	bigIntegers  = `"large":9007199254740993,"smallest":-9223372036854775808`
	integersJSON = `{"apiVersion":"boundary.trigate.test/v1","kind":"Counter","metadata":{"name":"i1"},"spec":{` + bigIntegers + `,"list":[9007199254740993],"free":{"x":9007199254740993,"f":1.5},"text":"a"}}`
)

// defineCounters makes a CRD with integer fields and waits until it is served.
func defineCounters(t *testing.T, c *framework.Cluster, plural, versions string) {
	t.Helper()
	c.Admin(t).Make(t, crds, plural+"."+customGroup, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+plural+`.`+customGroup+`}
spec:
  group: `+customGroup+`
  scope: Namespaced
  names: {plural: `+plural+`, singular: `+strings.TrimSuffix(plural, "s")+`, kind: Counter, listKind: CounterList}
  versions:
`+versions)
	c.Admin(t).Await(t, "GET", "/apis/"+customGroup+"/v1/"+plural, "", 200)
}

// counterVersion is a version of the CRD with more fields of its own.
func counterVersion(name, more string) string {
	return `  - name: ` + name + `
    served: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              large: {type: integer, format: int64}
              smallest: {type: integer, format: int64}
              list: {type: array, items: {type: integer, format: int64}}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              text: {type: string}
              number: {type: number}
              either: {x-kubernetes-int-or-string: true}
              replicas: {type: integer, format: int32}
          status: {type: object, properties: {seen: {type: integer, format: int64}, replicas: {type: integer}}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
` + more
}

func TestBigIntegersStayExact(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		defineCounters(t, c, "integers", counterVersion("v1", "    storage: true\n"))
		integers := group(customGroup+"/v1", ns, "integers")
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`)
		})
		all := framework.Rule("*", customGroup, "*", "*")
		c.RegisterMutating(t, "trigate-test-integers", mutate.Mutating("mutate", ns, all))
		c.RegisterValidating(t, "trigate-test-integers", validate.Validating("validate", ns, all))
		asJSON := framework.ContentType(jsonContent)

		exact := func(answer *framework.Answer, code int) {
			t.Helper()
			answer.Want(t, code)
			for _, field := range []string{`"large":9007199254740993`, `"smallest":-9223372036854775808`, `"list":[9007199254740993]`, `"x":9007199254740993`, `"f":1.5`, `"hooked":"yes"`} {
				if !strings.Contains(string(answer.Body), field) {
					t.Errorf("%s: the answer lacks %s:\n%s", answer.Request, field, answer.Body)
				}
			}
		}
		exact(admin.Send(t, "POST", integers, integersJSON, asJSON), 201)
		exact(admin.Send(t, "GET", integers+"/i1", ""), 200)
		exact(admin.Send(t, "PATCH", integers+"/i1", `{"spec":{"text":"b"}}`, framework.MergePatch), 200)
		exact(admin.Send(t, "PATCH", integers+"/i1", `[{"op":"replace","path":"/spec/text","value":"c"}]`, framework.JSONPatchType), 200)
		exact(admin.Send(t, "PATCH", integers+"/i1/status", `{"status":{"seen":9007199254740993,"replicas":1}}`, framework.MergePatch), 200)
		admin.Send(t, "PATCH", integers+"/i1/scale", `{"spec":{"replicas":3}}`, framework.MergePatch).Want(t, 200)
		exact(admin.Send(t, "GET", integers+"/i1", ""), 200)

		// Two managers that agree share the fields.
		applied := strings.Replace(integersJSON, `"i1"`, `"i2"`, 1)
		for _, manager := range []string{"first", "second"} {
			answer := admin.Send(t, "PATCH", integers+"/i2?fieldManager="+manager, applied, framework.ServerSideApply)
			exact(answer, map[string]int{"first": 201, "second": 200}[manager])
		}
		disagreeing := strings.Replace(applied, "9007199254740993", "9007199254740992", 1)
		// Those with whom there is a conflict are named in any order.
		c.Admin(t).Send(t, "PATCH", integers+"/i2?fieldManager=third", disagreeing, framework.ServerSideApply).Want(t, 409)

		// What the webhooks saw is exact as well.
		for _, hook := range []*framework.Recorder{mutate, validate} {
			requests := distinct(hook.Take())
			for _, r := range requests {
				if r.SubResource != "scale" && !strings.Contains(string(r.Object.Raw), `"large":900719925474099`) {
					t.Errorf("a webhook was sent %s", r.Object.Raw)
				}
			}
			s.Say("webhook requests", requests)
		}

		// Neighbours: at the ends of what a number may be, and beyond.
		for _, spec := range []string{
			`"large":9223372036854775807`, `"large":9223372036854775808`, `"smallest":-9223372036854775809`, `"large":1e3`, `"large":1.0`, `"large":1.5`,
			`"number":9007199254740993`, `"number":1.0`, `"number":1e400`, `"number":0.1`, `"number":-0.0`, `"number":123456789012345678901234567890`,
			`"either":9007199254740993`, `"either":"9007199254740993"`, `"either":1.5`,
			`"free":{"big":123456789012345678901234567890,"exp":1e21,"neg":-0.0,"tiny":1e-7,"int":1.0}`, `"replicas":2147483648`, `"text":"` + "\\u0000\\ud800é不" + `"`,
		} {
			admin.Send(t, "POST", integers+"?dryRun=All", `{"apiVersion":"boundary.trigate.test/v1","kind":"Counter","metadata":{"name":"i3"},"spec":{`+spec+`}}`, asJSON)
		}
		s.Say("webhook requests", distinct(mutate.Take()))
	})
}

func TestBuiltInIntegersStayExact(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		c.RegisterMutating(t, "trigate-test-built-in", hook.Mutating("mutate", ns, framework.Rule("*", "", "v1", "pods,events")))
		created := admin.Send(t, "POST", core(ns, "pods"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p1"},"spec":{"automountServiceAccountToken":false,"activeDeadlineSeconds":2147483647,"terminationGracePeriodSeconds":9007199254740993,"securityContext":{"runAsUser":2147483647,"fsGroup":0},"containers":[{"name":"main","image":"i","resources":{"requests":{"memory":"9223372036854775807","cpu":"0.0001"},"limits":{"memory":"10E"}}}]}}`,
			framework.ContentType(jsonContent))
		if created.Code == 201 && !strings.Contains(string(created.Body), `"terminationGracePeriodSeconds":9007199254740993`) {
			t.Errorf("got %s", created.Body)
		}
		// Quantities keep their form, or get the canonical one, on both sides.
		admin.Send(t, "POST", core(ns, "pods"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p2"},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"main","image":"i","resources":{"requests":{"memory":"1024Ki","cpu":"1000m"},"limits":{"memory":"1.5Gi","cpu":"2e0"}}}]}}`,
			framework.ContentType(jsonContent)).Want(t, 201)
		admin.Send(t, "POST", core(ns, "events"), `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e1"},"involvedObject":{"kind":"Pod","name":"p1","namespace":"`+ns+`"},"eventTime":"2026-01-02T03:04:05.678901Z","firstTimestamp":"2026-01-02T03:04:05Z","count":2147483647,"reportingComponent":"c","reportingInstance":"i","action":"a","reason":"r","type":"Normal"}`,
			framework.ContentType(jsonContent)).Want(t, 201)
		s.Say("webhook requests", hook.Take())
	})
}
