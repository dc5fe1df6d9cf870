package interceptor

import (
	"context"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Drain ends streams when the draining context ends: a watch never ends by
// itself, and a server that stops would wait for it. The caller is told that
// hop is draining, and opens its stream at another replica. Unary calls are
// left to finish.
func Drain(hop string, draining context.Context) Interceptor {
	return New("drain", func(ctx context.Context, call *Call, next func(context.Context) error) error {
		if !call.IsStream {
			return next(ctx)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(draining, cancel)
		defer stop()
		err := next(ctx)
		if err != nil && draining.Err() != nil {
			return rpcerr.Draining(hop)
		}
		return err
	})
}
