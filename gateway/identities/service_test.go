package identities

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/apis/core"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trigate/trigate/services/authn/authntest"
	authnclient "github.com/trigate/trigate/services/authn/client"
)

// follow returns a cache over a connection to a real service, which keeps what it is told.
func follow(t testing.TB, service Service) *Cache {
	t.Helper()
	c, err := New(Config{Service: service, MaxEntries: DefaultMaxEntries, MaxBytes: DefaultMaxBytes})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	eventually(t, func() error {
		now := c.clock.Now()
		if state := c.stream.live(now); state == nil || !state.settled(now) {
			return errors.New("the service is not followed")
		}
		return nil
	})
	return c
}

// eventually polls until check returns nil.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-ticker.C:
		}
	}
}

// counted counts the questions to a service.
type counted struct {
	Service
	mu    sync.Mutex
	calls int
}

// Judge implements Service.
func (c *counted) Judge(ctx context.Context, token string) (authnclient.Verdict, error) {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	return c.Service.Judge(ctx, token)
}

func (c *counted) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// TestIdentitiesDoNotCross has many tokens shown at once, several times each, to the
// service over mutual TLS and to what is kept of it: each answer has to be that of its
// token.
func TestIdentitiesDoNotCross(t *testing.T) {
	const total, concurrency, times = 2000, 64, 3
	var lines strings.Builder
	for i := range total {
		fmt.Fprintf(&lines, "token-%d,user-%d,uid-%d,\"group-%d\"\n", i, i, i, i)
	}
	service := &counted{Service: authnclient.NewToken(authntest.Start(t, lines.String()).Conn(t))}
	cache := follow(t, service)
	numbers := make(chan int)
	var wait sync.WaitGroup
	for range concurrency {
		wait.Go(func() {
			for i := range numbers {
				response, ok, err := cache.AuthenticateToken(t.Context(), fmt.Sprintf("token-%d", i))
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
	for n := range total * times {
		numbers <- n * 7 % total // each token again before all have been there
	}
	close(numbers)
	wait.Wait()
	if asked := service.asked(); asked < total || asked > total*times/2 {
		t.Errorf("the service was asked %d times about %d tokens that were shown %d times each", asked, total, times)
	}
}

// TestDeletionByOthers has a service account deleted behind the gateway's back.
func TestDeletionByOthers(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid"}}
	authn := authntest.Start(t, "", account)
	conn := authn.Conn(t)
	token := authn.Issue(t, conn, core.ServiceAccount{ObjectMeta: account.ObjectMeta})
	service := &counted{Service: authnclient.NewToken(conn)}
	cache := follow(t, service)
	isKept := func() error {
		before := service.asked()
		if _, ok, err := cache.AuthenticateToken(t.Context(), token); !ok || err != nil {
			return fmt.Errorf("AuthenticateToken() = %v, %w, want true", ok, err)
		}
		if service.asked() > before {
			return errors.New("the identity is not kept")
		}
		return nil
	}
	eventually(t, isKept)

	// While the service's own API is away, nothing is served from what is kept.
	authn.SetAvailable(false)
	eventually(t, func() error {
		if isKept() == nil {
			return errors.New("the identity is kept though the service does not follow")
		}
		return nil
	})
	authn.SetAvailable(true)
	eventually(t, isKept)

	authn.Delete(t, account)
	eventually(t, func() error {
		if _, ok, err := cache.AuthenticateToken(t.Context(), token); ok || authnclient.IsCouldNotDecide(err) {
			return fmt.Errorf("AuthenticateToken() = %v, %w after the account was deleted", ok, err)
		}
		return nil
	})
}

// BenchmarkToken has the token of a service account authenticated in each of the ways that
// there are, in one run.
func BenchmarkToken(b *testing.B) {
	account := metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: types.UID("uid")}
	authn := authntest.Start(b, "", &corev1.ServiceAccount{ObjectMeta: account})
	conn := authn.Conn(b)
	token := authn.Issue(b, conn, core.ServiceAccount{ObjectMeta: account})
	service := authnclient.NewToken(conn)
	cache := follow(b, service)
	upstream := func(cached bool) func(ctx context.Context) error {
		chain := upstreamOf(b, authn, cached, &corev1.ServiceAccount{ObjectMeta: account})
		return func(ctx context.Context) error {
			// Upstream takes the token out of the request.
			request := &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
			_, ok, err := chain.AuthenticateRequest(request.WithContext(ctx))
			return wanted(ok, err)
		}
	}
	for _, way := range []struct {
		name string
		ask  func(ctx context.Context) error
	}{
		{"gateway, kept", func(ctx context.Context) error {
			_, ok, err := cache.AuthenticateToken(ctx, token)
			return wanted(ok, err)
		}},
		{"service over mutual TLS", func(ctx context.Context) error {
			_, ok, err := service.AuthenticateToken(ctx, token)
			return wanted(ok, err)
		}},
		{"upstream in process, cached", upstream(true)},
		{"upstream in process, verified", upstream(false)},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := way.ask(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func wanted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("the token is not known")
	}
	return err
}

// upstreamOf builds the chain of a stock kube-apiserver in process, with its cache or
// without.
func upstreamOf(b *testing.B, authn *authntest.Service, cached bool, account *corev1.ServiceAccount) authenticator.Request {
	b.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(b.Context()))
	b.Cleanup(stop)
	options := kubeoptions.NewBuiltInAuthenticationOptions().
		WithBootstrapToken().WithOIDC().WithServiceAccounts().WithTokenFile().WithWebHook()
	options.ServiceAccounts.Issuers = []string{authntest.Issuer}
	options.ServiceAccounts.KeyFiles = []string{authn.PublicKeyFile}
	if !cached {
		options.TokenSuccessCacheTTL = 0
	}
	kubernetes := fake.NewClientset(account)
	factory := informers.NewSharedInformerFactory(kubernetes, 0)
	var info genericapiserver.AuthenticationInfo
	if err := options.ApplyTo(ctx, &info, nil, nil, &openapicommon.Config{}, nil, kubernetes, factory, "stock"); err != nil {
		b.Fatalf("building the stock chain: %v", err)
	}
	factory.Start(ctx.Done())
	b.Cleanup(func() { stop(); factory.Shutdown() })
	factory.WaitForCacheSync(ctx.Done())
	return info.Authenticator
}
