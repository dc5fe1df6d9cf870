package limits

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

const (
	mib = 1 << 20
	// maxBody is what kube-apiserver reads of a body.
	maxBody = 3 * mib
)

// text is some text of exactly size bytes, mostly not ASCII. Texts that start in
// another way differ.
func text(start string, size int) string {
	const unit = "zoë – 是 😀 "
	var b strings.Builder
	b.Grow(size + len(unit))
	b.WriteString(start)
	for b.Len()+len(unit) <= size {
		b.WriteString(unit)
	}
	b.WriteString(strings.Repeat(".", size-b.Len()))
	return b.String()
}

// toJSON is a body that is sent as it is.
func toJSON(t *testing.T, value any) string {
	t.Helper()
	content, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

type fields = map[string]any

func configMapOf(t *testing.T, name string, data any) string {
	t.Helper()
	return toJSON(t, fields{"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": name}, "data": data})
}

// hideTexts has large texts compared by their names. A text that came back changed
// has no name.
func hideTexts(s *framework.Transcript, texts ...string) {
	for i, text := range texts {
		s.Hide(text, "LARGE-"+strconv.Itoa(i))
		s.Hide(base64.StdEncoding.EncodeToString([]byte(text)), "LARGE-BASE64-"+strconv.Itoa(i))
	}
}

func wantText(t *testing.T, answer *framework.Answer, want string, path ...any) {
	t.Helper()
	if got := answer.String(t, path...); got != want {
		t.Errorf("%s: the answer's %v has %d bytes, want %d, or they differ", answer.Request, path, len(got), len(want))
	}
}

func TestConfigMapOfOneMebibyte(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin := s.Namespace(t), s.Admin(t)
		json := framework.ContentType(typeJSON)
		first, second, third, over := text("1", mib), text("2", mib), text("3", mib), text("4", mib+1)
		hideTexts(s, first, second, third, over)
		path := core(ns, "configmaps/large")
		body := func(value string) string { return configMapOf(t, "large", fields{"k": value}) }

		wantText(t, admin.Send(t, "POST", core(ns, "configmaps"), body(first), json).Want(t, 201), first, "data", "k")
		// Old and new are in one admission message.
		wantText(t, admin.Send(t, "PUT", path, body(second), json).Want(t, 200), second, "data", "k")
		wantText(t, admin.Send(t, "PATCH", path, toJSON(t, fields{"data": fields{"k": third}}), framework.MergePatch).Want(t, 200), third, "data", "k")
		wantText(t, admin.Send(t, "PATCH", path, toJSON(t, fields{"data": fields{"k": first}}), framework.StrategicPatch).Want(t, 200), first, "data", "k")
		wantText(t, admin.Send(t, "GET", path, "").Want(t, 200), first, "data", "k")
		admin.Send(t, "PUT", path, body(over), json).Want(t, 422)
		admin.Send(t, "DELETE", path, "").Want(t, 200)

		binary := toJSON(t, fields{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": "binary"},
			"binaryData": fields{"k": []byte(second)},
		})
		wantText(t, admin.Send(t, "POST", core(ns, "configmaps"), binary, json).Want(t, 201),
			base64.StdEncoding.EncodeToString([]byte(second)), "binaryData", "k")
	})
}

func TestServerSideApplyOfLargeObjects(t *testing.T) {
	framework.Compare(t, func(t *testing.T, _ *framework.Cluster, s *framework.Transcript) {
		ns, admin := s.Namespace(t), s.Admin(t)
		first, second := text("1", mib), text("2", mib)
		hideTexts(s, first, second)
		apply := func(name string, data any, manager string) *framework.Answer {
			return admin.Send(t, "PATCH", core(ns, "configmaps/"+name), configMapOf(t, name, data),
				framework.ContentType("application/apply-patch+yaml"), framework.Query("fieldManager="+manager))
		}
		apply("large", fields{"k": first}, "one").Want(t, 201)
		wantText(t, apply("large", fields{"k": second}, "one").Want(t, 200), second, "data", "k")
		apply("large", fields{"k": first}, "two").Want(t, 409)

		// Every key is in managedFields too.
		keys := fields{}
		for i := range 5000 {
			keys[fmt.Sprintf("key-%04d", i)] = strings.Repeat("v", 100)
		}
		apply("keys", keys, "one").Want(t, 201)
		keys["key-4999"] = "other"
		if got := apply("keys", keys, "one").Want(t, 200).String(t, "data", "key-4999"); got != "other" {
			t.Errorf("data of key-4999 = %q, want other", got)
		}
	})
}

