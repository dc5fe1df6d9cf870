package limits

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/test/framework"
)

// escaped are odd strings as parts of paths and queries, and some that only an escape
// can bring there.
func escaped() []string {
	parts := []string{"%00", "%0A", "%2e", "%2e%2e", "%2Fa", "a%20b", ";", "+", "%3Fa=b"}
	for _, s := range []string{"zoë", "😀", "\ufffd", `"<&>\'`, "\xff", "a\xc3", "\xed\xa0\x80", "%", "%ff", "100%\xff", "a/b", "*"} {
		parts = append(parts, url.PathEscape(s))
	}
	return parts
}

// sendRaw sends a request whose path net/url may refuse to read. They are many,
// and their audit events are not waited for.
func sendRaw(t *testing.T, who *framework.Caller, method, path, body string, options ...framework.RequestOption) *framework.Answer {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	return who.Send(t, method, "", body, append([]framework.RequestOption{func(req *http.Request) {
		req.URL.Opaque, req.URL.RawQuery = "//"+req.URL.Host+path, query
		req.Header.Del("Audit-ID")
	}}, options...)...)
}

func TestOddPaths(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		c.Grant(t, framework.Grant{Name: "limits-paths", User: "reader", Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, NonResourceURLs: []string{"/granted/*"}},
		}})
		admin, jane, reader := s.Admin(t), s.As(t, c.User(t, "jane")), s.As(t, c.User(t, "reader"))
		for _, odd := range escaped() {
			for _, path := range []string{
				"/" + odd, "/api/" + odd, "/api/v1/" + odd, "/api/v1/namespaces/" + odd, "/apis/" + odd + "/v1/things",
				"/apis/apps/" + odd + "/deployments", core(odd, "configmaps"), core(ns, odd), core(ns, "configmaps/"+odd),
				core(ns, "pods/"+odd+"/log"), core(ns, "pods/none/"+odd), core(ns, "services/"+odd+"/proxy/"+odd+"?"+odd+"="+odd),
				"/healthz/" + odd, "/metrics/" + odd, "/openapi/v3/" + odd, "/version/" + odd, "/granted/" + odd,
			} {
				sendRaw(t, admin, "GET", path, "")
				sendRaw(t, jane, "GET", path, "")
			}
			sendRaw(t, reader, "GET", "/granted/"+odd, "")
		}
		reader.Send(t, "GET", "/granted/%ff", "").Want(t, 404)
		reader.Send(t, "GET", "/granteD/%ff", "").WantMessage(t, 403, `forbidden: User "reader" cannot get path "/granteD/\xff"`)
		jane.Send(t, "GET", core("%ff", "configmaps/%fe"), "").WantMessage(t, 403,
			`configmaps "\xfe" is forbidden: User "jane" cannot get resource "configmaps" in API group "" in the namespace "\xff"`)
	})
}

func TestWritesToOddPaths(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin := s.Namespace(t), s.Admin(t)
		const (
			configMap = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1}}"
			nameless  = "{apiVersion: v1, kind: ConfigMap}"
		)
		for _, odd := range escaped() {
			object := core(ns, "configmaps/"+odd)
			sendRaw(t, admin, "POST", core(odd, "configmaps"), configMap)
			sendRaw(t, admin, "PUT", object, nameless)
			sendRaw(t, admin, "PUT", object, configMap)
			sendRaw(t, admin, "PATCH", object, "{data: {a: b}}", framework.MergePatch)
			sendRaw(t, admin, "PATCH", object+"?fieldManager=me", nameless, framework.ServerSideApply)
			sendRaw(t, admin, "PATCH", core(odd, "configmaps/c1")+"?fieldManager=me", configMap, framework.ServerSideApply)
			sendRaw(t, admin, "DELETE", core(ns, "secrets/"+odd), "")
			sendRaw(t, admin, "DELETE", core(odd, "secrets"), "")
			sendRaw(t, admin, "DELETE", "/api/v1/namespaces/"+odd, "")
			sendRaw(t, admin, "POST", core(ns, "serviceaccounts/"+odd+"/token"), "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest}")
			sendRaw(t, admin, "POST", core(ns, "pods/"+odd+"/eviction"), "{apiVersion: policy/v1, kind: Eviction}")
			sendRaw(t, admin, "POST", core(ns, "pods/"+odd+"/exec?command="+odd), "")
			sendRaw(t, admin, "POST", core(ns, "services/"+odd+"/proxy/"+odd), "")
			sendRaw(t, admin, "POST", "/api/v1/nodes/"+odd+"/proxy/"+odd, "")
		}
		admin.Send(t, "POST", core("%ff", "configmaps"), configMap).WantMessage(t, 404, `namespaces "\xff" not found`)
	})
}

