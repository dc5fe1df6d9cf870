// Package interest tests which calls of admission the gateway leaves out: those that no
// plugin, webhook, policy or quota is interested in, and no other.
package interest

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const (
	// rounds are of creating and deleting what is interested.
	rounds = 60
	// burst is how many requests are sent to see whether calls are made. Whatever else
	// the gateways write at the same time is far less.
	burst = 4
)

// The samples of a counter.
const (
	skipped = `trigate_gateway_admission_calls_total{outcome="skipped"`
	called  = `trigate_gateway_admission_calls_total{outcome="called"`
	noAge   = `trigate_gateway_interest_stream_age_seconds -1`
)

// stage is a control plane whose admission service tells its metrics.
type stage struct {
	*framework.Cluster
	// gateways are the administrator's way through each.
	gateways []*framework.Caller
	// metrics is where the service's are.
	metrics string
}

func start(t *testing.T, args ...string) *stage {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", framework.FreePort(t))
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: append([]string{
		"--controllers=false", "--admission-arg=--metrics-listen-address=" + address,
	}, args...)})
	s := &stage{Cluster: c, metrics: "http://" + address + "/metrics"}
	for _, gateway := range c.Gateways(t) {
		s.gateways = append(s.gateways, gateway.Admin(t))
	}
	s.awaitSkipping(t)
	return s
}

