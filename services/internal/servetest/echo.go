package servetest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The methods of the echo service.
const (
	EchoService         = "trigate.test.v1.EchoService"
	EchoSayFullMethod   = "/" + EchoService + "/Say"
	EchoWatchFullMethod = "/" + EchoService + "/Watch"
)

// Echo is a service of a unary and a server-streaming method, whose behaviour
// a test gives.
type Echo struct {
	// Say answers the unary method. Nil: with the request.
	Say func(ctx context.Context, text string) (string, error)
	// Watch answers the stream. Nil: it sends the request once and ends.
	Watch func(ctx context.Context, text string, send func(string) error) error
}

// Register registers the service.
func (e *Echo) Register(registrar grpc.ServiceRegistrar) {
	registrar.RegisterService(&grpc.ServiceDesc{
		ServiceName: EchoService,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: e.handleSay}},
		Streams:     []grpc.StreamDesc{{StreamName: "Watch", Handler: e.handleWatch, ServerStreams: true}},
	}, e)
}

func (e *Echo) handleSay(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
	request := &wrapperspb.StringValue{}
	if err := decode(request); err != nil {
		return nil, err
	}
	return intercept(ctx, request, &grpc.UnaryServerInfo{Server: e, FullMethod: EchoSayFullMethod},
		func(ctx context.Context, request any) (any, error) {
			text := request.(*wrapperspb.StringValue).GetValue()
			if e.Say == nil {
				return wrapperspb.String(text), nil
			}
			answer, err := e.Say(ctx, text)
			return wrapperspb.String(answer), err
		})
}

func (e *Echo) handleWatch(_ any, stream grpc.ServerStream) error {
	request := &wrapperspb.StringValue{}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	send := func(text string) error { return stream.SendMsg(wrapperspb.String(text)) }
	if e.Watch == nil {
		return send(request.GetValue())
	}
	return e.Watch(stream.Context(), request.GetValue(), send)
}

// Say calls the unary method.
func Say(ctx context.Context, conn grpc.ClientConnInterface, text string) (string, error) {
	answer := &wrapperspb.StringValue{}
	err := conn.Invoke(ctx, EchoSayFullMethod, wrapperspb.String(text), answer)
	return answer.GetValue(), err
}

// Watch opens the stream. The function it returns receives one message.
func Watch(ctx context.Context, conn grpc.ClientConnInterface, text string) (func() (string, error), error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Watch", ServerStreams: true}, EchoWatchFullMethod)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(wrapperspb.String(text)); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	return func() (string, error) {
		answer := &wrapperspb.StringValue{}
		err := stream.RecvMsg(answer)
		return answer.GetValue(), err
	}, nil
}
