package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	authnv1 "github.com/trigate/trigate/proto/gen/go/trigate/authn/v1"
	"github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authn/internal/authntest"
	"github.com/trigate/trigate/services/authn/server"
	"github.com/trigate/trigate/services/internal/dial"
	"github.com/trigate/trigate/services/internal/serve"
	"github.com/trigate/trigate/services/internal/servetest"
)

// stub is a service that answers as a test wants it to.
type stub struct {
	authnv1.UnimplementedAuthenticationServiceServer
	authenticate func(context.Context, *authnv1.AuthenticateTokenRequest) (*authnv1.AuthenticateTokenResponse, error)
	issue        func(context.Context, *authnv1.IssueTokenRequest) (*authnv1.IssueTokenResponse, error)
	keys         func() (*authnv1.ListPublicKeysResponse, error)
}

func (s *stub) AuthenticateToken(ctx context.Context, r *authnv1.AuthenticateTokenRequest) (*authnv1.AuthenticateTokenResponse, error) {
	return s.authenticate(ctx, r)
}

func (s *stub) IssueToken(ctx context.Context, r *authnv1.IssueTokenRequest) (*authnv1.IssueTokenResponse, error) {
	return s.issue(ctx, r)
}

func (s *stub) ListPublicKeys(context.Context, *authnv1.ListPublicKeysRequest) (*authnv1.ListPublicKeysResponse, error) {
	return s.keys()
}

// serveStub runs a stub behind mTLS, ready, and dials it as a gateway.
func serveStub(t testing.TB, s *stub) (*servetest.Running, *client.Conn) {
	t.Helper()
	running := servetest.Start(t, servetest.NewPKI(t), serve.Config{Name: "authn", Policy: server.Policy()}, func(grpcServer *serve.Server) {
		authnv1.RegisterAuthenticationServiceServer(grpcServer, s)
		grpcServer.Health().Set("stub", true, "")
	})
	return running, (&service{Running: running}).connect(t)
}

func TestTokenNonsense(t *testing.T) {
	jane := &authnv1.UserInfo{Name: "jane"}
	for name, c := range map[string]struct {
		answer    *authnv1.AuthenticateTokenResponse
		audiences authenticator.Audiences
	}{
		"good, of nobody":  {answer: &authnv1.AuthenticateTokenResponse{Authenticated: true}},
		"bad, of somebody": {answer: &authnv1.AuthenticateTokenResponse{User: jane}},
		"good and refused": {answer: &authnv1.AuthenticateTokenResponse{Authenticated: true, User: jane, Error: "no"}},
		"malformed":        {answer: &authnv1.AuthenticateTokenResponse{Authenticated: true, User: &authnv1.UserInfo{Name: "%", PercentEncoded: true}}},
		"no audience":      {answer: &authnv1.AuthenticateTokenResponse{Authenticated: true, User: jane}, audiences: authenticator.Audiences{"api"}},
		"another audience": {answer: &authnv1.AuthenticateTokenResponse{Authenticated: true, User: jane, Audiences: []string{"other"}}, audiences: authenticator.Audiences{"api"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, conn := serveStub(t, &stub{authenticate: func(context.Context, *authnv1.AuthenticateTokenRequest) (*authnv1.AuthenticateTokenResponse, error) {
				return c.answer, nil
			}})
			ctx := t.Context()
			if c.audiences != nil {
				ctx = authenticator.WithAudiences(ctx, c.audiences)
			}
			response, ok, err := client.NewToken(conn).AuthenticateToken(ctx, "token")
			if response != nil || ok || !client.IsCouldNotDecide(err) {
				t.Errorf("AuthenticateToken() = %v, %v, %v, want an error for which IsCouldNotDecide holds", response, ok, err)
			}
		})
	}
}

// TestTokenIsNotAsked has tokens that the service need not see.
func TestTokenIsNotAsked(t *testing.T) {
	tokens := client.NewToken(refusing{t})
	for name, c := range map[string]struct {
		ctx   context.Context
		token string
	}{
		"empty":                  {t.Context(), ""},
		"longer than any header": {t.Context(), strings.Repeat("x", 1<<20+1)},
		"no audience is right":   {authenticator.WithAudiences(t.Context(), authenticator.Audiences{}), "token"},
	} {
		if response, ok, err := tokens.AuthenticateToken(c.ctx, c.token); response != nil || ok || err != nil {
			t.Errorf("AuthenticateToken(%s) = %v, %v, %v, want nil, false, nil", name, response, ok, err)
		}
	}
}

