package admission

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/trigate/trigate/deploy/pki"
	"github.com/trigate/trigate/deploy/test/framework"
)

// forCase has a webhook called only for objects that say so.
func forCase(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"case": name}}
}

// caseMap is a ConfigMap that says so.
func caseMap(name string) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", labels: {case: " + name + "}}}"
}

func TestFailurePolicyDecidesWhenAWebhookCannotBeCalled(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		closed := &framework.Webhook{URL: "https://" + closedAddress(t)}
		hook := framework.StartRecorder(t)
		distrusted := &framework.Webhook{URL: hook.URL, CABundle: foreignAuthority(t, c)}
		service, idle := &framework.Webhook{}, &framework.Webhook{}
		behindServices := map[*framework.Webhook]string{service: "nowhere", idle: "idle"}
		// One that has no endpoints: it is those that are called.
		admin.Send(t, "POST", core(ns, "services"), "{apiVersion: v1, kind: Service, metadata: {name: idle}, spec: {ports: [{port: 443}]}}").Want(t, 201)

		var mutatingHooks []admissionregistrationv1.MutatingWebhook
		var validatingHooks []admissionregistrationv1.ValidatingWebhook
		for _, policy := range []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore} {
			suffix := "-" + strings.ToLower(string(policy))
			webhooks := map[string]*framework.Webhook{"closed": closed, "distrusted": distrusted, "service": service, "idle": idle}
			for name := range sorted(webhooks) {
				webhook := webhooks[name]
				m := webhook.Mutating("m-"+name+suffix, ns, configMaps)
				m.ObjectSelector, m.FailurePolicy = forCase("m-"+name+suffix), &policy
				v := webhook.Validating("v-"+name+suffix, ns, configMaps)
				v.ObjectSelector, v.FailurePolicy = forCase("v-"+name+suffix), &policy
				if behind, ok := behindServices[webhook]; ok {
					reference := &admissionregistrationv1.ServiceReference{Namespace: ns, Name: behind, Port: ptr.To[int32](443)}
					m.ClientConfig = admissionregistrationv1.WebhookClientConfig{Service: reference}
					v.ClientConfig = m.ClientConfig
				}
				mutatingHooks, validatingHooks = append(mutatingHooks, m), append(validatingHooks, v)
			}
		}
		// The longest that a webhook may take is in the URL that is called.
		mutatingHooks[0].TimeoutSeconds = ptr.To[int32](30)
		c.RegisterMutating(t, "trigate-test-failure", mutatingHooks...)
		c.RegisterValidating(t, "trigate-test-failure", validatingHooks...)

		framework.Eventually(t, "the Service to be known", func() error {
			answer := c.Admin(t).Send(t, "POST", core(ns, "configmaps")+"?dryRun=All", caseMap("m-idle-fail"))
			if message := answer.String(t, "message"); !strings.Contains(message, "no endpoints available") {
				return fmt.Errorf("got message %q, want that it has no endpoints", message)
			}
			return nil
		})

		for _, kind := range []string{"m", "v"} {
			for _, name := range []string{"closed", "distrusted", "service", "idle"} {
				admin.Send(t, "POST", core(ns, "configmaps"), caseMap(kind+"-"+name+"-fail")).Want(t, 500)
				admin.Send(t, "POST", core(ns, "configmaps"), caseMap(kind+"-"+name+"-ignore")).Want(t, 201)
			}
		}
		if taken := hook.Take(); len(taken) != 0 {
			t.Errorf("a webhook with a certificate of another authority was asked: %v", taken)
		}
	})
}

