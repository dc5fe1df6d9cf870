package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// retryAfterSeconds is when a client may try again after a gate could not decide, as
// for the Kubernetes API itself.
const retryAfterSeconds = 1

// statusClientClosed is what access logs call a request whose client went away.
const statusClientClosed = 499

// The domain of the gates' google.rpc.ErrorInfo and the keys of its metadata.
const (
	errorDomain      = "trigate"
	metadataField    = "field"
	metadataHop      = "hop"
	maskedMessage    = "internal error"
	gateNotReachable = "the %s gate could not decide, please try again"
)

// fieldError says what is wrong with a request.
type fieldError struct {
	// field is in the spelling of the request (attributes.user.groups[2]). Empty: it is
	// the body as a whole.
	field  string
	reason string
	// cause is the type of the cause in the answer.
	cause metav1.CauseType
}

func (e *fieldError) Error() string {
	if e.field == "" {
		return e.reason
	}
	return e.field + ": " + e.reason
}

// tooLargeError says that a body has more bytes than are taken.
type tooLargeError struct{ limit int64 }

func (e *tooLargeError) Error() string { return fmt.Sprintf("limit is %d", e.limit) }

// row is how a gRPC code is answered.
type row struct {
	code   int32
	reason metav1.StatusReason
}

// rows has the codes that a gate may answer with. What is not in it is an internal
// error. A gate speaks of the gateway when it does not know its caller or refuses it:
// whoever sent the request has been let pass, and nothing could be decided.
var rows = map[codes.Code]row{
	codes.InvalidArgument:    {http.StatusBadRequest, metav1.StatusReasonBadRequest},
	codes.OutOfRange:         {http.StatusBadRequest, metav1.StatusReasonBadRequest},
	codes.NotFound:           {http.StatusNotFound, metav1.StatusReasonNotFound},
	codes.AlreadyExists:      {http.StatusConflict, metav1.StatusReasonAlreadyExists},
	codes.Aborted:            {http.StatusConflict, metav1.StatusReasonConflict},
	codes.FailedPrecondition: {http.StatusConflict, metav1.StatusReasonConflict},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
	codes.Canceled:           {statusClientClosed, metav1.StatusReasonTimeout},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, metav1.StatusReasonTimeout},
	codes.Unimplemented:      {http.StatusNotImplemented, metav1.StatusReason("NotImplemented")},
	codes.Unavailable:        {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	codes.Unauthenticated:    {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	codes.PermissionDenied:   {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
}

func failure(code int32, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     code,
		Reason:   reason,
		Message:  message,
	}
}

func unsupported(sent string) *metav1.Status {
	return failure(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		fmt.Sprintf("the body's Content-Type is %q, it has to be %s or %s", sent, mediaJSON, mediaYAML))
}

func notAcceptable() *metav1.Status {
	return failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("only the following media types are accepted: %s, %s", mediaJSON, mediaYAML))
}

// statusOf returns the answer for an error, of this package or of a gate.
func statusOf(err error) *metav1.Status {
	var field *fieldError
	var large *tooLargeError
	switch {
	case errors.As(err, &large):
		return failure(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
			"Request entity is too large: "+large.Error())
	case errors.As(err, &field):
		answer := failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, field.Error())
		answer.Details = causes(field)
		return answer
	}
	return statusOfGate(status.Convert(err))
}

func causes(err *fieldError) *metav1.StatusDetails {
	cause := err.cause
	if cause == "" {
		cause = metav1.CauseTypeFieldValueInvalid
	}
	return &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: cause, Field: err.field, Message: err.reason}}}
}

// statusOfGate returns the answer for a gate's error. Of what is not the request's fault
// it says which gate it was, and no more.
func statusOfGate(s *status.Status) *metav1.Status {
	var field, hop string
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			field, hop = info.GetMetadata()[metadataField], info.GetMetadata()[metadataHop]
		}
	}
	known, ok := rows[s.Code()]
	if !ok {
		message := maskedMessage
		if s.Code() == codes.Internal && hop == "" && len(s.Details()) > 0 {
			message = s.Message() // The gate has masked it, and says by which request its log has it.
		}
		return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, message)
	}
	answer := failure(known.code, known.reason, s.Message())
	switch {
	case field != "":
		answer.Details = causes(&fieldError{field: field, reason: trimField(s.Message(), field)})
	case known.code == http.StatusServiceUnavailable:
		if hop == "" {
			hop = "asked"
		}
		answer.Message = fmt.Sprintf(gateNotReachable, hop)
		answer.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	case known.code == http.StatusTooManyRequests:
		answer.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	}
	return answer
}

func trimField(message, field string) string {
	if len(message) > len(field)+2 && message[:len(field)+2] == field+": " {
		return message[len(field)+2:]
	}
	return message
}

// writeError answers a request that could not be answered.
func (h *Handler) writeError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, req *http.Request, err error) {
	if body, ok := req.Body.(*requestBody); ok && body.err != nil {
		err = body.err
	}
	answer := statusOf(err)
	if answer.Code >= http.StatusInternalServerError {
		klog.FromContext(ctx).Info("A gate's REST request failed", "path", req.URL.Path, "code", answer.Code, "err", err)
	}
	h.writeStatus(w, req, answer)
}

// writeRoutingError answers a request for which there is no handler.
func (h *Handler) writeRoutingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, req *http.Request, code int) {
	if code == http.StatusMethodNotAllowed {
		allowed := http.MethodPost
		if h.get[req.URL.Path] {
			allowed = http.MethodGet
		}
		w.Header().Set("Allow", allowed)
		h.writeStatus(w, req, failure(int32(code), metav1.StatusReasonMethodNotAllowed,
			fmt.Sprintf("%s is not allowed here, use %s", req.Method, allowed)))
		return
	}
	h.writeStatus(w, req, failure(http.StatusNotFound, metav1.StatusReasonNotFound,
		fmt.Sprintf("the server could not find %s; %s describes what there is", req.URL.Path, OpenAPIPath)))
}

// streamError returns the last message of a stream that fails. The codec makes a
// metav1.Status of it.
func (h *Handler) streamError(_ context.Context, err error) *status.Status {
	select {
	case <-h.stopped:
		return status.New(codes.Unavailable, "the gateway is shutting down")
	default:
		return status.Convert(err)
	}
}

// writeStatus answers with a metav1.Status, in the format that was asked for.
func (h *Handler) writeStatus(w http.ResponseWriter, req *http.Request, answer *metav1.Status) {
	if answer.Details != nil && answer.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(answer.Details.RetryAfterSeconds)))
	}
	h.write(w, req, int(answer.Code), answer)
}

// write answers with anything that is JSON.
func (h *Handler) write(w http.ResponseWriter, req *http.Request, code int, answer any) {
	codec := jsonCodec
	if req.Header.Get("Accept") == mediaYAML {
		codec = yamlCodec
	}
	data, err := codec.Marshal(answer)
	if err != nil { // Nothing that is written here has a part that is no JSON.
		code, data = http.StatusInternalServerError, []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`)
	}
	w.Header().Set("Content-Type", codec.ContentType(answer))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(data) // The client may have gone.
}

// retryWriter says when to try again, also for a stream that fails at its beginning,
// whose answer grpc-gateway writes by itself.
type retryWriter struct{ http.ResponseWriter }

// Unwrap lets http.ResponseController flush.
func (w *retryWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *retryWriter) WriteHeader(code int) {
	if code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	}
	w.ResponseWriter.WriteHeader(code)
}
