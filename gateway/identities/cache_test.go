package identities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/kubernetes/pkg/apis/core"

	authnclient "github.com/trigate/trigate/services/authn/client"
)

func TestKept(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.keep("token", good("jane"))
		w.after(5*time.Minute - time.Second)
		w.wantKept("token", true)
		w.after(time.Second)
		w.wantKept("token", false)
	})
}

// TestKeptForTenMinutes has a service that would have a verdict kept for a year.
func TestKeptForTenMinutes(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		verdict := good("jane")
		verdict.Lifetime.KeepUntil = time.Now().Add(365 * 24 * time.Hour)
		w.keep("token", verdict)
		w.after(maxKeep)
		w.wantKept("token", false)
	})
}

func TestNotKept(t *testing.T) {
	for name, change := range map[string]func(*authnclient.Verdict){
		"no time":                   func(v *authnclient.Verdict) { v.Lifetime.KeepUntil = time.Time{} },
		"no time left":              func(v *authnclient.Verdict) { v.Lifetime.KeepUntil = time.Now() },
		"another configuration":     func(v *authnclient.Verdict) { v.Lifetime.Configuration = "other" },
		"an object without a uid":   func(v *authnclient.Verdict) { v.Lifetime.Dependencies = []authnclient.Object{object("", 1)} },
		"larger than a shard of it": func(v *authnclient.Verdict) { v.Warnings = []string{strings.Repeat("x", 10<<20)} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				verdict := good("jane")
				change(&verdict)
				w.knows("token", verdict)
				w.wantUser("token", "jane")
				w.wantKept("token", false)
			})
		})
	}
}

// TestRefusalsAreNotKept has a token that becomes good.
func TestRefusalsAreNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.knows("refused", authnclient.Verdict{Refusal: "no"})
		for token, want := range map[string]string{"unknown": "<nil>", "refused": "no"} {
			for range 2 {
				if response, ok, err := w.AuthenticateToken(t.Context(), token); response != nil || ok || fmt.Sprint(err) != want {
					t.Errorf("AuthenticateToken(%s) = %v, %v, %v, want the refusal %s", token, response, ok, err, want)
				}
			}
			w.knows(token, good("jane"))
			w.wantUser(token, "jane")
		}
	})
}

// TestQuestionsDiffer has the same token asked about for different audiences.
func TestQuestionsDiffer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		questions := []context.Context{t.Context()}
		for _, audiences := range [][]string{{}, {"a"}, {"b"}, {"a", "b"}, {"ab"}, {"a", "b", ""}} {
			questions = append(questions, authenticator.WithAudiences(t.Context(), audiences))
		}
		keys := map[key]bool{}
		for _, ctx := range questions {
			for _, token := range []string{"", "a", "ab", "a\x00b"} {
				keys[w.keyOf(ctx, token)] = true
			}
		}
		if got, want := len(keys), len(questions)*4; got != want {
			t.Errorf("%d questions have %d keys", want, got)
		}
		w.keep("token", good("jane"))
		for _, ctx := range questions[1:] {
			want, _ := authenticator.AudiencesFrom(ctx)
			for range 2 {
				response, ok, err := w.AuthenticateToken(ctx, "token")
				if !ok || err != nil || strings.Join(response.Audiences, " ") != strings.Join(want, " ") {
					t.Errorf("AuthenticateToken for %q = %+v, %v, %v", want, response, ok, err)
				}
			}
		}
	})
}

// TestOtherCachesHaveOtherKeys would fail if what is kept could be computed from a token.
func TestOtherCachesHaveOtherKeys(t *testing.T) {
	a, b := newWorld(t, Config{MaxEntries: 1, MaxBytes: 1}), newWorld(t, Config{MaxEntries: 1, MaxBytes: 1})
	if a.keyOf(t.Context(), "token") == b.keyOf(t.Context(), "token") {
		t.Error("two caches have the same key for a token")
	}
}

// TestIdentitiesAreNotShared changes what the cache gave out.
func TestIdentitiesAreNotShared(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		verdict := good("jane")
		verdict.Annotations = map[string]string{"a": "b"}
		w.knows("token", verdict)
		for range 3 { // from the service, and from the cache
			response, _, err := w.AuthenticateToken(t.Context(), "token")
			if err != nil {
				t.Fatal(err)
			}
			u := response.User
			if groups, extra := fmt.Sprint(u.GetGroups()), fmt.Sprint(u.GetExtra()); groups != "[a b]" || extra != "map[k:[v w]]" {
				t.Errorf("groups %s and extra %s, want those of the service", groups, extra)
			}
			_ = append(u.GetGroups()[:1], "system:masters")
			u.GetExtra()["k"][0] = "changed"
			u.GetExtra()["new"] = []string{"x"}
		}
	})
}

