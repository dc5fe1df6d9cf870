package framework

import (
	"net/http"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
)

// Recorder is an admission webhook that keeps what it was asked. It lets everything
// pass unless it is told otherwise.
type Recorder struct {
	*Webhook

	mu       sync.Mutex // guards the fields below
	decide   func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse
	requests []*admissionv1.AdmissionRequest
}

// StartRecorder serves a recording webhook, on all paths, until the test ends.
func StartRecorder(tb testing.TB) *Recorder {
	tb.Helper()
	r := &Recorder{}
	r.Decide(Pass)
	r.Webhook = StartWebhook(tb, r.handler())
	return r
}

// Pass lets a request pass unchanged.
func Pass(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

// Decide has decide answer from now on.
func (r *Recorder) Decide(decide func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decide = decide
}

// Take returns the requests since the last call of Take, in order.
func (r *Recorder) Take() []*admissionv1.AdmissionRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.requests
	r.requests = nil
	return taken
}

func (r *Recorder) handler() http.Handler {
	return Admission(func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		r.mu.Lock()
		r.requests = append(r.requests, request)
		decide := r.decide
		r.mu.Unlock()
		return decide(request)
	})
}
