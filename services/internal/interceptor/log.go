package interceptor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
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
		auditID := incomingAuditID(ctx)
		logger := klog.FromContext(ctx).WithValues("auditID", auditID, "method", call.FullMethod)
		ctx = klog.NewContext(withAuditID(ctx, auditID), logger)

		start := time.Now()
		err := next(ctx)
		elapsed := time.Since(start)
		if err == nil {
			logger.V(levelSuccess).Info("Handled gRPC call", "code", codes.OK, "duration", elapsed)
			return nil
		}
		status := rpcerr.ToStatus(err, auditID)
		keysAndValues := []any{"code", status.Code(), "duration", elapsed}
		if p := (*PanicError)(nil); errors.As(err, &p) {
			keysAndValues = append(keysAndValues, "stack", string(p.Stack))
		}
		if rpcerr.IsCallersFault(err) {
			logger.V(levelCallersFault).Info("Refused gRPC call", append(keysAndValues, "reason", err.Error())...)
		} else {
			logger.Error(err, "Could not answer gRPC call", keysAndValues...)
		}
		return status.Err()
	})
}

type auditIDContextKey struct{}

// AuditIDFrom returns the audit ID of the call whose context it is, or "".
func AuditIDFrom(ctx context.Context) string {
	id, _ := ctx.Value(auditIDContextKey{}).(string)
	return id
}

func withAuditID(ctx context.Context, id string) context.Context {
	ctx = context.WithValue(ctx, auditIDContextKey{}, id)
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