// largeCRD is a definition of about 500 KB, most of it descriptions in its schema.
func largeCRD(t *testing.T, word string) string {
	t.Helper()
	properties := fields{"k": fields{"type": "string"}}
	for i := range 1000 {
		properties[fmt.Sprintf("field%04d", i)] = fields{
			"type": "object", "description": text(word, 380),
			"properties": fields{"value": fields{"type": "integer", "format": "int64", "default": i}},
		}
	}
	crd := toJSON(t, fields{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": fields{"name": "larges.limits.trigate.test"},
		"spec": fields{
			"group": "limits.trigate.test", "scope": "Namespaced",
			"names": fields{"kind": "Large", "plural": "larges"},
			"versions": []any{fields{
				"name": "v1", "served": true, "storage": true,
				"schema": fields{"openAPIV3Schema": fields{"type": "object", "properties": fields{
					"spec": fields{"type": "object", "properties": properties},
				}}},
			}},
		},
	})
	if len(crd) < 490_000 || len(crd) > 600_000 {
		t.Fatalf("the definition has %d bytes, want about 500 KB", len(crd))
	}
	return crd
}

func TestLargeCustomResources(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin, quiet := s.Namespace(t), s.Admin(t), c.Admin(t)
		json := framework.ContentType(typeJSON)
		const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		const crd = crds + "/larges.limits.trigate.test"
		description := func(answer *framework.Answer) string {
			return answer.String(t, "spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec", "properties", "field0999", "description")
		}

		made := admin.Send(t, "POST", crds, largeCRD(t, "one"), json).Want(t, 201)
		t.Cleanup(func() { quiet.Send(t, "DELETE", crd, "").Want(t, 200) })
		if got, want := description(made), text("one", 380); got != want {
			t.Errorf("description = %q, want %q", got, want)
		}
		larges := "/apis/limits.trigate.test/v1/namespaces/" + ns + "/larges"
		framework.Eventually(t, "the resource is served", func() error {
			if answer := quiet.Send(t, "GET", larges, ""); answer.Code != http.StatusOK {
				return fmt.Errorf("code %d: %s", answer.Code, answer.Body)
			}
			return nil
		})

		first, second := text("1", mib), text("2", mib)
		hideTexts(s, first, second)
		large := func(value string) string {
			return toJSON(t, fields{
				"apiVersion": "limits.trigate.test/v1", "kind": "Large", "metadata": fields{"name": "large"},
				"spec": fields{"k": value, "field0001": fields{}, "field0002": fields{"value": 1<<53 + 1}},
			})
		}
		wantText(t, admin.Send(t, "POST", larges, large(first), json).Want(t, 201), first, "spec", "k")
		answer := admin.Send(t, "PATCH", larges+"/large", large(second), framework.MergePatch).Want(t, 200)
		wantText(t, answer, second, "spec", "k")
		if got := fmt.Sprint(answer.Field(t, "spec", "field0002", "value")); got != "9007199254740993" {
			t.Errorf("field0002.value = %s, want 9007199254740993", got)
		}
		admin.Send(t, "PATCH", larges+"/large", large(first), framework.ContentType("application/apply-patch+yaml"),
			framework.Query("fieldManager=me&force=true")).Want(t, 200)
		// Nothing of ours refuses what is too much for etcd.
		admin.Send(t, "PATCH", larges+"/large", large(text("3", maxBody-mib/2)), framework.MergePatch)
		admin.Send(t, "POST", larges, large(text("3", maxBody)), json).Want(t, 413)

		// This comes last: for a moment after it the resource is not served. Controllers of
		// the server write to the status meanwhile.
		framework.Eventually(t, "the definition is updated", func() error {
			version := quiet.Send(t, "GET", crd, "").Want(t, 200).String(t, "metadata", "resourceVersion")
			body := strings.Replace(largeCRD(t, "two"), `"metadata":{`, `"metadata":{"resourceVersion":"`+version+`",`, 1)
			answer := quiet.Send(t, "PUT", crd, body, json)
			if answer.Code != http.StatusOK {
				return fmt.Errorf("code %d: %.500s", answer.Code, answer.Body)
			}
			if got, want := description(answer), text("two", 380); got != want {
				t.Errorf("description = %q, want %q", got, want)
			}
			return nil
		})
	})
}