// TestAnnotationsComeWithWhatIsKept has a kept verdict leave what a fresh one does.
func TestAnnotationsComeWithWhatIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		verdict := good("jane")
		verdict.Annotations = map[string]string{"example.com/a": "b"}
		w.knows("token", verdict)
		for range 2 {
			ctx := audit.WithAuditContext(t.Context())
			if _, _, err := w.AuthenticateToken(ctx, "token"); err != nil {
				t.Fatal(err)
			}
			if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["example.com/a"]; got != "b" {
				t.Errorf("annotation = %q, want b", got)
			}
		}
	})
}

func TestBounds(t *testing.T) {
	for name, cfg := range map[string]Config{
		"entries": {MaxEntries: 320, MaxBytes: 1 << 30},
		"bytes":   {MaxEntries: 1 << 20, MaxBytes: 320 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cfg)
			w.hear(configuration, true)
			for i := range 2000 {
				verdict := good(fmt.Sprintf("user-%d", i), object(fmt.Sprintf("uid-%d", i%500), 1))
				k := w.keyOf(t.Context(), fmt.Sprint(i))
				w.shardOf(k).add(newEntry(k, verdict, 1, time.Now()), func() bool { return true })
			}
			var entries, dependents int
			var bytes int64
			for _, s := range w.shards {
				n, b := s.size()
				entries, bytes, dependents = entries+n, bytes+b, dependents+len(s.dependents)
			}
			if entries == 0 || entries > cfg.MaxEntries || bytes > cfg.MaxBytes || dependents > entries {
				t.Errorf("%d entries of %d bytes that hang on %d objects are kept, want at most %d of %d", entries, bytes, dependents, cfg.MaxEntries, cfg.MaxBytes)
			}
			w.hear("other", true)
			for _, s := range w.shards {
				if n, b := s.size(); n != 0 || b != 0 || len(s.dependents) != 0 {
					t.Errorf("%d entries of %d bytes are left in an empty shard", n, b)
				}
			}
		})
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New() without bounds gives no error")
	}
}

func TestRevocation(t *testing.T) {
	now := metav1.Now()
	ending := written("uid", 5)
	ending.DeletionTimestamp = &now
	secret := func(kind core.SecretType) *core.Secret {
		return &core.Secret{ObjectMeta: written("uid", 5).ObjectMeta, Type: kind}
	}
	observed := func(object runtime.Object, deleted bool) func(w *world) {
		return func(w *world) { w.Observe(core.Resource("x"), object, deleted) }
	}
	told := func(deleted bool) func(w *world) {
		return func(w *world) {
			w.service.news <- []authnclient.Revocation{{Object: object("uid", 5), Deleted: deleted}}
			w.after(0)
		}
	}
	for name, c := range map[string]struct {
		revoke func(w *world)
		killed bool
	}{
		"deleted here":                {observed(written("uid", 5), true), true},
		"being deleted here":          {observed(ending, false), true},
		"changed here":                {observed(written("uid", 5), false), false},
		"legacy token changed here":   {observed(secret(core.SecretTypeServiceAccountToken), false), true},
		"bootstrap token changed":     {observed(secret(core.SecretTypeBootstrapToken), false), true},
		"some secret changed here":    {observed(secret(core.SecretTypeOpaque), false), false},
		"some secret deleted here":    {observed(secret(core.SecretTypeOpaque), true), true},
		"another one deleted here":    {observed(written("other", 5), true), false},
		"deleted, says the service":   {told(true), true},
		"changed, says the service":   {told(false), true},
		"corrupt, and deleted unread": {observed(&core.ServiceAccount{}, true), false},
		"no object":                   {observed(&metav1.Status{}, true), false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.keep("token", good("jane", object("another", 1), object("uid", 4)))
				w.keep("unconcerned", good("joe", object("other uid", 4)))
				c.revoke(w)
				w.wantKept("unconcerned", true)
				w.service.set(func(s *service) { delete(s.verdicts, "token") })
				if _, ok, _ := w.AuthenticateToken(t.Context(), "token"); ok == c.killed {
					t.Errorf("AuthenticateToken() = %v, want %v", ok, !c.killed)
				}
			})
		})
	}
}

