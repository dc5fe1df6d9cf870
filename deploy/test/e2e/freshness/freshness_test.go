// Package freshness tests when a grant and its end are in force: for the very next
// request through the gateway that acknowledged the write, and within a moment
// through another one.
package freshness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/test/framework"
)

func TestMain(m *testing.M) { framework.Main(m) }

const (
	// rounds are of grant, use, revoke, use.
	rounds = 500
	// killRounds are those while a replica of authz is killed now and then.
	killRounds = 100
	// killEvery is how many rounds lie between two kills.
	killEvery = 20
	namespace = "freshness"
	resource  = "/api/v1/namespaces/" + namespace + "/configmaps"
)

// TestRevokedRights grants and revokes in turn by every kind of object that can do
// it.
func TestRevokedRights(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--gateways=2", "--replicas=2", "--controllers=false"}})
	s := newStage(t, c)
	t.Run("undisturbed", func(t *testing.T) {
		var lags []time.Duration
		for round := range rounds {
			lags = append(lags, s.round(t, round))
		}
		report(t, lags)
	})
	t.Run("while replicas are killed", func(t *testing.T) {
		var lags []time.Duration
		for round := range killRounds {
			if round%killEvery == 0 {
				// Either may serve the stream of either gateway.
				c.Signal(t, []string{"authz", "authz.2"}[round/killEvery%2], syscall.SIGKILL)
			}
			lags = append(lags, s.round(t, round))
		}
		report(t, lags)
	})
}

// report prints how long a right lived on at the second gateway.
func report(t *testing.T, lags []time.Duration) {
	slices.Sort(lags)
	at := func(share float64) time.Duration { return lags[int(share*float64(len(lags)-1))] }
	t.Logf("a revoked right lived on at the second gateway: median %s, 90%% %s, 99%% %s, longest %s, of %d",
		at(0.5), at(0.9), at(0.99), at(1), len(lags))
}

// stage is who acts.
type stage struct {
	admin kubernetes.Interface
	// first and second are ann's way through the two gateways.
	first, second *way
}

// way is how a user reads through one gateway.
type way struct {
	client *http.Client
	url    string
}

func newStage(t *testing.T, c *framework.Cluster) *stage {
	t.Helper()
	gateways := c.Gateways(t)
	if len(gateways) != 2 {
		t.Fatalf("%d gateways, want 2", len(gateways))
	}
	s := &stage{admin: c.Client(t)}
	ann := c.User(t, "ann", "readers")
	s.first = newWay(t, ann)
	ann = rest.CopyConfig(ann)
	ann.Host = gateways[1].Config(t).Host
	s.second = newWay(t, ann)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func newWay(t *testing.T, config *rest.Config) *way {
	return &way{client: framework.HTTP(t, config), url: config.Host + resource}
}

// reads reports whether the user may read. An answer that is no verdict is asked for
// again, as client-go does.
func (w *way) reads(ctx context.Context) (bool, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
		if err != nil {
			return false, err
		}
		resp, err := w.client.Do(req)
		if err != nil {
			return false, err
		}
		if err := resp.Body.Close(); err != nil {
			return false, err
		}
		switch resp.StatusCode {
		case http.StatusOK:
			return true, nil
		case http.StatusForbidden:
			return false, nil
		case http.StatusServiceUnavailable:
			if resp.Header.Get("Retry-After") == "" {
				return false, errors.New("503 without Retry-After")
			}
		default:
			return false, fmt.Errorf("got %s", resp.Status)
		}
	}
}

// round grants, uses, revokes and uses, and returns how long the right lived on at the
// second gateway. Others ask the same all the while, so that what can be cached is.
func (s *stage) round(t *testing.T, round int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	defer cancel()
	crowd := s.startCrowd(ctx)
	way := ways[round%len(ways)]
	s.must(t, way.grant(ctx, s.admin))
	crowd.granted.Store(true)
	s.want(ctx, t, "after the grant", true)
	if err := wait(ctx, s.second, true); err != nil {
		t.Fatalf("round %d, %s: the grant at the second gateway: %v", round, way.name, err)
	}
	crowd.granted.Store(false)
	s.must(t, way.revoke(ctx, s.admin))
	revoked := time.Now()
	crowd.revoked.Store(true)
	s.want(ctx, t, fmt.Sprintf("round %d: after the revocation of %s", round, way.name), false)
	if err := wait(ctx, s.second, false); err != nil {
		t.Fatalf("round %d, %s: the revocation at the second gateway: %v", round, way.name, err)
	}
	lag := time.Since(revoked)
	if err := crowd.end(); err != nil {
		t.Fatalf("round %d, %s: %v", round, way.name, err)
	}
	if way.clean != nil {
		s.must(t, way.clean(ctx, s.admin))
	}
	return lag
}

func (s *stage) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want has the very next request through the first gateway tell.
func (s *stage) want(ctx context.Context, t *testing.T, when string, want bool) {
	t.Helper()
	if got, err := s.first.reads(ctx); err != nil || got != want {
		t.Fatalf("%s ann may read = %v, %v, want %v", when, got, err, want)
	}
}

// wait asks until the answer is what is wanted.
func wait(ctx context.Context, w *way, want bool) error {
	for {
		if got, err := w.reads(ctx); err != nil || got == want {
			return err
		}
	}
}

// crowd asks through the first gateway all the time.
type crowd struct {
	// granted is true from when a grant was acknowledged until its end is asked for,
	// revoked from when its end was acknowledged.
	granted, revoked atomic.Bool
	done             chan struct{}
	wg               sync.WaitGroup
	errs             chan error
}

func (s *stage) startCrowd(ctx context.Context) *crowd {
	const size = 2
	c := &crowd{done: make(chan struct{}), errs: make(chan error, size)}
	for range size {
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			c.errs <- c.ask(ctx, s.first)
		}()
	}
	return c
}

func (c *crowd) ask(ctx context.Context, w *way) error {
	for {
		select {
		case <-c.done:
			return nil
		default:
		}
		granted, revoked := c.granted.Load(), c.revoked.Load()
		may, err := w.reads(ctx)
		switch {
		case err != nil:
			return err
		case may && revoked:
			return errors.New("a request that began after the revocation was allowed")
		case !may && granted && c.granted.Load():
			return errors.New("a request between the grant and the revocation was refused")
		}
	}
}

func (c *crowd) end() error {
	close(c.done)
	c.wg.Wait()
	close(c.errs)
	var all []error
	for err := range c.errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// object is the name of all objects that ann's right hangs on.
const object = "ann-reads"

var (
	meta    = metav1.ObjectMeta{Name: object}
	rules   = []rbacv1.PolicyRule{framework.May("list", "", "configmaps")}
	ann     = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}}
	readers = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "readers"}}
)
