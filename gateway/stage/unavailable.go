package stage

import (
	"context"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"

	admissionclient "github.com/trigate/trigate/services/admission/client"
	authnclient "github.com/trigate/trigate/services/authn/client"
)

// The names of the gates in messages, checks and logs.
const (
	gateAuthn     = "authn"
	gateAuthz     = "authz"
	gateAdmission = "admission"
)

// retryAfterSeconds is when a client may try again after a gate could not decide.
// client-go retries a 503 that says so, which makes a short outage a pause.
const retryAfterSeconds = 1

// Upstream's filters know two answers to a failed gate: 401 if authentication
// returns an error, 500 if authorization does. Neither fits a gate that could not
// be reached: on 401 clients throw their credentials away, and on 500 they give
// up. The filters cannot be told otherwise, so a gate's client notes its failure
// in the request's context and the outermost handler turns the answer into a 503.

type failureKey struct{}

// failure is what the gates' clients note about one request.
type failure struct {
	// requests are those of the same kind, for the audit log.
	requests *undecidedRequests
	// ahead is what Admit has learned for Validate, both of which upstream calls in one
	// goroutine.
	ahead admissionclient.Ahead

	mu   sync.Mutex // filters run in goroutines of their own
	gate string
	// ctx is the inner context, with request info and audit event: what has to be
	// carried out to the outermost handler.
	ctx context.Context
}

// noteFailure marks ctx's request if err says that a gate could not decide. The
// first failure counts.
func noteFailure(ctx context.Context, gate string, err error) {
	if !authnclient.IsCouldNotDecide(err) {
		return
	}
	f, ok := ctx.Value(failureKey{}).(*failure)
	if !ok {
		return // not a request, but one of the server's own questions
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gate != "" {
		return
	}
	f.gate, f.ctx = gate, ctx
	if id, ok := genericaudit.AuditIDFrom(ctx); ok {
		f.requests.add(id, gate)
	}
	klog.FromContext(ctx).Info("A gate could not decide", "gate", gate, "err", err,
		"auditID", genericaudit.GetAuditIDTruncated(ctx))
}

// aheadOf returns where Admit leaves what it has learned for the request's Validate, or
// nil if ctx is not that of a request.
func aheadOf(ctx context.Context) *admissionclient.Ahead {
	f, ok := ctx.Value(failureKey{}).(*failure)
	if !ok {
		return nil
	}
	return &f.ahead
}

// isRequest tells whether ctx is that of a request, on which a failure can be noted.
func isRequest(ctx context.Context) bool {
	_, ok := ctx.Value(failureKey{}).(*failure)
	return ok
}

// over forgets the request.
func (f *failure) over() {
	gate, ctx := f.noted()
	if gate == "" {
		return
	}
	if id, ok := genericaudit.AuditIDFrom(ctx); ok {
		f.requests.remove(id)
	}
}

// noted returns the gate that could not decide, and the context in which it was
// asked. The gate is empty if all is well.
func (f *failure) noted() (string, context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate, f.ctx
}

// withUnavailable answers 503 with Retry-After for requests on which a gate could
// not decide. It has to be the outermost handler.
func withUnavailable(next http.Handler, serializer runtime.NegotiatedSerializer, undecided *undecidedRequests) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f := &failure{requests: undecided}
		defer f.over()
		req = req.WithContext(context.WithValue(req.Context(), failureKey{}, f))
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&unavailableWriter{
			ResponseWriter: w, req: req, serializer: serializer, failure: f,
		}), req)
	})
}

// unavailableWriter replaces the answer of a request on which a gate could not
// decide. Like every ResponseWriter it serves one goroutine at a time.
type unavailableWriter struct {
	http.ResponseWriter
	req        *http.Request
	serializer runtime.NegotiatedSerializer
	failure    *failure

	wroteHeader bool
	replaced    bool
}

var _ responsewriter.UserProvidedDecorator = (*unavailableWriter)(nil)

// Unwrap returns the decorated writer.
func (w *unavailableWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the header, of the answer or of the 503 in its place.
func (w *unavailableWriter) WriteHeader(code int) {
	if w.wroteHeader {
		if !w.replaced {
			w.ResponseWriter.WriteHeader(code)
		}
		return
	}
	if code < http.StatusOK && code != http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(code) // informational; the answer is to come
		return
	}
	w.wroteHeader = true
	gate, ctx := w.failure.noted()
	if gate == "" || !undecided(ctx, code) {
		w.ResponseWriter.WriteHeader(code)
		return
	}
	w.replaced = true
	w.Header().Del("Content-Length")
	w.Header().Del("Content-Encoding")
	if event := genericaudit.AuditContextFrom(ctx); event != nil {
		event.SetEventResponseStatusCode(http.StatusServiceUnavailable)
	}
	writeUnavailable(w.ResponseWriter, w.req.WithContext(ctx), w.serializer, gate)
}

// Write sends part of the body, unless the answer was replaced.
func (w *unavailableWriter) Write(body []byte) (int, error) {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if w.replaced {
		return len(body), nil
	}
	return w.ResponseWriter.Write(body)
}

// undecided tells whether an answer of a request with a failed gate is due to the
// failure. Errors are; so are reviews, whose success would carry the failure in
// the body as if it were a verdict.
func undecided(ctx context.Context, code int) bool {
	if code >= http.StatusBadRequest {
		return true
	}
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	return ok && info.Verb == "create" &&
		(info.APIGroup == "authorization.k8s.io" || info.APIGroup == "authentication.k8s.io")
}

// newUnavailable returns the error for a request on which gate could not decide.
func newUnavailable(gate string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Message: "the " + gate + " gate could not decide on the request, please try again",
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
	}}
}

// writeUnavailable answers 503 with Retry-After in the format that the client
// asked for.
func writeUnavailable(w http.ResponseWriter, req *http.Request, serializer runtime.NegotiatedSerializer, gate string) {
	var gv schema.GroupVersion
	if info, ok := genericapirequest.RequestInfoFrom(req.Context()); ok {
		gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(newUnavailable(gate), serializer, gv, w, req)
}
