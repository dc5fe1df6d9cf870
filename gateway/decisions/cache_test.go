package decisions

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/rbac"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// script is a service whose answers and changes come when the test says so, which the
// real one would do only by chance. TestEquivalence has the real one.
type script struct {
	updates chan authzclient.PolicyUpdate
	// taken counts the updates that have been handled.
	taken atomic.Int64

	mu     sync.Mutex
	answer authzclient.Answer
	err    error
	asked  []authzclient.Revision
	over   int // of those asked
	// block, if it is not nil, is received from before an answer.
	block chan struct{}
}

func (s *script) Decide(ctx context.Context, _ authorizer.Attributes, atLeast authzclient.Revision) (authzclient.Answer, error) {
	s.mu.Lock()
	s.asked = append(s.asked, atLeast)
	answer, err, block := s.answer, s.err, s.block
	s.mu.Unlock()
	defer s.set(func() { s.over++ })
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return authzclient.Answer{}, authzclient.CouldNotDecide(ctx.Err())
		}
	}
	return answer, err
}

func (s *script) WatchPolicy(ctx context.Context, handle func(authzclient.PolicyUpdate)) error {
	for {
		select {
		case update, ok := <-s.updates:
			if !ok {
				return errors.New("the stream has ended")
			}
			handle(update)
			s.taken.Add(1)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *script) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *script) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func (s *script) ended() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// at is a revision at which everything has been read.
func at(version uint64) authzclient.Revision {
	return authzclient.Revision{ClusterRoles: version, ClusterRoleBindings: version, Roles: version, RoleBindings: version}
}

// following is a sign of life at a revision.
func following(version uint64, changes ...authzclient.PolicyChange) authzclient.PolicyUpdate {
	return authzclient.PolicyUpdate{Revision: at(version), Configuration: "c", Following: true, Changes: changes}
}

// start returns a cache that follows a script, which allows everything.
func start(t testing.TB) (*Cache, *script) {
	t.Helper()
	s := &script{
		updates: make(chan authzclient.PolicyUpdate),
		answer: authzclient.Answer{
			Decision: authorizer.DecisionAllow, Reason: "by the script",
			Revision: at(10), Reuse: authzclient.ReuseSameName, Configuration: "c",
		},
	}
	c, err := New(Config{Service: s, MaxEntries: 10_000, MaxBytes: 10 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // The cleanup waits for it.
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	s.updates <- following(10)
	s.updates <- following(10)
	eventually(t, func() bool { return s.taken.Load() == 2 })
	return c, s
}

func question(namespace, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "jane", Groups: []string{"dev", user.AllAuthenticated}},
		Verb: "get", Namespace: namespace, APIVersion: "v1", Resource: "pods", Name: name, ResourceRequest: true,
	}
}

// expect asks, and wants the answer to come from the cache or not.
func expect(t *testing.T, c *Cache, s *script, q authorizer.Attributes, hit bool) {
	t.Helper()
	before := s.calls()
	if decision, reason, err := c.Authorize(t.Context(), q); decision != authorizer.DecisionAllow || reason != "by the script" || err != nil {
		t.Errorf("Authorize() = %v, %q, %v, want Allow by the script", decision, reason, err)
	}
	if got := s.calls() == before; got != hit {
		t.Errorf("from the cache = %v, want %v", got, hit)
	}
}

func change(namespace string, revision authzclient.Revision) authzclient.PolicyChange {
	return authzclient.PolicyChange{Namespace: namespace, Revision: revision}
}

func TestReuse(t *testing.T) {
	others := map[string]authorizer.AttributesRecord{
		"another name":      question("ns", "other"),
		"another namespace": question("other", "web"),
		"no namespace":      question("", ""),
	}
	for reuse, holds := range map[authzclient.Reuse][]string{
		authzclient.ReuseSameName:     nil,
		authzclient.ReuseAnyName:      {"another name"},
		authzclient.ReuseAnyNamespace: {"another name", "another namespace", "no namespace"},
	} {
		for other, q := range others {
			t.Run(fmt.Sprint(reuse, other), func(t *testing.T) {
				c, s := start(t)
				s.set(func() { s.answer.Reuse = reuse })
				expect(t, c, s, question("ns", "web"), false)
				expect(t, c, s, question("ns", "web"), true)
				want := false
				for _, name := range holds {
					want = want || name == other
				}
				expect(t, c, s, q, want)
			})
		}
	}
}

// TestOtherQuestions wants each thing that a decision depends on to be told apart.
func TestOtherQuestions(t *testing.T) {
	c, s := start(t)
	s.set(func() { s.answer.Reuse = authzclient.ReuseAnyNamespace })
	expect(t, c, s, question("ns", "web"), false)
	for name, alter := range map[string]func(*authorizer.AttributesRecord){
		"user": func(q *authorizer.AttributesRecord) {
			q.User = &user.DefaultInfo{Name: "paul", Groups: q.User.GetGroups()}
		},
		"groups": func(q *authorizer.AttributesRecord) {
			q.User = &user.DefaultInfo{Name: "jane", Groups: []string{"dev"}}
		},
		"split groups": func(q *authorizer.AttributesRecord) {
			q.User = &user.DefaultInfo{Name: "jane", Groups: []string{"de", "v", user.AllAuthenticated}}
		},
		"verb":        func(q *authorizer.AttributesRecord) { q.Verb = "list" },
		"group":       func(q *authorizer.AttributesRecord) { q.APIGroup = "apps" },
		"resource":    func(q *authorizer.AttributesRecord) { q.Resource = "secrets" },
		"subresource": func(q *authorizer.AttributesRecord) { q.Subresource = "log" },
		"path":        func(q *authorizer.AttributesRecord) { q.ResourceRequest, q.Path = false, "/metrics" },
	} {
		t.Run(name, func(t *testing.T) {
			q := question("ns", "web")
			alter(&q)
			expect(t, c, s, q, false)
			expect(t, c, s, q, true)
		})
	}
	q := question("ns", "web")
	q.User = &user.DefaultInfo{Name: "jane", Groups: q.User.GetGroups(), UID: "7", Extra: map[string][]string{"a": {"b"}}}
	expect(t, c, s, q, true)
}

func TestNotKept(t *testing.T) {
	for name, alter := range map[string]func(*authzclient.Answer){
		"never":                 func(a *authzclient.Answer) { a.Reuse = authzclient.ReuseNever },
		"another configuration": func(a *authzclient.Answer) { a.Configuration = "d" },
		"before the stream":     func(a *authzclient.Answer) { a.Revision.Roles = 9 },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := start(t)
			s.set(func() { alter(&s.answer) })
			expect(t, c, s, question("ns", "web"), false)
			expect(t, c, s, question("ns", "web"), false)
		})
	}
}