// served is how many calls of Admit and Validate the service has answered.
func (s *stage) served(t *testing.T) int {
	t.Helper()
	response, err := http.Get(s.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	const calls = "trigate_grpc_server_handled_total{"
	return sumText(t, string(body), calls, "AdmissionService/Admit\"") + sumText(t, string(body), calls, "AdmissionService/Validate\"")
}

// counted is the sum of the samples of a gateway that begin so.
func (s *stage) counted(t *testing.T, gateway int, prefix string) int {
	t.Helper()
	body := s.gateways[gateway].Send(t, http.MethodGet, "/metrics", "").Want(t, http.StatusOK).Body
	return sumText(t, string(body), prefix, "")
}

// writes are the writes of one kind, each with its path and body.
func (s *stage) writes(t *testing.T, resource, body string) {
	t.Helper()
	admin, one := s.gateways[0], resource+"/a"
	created := admin.Send(t, http.MethodPost, resource, body).Want(t, http.StatusCreated)
	admin.Send(t, http.MethodPost, resource, strings.ReplaceAll(body, "name: a", "name: b"), framework.Query("dryRun=All")).Want(t, http.StatusCreated)
	admin.Send(t, http.MethodPut, one, string(created.Body)).Want(t, http.StatusOK)
	admin.Send(t, http.MethodPatch, one, `{"metadata": {"labels": {"a": "b"}}}`, framework.MergePatch).Want(t, http.StatusOK)
	admin.Send(t, http.MethodPatch, one, body, framework.ServerSideApply, framework.Query("fieldManager=test&force=true")).Want(t, http.StatusOK)
	admin.Send(t, http.MethodDelete, one, "").Want(t, http.StatusOK)
	admin.Send(t, http.MethodPost, resource, body).Want(t, http.StatusCreated)
	admin.Send(t, http.MethodDelete, resource, "").Want(t, http.StatusOK)
}

// deploymentSpec makes Pods that PodSecurity would warn of, if it were asked to.
const deploymentSpec = "spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}"

// kinds are those that no plugin which is on by default is interested in, in a namespace
// without labels of PodSecurity.
func kinds(namespace string) map[string][2]string {
	const meta = "metadata: {name: a}"
	return map[string][2]string{
		"configmaps": {"/api/v1/namespaces/" + namespace + "/configmaps", "{apiVersion: v1, kind: ConfigMap, " + meta + "}"},
		"leases":     {"/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases", "{apiVersion: coordination.k8s.io/v1, kind: Lease, " + meta + "}"},
		"events": {
			"/api/v1/namespaces/" + namespace + "/events",
			"{apiVersion: v1, kind: Event, " + meta + ", involvedObject: {namespace: " + namespace + "}}",
		},
		"events.events.k8s.io": {
			"/apis/events.k8s.io/v1/namespaces/" + namespace + "/events",
			"{apiVersion: events.k8s.io/v1, kind: Event, " + meta + ", regarding: {namespace: " + namespace + "}, " +
				`eventTime: "2026-01-01T00:00:00.000000Z", action: a, reason: r, type: Normal, reportingController: example.com/c, reportingInstance: i}`,
		},
		"deployments":      {"/apis/apps/v1/namespaces/" + namespace + "/deployments", "{apiVersion: apps/v1, kind: Deployment, " + meta + ", " + deploymentSpec + "}"},
		"custom resources": {"/apis/example.com/v1/namespaces/" + namespace + "/things", "{apiVersion: example.com/v1, kind: Thing, " + meta + "}"},
	}
}

const definition = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.example.com}, spec: {
  group: example.com, scope: Namespaced, names: {plural: things, kind: Thing}, versions: [
    {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}},
    {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}}`

func (s *stage) define(t *testing.T) {
	t.Helper()
	s.gateways[0].Send(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).Want(t, http.StatusCreated)
	framework.Eventually(t, "the custom resource is served", func() error {
		answer, err := s.gateways[0].TrySend(http.MethodGet, "/apis/example.com/v1/namespaces/default/things", "")
		if err == nil && answer.Code != http.StatusOK {
			err = fmt.Errorf("got %d", answer.Code)
		}
		return err
	})
}

func (s *stage) makeNamespace(t *testing.T, name string) {
	t.Helper()
	s.gateways[0].Send(t, http.MethodPost, "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}").Want(t, http.StatusCreated)
}

// probe sends writes through a gateway that change nothing, and returns how many calls
// the service has answered since.
func (s *stage) probe(t *testing.T, gateway int, namespace string, times int) int {
	t.Helper()
	before := s.served(t)
	for range times {
		s.dryRun(t, gateway, namespace)
	}
	return s.served(t) - before
}

func (s *stage) dryRun(t *testing.T, gateway int, namespace string) {
	t.Helper()
	s.gateways[gateway].Send(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/configmaps",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: probe}}", framework.Query("dryRun=All")).Want(t, http.StatusCreated)
}

// awaitSkipping waits until no gateway makes a call for ConfigMaps.
func (s *stage) awaitSkipping(t *testing.T) {
	t.Helper()
	for gateway := range s.gateways {
		framework.Eventually(t, "calls are left out", func() error {
			if calls := s.probe(t, gateway, "default", burst); calls > 0 {
				return fmt.Errorf("%d calls for %d writes", calls, burst)
			}
			return nil
		})
	}
}

// TestNobodyIsInterested wants no call at all for what nobody is interested in, and calls
// for what somebody is.
func TestNobodyIsInterested(t *testing.T) {
	s := start(t)
	s.makeNamespace(t, "quiet")
	s.define(t)
	s.awaitSkipping(t)
	for _, name := range slices.Sorted(maps.Keys(kinds("quiet"))) {
		t.Run(name, func(t *testing.T) {
			kind := kinds("quiet")[name]
			served, left, made := s.served(t), s.counted(t, 0, skipped), s.counted(t, 0, called)
			s.writes(t, kind[0], kind[1])
			if calls := s.served(t) - served; calls != 0 {
				t.Errorf("the service answered %d calls, want none", calls)
			}
			if calls := s.counted(t, 0, called) - made; calls != 0 {
				t.Errorf("the gateway made %d calls, want none", calls)
			}
			// A write is due two calls, a deletion as well.
			if left := s.counted(t, 0, skipped) - left; left < 16 {
				t.Errorf("the gateway left out %d calls, want at least 16", left)
			}
		})
	}
	t.Run("pods", func(t *testing.T) {
		served := s.served(t)
		s.gateways[0].Send(t, http.MethodPost, "/api/v1/namespaces/quiet/pods",
			"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {automountServiceAccountToken: false, containers: [{name: c, image: i}]}}").
			WantMessage(t, http.StatusForbidden, `pods "a" is forbidden: error looking up service account quiet/default: serviceaccount "default" not found`)
		if calls := s.served(t) - served; calls != 1 {
			t.Errorf("the service answered %d calls for a Pod that a mutating plugin refuses, want 1", calls)
		}
	})
}

// TestLabelsOfNamespaces has namespaces ask PodSecurity for warnings. The very next
// Deployment after the label takes a call, and as soon as the label has gone, none.
func TestLabelsOfNamespaces(t *testing.T) {
	s := start(t)
	admin := s.gateways[0]
	label := func(namespace, value string) {
		t.Helper()
		admin.Send(t, http.MethodPatch, "/api/v1/namespaces/"+namespace, `{"metadata": {"labels": {"pod-security.kubernetes.io/warn": `+value+`}}}`, framework.MergePatch).
			Want(t, http.StatusOK)
	}
	deploy := func(namespace string) *framework.Answer {
		t.Helper()
		return admin.Send(t, http.MethodPost, "/apis/apps/v1/namespaces/"+namespace+"/deployments",
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, "+deploymentSpec+"}", framework.Query("dryRun=All")).Want(t, http.StatusCreated)
	}
	awaitCalls := func(namespace string, want int) {
		t.Helper()
		framework.Eventually(t, fmt.Sprintf("a Deployment in %s takes %d calls", namespace, want), func() error {
			served := s.served(t)
			deploy(namespace)
			if calls := s.served(t) - served; calls != want {
				return fmt.Errorf("it takes %d", calls)
			}
			return nil
		})
	}
	const rounds = 50
	for round := range rounds {
		namespace := fmt.Sprintf("asks-%d", round)
		s.makeNamespace(t, namespace)
		if round%2 == 0 {
			awaitCalls(namespace, 0)
		}
		label(namespace, `"restricted"`)
		served := s.served(t)
		deploy(namespace)
		if calls := s.served(t) - served; calls != 1 {
			t.Errorf("round %d: the first Deployment after the label took %d calls, want 1", round, calls)
		}
	}
	s.makeNamespace(t, "quiet")
	awaitCalls("quiet", 0)
	framework.Eventually(t, "PodSecurity warns", func() error {
		const want = `would violate PodSecurity "restricted:latest"`
		if got := deploy("asks-0").Header.Get("Warning"); !strings.Contains(got, strings.ReplaceAll(want, `"`, `\"`)) {
			return fmt.Errorf("the warning is %s, want %s", got, want)
		}
		return nil
	})
	label("asks-0", "null")
	awaitCalls("asks-0", 0)
	awaitCalls("asks-1", 1)
}