func TestOddQueries(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns := s.Namespace(t)
		c.Grant(t, framework.Grant{Name: "limits-queries", User: "reader", Namespace: ns, Rules: []rbacv1.PolicyRule{
			framework.May("list,deletecollection", "", "secrets"),
		}})
		admin, jane, reader := s.Admin(t), s.As(t, c.User(t, "jane")), s.As(t, c.User(t, "reader"))
		for _, odd := range append(escaped(), "%", "%f", "%zz", strings.Repeat("%ff", 50<<10)) {
			odd = strings.ReplaceAll(odd, "&", "%26")
			for _, query := range []string{
				"labelSelector=" + odd, "labelSelector=a=" + odd, "labelSelector=" + odd + "=a", "labelSelector=a+in+(" + odd + ")",
				"fieldSelector=" + odd, "fieldSelector=metadata.name=" + odd, "fieldSelector=metadata.namespace=" + odd, "fieldSelector=" + odd + "=a",
			} {
				sendRaw(t, reader, "GET", core(ns, "secrets")+"?"+query, "")
			}
			sendRaw(t, jane, "GET", core(ns, "secrets")+"?labelSelector="+odd, "")
			for _, query := range []string{"continue=" + odd, "resourceVersion=" + odd, "limit=" + odd, odd + "=a", "pretty=" + odd} {
				sendRaw(t, admin, "GET", core(ns, "secrets")+"?"+query, "")
			}
			sendRaw(t, reader, "DELETE", core(ns, "secrets")+"?labelSelector=a="+odd, "")
			sendRaw(t, reader, "DELETE", core(ns, "secrets")+"?propagationPolicy="+odd, "")
			sendRaw(t, admin, "POST", core(ns, "configmaps")+"?dryRun="+odd, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1}}")
			sendRaw(t, admin, "POST", core(ns, "configmaps")+"?fieldValidation="+odd, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1}}")
			sendRaw(t, admin, "POST", core(ns, "pods/none/exec?command="+odd+"&container="+odd), "")
		}
		reader.Send(t, "GET", core(ns, "secrets")+"?labelSelector=a%3D%ff", "").Want(t, 400)
		reader.Send(t, "GET", core(ns, "secrets")+"?fieldSelector=metadata.name%3D%ff", "").Want(t, 200)
	})
}

// TestOddFieldManagers wants the options of a request to reach admission, and its
// webhooks, as they are.
func TestOddFieldManagers(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin, quiet := s.Namespace(t), s.Admin(t), c.Admin(t)
		hook := framework.StartRecorder(t)
		c.RegisterValidating(t, "limits-managers", validating(hook.Webhook, ns))
		for i, odd := range oddStrings {
			name := fmt.Sprintf("c-%d", i)
			configMap := "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}, data: {a: b}}"
			query := framework.Query("fieldManager=" + url.QueryEscape(odd))
			code := admin.Send(t, "POST", core(ns, "configmaps"), configMap, query).Code
			admin.Send(t, "PATCH", core(ns, "configmaps/"+name), configMap, query, framework.ServerSideApply)
			admin.Send(t, "PATCH", core(ns, "configmaps/"+name), "{data: {a: c}}", framework.MergePatch, framework.Header("User-Agent", odd+"/1.0"))
			s.Say("webhook for the manager", hook.Take())
			if code != http.StatusCreated {
				continue
			}
			var object corev1.ConfigMap
			fromProtobuf(t, quiet.Send(t, "GET", core(ns, "configmaps/"+name), "", acceptProtobuf).Want(t, 200), &object)
			if got := object.ManagedFields[0].Manager; got != asJSON(odd) {
				t.Errorf("the manager %+q is kept as %+q", asJSON(odd), got)
			}
			for _, entry := range object.ManagedFields {
				s.Say("manager", fmt.Sprintf("%+q %s", entry.Manager, entry.Operation))
			}
		}
	})
}