// TestOwnWrites wants a write through this gateway to be in force at once, and
// questions to ask for it.
func TestOwnWrites(t *testing.T) {
	role := &rbac.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", ResourceVersion: "20"}}
	clusterRole := &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r", ResourceVersion: "20"}}
	for name, test := range map[string]struct {
		resource string
		object   runtime.Object
		reuse    authzclient.Reuse
		kept     bool
		want     authzclient.Revision
	}{
		"role":                         {"roles", role, authzclient.ReuseSameName, false, authzclient.Revision{Roles: 20}},
		"role, of any namespace":       {"roles", role, authzclient.ReuseAnyNamespace, true, authzclient.Revision{}},
		"cluster role":                 {"clusterroles", clusterRole, authzclient.ReuseSameName, false, authzclient.Revision{ClusterRoles: 20}},
		"cluster role, any namespace":  {"clusterroles", clusterRole, authzclient.ReuseAnyNamespace, false, authzclient.Revision{ClusterRoles: 20}},
		"role binding":                 {"rolebindings", role, authzclient.ReuseAnyName, false, authzclient.Revision{RoleBindings: 20}},
		"cluster role binding":         {"clusterrolebindings", clusterRole, authzclient.ReuseAnyName, false, authzclient.Revision{ClusterRoleBindings: 20}},
		"role without a real revision": {"roles", &rbac.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}, authzclient.ReuseSameName, true, authzclient.Revision{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := start(t)
			s.set(func() { s.answer.Reuse = test.reuse })
			expect(t, c, s, question("ns", "web"), false)
			c.Observe(rbac.Resource(test.resource), test.object, true)
			expect(t, c, s, question("ns", "web"), test.kept)
			if got := s.asked[len(s.asked)-1]; got != test.want {
				t.Errorf("asked for %+v, want %+v", got, test.want)
			}
			if test.kept {
				return
			}
			// An answer that has not seen the write is not kept; one that has is.
			expect(t, c, s, question("ns", "web"), false)
			s.set(func() { s.answer.Revision = at(20) })
			expect(t, c, s, question("ns", "web"), false)
			expect(t, c, s, question("ns", "web"), true)
		})
	}
}