// ahead counts the calls of Validate that were left out since Admit had said what they
// would.
const ahead = `trigate_gateway_admission_calls_total{outcome="skipped",phase="validating",reason="ahead"`

// TestPodsAreValidatedAhead wants one call for a new Pod as long as only plugins are
// interested whose say does not hang on what the API server sets in it, and two as soon as
// anybody else is, or the server sets more.
func TestPodsAreValidatedAhead(t *testing.T) {
	s := start(t)
	admin := s.gateways[0]
	const pods, spec = "/api/v1/namespaces/ahead/pods", "spec: {containers: [{name: c, image: i}]}"
	post := func(body string) func(*testing.T) *framework.Answer {
		return func(t *testing.T) *framework.Answer { return admin.Send(t, http.MethodPost, pods, body) }
	}
	wantCalls := func(t *testing.T, send func(*testing.T) *framework.Answer, code, calls int) *framework.Answer {
		t.Helper()
		served, said := s.served(t), s.counted(t, 0, ahead)
		answer := send(t).Want(t, code)
		if got := s.served(t) - served; got != calls {
			t.Errorf("the service answered %d calls, want %d", got, calls)
		}
		if got := s.counted(t, 0, ahead) - said; got != 2-calls {
			t.Errorf("%d calls were left out since they were answered ahead, want %d", got, 2-calls)
		}
		return answer
	}
	s.makeNamespace(t, "ahead")
	admin.Send(t, http.MethodPost, "/api/v1/namespaces/ahead/serviceaccounts", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}").Want(t, http.StatusCreated)
	t.Run("named", func(t *testing.T) {
		wantCalls(t, post("{apiVersion: v1, kind: Pod, metadata: {name: a}, "+spec+"}"), http.StatusCreated, 1)
	})
	t.Run("named by the server", func(t *testing.T) {
		wantCalls(t, post("{apiVersion: v1, kind: Pod, metadata: {generateName: a-}, "+spec+"}"), http.StatusCreated, 1)
	})
	t.Run("by apply", func(t *testing.T) {
		wantCalls(t, func(t *testing.T) *framework.Answer {
			return admin.Send(t, http.MethodPatch, pods+"/applied", "{apiVersion: v1, kind: Pod, metadata: {name: applied}, "+spec+"}",
				framework.ServerSideApply, framework.Query("fieldManager=test"))
		}, http.StatusCreated, 1)
	})
	t.Run("with a spec that the server completes", func(t *testing.T) {
		wantCalls(t, post("{apiVersion: v1, kind: Pod, metadata: {name: affine, labels: {a: b}}, spec: {containers: [{name: c, image: i}], affinity: {podAffinity: {"+
			"requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {}, matchLabelKeys: [a]}]}}}}"), http.StatusCreated, 2)
	})
	t.Run("with somebody else interested", func(t *testing.T) {
		for _, other := range []struct{ collection, body string }{
			{"/api/v1/namespaces/ahead/resourcequotas", "{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/secrets: 1}}}"},
			{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: q}, " +
				"spec: {matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}, validations: [{expression: 'true'}]}}"},
		} {
			admin.Send(t, http.MethodPost, other.collection, other.body).Want(t, http.StatusCreated)
			wantCalls(t, post("{apiVersion: v1, kind: Pod, metadata: {generateName: b-}, "+spec+"}"), http.StatusCreated, 2)
			admin.Send(t, http.MethodDelete, other.collection+"/q", "").Want(t, http.StatusOK)
			framework.Eventually(t, "one call is enough again", func() error {
				served := s.served(t)
				post("{apiVersion: v1, kind: Pod, metadata: {generateName: c-}, "+spec+"}")(t).Want(t, http.StatusCreated)
				if calls := s.served(t) - served; calls != 1 {
					return fmt.Errorf("%d calls", calls)
				}
				return nil
			})
		}
	})
	t.Run("refused", func(t *testing.T) {
		admin.Send(t, http.MethodPatch, "/api/v1/namespaces/ahead", `{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`, framework.MergePatch).Want(t, http.StatusOK)
		framework.Eventually(t, "the namespace is restricted", func() error {
			if code := admin.Send(t, http.MethodPost, pods, "{apiVersion: v1, kind: Pod, metadata: {generateName: d-}, "+spec+"}", framework.Query("dryRun=All")).Code; code != http.StatusForbidden {
				return fmt.Errorf("got %d", code)
			}
			return nil
		})
		answer := wantCalls(t, post("{apiVersion: v1, kind: Pod, metadata: {generateName: e-}, "+spec+"}"), http.StatusForbidden, 2)
		// The refusal has the name that the server made up, as kube-apiserver's has.
		if !regexp.MustCompile(`pods \\"e-[a-z0-9]{5}\\" is forbidden: violates PodSecurity`).Match(answer.Body) {
			t.Errorf("got %s", answer.Body)
		}
	})
}

