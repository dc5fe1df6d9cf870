// Package tracing tests that what a request causes in all processes is one trace.
package tracing

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	admissionv1 "k8s.io/api/admission/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

// The processes, as their spans name them. Upstream names the API server.
const (
	gateway   = "apiserver"
	authz     = "trigate-authz"
	admission = "trigate-admission"
)

// traced starts Trigate with every process sending its spans to the collector.
func traced(t *testing.T, spans *collector) *framework.Cluster {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	content := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: 1000000\n", spans.address)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, process := range []string{"gateway", "authn", "authz", "admission"} {
		args = append(args, "--"+process+"-arg=--tracing-config-file="+file)
	}
	return framework.StartTrigate(t, framework.TrigateOptions{Args: args})
}

// headers keeps the traceparents with which a webhook was called.
type headers struct {
	mu   sync.Mutex
	seen []string
}

func (h *headers) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = nil
	return seen
}

func (h *headers) keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.seen = append(h.seen, r.Header.Get("traceparent"))
		h.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

func TestOneApplyIsOneTrace(t *testing.T) {
	spans := startCollector(t)
	c := traced(t, spans)
	ns := c.Namespace(t)
	var seen headers
	hook := framework.StartWebhook(t, seen.keep(framework.Admission(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return framework.JSONPatch(`[{"op":"add","path":"/data/hooked","value":"yes"}]`)
	})))
	c.RegisterMutating(t, "trigate-test-traced", hook.Mutating("traced", ns, framework.Rule("create", "", "v1", "configmaps")))

	// The administrator is asked nobody about; this service account is.
	c.Grant(t, framework.Grant{Name: "traced", Namespace: ns, User: "system:serviceaccount:" + ns + ":default", Rules: []rbacv1.PolicyRule{framework.May("get,create,patch", "", "configmaps")}})
	token := c.ServiceAccountToken(t, ns, "default")
	const secret = "a-secret-that-is-not-for-spans"
	object := "{apiVersion: v1, kind: ConfigMap, metadata: {name: traced}, data: {word: " + secret + "}}"
	result := framework.RunKubectl(t, kubeconfig(t, c, token), object, "apply", "-n", ns, "-f", "-", "--validate=false")
	if result.Code != 0 {
		t.Fatalf("kubectl apply: exit code %d: %s", result.Code, result.Stderr)
	}

	parents := seen.take()
	if len(parents) != 1 {
		t.Fatalf("the webhook was called with the traceparents %q, want one call", parents)
	}
	trace, webhookCaller := parse(t, parents[0])
	wantChain(t, spans, trace, webhookCaller)
	wantNoSecrets(t, spans, secret, token)

	// A client that is traced itself, and may be believed, has the same trace go on.
	const own, ownSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	c.Admin(t).Send(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: own}, data: {a: b}}",
		framework.Header("traceparent", "00-"+own+"-"+ownSpan+"-01")).Want(t, http.StatusCreated)
	if parents = seen.take(); len(parents) != 1 || !strings.Contains(parents[0], own) {
		t.Errorf("the webhook was called with the traceparents %q, want the client's trace %s", parents, own)
	}
}

// kubeconfig writes a file by which kubectl bears token.
func kubeconfig(t *testing.T, c *framework.Cluster, token string) string {
	t.Helper()
	config, admin := clientcmdapi.NewConfig(), c.Config(t)
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// wantChain wants the spans of one request to hang together: the webhook's call below
// admission's, that and authz' below the gateway's calls, and those below its request.
func wantChain(t *testing.T, spans *collector, trace, webhookCaller string) {
	t.Helper()
	framework.Eventually(t, "the spans of all processes", func() error {
		all := spans.inTrace(trace)
		call, ok := all[webhookCaller]
		if !ok || call.process != admission || call.kind != tracev1.Span_SPAN_KIND_CLIENT {
			return fmt.Errorf("the webhook's caller %s is no client span of %s in %v", webhookCaller, admission, brief(all))
		}
		if err := reaches(all, call, admission); err != nil {
			return err
		}
		for _, s := range all {
			if s.process == authz && s.kind == tracev1.Span_SPAN_KIND_SERVER {
				return reaches(all, s, authz)
			}
		}
		return fmt.Errorf("there is no span of %s in %v", authz, brief(all))
	})
}

// reaches reports whether the ancestors of a span lead from the service's server span
// by a client span of the gateway to the gateway's own server span, the root.
func reaches(all map[string]span, from span, service string) error {
	var path []string
	served, called := false, false
	for at := from; ; {
		path = append(path, at.process+" "+at.name)
		switch {
		case at.process == service && at.kind == tracev1.Span_SPAN_KIND_SERVER:
			served = true
		case at.process == gateway && at.kind == tracev1.Span_SPAN_KIND_CLIENT:
			called = served
		case at.process == gateway && at.kind == tracev1.Span_SPAN_KIND_SERVER:
			if !called || at.parent != "" {
				return fmt.Errorf("the path %q is not that of a call of %s", path, service)
			}
			return nil
		}
		next, ok := all[at.parent]
		if !ok {
			return fmt.Errorf("the path %q ends below %q, which was not sent", path, at.parent)
		}
		at = next
	}
}

// wantNoSecrets wants none of the texts in any span of any process.
func wantNoSecrets(t *testing.T, spans *collector, secrets ...string) {
	t.Helper()
	for _, s := range spans.all() {
		for _, secret := range secrets {
			if strings.Contains(s.text, secret) {
				t.Errorf("the span %s of %s has a secret in it", s.name, s.process)
			}
		}
	}
}

// parse returns the trace and the span of a traceparent.
func parse(t *testing.T, header string) (trace, id string) {
	t.Helper()
	parts := strings.Split(header, "-")
	if len(parts) != 4 || parts[3] != "01" {
		t.Fatalf("traceparent %q, want one of a trace that is kept", header)
	}
	return parts[1], parts[2]
}

func brief(all map[string]span) []string {
	var names []string
	for _, s := range all {
		names = append(names, s.process+" "+s.name)
	}
	return names
}
