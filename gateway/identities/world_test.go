package identities

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const configuration = "digest"

// service is an authentication service whose users hang on objects that a test sets, and
// which sees their changes when the test says so.
type service struct {
	mu sync.Mutex
	// verdicts are those on tokens. A token without one is not good.
	verdicts map[string]authnclient.Verdict
	// hook, if there is one, is called with each question.
	hook      func(ctx context.Context, token string) error
	calls     int
	following bool
	config    string
	silent    bool
	// news go to the stream, and broken ends it.
	news   chan []authnclient.Revocation
	broken chan struct{}
}

var _ Service = (*service)(nil)

// Judge implements Service.
func (s *service) Judge(ctx context.Context, token string) (authnclient.Verdict, error) {
	s.mu.Lock()
	s.calls++
	hook, verdict := s.hook, s.verdicts[token]
	s.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, token); err != nil {
			return authnclient.Verdict{}, err
		}
	}
	if audiences, ok := authenticator.AudiencesFrom(ctx); ok && verdict.Response != nil {
		verdict.Response = &authenticator.Response{User: verdict.Response.User, Audiences: audiences}
	}
	return verdict, nil
}

// WatchRevocations implements Service.
func (s *service) WatchRevocations(ctx context.Context, handle func(authnclient.Revocations)) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var revoked []authnclient.Revocation
	for {
		s.mu.Lock()
		message := authnclient.Revocations{Revoked: revoked, Configuration: s.config, Following: s.following}
		silent := s.silent
		s.mu.Unlock()
		if !silent {
			handle(message)
		}
		revoked = nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.broken:
			return errors.New("broken")
		case revoked = <-s.news:
		case <-ticker.C:
		}
	}
}

// set changes the service.
func (s *service) set(change func(s *service)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *service) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// world is a cache with its service.
type world struct {
	t testing.TB
	*Cache
	service *service
}

// inBubble runs a test with a clock of its own, and a cache whose stream has settled.
func inBubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{MaxEntries: 10000, MaxBytes: 10 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		w.after(settle)
		test(t, w)
		cancel()
		running.Wait()
	})
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	w := &world{t: t, service: &service{
		verdicts:  map[string]authnclient.Verdict{},
		following: true,
		config:    configuration,
		news:      make(chan []authnclient.Revocation),
		broken:    make(chan struct{}),
	}}
	cfg.Service = w.service
	var err error
	if w.Cache, err = New(cfg); err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	return w
}

// after lets time pass, in the bubble of the test.
func (w *world) after(passed time.Duration) {
	<-time.After(passed)
	synctest.Wait()
}

// good is a verdict that may be kept for five minutes.
func good(name string, dependencies ...authnclient.Object) authnclient.Verdict {
	return authnclient.Verdict{
		Response: &authenticator.Response{User: &user.DefaultInfo{
			Name: name, UID: "uid-of-" + name, Groups: []string{"a", "b"}, Extra: map[string][]string{"k": {"v", "w"}},
		}},
		Lifetime: authnclient.Lifetime{
			Dependencies: dependencies, KeepUntil: time.Now().Add(5 * time.Minute), Configuration: configuration,
		},
	}
}

func object(uid string, version uint64) authnclient.Object {
	return authnclient.Object{Resource: "serviceaccounts", Namespace: "shop", Name: "n", UID: uid, ResourceVersion: version}
}

// knows makes a token good.
func (w *world) knows(token string, verdict authnclient.Verdict) {
	w.service.set(func(s *service) { s.verdicts[token] = verdict })
}

// wantUser has a token authenticated.
func (w *world) wantUser(token, name string) {
	w.t.Helper()
	response, ok, err := w.AuthenticateToken(w.t.Context(), token)
	if !ok || err != nil || response.User.GetName() != name {
		w.t.Fatalf("AuthenticateToken(%s) = %+v, %v, %v, want user %s", token, response, ok, err, name)
	}
}

// wantKept has a token authenticated without the service.
func (w *world) wantKept(token string, kept bool) {
	w.t.Helper()
	before := w.service.asked()
	_, ok, err := w.AuthenticateToken(w.t.Context(), token)
	if !ok || err != nil {
		w.t.Fatalf("AuthenticateToken(%s) = %v, %v, want true", token, ok, err)
	}
	if asked := w.service.asked() > before; asked == kept {
		w.t.Errorf("AuthenticateToken(%s) asks the service: %v, want %v", token, asked, !kept)
	}
}

// keep has a good token kept.
func (w *world) keep(token string, verdict authnclient.Verdict) {
	w.t.Helper()
	w.knows(token, verdict)
	w.wantUser(token, verdict.Response.User.GetName())
	w.wantKept(token, true)
}

// written is an object as this gateway's storage hands it to Observe.
func written(uid string, version uint64) *core.ServiceAccount {
	return &core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "n", UID: types.UID(uid), ResourceVersion: fmt.Sprint(version),
	}}
}