// TestNamespaces counts the misses: a change in one namespace costs the others
// nothing.
func TestNamespaces(t *testing.T) {
	c, s := start(t)
	const namespaces = 50
	ask := func() int {
		before := s.calls()
		for i := range namespaces {
			if _, _, err := c.Authorize(t.Context(), question(strconv.Itoa(i), "web")); err != nil {
				t.Fatal(err)
			}
		}
		return s.calls() - before
	}
	if got := ask(); got != namespaces {
		t.Errorf("%d misses at first, want %d", got, namespaces)
	}
	s.set(func() { s.answer.Revision = at(20) })
	s.updates <- following(20, change("7", authzclient.Revision{RoleBindings: 20}))
	s.updates <- following(20)
	if got := ask(); got != 1 {
		t.Errorf("%d misses after a change in one namespace, want 1", got)
	}
	s.set(func() { s.answer.Revision = at(30) })
	s.updates <- following(30, change("", authzclient.Revision{ClusterRoles: 30}))
	s.updates <- following(30)
	if got := ask(); got != namespaces {
		t.Errorf("%d misses after a cluster-wide change, want %d", got, namespaces)
	}
}

// TestNoStreamNoCache wants whatever makes the stream's word worthless to show in
// the next decision.
func TestNoStreamNoCache(t *testing.T) {
	for name, cut := range map[string]func(*script){
		"it ends": func(s *script) {
			close(s.updates)
		},
		"it does not follow": func(s *script) {
			s.updates <- authzclient.PolicyUpdate{Revision: at(10), Configuration: "c"}
			s.updates <- authzclient.PolicyUpdate{Revision: at(10), Configuration: "c"}
		},
		"another configuration": func(s *script) {
			s.updates <- authzclient.PolicyUpdate{Revision: at(10), Configuration: "d", Following: true}
			s.updates <- authzclient.PolicyUpdate{Revision: at(10), Configuration: "d", Following: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := start(t)
			expect(t, c, s, question("ns", "web"), false)
			expect(t, c, s, question("ns", "web"), true)
			cut(s)
			eventually(t, func() bool { return !c.policy.live() || c.policy.epoch.Load() > 1 })
			expect(t, c, s, question("ns", "web"), false)
		})
	}
}

// TestSilence wants a stream that says nothing to be no stream.
func TestSilence(t *testing.T) {
	c, s := start(t)
	expect(t, c, s, question("ns", "web"), false)
	c.policy.heard.Store(int64(time.Since(c.policy.started) - silence))
	expect(t, c, s, question("ns", "web"), false)
	s.updates <- following(10)
	s.updates <- following(10)
	expect(t, c, s, question("ns", "web"), true)
}

// TestNewStream wants what changed while there was no stream to be asked for: another
// replica may not have seen it.
func TestNewStream(t *testing.T) {
	c, s := start(t)
	update := following(40)
	update.Changed = authzclient.Revision{ClusterRoleBindings: 20, Roles: 30}
	c.policy.lose()
	c.policy.begin(update)
	s.set(func() { s.answer.Revision = at(40) })
	expect(t, c, s, question("ns", "web"), false)
	if got := s.asked[len(s.asked)-1]; got != update.Changed {
		t.Errorf("asked for %+v, want %+v", got, update.Changed)
	}
	expect(t, c, s, question("ns", "web"), true)
}

// TestBreak wants what was kept before the service lost its own watch not to come back
// with the watch, which tells what it has missed a moment later; a watch that is only
// renewed costs nothing.
func TestBreak(t *testing.T) {
	for name, test := range map[string]struct {
		length time.Duration
		kept   bool
	}{"renewed": {0, true}, "lost": {2 * maxBreak, false}} {
		t.Run(name, func(t *testing.T) {
			c, s := start(t)
			expect(t, c, s, question("ns", "web"), false)
			cut := following(10)
			cut.Following = false
			s.updates <- cut
			s.updates <- cut
			expect(t, c, s, question("ns", "web"), false)
			c.policy.mu.Lock()
			c.policy.broke = c.policy.broke.Add(-test.length)
			c.policy.mu.Unlock()
			s.updates <- following(10)
			s.updates <- following(10)
			expect(t, c, s, question("ns", "web"), test.kept)
			expect(t, c, s, question("ns", "web"), true)
		})
	}
}

