package outage

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestKilledWhileItDecides kills the admission gate while it waits for a webhook. Nobody
// knows what it would have said, so that the write is not done, even if the webhook then
// lets it pass; and a quota has not counted it. (Were the gate back before the answer, it
// would be asked once more.)
func TestKilledWhileItDecides(t *testing.T) {
	const (
		secrets = "/api/v1/namespaces/" + namespace + "/secrets"
		timeout = 20 * time.Second
	)
	secret := func(name string) string {
		return "{apiVersion: v1, kind: Secret, metadata: {name: " + name + "}}"
	}
	p := framework.NewParts(t, framework.PartsOptions{Controllers: true})
	p.Start(t, p.Names()...)
	p.AwaitReady(t)
	admin := p.As(t, settle(t, p.Cluster).admin)
	admin.Send(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/resourcequotas",
		"{apiVersion: v1, kind: ResourceQuota, metadata: {name: one}, spec: {hard: {count/secrets: 1}}}").Want(t, http.StatusCreated)
	framework.Eventually(t, "the count of the quota", func() error {
		quota := admin.Send(t, http.MethodGet, "/api/v1/namespaces/"+namespace+"/resourcequotas/one", "").Want(t, http.StatusOK)
		if quota.String(t, "status", "used", "count/secrets") != "0" {
			return errors.New("is not made yet")
		}
		return nil
	})

	for _, kind := range []string{"mutating", "validating"} {
		t.Run(kind, func(t *testing.T) {
			called, release := make(chan struct{}, 1), make(chan struct{})
			hook := framework.StartWebhook(t, framework.Admission(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				called <- struct{}{}
				<-release
				return framework.Pass(r)
			}))
			rule := framework.Rule("create", "", "v1", "secrets")
			if kind == "mutating" {
				p.RegisterMutating(t, kind, hook.Mutating(kind, namespace, rule))
			} else {
				p.RegisterValidating(t, kind, hook.Validating(kind, namespace, rule))
			}

			type result struct {
				answer *framework.Answer
				err    error
			}
			results := make(chan result, 1)
			begin := time.Now()
			go func() { // ends with the answer, which is waited for
				answer, err := admin.TrySend(http.MethodPost, secrets, secret(kind), framework.Query(fmt.Sprintf("timeout=%s", timeout)))
				results <- result{answer, err}
			}()
			select {
			case <-called:
			case early := <-results:
				close(release)
				t.Fatalf("answered before the webhook was called: %+v", early)
			}
			p.Kill(t, admission)
			got := <-results
			took := time.Since(begin)
			close(release)
			p.Start(t, admission)
			if got.err != nil {
				t.Fatal(got.err)
			}
			wantUnavailable(t, got.answer, admission)
			if took > timeout {
				t.Errorf("the answer took %s, and the request had %s", took, timeout)
			}
			p.AwaitReady(t)
			admin.Send(t, http.MethodGet, secrets+"/"+kind, "").Want(t, http.StatusNotFound)
		})
	}
	// All that the quota has is still there, and no more.
	admin.Send(t, http.MethodPost, secrets, secret("first")).Want(t, http.StatusCreated)
	admin.Send(t, http.MethodPost, secrets, secret("second")).Want(t, http.StatusForbidden)
}
