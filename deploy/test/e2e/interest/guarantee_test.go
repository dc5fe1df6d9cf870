package interest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// lifecycleRounds are of a namespace that is made, deleted and written to.
const lifecycleRounds = 30

// TestNamespaceLifecycle writes into namespaces that are missing or end. Nobody but
// NamespaceLifecycle is interested, and its refusals are stock's.
func TestNamespaceLifecycle(t *testing.T) {
	// Without controllers a namespace that ends does not come to its end.
	trigate := start(t, "--gateways=2")
	stock := framework.StartStock(t, framework.StockOptions{})
	t.Run("as stock", func(t *testing.T) {
		framework.CompareThese(t, stock, trigate.Cluster, func(t *testing.T, c *framework.Cluster, transcript *framework.Transcript) {
			admin := transcript.Admin(t)
			c.Admin(t).Send(t, http.MethodPost, "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: ending, finalizers: [example.com/held]}}").Want(t, http.StatusCreated)
			c.Admin(t).Send(t, http.MethodPost, "/api/v1/namespaces/ending/configmaps", "{apiVersion: v1, kind: ConfigMap, metadata: {name: held, finalizers: [example.com/held]}}").Want(t, http.StatusCreated)
			c.Admin(t).Send(t, http.MethodDelete, "/api/v1/namespaces/ending", "").Want(t, http.StatusOK)
			t.Cleanup(func() {
				for _, path := range []string{"/api/v1/namespaces/ending/configmaps/held", "/api/v1/namespaces/ending"} {
					c.Admin(t).Send(t, http.MethodPatch, path, `{"metadata": {"finalizers": null}}`, framework.MergePatch).Want(t, http.StatusOK)
				}
			})
			for _, namespace := range []string{"missing", "ending"} {
				for _, name := range []string{"configmaps", "leases", "events", "events.events.k8s.io"} {
					kind, want := kinds(namespace)[name], http.StatusForbidden
					if namespace == "missing" {
						want = http.StatusNotFound
					}
					admin.Send(t, http.MethodPost, kind[0], kind[1]).Want(t, want)
					admin.Send(t, http.MethodPost, kind[0], kind[1], framework.Query("dryRun=All")).Want(t, want)
					admin.Send(t, http.MethodPatch, kind[0]+"/a", kind[1], framework.ServerSideApply, framework.Query("fieldManager=test")).Want(t, want)
				}
			}
			admin.Send(t, http.MethodDelete, "/api/v1/namespaces/kube-system", "").Want(t, http.StatusForbidden)
		})
	})
	t.Run("without a call", func(t *testing.T) {
		trigate.awaitSkipping(t)
		served := trigate.served(t)
		for range burst {
			trigate.gateways[0].Send(t, http.MethodPost, "/api/v1/namespaces/missing/configmaps", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}").
				WantMessage(t, http.StatusNotFound, `namespaces "missing" not found`)
		}
		if calls := trigate.served(t) - served; calls != 0 {
			t.Errorf("the service answered %d calls, want none", calls)
		}
	})
	t.Run("right after the deletion", func(t *testing.T) {
		for round := range lifecycleRounds {
			name := fmt.Sprintf("short-%d", round)
			admin, configMaps := trigate.gateways[0], "/api/v1/namespaces/"+name+"/configmaps"
			trigate.makeNamespace(t, name)
			admin.Send(t, http.MethodPost, configMaps, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}").Want(t, http.StatusCreated)
			admin.Send(t, http.MethodDelete, "/api/v1/namespaces/"+name, "").Want(t, http.StatusOK)
			admin.Send(t, http.MethodPost, configMaps, "{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}").WantMessage(t, http.StatusForbidden,
				fmt.Sprintf(`configmaps "b" is forbidden: unable to create new content in namespace %s because it is being terminated`, name))
		}
	})
}

// TestEquivalents has webhooks that are interested in the same objects by another
// resource or another version.
func TestEquivalents(t *testing.T) {
	s := start(t)
	s.makeNamespace(t, "quiet")
	s.define(t)
	recorder := framework.StartRecorder(t)
	recorder.Decide(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: false}
	})
	kinds := kinds("quiet")
	things := [2]string{"/apis/example.com/v2/namespaces/quiet/things", "{apiVersion: example.com/v2, kind: Thing, metadata: {name: a}}"}
	for name, test := range map[string]struct {
		group, version, resource string
		kind                     [2]string
	}{
		"events by events.k8s.io":              {"events.k8s.io", "v1", "events", kinds["events"]},
		"events.k8s.io by events":              {"", "v1", "events", kinds["events.events.k8s.io"]},
		"a custom resource by another version": {"example.com", "v1", "things", things},
	} {
		t.Run(name, func(t *testing.T) {
			create := func() *framework.Answer {
				return s.gateways[0].Send(t, http.MethodPost, test.kind[0], test.kind[1], framework.Query("dryRun=All"))
			}
			webhook := func(t *testing.T, match string) {
				t.Helper()
				const path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
				body := fmt.Sprintf("{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: same}, webhooks: [{name: same.example.com, "+
					"rules: [{apiGroups: ['%s'], apiVersions: [%s], resources: [%s], operations: [CREATE]}], matchPolicy: %s, sideEffects: None, admissionReviewVersions: [v1], "+
					"clientConfig: {url: %q, caBundle: %q}}]}", test.group, test.version, test.resource, match, recorder.URL, base64.StdEncoding.EncodeToString(recorder.CABundle))
				s.gateways[0].Send(t, http.MethodPost, path, body).Want(t, http.StatusCreated)
				t.Cleanup(func() { s.gateways[0].Send(t, http.MethodDelete, path+"/same", "").Want(t, http.StatusOK) })
			}
			t.Run("exact", func(t *testing.T) {
				webhook(t, "Exact")
				s.awaitSkipping(t)
				served := s.served(t)
				create().Want(t, http.StatusCreated)
				if calls := s.served(t) - served; calls != 0 {
					t.Errorf("the service answered %d calls, want none", calls)
				}
			})
			t.Run("equivalent", func(t *testing.T) {
				webhook(t, "Equivalent")
				served := s.served(t)
				answer := create()
				if calls := s.served(t) - served; calls == 0 {
					t.Error("no call was made")
				}
				framework.Eventually(t, "the webhook refuses", func() error {
					if answer.Code == http.StatusBadRequest || answer.Code == http.StatusForbidden {
						return nil
					}
					err := fmt.Errorf("got %d: %s", answer.Code, answer.Body)
					answer = create()
					return err
				})
			})
			s.awaitSkipping(t)
		})
	}
}
