package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
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
		hook := framework.StartWebhook(t, onReview(func(w http.ResponseWriter, req *http.Request, uid string) {
			w.Header().Set("Content-Type", "application/json")
			name := strings.TrimPrefix(req.URL.Path, "/")
			answers[strings.TrimSuffix(strings.TrimPrefix(name, "v-"), "-ignore")](w, uid)
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

// onReview hands the uid of each request for a review to answer.
func onReview(answer func(w http.ResponseWriter, req *http.Request, uid string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, fmt.Sprintf("a review cannot be read: %v", err), http.StatusBadRequest)
			return
		}
		answer(w, req, string(review.Request.UID))
	})
}

// Upstream reads an answer to its end, however long it is. What it shows of one may
// have a limit: warnings are cut, and a refusal is not.
func TestWebhooksThatAnswerAtLength(t *testing.T) {
	const ok = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":%t%s}}`
	long := strings.Repeat("long", 5<<18)  // 5 MiB: more than gRPC lets pass by default
	huge := strings.Repeat("huge", 17<<18) // 17 MiB: more than the gates let pass
	data := func(value string) []byte { return []byte(`{"op":"add","path":"/data","value":{"a":"` + value + `"}}`) }
	patch := func(operations ...[]byte) string {
		whole := slices.Concat([]byte("["), bytes.Join(operations, []byte(",")), []byte("]"))
		return `,"patchType":"JSONPatch","patch":"` + base64Of(whole) + `"`
	}
	cases := []struct {
		name                 string
		answer               func(uid string) string
		mutating, validating int // the codes; what is 500 passes if failures are ignored
	}{
		{"warning-long", func(uid string) string { return fmt.Sprintf(ok, uid, true, `,"warnings":["`+long+`"]`) }, 201, 201},
		{"warning-huge", func(uid string) string { return fmt.Sprintf(ok, uid, true, `,"warnings":["`+huge+`","short"]`) }, 201, 201},
		{"more-long", func(uid string) string { return fmt.Sprintf(ok, uid, true, `,"more":"`+long+`"`) }, 201, 201},
		{"blanks-long", func(uid string) string { return fmt.Sprintf(ok, uid, true, strings.Repeat(" ", len(long))) }, 201, 201},
		{"denial-long", func(uid string) string { return fmt.Sprintf(ok, uid, false, `,"status":{"message":"`+long+`"}`) }, 400, 400},
		{"patch-long", func(uid string) string { return fmt.Sprintf(ok, uid, true, patch(data(long))) }, 422, 500},
		{"patch-undone", func(uid string) string { return fmt.Sprintf(ok, uid, true, patch(data(long), data(""))) }, 201, 500},
		{"no-json-long", func(string) string { return long }, 500, 500},
		{"code-500-long", func(string) string { return long }, 500, 500},
		{"unfinished-long", func(uid string) string {
			return strings.TrimRight(fmt.Sprintf(ok, uid, true, `,"more":"`+long+`"`), "}")
		}, 500, 500},
	}
	afterFailure := func(policy string, code int) int {
		if policy == "ignore" && code == 500 {
			return 201
		}
		return code
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		hook := framework.StartWebhook(t, onReview(func(w http.ResponseWriter, req *http.Request, uid string) {
			for _, tc := range cases {
				if strings.Contains(req.URL.Path, tc.name) {
					if tc.name == "code-500-long" {
						w.WriteHeader(http.StatusInternalServerError)
					}
					_, _ = io.WriteString(w, tc.answer(uid))
				}
			}
		}))
		var names []string
		for _, tc := range cases {
			names = append(names, tc.name)
		}
		registerForPolicies(t, c, hook, ns, "trigate-test-length", names)
		for i, tc := range cases {
			for j, policy := range []string{"fail", "ignore"} {
				suffix := tc.name + "-" + policy
				mutating := admin.Send(t, "POST", core(ns, "configmaps"), caseMap("m-"+suffix)).Want(t, afterFailure(policy, tc.mutating))
				validating := admin.Send(t, "POST", core(ns, "configmaps"), caseMap("v-"+suffix)).Want(t, afterFailure(policy, tc.validating))
				if policy == "ignore" && tc.mutating == 500 {
					mutating.WantAnnotation(t, fmt.Sprintf("failed-open.mutation.webhook.admission.k8s.io/round_0_index_%d", 2*i+j), "m-"+suffix+".trigate.test")
				}
				if policy == "ignore" && tc.validating == 500 {
					validating.WantAnnotation(t, "failed-open.validating.webhook.admission.k8s.io/round_0_index_0", "v-"+suffix+".trigate.test")
				}
				switch tc.name {
				case "warning-long":
					mutating.WantWarnings(t, long[:256])
					validating.WantWarnings(t, long[:256])
				case "warning-huge":
					mutating.WantWarnings(t, huge[:256], "short")
					validating.WantWarnings(t, huge[:256], "short")
				}
			}
		}
	})
}

