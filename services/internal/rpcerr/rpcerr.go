// Package rpcerr is the one place where a domain error becomes a gRPC status
// and a gRPC status becomes a domain error again.
//
// A decision (a bad token, a denial, a rejected object) is never an error of
// this package: it travels in the body of an OK answer. Whatever is here means
// that nothing could be decided, see IsCouldNotDecide.
//
// Each reason has one row in a table: its status code, what of the error may
// leave the process, and which detail travels with it. The detail is a
// google.rpc.ErrorInfo with the domain "trigate". Errors that have no row, and
// the Internal row itself, leave the process as a fixed text with the id of
// the request, by which the log line with the cause can be found.
package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Domain is the domain of every ErrorInfo that Trigate's services send.
const Domain = "trigate"

// Reason says why nothing could be decided. It is the reason field of the
// ErrorInfo, so its values are part of the API.
type Reason string

// The reasons, one for each row of the table.
const (
	// ReasonInvalidArgument names a field of the request that cannot be used.
	ReasonInvalidArgument Reason = "INVALID_ARGUMENT"
	// ReasonUnauthenticated says that the caller of the RPC is not known.
	ReasonUnauthenticated Reason = "UNAUTHENTICATED"
	// ReasonPermissionDenied says that the caller may not call this RPC.
	ReasonPermissionDenied Reason = "PERMISSION_DENIED"
	// ReasonNotSynced says that the gate has not yet read what it decides from.
	ReasonNotSynced Reason = "NOT_SYNCED"
	// ReasonDraining says that this replica is shutting down.
	ReasonDraining Reason = "DRAINING"
	// ReasonPeerUnreachable says that a service behind this one did not answer.
	ReasonPeerUnreachable Reason = "PEER_UNREACHABLE"
	// ReasonDeadlineExceeded says that there was not enough time, and at which hop.
	ReasonDeadlineExceeded Reason = "DEADLINE_EXCEEDED"
	// ReasonCanceled says that the caller went away.
	ReasonCanceled Reason = "CANCELED"
	// ReasonResourceExhausted says that a limit was reached.
	ReasonResourceExhausted Reason = "RESOURCE_EXHAUSTED"
	// ReasonFailedPrecondition says that the service is not set up for this call.
	ReasonFailedPrecondition Reason = "FAILED_PRECONDITION"
	// ReasonNotFound says that what the request names does not exist.
	ReasonNotFound Reason = "NOT_FOUND"
	// ReasonUnimplemented says that the service does not know the method.
	ReasonUnimplemented Reason = "UNIMPLEMENTED"
	// ReasonInternal says that it is our fault; the cause stays in the log.
	ReasonInternal Reason = "INTERNAL"
)

// Keys of the ErrorInfo's metadata.
const (
	metadataField     = "field"
	metadataHop       = "hop"
	metadataRequestID = "request_id"
)

// row is how one reason crosses the wire.
type row struct {
	reason Reason
	code   codes.Code
	// masked rows never show their message outside of the process.
	masked bool
	// callersFault rows are logged at Info: nothing of ours is broken.
	callersFault bool
}

// table has one row for each reason. For a status that carries no ErrorInfo of
// ours, the first row with the status' code is taken.
var table = []row{
	{reason: ReasonInvalidArgument, code: codes.InvalidArgument, callersFault: true},
	{reason: ReasonUnauthenticated, code: codes.Unauthenticated, callersFault: true},
	{reason: ReasonPermissionDenied, code: codes.PermissionDenied, callersFault: true},
	{reason: ReasonPeerUnreachable, code: codes.Unavailable},
	{reason: ReasonNotSynced, code: codes.Unavailable},
	{reason: ReasonDraining, code: codes.Unavailable, callersFault: true},
	{reason: ReasonDeadlineExceeded, code: codes.DeadlineExceeded},
	{reason: ReasonCanceled, code: codes.Canceled, callersFault: true},
	{reason: ReasonResourceExhausted, code: codes.ResourceExhausted, callersFault: true},
	{reason: ReasonFailedPrecondition, code: codes.FailedPrecondition, callersFault: true},
	{reason: ReasonNotFound, code: codes.NotFound, callersFault: true},
	{reason: ReasonUnimplemented, code: codes.Unimplemented, callersFault: true},
	{reason: ReasonInternal, code: codes.Internal, masked: true},
}

// maskedMessage is all that a caller is told of a fault of ours.
const maskedMessage = "internal error"

