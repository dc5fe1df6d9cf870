package boundary

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

// The API server is three servers in a row, each with types of its own, and one
// admission chain serves all three.
func TestWebhooksSeeTheObjectsOfAllServers(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		mutate, validate := framework.StartRecorder(t), framework.StartRecorder(t)
		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/metadata/labels/hooked","value":"yes"}]`)
		})
		rules := append(framework.Rule("*", "apiextensions.k8s.io", "v1", "customresourcedefinitions,customresourcedefinitions/status"),
			framework.Rule("*", "apiregistration.k8s.io", "v1", "apiservices,apiservices/status")...)
		rules = append(rules, framework.Rule("*", "rbac.authorization.k8s.io", "v1", "clusterroles")...)
		chosen := &metav1.LabelSelector{MatchLabels: map[string]string{"servers": "yes"}}
		m, v := mutate.Mutating("mutate", "", rules), validate.Validating("validate", "", rules)
		m.NamespaceSelector, m.ObjectSelector = nil, chosen
		v.NamespaceSelector, v.ObjectSelector = nil, chosen
		c.RegisterMutating(t, "trigate-test-servers", m)
		c.RegisterValidating(t, "trigate-test-servers", v)

		const apiServices, clusterRoles = "/apis/apiregistration.k8s.io/v1/apiservices", "/apis/rbac.authorization.k8s.io/v1/clusterroles"
		labelled := func(answer *framework.Answer) {
			t.Helper()
			if got := answer.String(t, "metadata", "labels", "hooked"); got != "yes" {
				t.Errorf("%s: got label %q, want yes", answer.Request, got)
			}
		}
		labelled(admin.Make(t, crds, "servers."+customGroup, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servers.`+customGroup+`, labels: {servers: "yes"}}
spec:
  group: `+customGroup+`
  scope: Cluster
  names: {plural: servers, singular: server, kind: Server, listKind: ServerList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, description: "ü – 不", properties: {spec: {type: object, properties: {count: {type: integer, default: 9007199254740993, minimum: 1, enum: [1, 9007199254740993]}, x: {type: object, x-kubernetes-preserve-unknown-fields: true, default: {a: [1, 2.5, null]}}}}}}}
