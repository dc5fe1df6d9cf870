package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var errSecret = errors.New("secret of the driver")

// sent carries an error over a wire: what a handler returns, as a stub gives it.
func sent(t *testing.T, err error) error {
	t.Helper()
	wire, marshalErr := proto.Marshal(ToStatus(err, "request-1").Proto())
	if marshalErr != nil {
		t.Fatalf("Marshal() = %v, want nil", marshalErr)
	}
	received := ToStatus(err, "request-1").Proto()
	proto.Reset(received)
	if err := proto.Unmarshal(wire, received); err != nil {
		t.Fatalf("Unmarshal() = %v, want nil", err)
	}
	return status.FromProto(received).Err()
}

func TestRoundTrip(t *testing.T) {
	cases := []struct {
		err      *Error
		wantCode codes.Code
		want     Error
	}{
		{InvalidArgument("user.groups[2]", "bad escape in %q", "%"), codes.InvalidArgument, Error{Reason: ReasonInvalidArgument, Field: "user.groups[2]", Message: `bad escape in "%"`}},
		{Unauthenticated("who are you"), codes.Unauthenticated, Error{Reason: ReasonUnauthenticated, Message: "who are you"}},
		{PermissionDenied("not you"), codes.PermissionDenied, Error{Reason: ReasonPermissionDenied, Message: "not you"}},
		{NotSynced("authz", "roles"), codes.Unavailable, Error{Reason: ReasonNotSynced, Hop: "authz", Message: "authz is not synced: roles"}},
		{Draining("authz"), codes.Unavailable, Error{Reason: ReasonDraining, Hop: "authz", Message: "authz is shutting down"}},
		{PeerUnreachable("authn", errSecret), codes.Unavailable, Error{Reason: ReasonPeerUnreachable, Hop: "authn", Message: "authn is unreachable"}},
		{DeadlineExceeded("admission", errSecret), codes.DeadlineExceeded, Error{Reason: ReasonDeadlineExceeded, Hop: "admission", Message: "not enough time left at admission"}},
		{Canceled(errSecret), codes.Canceled, Error{Reason: ReasonCanceled, Message: "the caller went away"}},
		{ResourceExhausted("%d is too many", 7), codes.ResourceExhausted, Error{Reason: ReasonResourceExhausted, Message: "7 is too many"}},
		{FailedPrecondition("no %s key", "signing"), codes.FailedPrecondition, Error{Reason: ReasonFailedPrecondition, Message: "no signing key"}},
		{NotFound("no such %s", "role"), codes.NotFound, Error{Reason: ReasonNotFound, Message: "no such role"}},
		{Unimplemented("no %s here", "WhoCan"), codes.Unimplemented, Error{Reason: ReasonUnimplemented, Message: "no WhoCan here"}},
		{Internal(errSecret), codes.Internal, Error{Reason: ReasonInternal, RequestID: "request-1"}},
	}
	for _, tc := range cases {
		t.Run(string(tc.err.Reason), func(t *testing.T) {
			received := sent(t, tc.err)
			if got := status.Code(received); got != tc.wantCode {
				t.Errorf("code = %v, want %v", got, tc.wantCode)
			}
			if strings.Contains(received.Error(), errSecret.Error()) {
				t.Errorf("%q shows the cause", received)
			}
			got, ok := As(FromStatus(received, "ignored"))
			if !ok {
				t.Fatalf("FromStatus() is no *Error")
			}
			if got.Unwrap() != nil && tc.err.Reason != ReasonInternal {
				t.Errorf("FromStatus() has the cause %v, want none", got.Unwrap())
			}
			plain := *got
			plain.cause = nil
			if plain != tc.want {
				t.Errorf("FromStatus() = %+v, want %+v", plain, tc.want)
			}
			if tc.err.Code() != tc.wantCode || status.Code(tc.err) != tc.wantCode {
				t.Errorf("Code() = %v, status.Code() = %v, want %v", tc.err.Code(), status.Code(tc.err), tc.wantCode)
			}
			if !IsCouldNotDecide(tc.err) || !IsCouldNotDecide(received) || !IsCouldNotDecide(fmt.Errorf("asking: %w", received)) {
				t.Errorf("IsCouldNotDecide() = false, want true")
			}
		})
	}
	for _, row := range table {
		if !slices.ContainsFunc(cases, func(c struct {
			err      *Error
			wantCode codes.Code
			want     Error
		},
		) bool {
			return c.err.Reason == row.reason
		}) {
			t.Errorf("row %s has no case", row.reason)
		}
	}
}

func TestToStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		err         error
		wantCode    codes.Code
		wantMessage string
	}{
		"unknown error":          {errSecret, codes.Internal, "internal error, request r"},
		"wrapped error of ours":  {fmt.Errorf("deep inside: %w", NotFound("no role")), codes.NotFound, "no role"},
		"context ran out":        {fmt.Errorf("reading: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "not enough time left"},
		"context was canceled":   {context.Canceled, codes.Canceled, "the caller went away"},
		"status of a row":        {status.Error(codes.NotFound, "no role"), codes.NotFound, "no role"},
		"wrapped status":         {fmt.Errorf("deep inside: %w", status.Error(codes.NotFound, "no role")), codes.NotFound, "no role"},
		"status unknown":         {status.Error(codes.Unknown, errSecret.Error()), codes.Internal, "internal error, request r"},
		"status internal":        {status.Error(codes.Internal, errSecret.Error()), codes.Internal, "internal error, request r"},
		"status without a row":   {status.Error(codes.DataLoss, errSecret.Error()), codes.Internal, "internal error, request r"},
		"internal of a hop":      {&Error{Reason: ReasonInternal, RequestID: "theirs"}, codes.Internal, "internal error, request theirs"},
		"a reason without a row": {&Error{Reason: "MADE_UP", Message: errSecret.Error()}, codes.Internal, "internal error, request r"},
		"not UTF-8":              {InvalidArgument("a\xff", "b\xff"), codes.InvalidArgument, "a\uFFFD: b\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ToStatus(tc.err, "r")
			if got.Code() != tc.wantCode || got.Message() != tc.wantMessage {
				t.Errorf("ToStatus() = %v %q, want %v %q", got.Code(), got.Message(), tc.wantCode, tc.wantMessage)
			}
		})
	}
	if got := ToStatus(nil, "r"); got != nil {
		t.Errorf("ToStatus(nil) = %v, want nil", got)
	}
}

func TestFromStatusAscribesToTheHop(t *testing.T) {
	if err := FromStatus(nil, "authz"); err != nil {
		t.Errorf("FromStatus(nil) = %v, want nil", err)
	}
	for name, tc := range map[string]struct {
		err         error
		wantReason  Reason
		wantHop     string
		wantMessage string
	}{
		"connection refused": {status.Error(codes.Unavailable, "connection refused"), ReasonPeerUnreachable, "authz", "authz is unreachable"},
		"deadline":           {status.Error(codes.DeadlineExceeded, "context deadline exceeded"), ReasonDeadlineExceeded, "authz", "not enough time left at authz"},
		"context":            {context.DeadlineExceeded, ReasonDeadlineExceeded, "authz", "not enough time left at authz"},
		"a hop behind it":    {sentStatus(DeadlineExceeded("authn", nil)), ReasonDeadlineExceeded, "authn", "not enough time left at authn"},
		"too large":          {status.Error(codes.ResourceExhausted, "message too large"), ReasonResourceExhausted, "", "message too large"},
		"another's detail":   {status.Error(codes.Unknown, "driver"), ReasonInternal, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := As(FromStatus(tc.err, "authz"))
			if !ok {
				t.Fatal("FromStatus() is no *Error")
			}
			if got.Reason != tc.wantReason || got.Hop != tc.wantHop || got.Message != tc.wantMessage {
				t.Errorf("FromStatus() = %+v, want reason %s, hop %q, message %q", got, tc.wantReason, tc.wantHop, tc.wantMessage)
			}
		})
	}
}

func sentStatus(err error) error { return ToStatus(err, "r").Err() }

func TestIsCouldNotDecide(t *testing.T) {
	for _, err := range []error{nil, errSecret, fmt.Errorf("token: %w", errSecret)} {
		if IsCouldNotDecide(err) {
			t.Errorf("IsCouldNotDecide(%v) = true, want false: it is a verdict", err)
		}
	}
	for _, err := range []error{context.Canceled, fmt.Errorf("x: %w", context.DeadlineExceeded), status.Error(codes.Unknown, "")} {
		if !IsCouldNotDecide(err) {
			t.Errorf("IsCouldNotDecide(%v) = false, want true", err)
		}
	}
}

func TestIsCallersFault(t *testing.T) {
	for _, err := range []error{InvalidArgument("a", "b"), Canceled(nil), status.Error(codes.NotFound, "")} {
		if !IsCallersFault(err) {
			t.Errorf("IsCallersFault(%v) = false, want true", err)
		}
	}
	for _, err := range []error{errSecret, Internal(nil), PeerUnreachable("authn", nil), DeadlineExceeded("authz", nil)} {
		if IsCallersFault(err) {
			t.Errorf("IsCallersFault(%v) = true, want false", err)
		}
	}
}

func TestErrorForTheLog(t *testing.T) {
	if got, want := PeerUnreachable("authn", errSecret).Error(), "authn is unreachable: secret of the driver"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(Internal(errSecret), errSecret) {
		t.Error("errors.Is(Internal(cause), cause) = false, want true")
	}
}
