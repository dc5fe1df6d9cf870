package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apiserver/pkg/authentication/user"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

// TestCallers has each kind of caller call each method, with an empty message.
func TestCallers(t *testing.T) {
	denying := newChain(t, "AlwaysDeny")
	handlers := newServer(t, Config{Authorizer: denying, Rules: denying})
	pki := servetest.NewPKI(t)
	running := servetest.Start(t, pki, serve.Config{Name: "authz", Policy: Policy(), Authorizer: handlers.CallerAuthorizer()},
		func(s *serve.Server) {
			authzv1.RegisterAuthorizationServiceServer(s, handlers)
			s.Health().Set("test", true, "")
		})
	running.DialReady(t, "gateway")
	services, always := []string{"gateway", "authn", "admission", "masters"}, []string{"gateway", "masters"}
	may := map[string][]string{
		authzv1.AuthorizationService_Authorize_FullMethodName:           services,
		authzv1.AuthorizationService_BatchAuthorize_FullMethodName:      services,
		authzv1.AuthorizationService_AuthorizeStream_FullMethodName:     services,
		authzv1.AuthorizationService_WatchPolicyRevision_FullMethodName: always,
		authzv1.AuthorizationService_Explain_FullMethodName:             always,
		authzv1.AuthorizationService_WhoCan_FullMethodName:              always,
		authzv1.AuthorizationService_ListRules_FullMethodName:           always,
	}
	if described := len(authzv1.AuthorizationService_ServiceDesc.Methods) + len(authzv1.AuthorizationService_ServiceDesc.Streams); len(may) != described {
		t.Errorf("%d methods are tested, want all %d", len(may), described)
	}
	for name, cert := range map[string]servetest.Cert{
		"gateway":   pki.Process(t, "gateway"),
		"authn":     pki.Process(t, "authn"),
		"admission": pki.Process(t, "admission"),
		"authz":     pki.Process(t, "authz"),
		"masters":   pki.User(t, "root", user.SystemPrivilegedGroup),
		"a user":    pki.User(t, "jane"),
		"nobody":    {},
	} {
		conn := running.Dial(t, cert, nil)
		for method, callers := range may {
			code := call(t, conn, method)
			refused := code == codes.PermissionDenied || code == codes.Unauthenticated
			if want := !slices.Contains(callers, name); refused != want {
				t.Errorf("%s calls %s: %v, want refused %v", name, method, code, want)
			}
		}
	}
}

// call calls a method of any kind, and returns the code of its first answer.
func call(t *testing.T, conn grpc.ClientConnInterface, method string) codes.Code {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.WaitForReady(true))
	if err != nil {
		return status.Code(err)
	}
	// It is EOF if the call has been refused by now; RecvMsg has the reason.
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return status.Code(stream.RecvMsg(&emptypb.Empty{}))
}