func TestSecretThroughMutatingWebhook(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin := s.Namespace(t), s.Admin(t)
		json := framework.ContentType(typeJSON)
		first, second, annotation, over := text("1", mib-100), text("2", mib-100), text("a", 200<<10), text("4", 4*mib)
		hideTexts(s, first, second, annotation, over)
		hook := framework.StartRecorder(t)
		c.RegisterMutating(t, "limits-secret", admissionregistrationv1.MutatingWebhook{
			Name: "secret.limits.trigate.test", ClientConfig: hook.ClientConfig("/"),
			Rules:                   framework.Rule("create,update", "", "v1", "secrets"),
			NamespaceSelector:       framework.InNamespace(ns),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		})
		change := func(patch ...fields) {
			answer := framework.JSONPatch(toJSON(t, patch))
			hook.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { return answer.DeepCopy() })
		}
		body := func(value string) string {
			return toJSON(t, fields{"apiVersion": "v1", "kind": "Secret", "metadata": fields{"name": "large"}, "data": fields{"k": []byte(value)}})
		}
		inBase64 := base64.StdEncoding.EncodeToString

		change(fields{"op": "add", "path": "/data/added", "value": inBase64([]byte("by the webhook"))},
			fields{"op": "add", "path": "/metadata/annotations", "value": fields{"large": annotation}})
		answer := admin.Send(t, "POST", core(ns, "secrets"), body(first), json).Want(t, 201)
		wantText(t, answer, inBase64([]byte(first)), "data", "k")
		wantText(t, answer, annotation, "metadata", "annotations", "large")
		wantText(t, admin.Send(t, "PUT", core(ns, "secrets/large"), body(second), json).Want(t, 200), inBase64([]byte(second)), "data", "k")
		for i, request := range hook.Take() {
			want := []string{first, second}[i]
			if !bytes.Contains(request.Object.Raw, []byte(inBase64([]byte(want)))) {
				t.Errorf("the webhook was sent another object (%d bytes) in request %d", len(request.Object.Raw), i)
			}
			if i == 1 && !bytes.Contains(request.OldObject.Raw, []byte(inBase64([]byte(first)))) {
				t.Errorf("the webhook was sent another old object (%d bytes)", len(request.OldObject.Raw))
			}
		}

		// What a webhook makes too large is invalid.
		change(fields{"op": "add", "path": "/data/added", "value": inBase64([]byte(over))})
		admin.Send(t, "PUT", core(ns, "secrets/large"), body(first), json).Want(t, 422)
		change(fields{"op": "add", "path": "/metadata/annotations", "value": fields{"large": text("a", 300<<10)}})
		admin.Send(t, "PUT", core(ns, "secrets/large"), body(first), json).Want(t, 422)
		// Also what is larger than any message that the services take.
		change(fields{"op": "add", "path": "/data/added", "value": inBase64([]byte(text("5", 17*mib)))})
		c.Admin(t).Send(t, "PUT", core(ns, "secrets/large"), body(first), json).Want(t, 422)
	})
}