`))
		admin.Await(t, "GET", "/apis/"+customGroup+"/v1/servers", "", 200)
		labelled(admin.Make(t, apiServices, "v1.servers.trigate.test",
			"{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.servers.trigate.test, labels: {servers: 'yes'}}, spec: {group: servers.trigate.test, version: v1, groupPriorityMinimum: 1000, versionPriority: 15, insecureSkipTLSVerify: true, service: {namespace: default, name: none}}}"))
		labelled(admin.Make(t, clusterRoles, "trigate-test-servers",
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: trigate-test-servers, labels: {servers: 'yes'}}, rules: [{verbs: [get], nonResourceURLs: [/x]}], aggregationRule: {clusterRoleSelectors: [{matchLabels: {never: true-at-all}}]}}"))
		for _, r := range mutate.Take() {
			if r.UserInfo.Username == "kubernetes-admin" {
				s.Say("mutating webhook's request", r)
			}
		}
		validate.Take()

		// Mistakes after admission are told by the server that found them.
		admin.Send(t, "POST", crds, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: wrong, labels: {servers: 'yes'}}, spec: {group: g, scope: Cluster, names: {plural: p, kind: K}, versions: []}}").Want(t, 422)
		admin.Send(t, "POST", apiServices, "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: wrong, labels: {servers: 'yes'}}, spec: {}}").Want(t, 422)

		mutate.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no"}}
		})
		const message = `admission webhook "mutate.trigate.test" denied the request: no`
		admin.Send(t, "PATCH", crds+"/servers."+customGroup, `{"spec":{"names":{"shortNames":["s"]}}}`, framework.MergePatch).WantMessage(t, 400, message)
		admin.Send(t, "PATCH", apiServices+"/v1.servers.trigate.test", `{"spec":{"versionPriority":16}}`, framework.MergePatch).WantMessage(t, 400, message)
		admin.Send(t, "DELETE", apiServices+"/v1.servers.trigate.test", "").WantMessage(t, 400, message)
		mutate.Decide(framework.Pass)
	})
}

func TestCustomResourcesAreReviewedInTheVersionAskedFor(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		converter := framework.StartWebhook(t, framework.Conversion(renameText))
		makeConverted(t, c, converter)
		v1, v2 := group(customGroup+"/v1", ns, "converteds"), group(customGroup+"/v2", ns, "converteds")

		equivalent, exact := framework.StartRecorder(t), framework.StartRecorder(t)
		equivalent.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}},{"op":"replace","path":"/spec/text","value":"hooked"}]`)
		})
		rules := framework.Rule("*", customGroup, "v1", "converteds")
		hooks := []admissionregistrationv1.MutatingWebhook{equivalent.Mutating("equivalent", ns, rules), exact.Mutating("exact", ns, rules)}
		hooks[1].MatchPolicy = ptr.To(admissionregistrationv1.Exact)
		c.RegisterMutating(t, "trigate-test-converted", hooks...)

		object := func(version, field, name string) string {
			return fmt.Sprintf("{apiVersion: %s/%s, kind: Converted, metadata: {name: %s}, spec: {%s: mine, count: 9007199254740993}}", customGroup, version, name, field)
		}
		created := admin.Send(t, "POST", v2, object("v2", "words", "a")).Want(t, 201)
		if got := created.String(t, "spec", "words"); got != "hooked" {
			t.Errorf("got words %q, want hooked: what the webhook changed in v1", got)
		}
		if !strings.Contains(string(created.Body), `"count":9007199254740993`) {
			t.Errorf("got %s, want count 9007199254740993", created.Body)
		}
		requests := equivalent.Take()
		if len(requests) != 1 || requests[0].Kind.Version != "v1" || requests[0].RequestKind.Version != "v2" || !strings.Contains(string(requests[0].Object.Raw), `"text":"mine"`) {
			t.Errorf("the webhook was asked %s, want once, in v1", summary(requests))
		}
		s.Say("equivalent webhook's requests", requests)
		if requests := exact.Take(); len(requests) != 0 {
			t.Errorf("the webhook for exactly v1 was asked %s", summary(requests))
		}
		admin.Send(t, "POST", v1, object("v1", "text", "b")).Want(t, 201)
		admin.Send(t, "PATCH", v2+"/a", `{"spec":{"words":"again"}}`, framework.MergePatch).Want(t, 200)
		admin.Send(t, "PATCH", v2+"/b?fieldManager=me&force=true", object("v2", "words", "b"), framework.ServerSideApply).Want(t, 200)
		admin.Send(t, "DELETE", v2+"/a", "").Want(t, 500) // the patch has nothing to change
		equivalent.Decide(framework.Pass)
		admin.Send(t, "DELETE", v2+"/a", "").Want(t, 200)
		s.Say("equivalent webhook's requests", distinct(equivalent.Take()))
		s.Say("exact webhook's requests", distinct(exact.Take()))

		// A policy sees the version that it asks for, too.
		const policy = "trigate-test-converted"
		registration := "/apis/admissionregistration.k8s.io/v1/"
		admin.Make(t, registration+"validatingadmissionpolicies", policy, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: `+policy+`}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: `+ns+`}}
    resourceRules: [{operations: [CREATE], apiGroups: [`+customGroup+`], apiVersions: [v1], resources: [converteds]}]
  validations:
  - {expression: "object.spec.text != 'bad' && object.spec.count == 9007199254740993", messageExpression: "'no ' + object.spec.text + ' in ' + request.kind.version + ' for ' + request.requestKind.version + ' with ' + string(object.spec.count)"}