// interested is something that is interested in ConfigMaps, and how it is made.
type interested struct{ name, collection, body string }

func allInterested(webhook *framework.Webhook) []interested {
	const (
		group    = "/apis/admissionregistration.k8s.io/v1/"
		rules    = "{apiGroups: [''], apiVersions: [v1], resources: [configmaps], operations: ['*']}"
		metadata = "metadata: {name: curious}"
	)
	hooks := fmt.Sprintf("webhooks: [{name: curious.example.com, rules: [%s], sideEffects: None, admissionReviewVersions: [v1], failurePolicy: Ignore, clientConfig: {url: %q}}]",
		rules, webhook.URL)
	object := func(kind, rest string) string {
		return fmt.Sprintf("{apiVersion: admissionregistration.k8s.io/v1, kind: %s, %s, %s}", kind, metadata, rest)
	}
	return []interested{
		{"validating policy", group + "validatingadmissionpolicies", object("ValidatingAdmissionPolicy",
			"spec: {matchConstraints: {resourceRules: ["+rules+"]}, validations: [{expression: 'true'}]}")},
		{"mutating policy", group + "mutatingadmissionpolicies", object("MutatingAdmissionPolicy",
			"spec: {reinvocationPolicy: Never, matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]}, "+
				"mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{}'}}]}")},
		{"validating webhook", group + "validatingwebhookconfigurations", object("ValidatingWebhookConfiguration", hooks)},
		{"mutating webhook", group + "mutatingwebhookconfigurations", object("MutatingWebhookConfiguration", hooks)},
		{"quota", "/api/v1/namespaces/default/resourcequotas", "{apiVersion: v1, kind: ResourceQuota, " + metadata + ", spec: {hard: {count/configmaps: 1000}}}"},
	}
}

