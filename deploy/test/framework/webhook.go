package framework

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Webhook is an HTTPS server of a test on the loopback address, which control planes
// call as a webhook. It ends with the test.
type Webhook struct {
	// URL is its address, without a path. The handler sees requests of every path.
	URL string
	// CABundle are the certificates, in PEM, with which to verify it.
	CABundle []byte
}

// StartWebhook serves handler. Any number of requests may come at once, each on a
// goroutine of its own, so the handler must not fail the test by FailNow or Fatal.
func StartWebhook(tb testing.TB, handler http.Handler) *Webhook {
	tb.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // tests see the callers' errors
	server.StartTLS()
	tb.Cleanup(server.Close)
	// The certificate is its own authority.
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &Webhook{URL: server.URL, CABundle: bundle}
}

// Admission is the handler of an admission webhook: decide answers one request. It
// need not set the answer's UID.
func Admission(decide func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) http.Handler {
	return review(func(r *admissionv1.AdmissionReview) error {
		if r.Request == nil {
			return fmt.Errorf("the AdmissionReview has no request")
		}
		response := decide(r.Request)
		response.UID = r.Request.UID
		r.Request, r.Response = nil, response
		return nil
	})
}

// Conversion is the handler of a conversion webhook: convert answers one request. It
// need not set the answer's UID.
func Conversion(convert func(*apiextensionsv1.ConversionRequest) *apiextensionsv1.ConversionResponse) http.Handler {
	return review(func(r *apiextensionsv1.ConversionReview) error {
		if r.Request == nil {
			return fmt.Errorf("the ConversionReview has no request")
		}
		response := convert(r.Request)
		response.UID = r.Request.UID
		r.Request, r.Response = nil, response
		return nil
	})
}

// JSONPatch is the answer of a mutating webhook that wants the object changed by a
// JSON patch.
func JSONPatch(patch string) *admissionv1.AdmissionResponse {
	kind := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &kind}
}

// review serves reviews of type R, whose request answer turns into a response.
func review[R any](answer func(*R) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var r R
		if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := answer(&r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, err := json.Marshal(&r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // whoever asked is gone if it fails
	})
}