`)
		admin.Make(t, registration+"validatingadmissionpolicybindings", policy,
			"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: "+policy+"}, spec: {policyName: "+policy+", validationActions: [Deny]}}")
		bad := strings.Replace(object("v2", "words", "c"), "mine", "bad", 1)
		c.Admin(t).Await(t, "POST", v2+"?dryRun=All", bad, 422)
		admin.Send(t, "POST", v2, bad).WantMessage(t, 422,
			`converteds.boundary.trigate.test "c" is forbidden: ValidatingAdmissionPolicy 'trigate-test-converted' with binding 'trigate-test-converted' denied request: no bad in v1 for v2 with 9007199254740993`)
		admin.Send(t, "POST", v2, object("v2", "words", "c")).Want(t, 201)
	})
}

// makeConverted makes a CRD whose field spec.text of v1 is spec.words in v2.
func makeConverted(t *testing.T, c *framework.Cluster, converter *framework.Webhook) {
	t.Helper()
	version := func(name, field string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
					Type:       "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{field: {Type: "string"}, "count": {Type: "integer", Format: "int64"}},
				}},
			}},
		}
	}
	definition, err := json.Marshal(&apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "converteds." + customGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: customGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "converteds", Singular: "converted", Kind: "Converted", ListKind: "ConvertedList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", "text", true), version("v2", "words", false)},
			Conversion: &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: ptr.To(converter.URL + "/convert"), CABundle: converter.CABundle},
					ConversionReviewVersions: []string{"v1"},
				},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := c.Admin(t)
	admin.Make(t, crds, "converteds."+customGroup, string(definition))
	admin.Await(t, "GET", "/apis/"+customGroup+"/v1/converteds", "", 200)
	admin.Await(t, "GET", "/apis/"+customGroup+"/v2/converteds", "", 200)
}

// renameText converts between the versions, in the text of the JSON, so that the
// digits of numbers stay.
func renameText(r *apiextensionsv1.ConversionRequest) *apiextensionsv1.ConversionResponse {
	response := &apiextensionsv1.ConversionResponse{Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range r.Objects {
		from, to := `"words":`, `"text":`
		if strings.HasSuffix(r.DesiredAPIVersion, "/v2") {
			from, to = to, from
		}
		raw := strings.ReplaceAll(string(object.Raw), from, to)
		for _, version := range []string{"v1", "v2"} {
			raw = strings.Replace(raw, `"apiVersion":"`+customGroup+"/"+version+`"`, `"apiVersion":"`+r.DesiredAPIVersion+`"`, 1)
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: []byte(raw)})
	}
	return response
}

func TestProtobufRequestsAreReviewedAsJSON(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return framework.JSONPatch(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`)
		})
		c.RegisterMutating(t, "trigate-test-protobuf", hook.Mutating("mutate", ns, framework.Rule("*", "", "v1", "configmaps,pods")))
		config := rest.CopyConfig(c.Config(t))
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
		client := framework.ClientFor(t, config).CoreV1()

		created, err := client.ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"b": {0, 0xff, 0xfe}, "empty": {}},
		}, metav1.CreateOptions{FieldManager: "me"})
		if err != nil {
			t.Fatal(err)
		}
		if created.Labels["hooked"] != "yes" || string(created.BinaryData["b"]) != "\x00\xff\xfe" {
			t.Errorf("got labels %v and binary data %v", created.Labels, created.BinaryData)
		}
		pod, err := client.Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p1", Annotations: map[string]string{}, Finalizers: []string{}},
			Spec: corev1.PodSpec{
				AutomountServiceAccountToken: ptr.To(false), NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{},
				Containers: []corev1.Container{{Name: "main", Image: "i", Args: []string{}, Env: []corev1.EnvVar{{Name: "E", Value: ""}}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if pod.Labels["hooked"] != "yes" {
			t.Errorf("got labels %v", pod.Labels)
		}
		if err := client.Pods(ns).Delete(t.Context(), "p1", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err == nil {
			t.Error("a deletion whose review gives a patch went through")
		}
		s.Say("webhook requests", hook.Take())
		for _, kind := range []string{"configmaps/c1", "pods/p1"} {
			s.Admin(t).Send(t, "GET", core(ns, kind), "").Want(t, 200)
		}
	})
}