// registerForPolicies registers hook for each name and both failure policies, as a
// mutating webhook, of a name with m- before it, and as a validating one, with v-.
func registerForPolicies(t *testing.T, c *framework.Cluster, hook *framework.Webhook, ns, configuration string, names []string) {
	t.Helper()
	var mutatingHooks []admissionregistrationv1.MutatingWebhook
	var validatingHooks []admissionregistrationv1.ValidatingWebhook
	for _, name := range names {
		for _, policy := range []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore} {
			suffix := name + "-" + strings.ToLower(string(policy))
			m, v := hook.Mutating("m-"+suffix, ns, configMaps), hook.Validating("v-"+suffix, ns, configMaps)
			m.ObjectSelector, m.FailurePolicy = forCase("m-"+suffix), &policy
			v.ObjectSelector, v.FailurePolicy = forCase("v-"+suffix), &policy
			mutatingHooks, validatingHooks = append(mutatingHooks, m), append(validatingHooks, v)
		}
	}
	c.RegisterMutating(t, configuration, mutatingHooks...)
	c.RegisterValidating(t, configuration, validatingHooks...)
}

func TestWebhooksThatBreakOff(t *testing.T) {
	const (
		cut    = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true}}`
		unread = "unexpected error when reading response body. Please retry. Original error: unexpected EOF"
	)
	// What is sent before the connection ends, and what is said of that.
	cases := []struct{ name, sent, message string }{
		// The review is all there: only the length says that more was to come.
		{"whole", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n" + cut, unread},
		{"half", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n" + cut[:60], unread},
		{"empty", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n", unread},
		{"chunk", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + cut, unread},
		{"code-503", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4096\r\n\r\nbroken", unread},
		{"headers", "HTTP/1.1 200 OK\r\nContent-Type: appl", "unexpected EOF"},
		{"silent", "", "EOF"},
	}
	framework.Compare(t, func(t *testing.T, c *framework.Cluster, s *framework.Transcript) {
		admin := s.Admin(t)
		ns := s.Namespace(t)
		var asked atomic.Int64
		hook := framework.StartWebhook(t, onReview(func(w http.ResponseWriter, req *http.Request, uid string) {
			asked.Add(1)
			connection, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			for _, tc := range cases {
				if strings.Contains(req.URL.Path, "-"+tc.name+"-") {
					_, _ = io.WriteString(connection, strings.ReplaceAll(tc.sent, "%s", uid))
				}
			}
			_ = connection.Close()
		}))
		var names []string
		for _, tc := range cases {
			names = append(names, tc.name)
		}
		registerForPolicies(t, c, hook, ns, "trigate-test-break-off", names)
		for i, tc := range cases {
			for _, kind := range []string{"m", "v"} {
				name := kind + "-" + tc.name + "-fail"
				failed := admin.Send(t, "POST", core(ns, "configmaps"), caseMap(name)).Want(t, 500)
				if reason := failed.String(t, "reason"); reason != string(metav1.StatusReasonInternalError) {
					t.Errorf("%s: got reason %q, want %q", name, reason, metav1.StatusReasonInternalError)
				}
				message := failed.String(t, "message")
				called := `Internal error occurred: failed calling webhook "` + name + `.trigate.test": failed to call webhook: `
				if !strings.HasPrefix(message, called) || !strings.HasSuffix(message, tc.message) {
					t.Errorf("%s: got message\n%s\nwant\n%s…%s", name, message, called, tc.message)
				}
				c.Admin(t).Send(t, "GET", core(ns, "configmaps/"+name), "").Want(t, 404)

				name = kind + "-" + tc.name + "-ignore"
				// Of mutating webhooks all are counted, of validating ones those that are called.
				annotation := fmt.Sprintf("failed-open.mutation.webhook.admission.k8s.io/round_0_index_%d", 2*i+1)
				if kind == "v" {
					annotation = "failed-open.validating.webhook.admission.k8s.io/round_0_index_0"
				}
				admin.Send(t, "POST", core(ns, "configmaps"), caseMap(name)).Want(t, 201).WantAnnotation(t, annotation, name+".trigate.test")
			}
		}
		// Nobody asks again who has had the request.
		if got, want := asked.Load(), int64(len(cases)*4); got != want {
			t.Errorf("the webhook was asked %d times, want %d", got, want)
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
