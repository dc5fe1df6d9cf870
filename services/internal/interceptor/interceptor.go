// Package interceptor has the layers that every gRPC server of Trigate wraps
// around its handlers, one file each: metrics, log, recover, allow, deadline,
// drain, validate. Their order, outermost first, is that list, so that
// refusals and panics are counted and logged like any failure.
//
// Each layer is written once, as a Body, and serves unary calls and streams.
package interceptor

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
)

// Call is one RPC on its way to its handler.
type Call struct {
	// FullMethod is "/package.Service/Method".
	FullMethod string
	// IsStream is whether the call is a stream in any direction.
	IsStream bool

	checks []func(message any) error
}

// CheckMessages has each message that the caller sends checked before the
// handler sees it. An error ends the call.
func (c *Call) CheckMessages(check func(message any) error) {
	c.checks = append(c.checks, check)
}

func (c *Call) checkMessage(message any) error {
	for _, check := range c.checks {
		if err := check(message); err != nil {
			return err
		}
	}
	return nil
}

// Body is one layer. It runs next, which returns when the handler has, with
// the context that the handler shall see, or returns an error without it.
type Body func(ctx context.Context, call *Call, next func(context.Context) error) error

// Interceptor is one layer in both of its forms.
type Interceptor struct {
	// Name is the layer's name: it appears in the errors of ServerOptions.
	Name string
	// Unary is the layer for unary calls.
	Unary grpc.UnaryServerInterceptor
	// Stream is the layer for streams.
	Stream grpc.StreamServerInterceptor
}

// New makes both forms of a layer from its body.
func New(name string, body Body) Interceptor {
	return Interceptor{Name: name, Unary: unary(body), Stream: stream(body)}
}

func unary(body Body) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		call := &Call{FullMethod: info.FullMethod}
		var response any
		err := body(ctx, call, func(ctx context.Context) error {
			if err := call.checkMessage(request); err != nil {
				return err
			}
			var err error
			response, err = handler(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

func stream(body Body) grpc.StreamServerInterceptor {
	return func(server any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		call := &Call{FullMethod: info.FullMethod, IsStream: true}
		return body(ss.Context(), call, func(ctx context.Context) error {
			return handler(server, &wrappedStream{ServerStream: ss, ctx: ctx, call: call})
		})
	}
}

// wrappedStream gives a handler the context of the layers around it, as gRPC
// itself does: the context's life is the stream's.
type wrappedStream struct {
	grpc.ServerStream
	ctx  context.Context
	call *Call
}

// Context returns the context of the layers around the handler.
func (s *wrappedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message and has it checked.
func (s *wrappedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.call.checkMessage(message)
}

// ServerOptions chains layers, outermost first. It fails if one of them is
// missing a form or is there twice, so that a stream can never have a check
// less than a unary call.
func ServerOptions(layers ...Interceptor) ([]grpc.ServerOption, error) {
	seen := map[string]bool{}
	var unaries []grpc.UnaryServerInterceptor
	var streams []grpc.StreamServerInterceptor
	for _, layer := range layers {
		switch {
		case layer.Unary == nil:
			return nil, fmt.Errorf("interceptor %s has no unary form", layer.Name)
		case layer.Stream == nil:
			return nil, fmt.Errorf("interceptor %s has no stream form", layer.Name)
		case seen[layer.Name]:
			return nil, fmt.Errorf("interceptor %s is there twice", layer.Name)
		}
		seen[layer.Name] = true
		unaries = append(unaries, layer.Unary)
		streams = append(streams, layer.Stream)
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unaries...), grpc.ChainStreamInterceptor(streams...)}, nil
}