// internalRow is what everything without a row of its own becomes.
var internalRow = row{reason: ReasonInternal, code: codes.Internal, masked: true}

func rowOf(reason Reason) row {
	if i := slices.IndexFunc(table, func(r row) bool { return r.reason == reason }); i >= 0 {
		return table[i]
	}
	return internalRow
}

func rowOfCode(code codes.Code) row {
	if i := slices.IndexFunc(table, func(r row) bool { return r.code == code }); i >= 0 {
		return table[i]
	}
	return internalRow
}

// Error is a reason for which nothing could be decided. It is made by the
// constructors of this package and by FromStatus. It is a gRPC status too, so
// that status.Code works on it.
type Error struct {
	// Reason is the row of the table.
	Reason Reason
	// Message is for the caller. It holds no tokens, keys or internal text.
	Message string
	// Field is the request's field that cannot be used, in the proto's spelling
	// (`user.groups[2]`). Only with ReasonInvalidArgument.
	Field string
	// Hop is the process where it happened ("authz"), if that is known.
	Hop string
	// RequestID finds the log line of the cause. Only with ReasonInternal.
	RequestID string

	// cause never leaves the process.
	cause error
}

// Error returns the message with its cause. It is for the log of this process,
// never for a caller.
func (e *Error) Error() string {
	message := e.publicMessage()
	if e.cause != nil {
		return message + ": " + e.cause.Error()
	}
	return message
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus returns what a caller may see of the error.
func (e *Error) GRPCStatus() *status.Status { return e.toStatus() }

// Code returns the gRPC status code of the error.
func (e *Error) Code() codes.Code { return rowOf(e.Reason).code }

func (e *Error) publicMessage() string {
	r := rowOf(e.Reason)
	switch {
	case r.masked && e.RequestID != "":
		return maskedMessage + ", request " + e.RequestID
	case r.masked:
		return maskedMessage
	case e.Field != "":
		return e.Field + ": " + e.Message
	}
	return e.Message
}

func (e *Error) toStatus() *status.Status {
	r := rowOf(e.Reason)
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: string(r.reason)}
	for key, value := range map[string]string{
		metadataField:     e.Field,
		metadataHop:       e.Hop,
		metadataRequestID: e.RequestID,
	} {
		if value == "" {
			continue
		}
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[key] = strings.ToValidUTF8(value, "\uFFFD")
	}
	plain := status.New(r.code, strings.ToValidUTF8(e.publicMessage(), "\uFFFD"))
	detailed, err := plain.WithDetails(info)
	if err != nil {
		// Only a status that is OK has no room for details, and no row is OK.
		return plain
	}
	return detailed
}