func TestWebhooksHaveTheTimeTheyWereGiven(t *testing.T) {
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		asked := make(chan time.Duration, 10)
		slow := framework.StartWebhook(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body) // so that the end of the connection is seen
			start := time.Now()
			<-req.Context().Done() // the caller has given up
			asked <- time.Since(start)
		}))
		fail, ignore := slow.Mutating("slow-fail", ns, configMaps), slow.Mutating("slow-ignore", ns, configMaps)
		fail.ObjectSelector, fail.TimeoutSeconds = forCase("slow-fail"), ptr.To[int32](1)
		ignore.ObjectSelector, ignore.TimeoutSeconds, ignore.FailurePolicy = forCase("slow-ignore"), ptr.To[int32](1), ptr.To(admissionregistrationv1.Ignore)
		validate := slow.Validating("slow-validate", ns, configMaps)
		validate.ObjectSelector, validate.TimeoutSeconds = forCase("slow-validate"), ptr.To[int32](2)
		c.RegisterMutating(t, "trigate-test-slow", fail, ignore)
		c.RegisterValidating(t, "trigate-test-slow", validate)

		failed := admin.Send(t, "POST", core(ns, "configmaps"), caseMap("slow-fail")).Want(t, 500)
		wantLatency(t, failed, "apiserver.latency.k8s.io/mutating-webhook", time.Second)
		if want := "context deadline exceeded"; !strings.Contains(failed.String(t, "message"), want) {
			t.Errorf("got message %q, want it to say %q", failed.String(t, "message"), want)
		}
		admin.Send(t, "POST", core(ns, "configmaps"), caseMap("slow-ignore")).Want(t, 201).
			WantAnnotation(t, "failed-open.mutation.webhook.admission.k8s.io/round_0_index_1", "slow-ignore.trigate.test")
		failed = admin.Send(t, "POST", core(ns, "configmaps"), caseMap("slow-validate")).Want(t, 500)
		wantLatency(t, failed, "apiserver.latency.k8s.io/validating-webhook", 2*time.Second)
		for _, want := range []time.Duration{time.Second, time.Second, 2 * time.Second} {
			if took := <-asked; took < want/2 || took > want+5*time.Second {
				t.Errorf("a webhook was given %v, want %v", took, want)
			}
		}
	})
}

// wantLatency wants an audit annotation to say that a request waited, for as long as
// a webhook was given.
func wantLatency(t *testing.T, answer *framework.Answer, key string, want time.Duration) {
	t.Helper()
	got, err := time.ParseDuration(answer.Audit.Annotations[key])
	if err != nil || got < want/2 || got > want+5*time.Second {
		t.Errorf("the annotation %s says %v (%v), want %v", key, got, err, want)
	}
}

func TestRequestsEndInTimeWhateverWebhooksDo(t *testing.T) {
	framework.Both(t, func(t *testing.T, c *framework.Cluster) {
		ns := c.Namespace(t)
		slow := framework.StartWebhook(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			<-req.Context().Done()
		}))
		hook := slow.Validating("slow", ns, configMaps)
		hook.TimeoutSeconds = ptr.To[int32](30)
		c.RegisterValidating(t, "trigate-test-in-time", hook)
		start := time.Now()
		answer := c.Admin(t).Send(t, "POST", core(ns, "configmaps")+"?timeout=2s", configMap)
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("the request took %v, want 2s", took)
		}
		// The webhook's end and the request's are one moment, so that either is told.
		if answer.Code != 504 && answer.Code != 500 {
			t.Errorf("got code %d, want 504 or 500; the answer was %s", answer.Code, answer.Body)
		}
		c.Admin(t).Send(t, "GET", core(ns, "configmaps/c1"), "").Want(t, 404)
	})
}