// TestServiceIsBehind has a service that has not seen yet what this gateway wrote.
func TestServiceIsBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		// What is gone is refused, however long the service thinks otherwise.
		w.keep("token", good("jane", object("uid", 4)))
		w.Observe(core.Resource("serviceaccounts"), written("uid", 5), true)
		for range 3 {
			response, ok, err := w.AuthenticateToken(t.Context(), "token")
			if response != nil || ok || err == nil || err.Error() != errRevoked.Error() {
				t.Fatalf("AuthenticateToken() = %v, %v, %v, want upstream's refusal", response, ok, err)
			}
			w.after(time.Minute)
		}

		// What has changed is asked about until the service has seen it.
		w.keep("changed", good("joe", object("secret", 4)))
		ending := &core.Secret{ObjectMeta: written("secret", 6).ObjectMeta, Type: core.SecretTypeBootstrapToken}
		w.Observe(core.Resource("secrets"), ending, false)
		asked := 0
		w.service.set(func(s *service) {
			s.hook = func(context.Context, string) error {
				if asked++; asked == 4 {
					w.knows("changed", good("joe", object("secret", 6)))
				}
				return nil
			}
		})
		start := time.Now()
		w.wantUser("changed", "joe")
		if elapsed := time.Since(start); asked != 5 || elapsed == 0 || elapsed > 200*time.Millisecond {
			t.Errorf("asked %d times within %s, want 5 times at once", asked, elapsed)
		}
		w.service.set(func(s *service) { s.hook = nil })
		w.wantKept("changed", true)
	})
}

func TestServiceStaysBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		secret := &core.Secret{ObjectMeta: written("secret", 6).ObjectMeta, Type: core.SecretTypeServiceAccountToken}
		w.Observe(core.Resource("secrets"), secret, false)
		w.knows("token", good("jane", object("secret", 5)))
		for name, c := range map[string]struct{ deadline, want time.Duration }{
			"a deadline far away": {time.Minute, maxBehind},
			"a near deadline":     {maxBehind / 2, maxBehind / 2},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			defer cancel()
			start := time.Now()
			response, ok, err := w.AuthenticateToken(ctx, "token")
			if response != nil || ok || !authnclient.IsCouldNotDecide(err) {
				t.Errorf("%s: AuthenticateToken() = %v, %v, %v, want an error for which IsCouldNotDecide holds", name, response, ok, err)
			}
			if elapsed := time.Since(start); elapsed > c.want || elapsed < c.want/2 {
				t.Errorf("%s: AuthenticateToken() took %s, want about %s", name, elapsed, c.want)
			}
		}
	})
}

// TestDeletedWhileAsked has an object deleted while the service, which has not seen it,
// makes up its mind.
func TestDeletedWhileAsked(t *testing.T) {
	for name, revoke := range map[string]func(w *world){
		"by this gateway": func(w *world) { w.Observe(core.Resource("pods"), written("uid", 5), true) },
		"by another one": func(w *world) {
			w.service.news <- []authnclient.Revocation{{Object: object("uid", 5), Deleted: true}}
			w.after(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				release := make(chan struct{})
				w.knows("token", good("jane", object("uid", 4)))
				w.service.set(func(s *service) { s.hook = func(context.Context, string) error { <-release; return nil } })
				answers := make(chan error, 1)
				go func() {
					_, ok, err := w.AuthenticateToken(t.Context(), "token")
					if ok {
						err = errors.New("the token is good")
					}
					answers <- err
				}()
				w.after(0)
				revoke(w)
				close(release)
				if err := <-answers; err == nil || err.Error() != errRevoked.Error() {
					t.Errorf("AuthenticateToken() = %v, want upstream's refusal", err)
				}
				for _, s := range w.shards {
					if n, _ := s.size(); n > 0 {
						t.Error("the verdict is kept")
					}
				}
			})
		})
	}
}

// TestNothingIsServedWithoutAStream has the stream go in every way.
func TestNothingIsServedWithoutAStream(t *testing.T) {
	for name, c := range map[string]struct {
		lose, find func(w *world)
	}{
		"it breaks": {
			func(w *world) {
				w.service.set(func(s *service) { s.following = false })
				w.service.broken <- struct{}{}
			},
			func(w *world) { w.service.set(func(s *service) { s.following = true }) },
		},
		"it falls silent": {
			func(w *world) {
				w.service.set(func(s *service) { s.silent = true })
				w.after(silence)
			},
			func(w *world) { w.service.set(func(s *service) { s.silent = false }) },
		},
		"it does not follow": {
			func(w *world) {
				w.service.set(func(s *service) { s.following = false })
				w.after(time.Second)
			},
			func(w *world) { w.service.set(func(s *service) { s.following = true }) },
		},
		"the configuration is another": {
			func(w *world) {
				w.service.set(func(s *service) { s.config = "other" })
				w.after(time.Second)
			},
			func(w *world) { w.service.set(func(s *service) { s.config = configuration }) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				w.keep("token", good("jane"))
				c.lose(w)
				w.after(0)
				w.wantKept("token", false)
				w.wantKept("token", false)
				c.find(w)
				w.after(2 * time.Second)
				w.wantKept("token", false)
				w.after(settle)
				w.wantUser("token", "jane")
				w.wantKept("token", true)
			})
		})
	}
}