// TestOddContents wants all strings of objects to pass admission as they are.
func TestOddContents(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin, quiet := s.Namespace(t), s.Admin(t), c.Admin(t)
		hook := framework.StartRecorder(t)
		hook.Decide(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if r.Operation == admissionv1.Create {
				return framework.JSONPatch(`[{"op":"add","path":"/metadata/annotations/hooked","value":"zoë"}]`)
			}
			return framework.Pass(r)
		})
		webhook := admissionregistrationv1.MutatingWebhook{
			Name: "contents.limits.trigate.test", ClientConfig: hook.ClientConfig("/"),
			Rules:                   framework.Rule("*", "", "v1", "configmaps"),
			NamespaceSelector:       framework.InNamespace(ns),
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"hooked": "yes"}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}
		c.RegisterMutating(t, "limits-contents", webhook)
		for i, odd := range append([]string{"\x00", "\x7f", "\n", "\u2028"}, oddStrings...) {
			for _, hooked := range []string{"no", "yes"} {
				object := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{
						Name: fmt.Sprintf("c-%d-%s", i, hooked), Labels: map[string]string{"hooked": hooked},
						Annotations: map[string]string{"a": odd},
					},
					Data: map[string]string{"k": odd},
				}
				code := admin.Send(t, "POST", core(ns, "configmaps"), inProtobuf(t, object), asProtobuf).Want(t, 201).Code
				s.Say("webhook", hook.Take())
				var got corev1.ConfigMap
				path := core(ns, "configmaps/"+object.Name)
				check := func() {
					t.Helper()
					fromProtobuf(t, quiet.Send(t, "GET", path, "", acceptProtobuf).Want(t, 200), &got)
					s.Say("object", asTheyAre([]any{got.Data, got.Annotations, code}))
					if want := odd; hooked == "no" && (got.Data["k"] != want || got.Annotations["a"] != want) {
						t.Errorf("%+q is kept as %+q and %+q", want, got.Data["k"], got.Annotations["a"])
					}
				}
				check()
				// The odd string is in the old object as well.
				admin.Send(t, "PATCH", path, `{"data":{"more":"x"}}`, framework.StrategicPatch).Want(t, 200)
				check2 := got.DeepCopy()
				fromProtobuf(t, quiet.Send(t, "GET", path, "", acceptProtobuf).Want(t, 200), check2)
				s.Say("patched object", asTheyAre([]any{check2.Data, check2.Annotations}))
				s.Say("webhook", hook.Take())
				// Labels are not as free as annotations.
				object.Labels["odd"] = odd
				object.Name = "l-" + object.Name
				admin.Send(t, "POST", core(ns, "configmaps"), inProtobuf(t, object), asProtobuf)
				object.Labels = map[string]string{"hooked": hooked, odd: "odd"}
				object.Name = "k-" + object.Name
				admin.Send(t, "POST", core(ns, "configmaps"), inProtobuf(t, object), asProtobuf)
				s.Say("webhook", hook.Take())
			}
			// In JSON and YAML the bytes are what they are.
			raw := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"` + odd + `","name":"j-` + fmt.Sprint(i) + `","annotations":{"a":"` + odd + `"}}}`
			admin.Send(t, "POST", core(ns, "configmaps"), raw, framework.ContentType(typeJSON))
			admin.Send(t, "POST", core(ns, "configmaps"), strings.Replace(raw, `"j-`, `"y-`, 1), framework.ContentType("application/yaml"))
			named := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: odd, Namespace: odd}}
			admin.Send(t, "POST", core(ns, "configmaps"), inProtobuf(t, named), asProtobuf)
			named.Namespace = ""
			admin.Send(t, "POST", core(ns, "configmaps"), inProtobuf(t, named), asProtobuf)
			admin.Send(t, "POST", "/api/v1/namespaces", inProtobuf(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: odd}}), asProtobuf)
		}
	})
}

// TestOddPods wants the same of a type that many plugins read and change.
func TestOddPods(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		ns, admin := s.Namespace(t), s.Admin(t)
		for i, odd := range oddStrings {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", i), Annotations: map[string]string{"a": odd}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Image: "example.com/image:1", Command: []string{odd}, Args: []string{odd, ""},
					Env: []corev1.EnvVar{{Name: "A", Value: odd}},
				}}},
			}
			admin.Send(t, "POST", core(ns, "pods"), inProtobuf(t, pod), asProtobuf).Want(t, 201)
			var got corev1.Pod
			fromProtobuf(t, c.Admin(t).Send(t, "GET", core(ns, "pods/"+pod.Name), "", acceptProtobuf).Want(t, 200), &got)
			container := got.Spec.Containers[0]
			if container.Command[0] != odd || container.Args[0] != odd || container.Env[0].Value != odd || got.Annotations["a"] != odd {
				t.Errorf("%+q is kept as %s", odd, asTheyAre(got.Spec))
			}
			pod.Name, pod.Spec.ServiceAccountName = pod.Name+"-account", odd
			admin.Send(t, "POST", core(ns, "pods"), inProtobuf(t, pod), asProtobuf)
			pod.Name, pod.Spec.ServiceAccountName, pod.Spec.PriorityClassName = pod.Name+"-priority", "", odd
			admin.Send(t, "POST", core(ns, "pods"), inProtobuf(t, pod), asProtobuf)
		}
	})
}