func TestWebhooksThatAnswerNonsense(t *testing.T) {
	const ok = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true%s}}`
	answers := map[string]func(w http.ResponseWriter, uid string){
		"right":    func(w http.ResponseWriter, uid string) { fmt.Fprintf(w, ok, uid, "") },
		"code-500": func(w http.ResponseWriter, uid string) { http.Error(w, "broken", 500) },
		"code-400": func(w http.ResponseWriter, uid string) { http.Error(w, "broken", 400) },
		"code-201": func(w http.ResponseWriter, uid string) { w.WriteHeader(201); fmt.Fprintf(w, ok, uid, "") },
		"code-204": func(w http.ResponseWriter, uid string) { w.WriteHeader(204) },
		"redirect": func(w http.ResponseWriter, uid string) { w.Header().Set("Location", "/right"); w.WriteHeader(302) },
		"retry-after": func(w http.ResponseWriter, uid string) {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "later", http.StatusServiceUnavailable)
		},
		"empty":      func(w http.ResponseWriter, uid string) {},
		"no-json":    func(w http.ResponseWriter, uid string) { fmt.Fprint(w, "nonsense") },
		"json-null":  func(w http.ResponseWriter, uid string) { fmt.Fprint(w, "null") },
		"other-kind": func(w http.ResponseWriter, uid string) { fmt.Fprint(w, `{"apiVersion":"v1","kind":"Pod"}`) },
		"other-version": func(w http.ResponseWriter, uid string) {
			fmt.Fprintf(w, strings.Replace(ok, "/v1", "/v1beta1", 1), uid, "")
		},
		"status": func(w http.ResponseWriter, uid string) {
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","message":"no","code":409}`)
		},
		"other-uid": func(w http.ResponseWriter, uid string) { fmt.Fprintf(w, ok, "mine", "") },
		"no-response": func(w http.ResponseWriter, uid string) {
			fmt.Fprint(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`)
		},
		"patch-untyped": func(w http.ResponseWriter, uid string) { fmt.Fprintf(w, ok, uid, `,"patch":"W10="`) },
		"patch-other-type": func(w http.ResponseWriter, uid string) {
			fmt.Fprintf(w, ok, uid, `,"patch":"W10=","patchType":"MergePatch"`)
		},
		"type-unpatched": func(w http.ResponseWriter, uid string) { fmt.Fprintf(w, ok, uid, `,"patchType":"JSONPatch"`) },
		"patch-not-base64": func(w http.ResponseWriter, uid string) {
			fmt.Fprintf(w, ok, uid, `,"patch":"[]","patchType":"JSONPatch"`)
		},
		"wrong-type": func(w http.ResponseWriter, uid string) { fmt.Fprintf(w, ok, uid, `,"warnings":"text"`) },
		"allowed-with-code": func(w http.ResponseWriter, uid string) {
			fmt.Fprintf(w, ok, uid, `,"status":{"code":403,"message":"m"}`)
		},
		"more-fields": func(w http.ResponseWriter, uid string) { fmt.Fprintf(w, ok, uid, `,"more":{"a":[1]}`) },
		"annotations": func(w http.ResponseWriter, uid string) {
			fmt.Fprintf(w, ok, uid, `,"auditAnnotations":{"":"empty","a b":"blank","ü":"ü","ok":"x"}`)
		},
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartWebhook(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			var review admissionv1.AdmissionReview
			if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			name := strings.TrimPrefix(req.URL.Path, "/")
			answers[strings.TrimSuffix(strings.TrimPrefix(name, "v-"), "-ignore")](w, string(review.Request.UID))
		}))
		var mutatingHooks []admissionregistrationv1.MutatingWebhook
		var validatingHooks []admissionregistrationv1.ValidatingWebhook
		for name := range sorted(answers) {
			fail, ignore := hook.Mutating(name, ns, configMaps), hook.Mutating(name+"-ignore", ns, configMaps)
			fail.ObjectSelector, ignore.ObjectSelector = forCase(name), forCase(name+"-ignore")
			ignore.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
			mutatingHooks = append(mutatingHooks, fail, ignore)
			validate := hook.Validating("v-"+name, ns, configMaps)
			validate.ObjectSelector = forCase("v-" + name)
			validatingHooks = append(validatingHooks, validate)
		}
		c.RegisterMutating(t, "trigate-test-nonsense", mutatingHooks...)
		c.RegisterValidating(t, "trigate-test-nonsense", validatingHooks...)
		good := []string{"right", "code-201", "allowed-with-code", "more-fields", "annotations"}
		for name := range sorted(answers) {
			want := 500
			if slices.Contains(good, name) {
				want = 201
			}
			admin.Send(t, "POST", core(ns, "configmaps"), caseMap("v-"+name)).Want(t, want)
			if name == "patch-other-type" {
				want = 201 // the patch is empty, whatever its type
			}
			admin.Send(t, "POST", core(ns, "configmaps"), caseMap(name)).Want(t, want)
			admin.Send(t, "POST", core(ns, "configmaps"), caseMap(name+"-ignore")).Want(t, 201)
		}
	})
}

// foreignAuthority is a certificate that signs no webhook's.
func foreignAuthority(t *testing.T, c *framework.Cluster) []byte {
	t.Helper()
	bundle, err := os.ReadFile(c.PKI.Cert(pki.FrontProxyCA))
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

// closedAddress is an address that nobody listens on.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
