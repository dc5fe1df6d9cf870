package interceptor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// AuditIDKey is the metadata key under which the audit ID of the Kubernetes
// request travels from hop to hop.
const AuditIDKey = "trigate-audit-id"

// maxAuditIDBytes is how much of an audit ID is kept; upstream truncates at the
// same length where it logs.
const maxAuditIDBytes = 64

// Verbosity levels of the line that each call gets.
const (
	levelCallersFault = 2
	levelSuccess      = 4
)

// Log writes one line for each call, and turns the handler's error into what
// the caller may see of it (rpcerr.ToStatus). It takes the audit ID from the
// call's metadata, or makes one up, and puts it into the context's logger and
// into the context itself, where AuditIDFrom and upstream's audit package find
// it. What the messages contain is never logged.
func Log() Interceptor {
	return New("log", func(ctx context.Context, call *Call, next func(context.Context) error) error {
		r := request{auditID: incomingAuditID(ctx), method: call.FullMethod, logger: klog.FromContext(ctx)}
		ctx = r.in(ctx)
		start := time.Now()
		err := next(ctx)
		return callLines.write(klog.FromContext(ctx), r.auditID, err, time.Since(start)).Err()
	})
}

// lines are the messages of what is answered, what is refused as the caller's fault, and
// what could not be answered.
type lines struct{ handled, refused, failed string }

var (
	callLines     = lines{"Handled gRPC call", "Refused gRPC call", "Could not answer gRPC call"}
	questionLines = lines{"Answered question", "Refused question", "Could not answer question"}
)

// write writes one line, and returns what the caller may see of err: nil for nil.
func (l lines) write(logger klog.Logger, auditID string, err error, elapsed time.Duration) *status.Status {
	if err == nil {
		logger.V(levelSuccess).Info(l.handled, "code", codes.OK, "duration", elapsed)
		return nil
	}
	seen := rpcerr.ToStatus(err, auditID)
	keysAndValues := []any{"code", seen.Code(), "duration", elapsed}
	if p := (*PanicError)(nil); errors.As(err, &p) {
		keysAndValues = append(keysAndValues, "stack", string(p.Stack))
	}
	if rpcerr.IsCallersFault(err) {
		logger.V(levelCallersFault).Info(l.refused, append(keysAndValues, "reason", err.Error())...)
	} else {
		logger.Error(err, l.failed, keysAndValues...)
	}
	return seen
}

// WithQuestion returns the context of one question on a stream of many, for what is
// asked and logged on its behalf. The audit ID is what the caller says; if nothing of it
// can be used, the question goes by the stream's.
func WithQuestion(ctx context.Context, auditID string) context.Context {
	r, ok := ctx.Value(requestContextKey{}).(request)
	if auditID = CleanAuditID(auditID); !ok || auditID == "" {
		return ctx
	}
	r.auditID = auditID
	return r.in(ctx)
}

// LogQuestion writes the line of one question on a stream of many, as Log does for a
// call, and returns what the caller may see of err: nil for nil. Unless there is a line,
// it costs next to nothing.
func LogQuestion(ctx context.Context, auditID string, err error, elapsed time.Duration) *status.Status {
	if err == nil && !klog.FromContext(ctx).V(levelSuccess).Enabled() {
		return nil
	}
	ctx = WithQuestion(ctx, auditID)
	return questionLines.write(klog.FromContext(ctx), AuditIDFrom(ctx), err, elapsed)
}

// request is what a context says of the call or question that it is for.
type request struct {
	auditID, method string
	// logger is the process' own, to which nothing is added yet.
	logger klog.Logger
}

type requestContextKey struct{}

// in returns the context with the request in it, and in the context's logger.
func (r request) in(ctx context.Context) context.Context {
	ctx = context.WithValue(ctx, requestContextKey{}, r)
	return klog.NewContext(withAuditID(ctx, r.auditID), r.logger.WithValues("auditID", r.auditID, "method", r.method))
}

// AuditIDFrom returns the audit ID of the call, or of the question on a stream, whose
// context it is, or "".
func AuditIDFrom(ctx context.Context) string {
	r, _ := ctx.Value(requestContextKey{}).(request)
	return r.auditID
}

func withAuditID(ctx context.Context, id string) context.Context {
	// Upstream's webhook clients send the ID on from here.
	ctx = audit.WithAuditContext(ctx)
	audit.WithAuditID(ctx, types.UID(id))
	return ctx
}

func incomingAuditID(ctx context.Context) string {
	if ids := metadata.ValueFromIncomingContext(ctx, AuditIDKey); len(ids) > 0 {
		if id := CleanAuditID(ids[0]); id != "" {
			return id
		}
	}
	return uuid.NewString()
}

// CleanAuditID returns what of an audit ID can travel as metadata and be
// logged: clients of the Kubernetes API choose it. Nothing may remain.
func CleanAuditID(id string) string {
	id = strings.Map(func(r rune) rune {
		if r < 0x21 || r > 0x7e {
			return -1
		}
		return r
	}, id)
	return id[:min(len(id), maxAuditIDBytes)]
}
