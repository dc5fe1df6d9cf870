package interceptor

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// PanicError is the cause of an Internal error that was a panic. Log writes
// its stack.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any
	// Stack is the goroutine's stack at the panic.
	Stack []byte
}

// Error returns the panic's value as text.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Recover turns a panic of a handler, or of a layer within, into an Internal
// error, so that one bad request does not end the process for all others.
func Recover() Interceptor {
	return New("recover", func(ctx context.Context, _ *Call, next func(context.Context) error) (err error) {
		defer func() {
			if value := recover(); value != nil {
				err = rpcerr.Internal(&PanicError{Value: value, Stack: debug.Stack()})
			}
		}()
		return next(ctx)
	})
}
