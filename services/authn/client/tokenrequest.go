package client

import (
	"bytes"
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// WithTokenRequests wraps the handler of the Kubernetes API, so that a
// TokenRequest that found no service to sign its token is answered 503 with
// Retry-After, and not 500: of that clients do not try again. Requests of other
// kinds are passed through as they are. Authentication and authorization, audit
// and request info come before it.
func WithTokenRequests(next http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok || info.Verb != "create" || info.APIGroup != "" || info.Resource != "serviceaccounts" || info.Subresource != "token" {
			next.ServeHTTP(w, r)
			return
		}
		outage := &failure{}
		held := &heldResponse{header: w.Header()}
		next.ServeHTTP(held, r.WithContext(context.WithValue(r.Context(), failureContextKey{}, outage)))
		if err := outage.err.Load(); err != nil && held.code >= http.StatusInternalServerError {
			w.Header().Del("Content-Encoding") // the body it was about is not sent
			responsewriters.ErrorNegotiated(err, codecs, corev1.SchemeGroupVersion, w, r)
			return
		}
		held.send(w)
	})
}

// heldResponse keeps a response until it is known whether it is to be sent. A
// TokenRequest's is small.
type heldResponse struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

var _ http.ResponseWriter = (*heldResponse)(nil)

// Header implements http.ResponseWriter.
func (h *heldResponse) Header() http.Header { return h.header }

// WriteHeader implements http.ResponseWriter.
func (h *heldResponse) WriteHeader(code int) {
	if h.code == 0 {
		h.code = code
	}
}

// Write implements http.ResponseWriter.
func (h *heldResponse) Write(data []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.body.Write(data)
}

func (h *heldResponse) send(w http.ResponseWriter) {
	if h.code == 0 {
		return
	}
	w.WriteHeader(h.code)
	// Whoever asked may be gone; there is nobody to tell.
	_, _ = w.Write(h.body.Bytes())
}