// TestAnswerInFlight wants an answer that was under way when the policy changed not
// to be kept, nor to be shared with those who came after the change.
func TestAnswerInFlight(t *testing.T) {
	c, s := start(t)
	block := make(chan struct{})
	s.set(func() { s.block = block })
	done := make(chan struct{})
	go func() { // Ends with its answer.
		defer close(done)
		_, _, _ = c.Authorize(context.WithoutCancel(t.Context()), question("ns", "web"))
	}()
	eventually(t, func() bool { return s.calls() == 1 })
	c.Observe(rbac.Resource("roles"), &rbac.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", ResourceVersion: "20"}}, false)
	s.set(func() { s.block = nil })
	expect(t, c, s, question("ns", "web"), false)
	close(block)
	<-done
	expect(t, c, s, question("ns", "web"), false)
}

// TestCoalescing wants equal questions at the same time to be one, whose answer does
// not depend on the patience of who came first.
func TestCoalescing(t *testing.T) {
	c, s := start(t)
	block := make(chan struct{})
	s.set(func() { s.block = block })
	const callers = 20
	first, giveUp := context.WithCancel(t.Context())
	answers := make(chan error, callers)
	ask := func(ctx context.Context) {
		_, _, err := c.Authorize(ctx, question("ns", "web"))
		answers <- err
	}
	go ask(first) // All are waited for.
	eventually(t, func() bool { return s.calls() == 1 })
	for range callers - 1 {
		go ask(t.Context())
	}
	eventually(t, func() bool { return c.flights.Waiting() == callers })
	giveUp()
	if err := <-answers; !authzclient.IsCouldNotDecide(err) {
		t.Errorf("who gave up got %v, want that nothing could be decided", err)
	}
	close(block)
	for range callers - 1 {
		if err := <-answers; err != nil {
			t.Errorf("who waited got %v, want an answer", err)
		}
	}
	if got := s.calls(); got != 1 {
		t.Errorf("the service was asked %d times, want once", got)
	}
}

// TestGivenUp wants a question that nobody waits for any more to end, and its failure
// not to be the answer of who comes later.
func TestGivenUp(t *testing.T) {
	c, s := start(t)
	block := make(chan struct{})
	defer close(block)
	s.set(func() { s.block = block })
	ctx, giveUp := context.WithCancel(t.Context())
	const callers = 20
	answers := make(chan error, callers)
	for range callers {
		go func() { // All are waited for.
			_, _, err := c.Authorize(ctx, question("ns", "web"))
			answers <- err
		}()
	}
	eventually(t, func() bool { return c.flights.Waiting() == callers })
	giveUp()
	for range callers {
		if err := <-answers; !authzclient.IsCouldNotDecide(err) {
			t.Errorf("who gave up got %v, want that nothing could be decided", err)
		}
	}
	s.set(func() { s.block = nil })
	expect(t, c, s, question("ns", "web"), false)
	eventually(t, func() bool { return s.ended() == s.calls() })
	if got := c.flights.Waiting(); got > 0 {
		t.Errorf("%d callers wait, want none", got)
	}
}

// TestErrorIsNotKept wants a failure to be told and forgotten.
func TestErrorIsNotKept(t *testing.T) {
	c, s := start(t)
	s.set(func() { s.err = authzclient.CouldNotDecide(context.DeadlineExceeded) })
	if decision, _, err := c.Authorize(t.Context(), question("ns", "web")); decision == authorizer.DecisionAllow || !authzclient.IsCouldNotDecide(err) {
		t.Errorf("Authorize() = %v, %v, want that nothing could be decided", decision, err)
	}
	s.set(func() { s.err = nil })
	expect(t, c, s, question("ns", "web"), false)
}

// TestBounds wants the cache to stay within its bounds, and to be empty when all it
// had is out of date.
func TestBounds(t *testing.T) {
	c, s := start(t)
	for i := range 30_000 {
		if i%1000 == 0 {
			s.updates <- following(10) // The stream must not fall silent on a slow machine.
		}
		if _, _, err := c.Authorize(t.Context(), question(strconv.Itoa(i%100), strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	entries, bytes := c.size()
	if entries == 0 || entries > 10_000 || bytes > 10<<20 {
		t.Errorf("%d entries of %d bytes, want 10000 of 10 MiB at most", entries, bytes)
	}
	s.updates <- following(20, change("", authzclient.Revision{ClusterRoleBindings: 20}))
	eventually(t, func() bool {
		entries, bytes := c.size()
		c.policy.mu.Lock()
		defer c.policy.mu.Unlock()
		return entries == 0 && bytes == 0 && len(c.policy.scopes) == 0
	})
}

// TestLongKey wants a question with a key beyond the limit to be asked each time.
func TestLongKey(t *testing.T) {
	c, s := start(t)
	q := question("ns", string(make([]byte, maxKey)))
	expect(t, c, s, q, false)
	expect(t, c, s, q, false)
}

// TestNothingIsKept wants a cache without room to ask each time.
func TestNothingIsKept(t *testing.T) {
	s := &script{answer: authzclient.Answer{Decision: authorizer.DecisionAllow, Reason: "by the script", Reuse: authzclient.ReuseAnyName}}
	c, err := New(Config{Service: s})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, c, s, question("ns", "web"), false)
	expect(t, c, s, question("ns", "web"), false)
}

func (c *Cache) size() (entries int, bytes int64) {
	for _, s := range c.shards {
		e, b, _, _ := s.size()
		entries, bytes = entries+e, bytes+b
	}
	return entries, bytes
}

// eventually waits until something holds.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it does not happen")
		}
	}
}