// TestNothingIsKeptAtOnce has a verdict asked for before the stream has settled, and one
// before it was there.
func TestNothingIsKeptAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.service.broken <- struct{}{}
		w.knows("token", good("jane"))
		w.wantKept("token", false)
		w.after(watchMaxBackoff / 2)
		w.wantKept("token", false)
		w.wantKept("token", false)
		release := make(chan struct{})
		w.service.set(func(s *service) { s.hook = func(context.Context, string) error { <-release; return nil } })
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.wantUser("token", "jane")
		}()
		w.after(0)
		w.service.broken <- struct{}{}
		w.after(3 * time.Second)
		close(release)
		<-done
		w.wantKept("token", false)
		w.wantKept("token", true)
	})
}

// TestOneQuestionForMany has many show one token at once, and some of them go away.
func TestOneQuestionForMany(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		release := make(chan struct{})
		w.knows("token", good("jane"))
		w.service.set(func(s *service) {
			s.hook = func(ctx context.Context, _ string) error {
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		// The first one asks, and is the first to go.
		first, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, _, err := w.AuthenticateToken(first, "token")
			left <- err
		}()
		w.after(0)
		var waiting sync.WaitGroup
		for range 100 {
			waiting.Go(func() { w.wantUser("token", "jane") })
		}
		w.after(0)
		leave()
		if err := <-left; !authnclient.IsCouldNotDecide(err) {
			t.Errorf("AuthenticateToken() = %v of who went away, want an error for which IsCouldNotDecide holds", err)
		}
		close(release)
		waiting.Wait()
		if got := w.service.asked(); got != 1 {
			t.Errorf("the service is asked %d times by many at once, want once", got)
		}
	})
}

// TestNobodyJoinsAQuestionThatHangs has a replica of the service that does not answer.
func TestNobodyJoinsAQuestionThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.knows("token", good("jane"))
		asked := make(chan struct{}, 2)
		w.service.set(func(s *service) {
			s.hook = func(ctx context.Context, _ string) error {
				asked <- struct{}{}
				if len(asked) > 1 {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
		})
		hangs := make(chan error, 1)
		go func() {
			_, _, err := w.AuthenticateToken(t.Context(), "token")
			hangs <- err
		}()
		w.after(joinable)
		w.wantUser("token", "jane")
		if err := <-hangs; !authnclient.IsCouldNotDecide(err) {
			t.Errorf("AuthenticateToken() = %v, want an error for which IsCouldNotDecide holds", err)
		}
	})
}

func TestFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.knows("token", good("jane"))
		for name, hook := range map[string]func(context.Context, string) error{
			"error": func(context.Context, string) error { return context.DeadlineExceeded },
			"panic": func(context.Context, string) error { panic("a bug") },
		} {
			w.service.set(func(s *service) { s.hook = hook })
			if response, ok, err := w.AuthenticateToken(t.Context(), "token"); response != nil || ok || !authnclient.IsCouldNotDecide(err) {
				t.Errorf("%s: AuthenticateToken() = %v, %v, %v, want an error for which IsCouldNotDecide holds", name, response, ok, err)
			}
		}
	})
}

func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(w.Cache)
		w.keep("token", good("jane", object("uid", 1)))
		w.keep("other", good("jane", object("uid", 1)))
		w.Observe(core.Resource("pods"), written("uid", 2), true)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, label := range m.GetLabel() {
					name += "," + label.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		for name, want := range map[string]float64{
			"authentication_token_cache_request_total,hit":             2,
			"authentication_token_cache_request_total,miss":            2,
			"authentication_token_cache_request_duration_seconds,hit":  2,
			"authentication_token_cache_request_duration_seconds,miss": 2,
			"authentication_token_cache_fetch_total,ok":                2,
			"authentication_token_cache_active_fetch_count,blocked":    0,
			"authentication_token_cache_active_fetch_count,in_flight":  0,
			"trigate_gateway_identity_cache_revocations_total":         2,
			"trigate_gateway_identity_cache_entries":                   0,
			"trigate_gateway_identity_cache_bytes":                     0,
			"trigate_gateway_revocation_stream_age_seconds":            0,
		} {
			if value, ok := got[name]; !ok || value != want {
				t.Errorf("%s = %v, %v, want %v", name, value, ok, want)
			}
		}
	})
}