// calls are the gRPC calls that the gateway has made to the services, without those
// for who is asking. Stock kube-apiserver makes none.
func calls(t *testing.T, admin *framework.Caller, packages ...string) float64 {
	t.Helper()
	var sum float64
	for line := range strings.Lines(string(admin.Send(t, "GET", "/metrics", "").Want(t, 200).Body)) {
		rest, ok := strings.CutPrefix(line, "trigate_grpc_client_handling_seconds_count{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		for _, p := range packages {
			if !strings.Contains(labels, "trigate."+p+".") {
				continue
			}
			count, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatalf("metric %s: %v", line, err)
			}
			sum += count
		}
	}
	return sum
}

func TestBodyOverThreeMebibytesIsRefusedByTheGateway(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin, quiet := s.Namespace(t), s.Admin(t), c.Admin(t)
		json := framework.ContentType(typeJSON)
		path := core(ns, "configmaps/c1")
		admin.Send(t, "POST", core(ns, "configmaps"), configMapOf(t, "c1", fields{"k": "v"}), json).Want(t, 201)
		if c.Name == framework.Trigate && calls(t, quiet, "admission") == 0 {
			t.Errorf("the gateway does not count its calls")
		}
		over := text("", maxBody)
		object := configMapOf(t, "c1", fields{"k": over})
		for _, request := range []struct {
			name, method, path, body string
			option                   framework.RequestOption
			packages                 []string
		}{
			{"create", "POST", core(ns, "configmaps"), object, json, []string{"admission"}},
			{"create from YAML", "POST", core(ns, "configmaps"), object, framework.ContentType("application/yaml"), []string{"admission"}},
			{"create from protobuf", "POST", core(ns, "configmaps"), object, asProtobuf, []string{"admission"}},
			{"update", "PUT", path, object, json, []string{"admission"}},
			{"merge patch", "PATCH", path, object, framework.MergePatch, []string{"admission"}},
			{"strategic patch", "PATCH", path, object, framework.StrategicPatch, []string{"admission"}},
			{"JSON patch", "PATCH", path, `[{"op":"add","path":"/data/k","value":"` + over + `"}]`, framework.JSONPatchType, []string{"admission"}},
			{"apply", "PATCH", path + "?fieldManager=me", object, framework.ContentType("application/apply-patch+yaml"), []string{"admission"}},
			{"delete", "DELETE", path, toJSON(t, fields{"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": []string{over}}), json, []string{"admission"}},
			{"token review", "POST", tokenReviews, toJSON(t, fields{
				"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
				"spec": fields{"token": over},
			}), json, []string{"admission", "authn"}},
			{"access review", "POST", subjectAccessReviews, toJSON(t, fields{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
				"spec": fields{"user": over, "nonResourceAttributes": fields{"path": "/", "verb": "get"}},
			}), json, []string{"admission"}},
		} {
			admin.Send(t, request.method, request.path, request.body, request.option).Want(t, 413)
			// Controllers make calls too, but not all the time.
			framework.Eventually(t, request.name+" makes no gRPC message", func() error {
				before := calls(t, quiet, request.packages...)
				quiet.Send(t, request.method, request.path, request.body, request.option).Want(t, 413)
				if after := calls(t, quiet, request.packages...); after != before {
					return fmt.Errorf("there were %v calls in its time", after-before)
				}
				return nil
			})
		}

		// A little less passes admission, and it is the resource that says no.
		under := configMapOf(t, "c1", fields{"k": text("", maxBody-200)})
		admin.Send(t, "POST", core(ns, "configmaps"), strings.Replace(under, "c1", "c2", 1), json).Want(t, 422)
		admin.Send(t, "PUT", path, under, json).Want(t, 422)
		admin.Send(t, "GET", path, "").Want(t, 200)
	})
}