// TestInterestComesAndGoes makes and deletes what is interested through one gateway. The
// very next request through it has to make its call; through another one, within a
// moment.
func TestInterestComesAndGoes(t *testing.T) {
	s := start(t, "--gateways=2", "--replicas=1")
	all := allInterested(framework.StartRecorder(t).Webhook)
	lags := map[string][]time.Duration{}
	for round := range rounds {
		each := all[round%len(all)]
		served, made := s.served(t), s.counted(t, 1, called)
		s.gateways[0].Send(t, http.MethodPost, each.collection, each.body).Want(t, http.StatusCreated)
		lags[each.name] = append(lags[each.name], s.lag(t, 1, served, time.Now()))
		if s.counted(t, 1, called) == made {
			t.Errorf("round %d: the call after the %s was made is not the second gateway's", round, each.name)
		}
		s.gateways[0].Send(t, http.MethodDelete, each.collection+"/curious", "").Want(t, http.StatusOK)
		s.awaitSkipping(t)

		s.gateways[0].Send(t, http.MethodPost, each.collection, each.body).Want(t, http.StatusCreated)
		if calls := s.probe(t, 0, "default", burst); calls < burst {
			t.Errorf("round %d: %d calls for %d writes right after the %s was made, want one for each at least", round, calls, burst, each.name)
		}
		s.gateways[0].Send(t, http.MethodDelete, each.collection+"/curious", "").Want(t, http.StatusOK)
		s.awaitSkipping(t)
	}
	for _, each := range all {
		slices.Sort(lags[each.name])
		of := lags[each.name]
		t.Logf("%s: the first request through the second gateway that made a call began after the acknowledged creation by: median %s, longest %s, of %d",
			each.name, of[len(of)/2], of[len(of)-1], len(of))
	}
}

// lag returns how long after a moment the first request through a gateway began that
// made a call, if the service had answered so many before.
func (s *stage) lag(t *testing.T, gateway, served int, since time.Time) time.Duration {
	t.Helper()
	var lag time.Duration
	framework.Eventually(t, "a call is made", func() error {
		lag = time.Since(since)
		s.dryRun(t, gateway, "default")
		if s.served(t) == served {
			return fmt.Errorf("none after %s", lag)
		}
		return nil
	})
	return lag
}

// TestWithoutTheStream kills the service. No call may be left out then: the writes wait
// for it.
func TestWithoutTheStream(t *testing.T) {
	s := start(t)
	s.Signal(t, "admission", syscall.SIGKILL)
	framework.Eventually(t, "the gateway has lost the stream", func() error {
		body := s.gateways[0].Send(t, http.MethodGet, "/metrics", "").Want(t, http.StatusOK).Body
		if !strings.Contains(string(body), noAge) {
			return fmt.Errorf("the metric is not -1")
		}
		return nil
	})
	left, made := s.counted(t, 0, skipped), s.counted(t, 0, called)
	const path = "/api/v1/namespaces/default/configmaps"
	body := "{apiVersion: v1, kind: ConfigMap, metadata: {name: waited}}"
	// The runner starts the service again, so that it may be there for the second call.
	code := s.gateways[0].Send(t, http.MethodPost, path, body).Code
	if code != http.StatusServiceUnavailable && code != http.StatusCreated {
		t.Errorf("got %d, want 503, or 201 if the service is back", code)
	}
	if s.counted(t, 0, called) == made {
		t.Errorf("no call was made without a stream, %d were left out", s.counted(t, 0, skipped)-left)
	}
	s.awaitReadyAgain(t)
	s.awaitSkipping(t)
}

func (s *stage) awaitReadyAgain(t *testing.T) {
	t.Helper()
	framework.Eventually(t, "the gate is ready again", func() error {
		answer, err := s.gateways[0].TrySend(http.MethodGet, "/readyz/gate-admission", "")
		if err == nil && answer.Code != http.StatusOK {
			err = fmt.Errorf("got %d", answer.Code)
		}
		return err
	})
}

// TestNotSkipping has the gateway make every call.
func TestNotSkipping(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", framework.FreePort(t))
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{
		"--controllers=false", "--admission-arg=--metrics-listen-address=" + address, "--gateway-arg=--admission-skip=false",
	}})
	s := &stage{Cluster: c, metrics: "http://" + address + "/metrics", gateways: []*framework.Caller{c.Admin(t)}}
	if calls := s.probe(t, 0, "default", burst); calls < 2*burst {
		t.Errorf("%d calls for %d writes, want two for each", calls, burst)
	}
	if left := s.counted(t, 0, skipped); left != 0 {
		t.Errorf("%d calls were left out, want none", left)
	}
}

// sumText adds up the samples that begin with prefix and have part in them.
func sumText(t *testing.T, text, prefix, part string) int {
	t.Helper()
	total := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, prefix) || !strings.Contains(line, part) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			t.Fatalf("the metric %q: %v", line, err)
		}
		total += int(value)
	}
	return total
}