// InvalidArgument reports that a field of the request cannot be used. The
// field is in the proto's spelling; the text says why and may quote what the
// caller sent, unless it is a credential.
func InvalidArgument(field, format string, args ...any) *Error {
	return &Error{Reason: ReasonInvalidArgument, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Unauthenticated reports that the caller of the RPC showed no credential that
// is known. It is about the caller itself, never about a token under review.
func Unauthenticated(message string) *Error {
	return &Error{Reason: ReasonUnauthenticated, Message: message}
}

// PermissionDenied reports that the caller of the RPC may not call it. It is
// about the caller itself, never about a request under review.
func PermissionDenied(message string) *Error {
	return &Error{Reason: ReasonPermissionDenied, Message: message}
}

// NotSynced reports that hop has not yet read what it decides from.
func NotSynced(hop, what string) *Error {
	return &Error{Reason: ReasonNotSynced, Hop: hop, Message: fmt.Sprintf("%s is not synced: %s", hop, what)}
}

// Draining reports that this replica of hop is shutting down; another one may
// answer.
func Draining(hop string) *Error {
	return &Error{Reason: ReasonDraining, Hop: hop, Message: hop + " is shutting down"}
}

// PeerUnreachable reports that hop did not answer. The cause stays in this
// process.
func PeerUnreachable(hop string, cause error) *Error {
	return &Error{Reason: ReasonPeerUnreachable, Hop: hop, Message: hop + " is unreachable", cause: cause}
}

// DeadlineExceeded reports that there was not enough time at hop.
func DeadlineExceeded(hop string, cause error) *Error {
	return &Error{Reason: ReasonDeadlineExceeded, Hop: hop, Message: "not enough time left at " + hop, cause: cause}
}

// Canceled reports that the caller went away before there was an answer.
func Canceled(cause error) *Error {
	return &Error{Reason: ReasonCanceled, Message: "the caller went away", cause: cause}
}

// ResourceExhausted reports that a limit was reached; the message names it.
func ResourceExhausted(format string, args ...any) *Error {
	return &Error{Reason: ReasonResourceExhausted, Message: fmt.Sprintf(format, args...)}
}

// FailedPrecondition reports that the service is not set up for the call.
func FailedPrecondition(format string, args ...any) *Error {
	return &Error{Reason: ReasonFailedPrecondition, Message: fmt.Sprintf(format, args...)}
}

// NotFound reports that what the request names does not exist.
func NotFound(format string, args ...any) *Error {
	return &Error{Reason: ReasonNotFound, Message: fmt.Sprintf(format, args...)}
}

// Unimplemented reports that the service has no such method or feature.
func Unimplemented(format string, args ...any) *Error {
	return &Error{Reason: ReasonUnimplemented, Message: fmt.Sprintf(format, args...)}
}

// Internal reports a fault of ours. A caller sees a fixed text and the
// request's id, the log of this process has the cause.
func Internal(cause error) *Error {
	return &Error{Reason: ReasonInternal, cause: cause}
}

// ToStatus returns what a caller may see of err, which is nil for no error.
// The requestID goes into what is masked. An error that is neither of this
// package, nor of a context, nor a gRPC status of a code that has a row, is
// Internal.
func ToStatus(err error, requestID string) *status.Status {
	if err == nil {
		return nil
	}
	e := *from(err)
	if rowOf(e.Reason).masked && e.RequestID == "" {
		e.RequestID = requestID
	}
	return e.toStatus()
}

// FromStatus returns the error that a stub gave, as an *Error, and nil for no
// error. What the transport itself reports has no ErrorInfo and is ascribed to
// hop, the service that was called.
func FromStatus(err error, hop string) error {
	if err == nil {
		return nil
	}
	e := from(err)
	if e.Hop == "" && hasHop(e.Reason) {
		ascribed := *e
		ascribed.Hop = hop
		switch {
		case ascribed.Reason == ReasonDeadlineExceeded:
			return DeadlineExceeded(hop, err)
		case ascribed.Reason == ReasonPeerUnreachable:
			return PeerUnreachable(hop, err)
		}
		return &ascribed
	}
	return e
}

func hasHop(reason Reason) bool {
	return rowOf(reason).code == codes.Unavailable || reason == ReasonDeadlineExceeded
}

// As returns the *Error in err's chain, if there is one.
func As(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

// IsCouldNotDecide reports whether err says that nothing could be decided: it
// came from an RPC, from a context that ended, or from this package. Any other
// error is a verdict that upstream's interfaces return as an error (a token
// with a bad signature, say).
func IsCouldNotDecide(err error) bool {
	if err == nil {
		return false
	}
	if _, ok := As(err); ok {
		return true
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var s interface{ GRPCStatus() *status.Status }
	return errors.As(err, &s)
}

// IsCallersFault reports whether err is nothing that we can mend: the log has
// it at Info, not at Error.
func IsCallersFault(err error) bool {
	return rowOf(from(err).Reason).callersFault
}

// from finds the row for any error.
func from(err error) *Error {
	if e, ok := As(err); ok {
		return e
	}
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) && s.GRPCStatus() != nil {
		return fromGRPC(s.GRPCStatus(), err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Reason: ReasonDeadlineExceeded, Message: "not enough time left", cause: err}
	case errors.Is(err, context.Canceled):
		return Canceled(err)
	}
	return Internal(err)
}

// fromGRPC restores what toStatus made, or takes the first row of the code.
func fromGRPC(s *status.Status, err error) *Error {
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		r := rowOf(Reason(info.GetReason()))
		if r.code != s.Code() {
			continue
		}
		e := &Error{
			Reason:    r.reason,
			Field:     info.GetMetadata()[metadataField],
			Hop:       info.GetMetadata()[metadataHop],
			RequestID: info.GetMetadata()[metadataRequestID],
		}
		if !r.masked {
			e.Message = s.Message()
			if e.Field != "" {
				e.Message = strings.TrimPrefix(e.Message, e.Field+": ")
			}
		}
		return e
	}
	r := rowOfCode(s.Code())
	if r.masked {
		return Internal(err)
	}
	return &Error{Reason: r.reason, Message: s.Message()}
}
