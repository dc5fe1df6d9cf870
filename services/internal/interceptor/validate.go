package interceptor

import (
	"context"
	"fmt"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

// Validator says why a request message cannot be used. Its error is an
// *rpcerr.Error that names the field; any other error becomes an
// InvalidArgument without a field.
type Validator func(message any) error

// Validate checks each message of the methods that have a validator before the
// handler sees it. The key is the full method.
func Validate(validators map[string]Validator) Interceptor {
	return New("validate", func(ctx context.Context, call *Call, next func(context.Context) error) error {
		if validator := validators[call.FullMethod]; validator != nil {
			call.CheckMessages(func(message any) error {
				err := validator(message)
				if err == nil {
					return nil
				}
				if e, ok := rpcerr.As(err); ok {
					return e
				}
				return rpcerr.InvalidArgument("", "%v", err)
			})
		}
		return next(ctx)
	})
}

// ValidatorOf makes a Validator from a function of the message's own type.
func ValidatorOf[M any](validate func(M) error) Validator {
	return func(message any) error {
		m, ok := message.(M)
		if !ok {
			return rpcerr.Internal(fmt.Errorf("validating a %T as a %T", message, m))
		}
		return validate(m)
	}
}