// refusing is a connection that must not be used.
type refusing struct{ t testing.TB }

func (r refusing) Invoke(_ context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	r.t.Errorf("%s is called", method)
	return errors.New("called")
}

func (r refusing) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	r.t.Errorf("%s is called", method)
	return nil, errors.New("called")
}

func TestTokenOutages(t *testing.T) {
	release := make(chan struct{})
	running, conn := serveStub(t, &stub{authenticate: func(ctx context.Context, r *authnv1.AuthenticateTokenRequest) (*authnv1.AuthenticateTokenResponse, error) {
		switch r.GetToken() {
		case "panic":
			panic("a bug")
		case "slow":
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("an error with the token %s", r.GetToken())
	}})
	defer close(release)
	tokens := client.NewToken(conn)
	undecided := func(t *testing.T, ctx context.Context, token string) {
		t.Helper()
		response, ok, err := tokens.AuthenticateToken(ctx, token)
		if response != nil || ok || !client.IsCouldNotDecide(err) {
			t.Errorf("AuthenticateToken(%s) = %v, %v, %v, want an error for which IsCouldNotDecide holds", token, response, ok, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret-token") {
			t.Errorf("AuthenticateToken(%s) = %v, which has the token", token, err)
		}
	}
	undecided(t, t.Context(), "secret-token")
	undecided(t, t.Context(), "panic")

	slow, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	undecided(t, slow, "slow")
	if elapsed := time.Since(start); elapsed > 10*time.Second {
		t.Errorf("AuthenticateToken() took %s with a deadline of 200 ms", elapsed)
	}

	gone, cancelGone := context.WithCancel(t.Context())
	cancelGone()
	undecided(t, gone, "x")

	if err := running.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	start = time.Now()
	undecided(t, t.Context(), "x")
	if elapsed := time.Since(start); elapsed > 10*time.Second {
		t.Errorf("AuthenticateToken() took %s without a service", elapsed)
	}
}

// TestTokenBeforeTheServiceIsThere has the service come late: until then nothing is
// decided, and then everything without a new connection.
func TestTokenBeforeTheServiceIsThere(t *testing.T) {
	listener := servetest.Listen(t)
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	pki := servetest.NewPKI(t)
	cert := pki.Process(t, "gateway")
	conn, err := client.Dial(client.Config{Endpoint: address, CAFile: pki.Gates.File, CertFile: cert.CertFile, KeyFile: cert.KeyFile})
	if err != nil {
		t.Fatalf("Dial() = %v, want no error", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tokens := client.NewToken(conn)
	if _, ok, err := tokens.AuthenticateToken(t.Context(), "x"); ok || !client.IsCouldNotDecide(err) {
		t.Errorf("AuthenticateToken() = %v, %v without a service, want an error for which IsCouldNotDecide holds", ok, err)
	}

	lateListener := listenAgain(t, address)
	servetest.Start(t, pki, serve.Config{Name: "authn", Policy: server.Policy(), Listener: lateListener}, func(grpcServer *serve.Server) {
		authnv1.RegisterAuthenticationServiceServer(grpcServer, &stub{authenticate: func(context.Context, *authnv1.AuthenticateTokenRequest) (*authnv1.AuthenticateTokenResponse, error) {
			return &authnv1.AuthenticateTokenResponse{Authenticated: true, User: &authnv1.UserInfo{Name: "jane"}}, nil
		}})
		grpcServer.Health().Set("stub", true, "")
	})
	servetest.Eventually(t, func() error {
		response, _, err := tokens.AuthenticateToken(t.Context(), "x")
		if err != nil {
			return err
		}
		if name := response.User.GetName(); name != "jane" {
			t.Errorf("AuthenticateToken() is user %q, want jane", name)
		}
		return nil
	})
}

// TestTokenThatIsEchoed has a webhook that quotes the token in its refusal, as no
// log may.
func TestTokenThatIsEchoed(t *testing.T) {
	s := newSetup(t)
	_, config := authntest.NewWebhook(t, func(spec authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{Error: fmt.Sprintf("do not know %s, nor %q", spec.Token, spec.Token)}
	})
	s.change = func(o *kubeoptions.BuiltInAuthenticationOptions) {
		o.WebHook.ConfigFile, o.WebHook.Version = config, "v1"
	}
	tokens := client.NewToken(newService(t, s).connect(t))
	for _, token := range []string{"secret-token", "secret\ntoken \"x\""} {
		_, ok, err := tokens.AuthenticateToken(t.Context(), token)
		const want = `do not know [token], nor "[token]"`
		if ok || err == nil || err.Error() != want {
			t.Errorf("AuthenticateToken(%q) = %v, %v, want the refusal %s", token, ok, err, want)
		}
	}
}

// TestTokensDoNotCross asks about many tokens at once: each answer has to be that
// of its token.
func TestTokensDoNotCross(t *testing.T) {
	const total, concurrency = 600, 64
	s := newSetup(t)
	var lines strings.Builder
	for i := range total {
		fmt.Fprintf(&lines, "token-%d,user-%d,uid-%d,\"group-%d\"\n", i, i, i, i)
	}
	file := writeTokenFile(t, lines.String())
	s.change = func(o *kubeoptions.BuiltInAuthenticationOptions) { o.TokenFile.TokenFile = file }
	tokens := client.NewToken(newService(t, s).connect(t))

	var wait sync.WaitGroup
	numbers := make(chan int)
	for range concurrency {
		wait.Go(func() {
			for i := range numbers {
				response, ok, err := tokens.AuthenticateToken(t.Context(), fmt.Sprintf("token-%d", i))
				if !ok || err != nil {
					t.Errorf("AuthenticateToken(token-%d) = %v, %v, want true", i, ok, err)
					continue
				}
				u := response.User
				if got, want := u.GetName()+u.GetUID()+u.GetGroups()[0], fmt.Sprintf("user-%duid-%dgroup-%d", i, i, i); got != want {
					t.Errorf("AuthenticateToken(token-%d) is %s, want %s", i, got, want)
				}
			}
		})
	}
	for i := range total {
		numbers <- i
	}
	close(numbers)
	wait.Wait()
}

// TestPolicy is who may call which method of the service.
func TestPolicy(t *testing.T) {
	svc := newService(t, newSetup(t))
	svc.connect(t) // waits until it is ready
	type callers map[string]bool
	for method, c := range map[string]struct {
		call    func(authnv1.AuthenticationServiceClient) error
		allowed callers
	}{
		"AuthenticateToken": {func(c authnv1.AuthenticationServiceClient) error {
			_, err := c.AuthenticateToken(t.Context(), &authnv1.AuthenticateTokenRequest{Token: "x"})
			return err
		}, callers{"gateway": true, "authz": true, "admission": true}},
		"IssueToken": {func(c authnv1.AuthenticationServiceClient) error {
			_, err := c.IssueToken(t.Context(), &authnv1.IssueTokenRequest{Claims: validClaims(t)})
			return err
		}, callers{"gateway": true}},
		"ListPublicKeys": {func(c authnv1.AuthenticationServiceClient) error {
			_, err := c.ListPublicKeys(t.Context(), &authnv1.ListPublicKeysRequest{})
			return err
		}, callers{"gateway": true, "authz": true, "admission": true}},
		"WatchRevocations": {func(c authnv1.AuthenticationServiceClient) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := c.WatchRevocations(ctx, &authnv1.WatchRevocationsRequest{})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}, callers{"gateway": true}},
	} {
		certs := map[string]servetest.Cert{
			"gateway": svc.PKI.Process(t, "gateway"), "authn": svc.PKI.Process(t, "authn"),
			"authz": svc.PKI.Process(t, "authz"), "admission": svc.PKI.Process(t, "admission"),
			"user": svc.PKI.User(t, "jane"), "user named as a gateway": svc.PKI.User(t, "system:trigate:gateway", "system:trigate"),
			"nobody": {}, "administrator": svc.PKI.User(t, "root", "system:masters"),
		}
		c.allowed["administrator"] = true
		for caller, cert := range certs {
			conn := svc.Dial(t, cert, func(cfg *dial.Config) {})
			err := c.call(authnv1.NewAuthenticationServiceClient(conn))
			if allowed := err == nil; allowed != c.allowed[caller] {
				t.Errorf("%s by %s gives %v, want allowed: %v", method, caller, err, c.allowed[caller])
			}
		}
	}
}
