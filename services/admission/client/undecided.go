package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// retryAfterSeconds is when a client may try again. A replica that took over
// or came back answers within a second.
const retryAfterSeconds = 1

// undecidedError is the answer to a request about which nothing was decided.
// Its text is the status' message; the cause is for this process alone.
type undecidedError struct {
	status metav1.Status
	cause  error
}

var _ apierrors.APIStatus = (*undecidedError)(nil)

// Error returns the status' message.
func (e *undecidedError) Error() string { return e.status.Message }

// Status returns what the client is to be answered.
func (e *undecidedError) Status() metav1.Status { return e.status }

// Unwrap returns the *rpcerr.Error.
func (e *undecidedError) Unwrap() error { return e.cause }

// undecided turns an error of the stub into the answer: 503 with Retry-After, 413 for
// a message that is too large, or what upstream's handlers say when the request's own
// time is over. It logs the cause, of which the answer says nothing.
func undecided(ctx context.Context, err error) error {
	if _, ok := rpcerr.As(err); !ok {
		err = rpcerr.FromStatus(err, hop)
	}
	klog.FromContext(ctx).Info("Could not decide on admission", "reason", err.Error())
	// A message that is larger than the service takes does not get smaller by trying
	// again. Webhooks have blown up an object that its resource does not limit; stock
	// validates it and answers 500, since etcd's limit is far below.
	if e, ok := rpcerr.As(err); ok && e.Reason == rpcerr.ReasonResourceExhausted {
		return apierrors.NewRequestEntityTooLargeError("the object is too large for the admission gate")
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		timeout := apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout - %s", ctx.Err()), 0)
		return &undecidedError{status: timeout.ErrStatus, cause: err}
	}
	return &undecidedError{
		status: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusServiceUnavailable,
			Reason:  metav1.StatusReasonServiceUnavailable,
			Message: "the admission gate could not decide on the request, please try again",
			Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
		},
		cause: err,
	}
}
