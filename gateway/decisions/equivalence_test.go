package decisions

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacauthorizer "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
	authnclient "github.com/trigate/trigate/services/authn/client"
	"github.com/trigate/trigate/services/authz/authztest"
	"github.com/trigate/trigate/services/authz/rbactest"
)

const (
	// worlds, rounds and questions make 100,000 questions.
	worlds, rounds, questions = 20, 50, 100
	// askers ask at the same time.
	askers = 4
)

// answered is what comes of a question.
type answered struct {
	decision authorizer.Decision
	reason   string
	err      string
}

func answerOf(a authorizer.Authorizer, q authorizer.Attributes) answered {
	decision, reason, err := a.Authorize(context.Background(), q)
	got := answered{decision: decision, reason: reason}
	if err != nil {
		got.err = err.Error()
	}
	return got
}

// upstream is the chain of kube-apiserver with --authorization-mode=RBAC over a world.
func upstream(t testing.TB, w *rbactest.World) authorizer.Authorizer {
	t.Helper()
	chain, err := union.New(
		union.NamedAuthorizer{
			AuthorizerName: "kubernetes.io/system-privileged-group",
			Authorizer:     authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
		},
		union.NamedAuthorizer{AuthorizerName: "rbac", Authorizer: rbacauthorizer.New(w, w, w, w)},
	)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// TestEquivalence asks 100,000 questions of random worlds through the cache and the
// real service, and wants upstream's decisions and reasons. Before each round of
// questions the world changes, through this gateway; the next question is asked as
// soon as the change has been acknowledged.
func TestEquivalence(t *testing.T) {
	hits := uint64(0)
	for n := range worlds {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		world := rbactest.Random(rng)
		service, cache := startWorld(t, world)
		for round := range rounds {
			write(t, service, cache, world.Mutate(rng))
			reference := upstream(t, world)
			var wg sync.WaitGroup
			for asker := range askers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					rng := rand.New(rand.NewPCG(uint64(n*rounds+round), uint64(asker)))
					for range questions / askers {
						q := questionOf(world, rng)
						if got, want := answerOf(cache, &q), answerOf(reference, &q); got != want {
							t.Errorf("world %d, round %d: %+v:\n got %+v\nwant %+v", n, round, q, got, want)
						}
					}
				}()
			}
			wg.Wait()
			if t.Failed() {
				return
			}
		}
		_, _, h := cache.requests()
		hits += h
	}
	t.Logf("%d of %d questions were answered from the cache", hits, worlds*rounds*questions)
	if hits == 0 {
		t.Error("no question was answered from the cache")
	}
}

// TestEquivalenceInColumns asks the service for all that one user may do at once, and wants
// upstream's decisions and reasons. Before each batch the world changes, as in
// TestEquivalence.
func TestEquivalenceInColumns(t *testing.T) {
	for n := range worlds {
		rng := rand.New(rand.NewPCG(uint64(n), 2))
		world := rbactest.Random(rng)
		service, cache := startWorld(t, world)
		stub := authzv1.NewAuthorizationServiceClient(service.Conn(t))
		for round := range rounds {
			write(t, service, cache, world.Mutate(rng))
			reference := upstream(t, world)
			asked := questionsInColumns(world, rng)
			actions := rbactest.Actions(asked...)
			actions.AtLeastAsFreshAs = cache.Known().ToProto()
			response, err := stub.BatchAuthorize(t.Context(), &authzv1.BatchAuthorizeRequest{User: authnclient.UserToProto(asked[0].User), Actions: actions})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(response.GetAnswers()); got != len(asked) {
				t.Fatalf("%d answers to %d questions", got, len(asked))
			}
			for i, place := range response.GetAnswers() {
				answer := response.GetResults()[place].GetResponse()
				got := answered{decision: decisionOf(answer), reason: answer.GetReason(), err: answer.GetError()}
				if want := answerOf(reference, &asked[i]); got != want {
					t.Fatalf("world %d, round %d: %+v:\n got %+v\nwant %+v", n, round, asked[i], got, want)
				}
			}
		}
	}
}

// questionsInColumns returns questions of one user that can be asked in columns.
func questionsInColumns(world *rbactest.World, rng *rand.Rand) []authorizer.AttributesRecord {
	who := questionOf(world, rng).User
	var asked []authorizer.AttributesRecord
	for len(asked) < questions {
		if q := world.Question(rng); rbactest.InColumns(q) {
			q.User = who
			asked = append(asked, q)
		}
	}
	return asked
}

func decisionOf(response *authzv1.AuthorizeResponse) authorizer.Decision {
	switch response.GetDecision() {
	case authzv1.Decision_DECISION_ALLOW:
		return authorizer.DecisionAllow
	case authzv1.Decision_DECISION_NO_OPINION:
		return authorizer.DecisionNoOpinion
	}
	return authorizer.DecisionDeny // which RBAC never says
}

