package interceptor

import (
	"context"
	"errors"
	"time"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Reserve is what a hop keeps of the caller's deadline, so that its answer is
// back in time. A local round trip takes well under a millisecond; this leaves
// room for a busy machine.
const Reserve = 20 * time.Millisecond

// DefaultBudget is the deadline of a unary call that comes without one to a
// method without a budget. It is the default timeout of a webhook upstream.
const DefaultBudget = 30 * time.Second

// Deadline gives each unary call a deadline: the caller's less Reserve, or the
// method's budget if the caller set none. A call with too little time left is
// refused at once, with an error that names hop, and so is the handler's own
// running out of time. A stream has a deadline only if its caller or budgets
// give it one.
func Deadline(hop string, budgets map[string]time.Duration) Interceptor {
	return New("deadline", func(ctx context.Context, call *Call, next func(context.Context) error) error {
		deadline, ok := ctx.Deadline()
		switch budget := budgetOf(call, budgets); {
		case ok:
			deadline = deadline.Add(-Reserve)
		case budget > 0:
			deadline = time.Now().Add(budget)
		default:
			return next(ctx)
		}
		if time.Until(deadline) <= 0 {
			return rpcerr.DeadlineExceeded(hop, nil)
		}
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		err := next(ctx)
		if e, known := rpcerr.As(err); known && e.Hop != "" {
			return err // a hop behind this one ran out of time, and said so
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return rpcerr.DeadlineExceeded(hop, err)
		}
		return err
	})
}

func budgetOf(call *Call, budgets map[string]time.Duration) time.Duration {
	if budget, ok := budgets[call.FullMethod]; ok {
		return budget
	}
	if call.IsStream {
		return 0
	}
	return DefaultBudget
}