// TestEquivalenceUnderChange has the world change while questions run: an answer has
// to be right at some time between the question and its answer.
func TestEquivalenceUnderChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	world := rbactest.Random(rng)
	service, cache := startWorld(t, world)
	words := world.Clone() // Every world has the same words.
	// history has the worlds: all up to acknowledged have been acknowledged, and the
	// last is being written.
	var mu sync.Mutex
	history, acknowledged := []authorizer.Authorizer{upstream(t, world.Clone())}, 0
	var between sync.RWMutex
	done := make(chan struct{})
	go func() { // The askers end before it, or the test fails.
		defer close(done)
		for range 500 {
			changes := world.Mutate(rng)
			if len(changes) > 1 { // What is between them is in neither world.
				between.Lock()
			}
			next := upstream(t, world.Clone())
			mu.Lock()
			history = append(history, next)
			mu.Unlock()
			write(t, service, cache, changes)
			mu.Lock()
			acknowledged = len(history) - 1
			mu.Unlock()
			if len(changes) > 1 {
				between.Unlock()
			}
		}
	}()
	var wg sync.WaitGroup
	for asker := range askers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(8, uint64(asker)))
			for {
				select {
				case <-done:
					return
				default:
				}
				between.RLock()
				mu.Lock()
				first := acknowledged
				q := questionOf(words, rng)
				mu.Unlock()
				got := answerOf(cache, &q)
				mu.Lock()
				possible := history[first:]
				mu.Unlock()
				between.RUnlock()
				if !isAnswer(got, q, possible) {
					t.Errorf("%+v: got %+v, which is right in none of %d worlds", q, got, len(possible))
					return
				}
			}
		}()
	}
	wg.Wait()
	<-done
}

func isAnswer(got answered, q authorizer.AttributesRecord, possible []authorizer.Authorizer) bool {
	for _, world := range possible {
		if got == answerOf(world, &q) {
			return true
		}
	}
	return false
}

// questionOf returns a question of a user whom the test's Kubernetes API, which speaks
// JSON, can have in a binding.
func questionOf(world *rbactest.World, rng *rand.Rand) authorizer.AttributesRecord {
	for {
		if q := world.Question(rng); utf8.ValidString(q.User.GetName()) {
			return q
		}
	}
}

// startWorld returns a service that has read a world, and a cache that follows it.
func startWorld(t testing.TB, world *rbactest.World) (*authztest.Service, *Cache) {
	t.Helper()
	service := authztest.Start(t, world.Objects()...)
	return service, followService(t, service.Client(t))
}

func followService(t testing.TB, service Service) *Cache {
	t.Helper()
	cache, err := New(Config{Service: service, MaxEntries: 10_000, MaxBytes: 10 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { // The cleanup waits for it.
		defer close(done)
		cache.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	eventually(t, cache.policy.live)
	return cache
}

// write does what the gateway does with a write: etcd acknowledges it, the cache is
// told, and then the client.
func write(t testing.TB, service *authztest.Service, cache *Cache, changes []rbactest.Change) {
	t.Helper()
	for _, change := range changes {
		object := change.Object.DeepCopyObject()
		version := ""
		if change.Deleted {
			version = service.Delete(t, object)
		} else {
			version = service.Apply(t, object)
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		accessor.SetResourceVersion(version)
		cache.Observe(resourceOf(t, object), object, change.Deleted)
	}
}

func resourceOf(t testing.TB, object runtime.Object) schema.GroupResource {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return rbac.Resource(resource.Resource)
}

func (c *Cache) requests() (bypassed, misses, hits uint64) {
	for _, s := range c.shards {
		_, _, h, m := s.size()
		hits, misses = hits+h, misses+m
	}
	return c.counts.bypassed.Load(), misses, hits
}

// TestRestart wants the cache to be of use again when the service has come back, and
// a grant that was taken away meanwhile to be dead.
func TestRestart(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	world := rbactest.Random(rng)
	service, cache := startWorld(t, world)
	for range 5 {
		service.Restart(t)
		write(t, service, cache, world.Mutate(rng))
		reference := upstream(t, world)
		for range questions {
			q := questionOf(world, rng)
			var got answered
			eventually(t, func() bool { // While it is away, nothing is decided.
				got = answerOf(cache, &q)
				return got.err == ""
			})
			if want := answerOf(reference, &q); got != want {
				t.Errorf("%+v: got %+v, want %+v", q, got, want)
			}
		}
		eventually(t, cache.policy.live)
	}
	_, _, before := cache.requests()
	q := questionOf(world, rng)
	eventually(t, func() bool {
		answerOf(cache, &q)
		_, _, after := cache.requests()
		return after > before
	})
}
