// Package interest knows which calls of the admission service the gateway may leave out,
// since no plugin, webhook or policy could act on the request.
//
// The service tells by a stream what is of interest, and up to which change of what it
// depends on (configurations of webhooks, policies, quotas) that is so. The gateway knows
// its own writes of those before they are acknowledged. A call is left out only if the
// stream is alive, what it has said covers every change that is known here, and nothing
// in it matches the request. So what is created through this gateway counts for the very
// next request through it, and what is created through another one as soon as the stream
// tells.
package interest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/core"

	admissionclient "github.com/trigate/trigate/services/admission/client"
)

const (
	// silence is how long the stream may be silent before nothing is left out on its
	// word. The service says something every half second.
	silence = 2 * time.Second
	// settle is how long a write of which etcd's answer is not known may still take
	// effect. etcd gives up on a request after 7 s.
	settle = 10 * time.Second
	// settleLook is how often it is looked for writes that have settled, and
	// settleTimeout bounds the question what has become of them.
	settleLook    = time.Second
	settleTimeout = 5 * time.Second
	// maxQuotas bounds the namespaces whose quotas have changed and of which the service
	// has not told yet. What is beyond counts for all namespaces.
	maxQuotas = 10_000
	// watchBackoff and watchMaxBackoff bound the pause between two streams.
	watchBackoff    = 50 * time.Millisecond
	watchMaxBackoff = time.Second
)

// errSilent ends a stream on which nothing is said any more, and errNothing one that
// does not begin with the interest.
var (
	errSilent  = errors.New("the stream is silent")
	errNothing = errors.New("the stream did not begin with what is of interest")
)

// Service tells what is of interest. It is the admission service's client.
type Service interface {
	// WatchInterest hands what is of interest to handle until the stream ends.
	WatchInterest(ctx context.Context, handle func(admissionclient.InterestUpdate)) error
}

// Resources are those whose writes have to be told to Observe and Doubt. Deletions are
// left aside: they end an interest, and to learn of that late costs calls, no more.
// Bindings and parameters of policies only narrow what a policy matches.
func Resources() []schema.GroupResource {
	return []schema.GroupResource{
		admissionregistration.Resource("mutatingwebhookconfigurations"),
		admissionregistration.Resource("validatingwebhookconfigurations"),
		admissionregistration.Resource("mutatingadmissionpolicies"),
		admissionregistration.Resource("validatingadmissionpolicies"),
		quotas,
		namespaces,
	}
}

var (
	quotas     = core.Resource("resourcequotas")
	namespaces = core.Resource("namespaces")
)

// Tracker knows what is of interest. It is safe for concurrent use. Until Run has a
// stream nothing is left out.
type Tracker struct {
	service    Service
	namespaces *Namespaces
	// started is the zero of heard; a difference of monotonic times is cheaper than
	// a time.
	started time.Time
	// heard is when the stream last said that it follows, as the time since started.
	// Negative: there is no stream, or it does not follow.
	heard atomic.Int64
	// lifecycle is whether the service has said last that NamespaceLifecycle is enabled.
	lifecycle atomic.Bool
	// view is what the next request is judged by. It is replaced as a whole, before an
	// observed write is acknowledged.
	view   atomic.Pointer[view]
	counts counts

	// settle is how long a doubtful write may take. Tests have less time.
	settle time.Duration

	mu sync.Mutex
	// interest and position are what the stream said last. Nil: there is none.
	interest *admissionclient.Interest
	position admissionclient.InterestPositions
	// floor are the last changes that are known, but for quotas that quotas has.
	floor admissionclient.InterestPositions
	// quotas has the last change of quotas in each namespace which the service has not
	// read yet.
	quotas map[string]uint64
	doubts map[schema.GroupResource]doubt
}

// doubt is about writes of which it is not known whether they took effect.
type doubt struct {
	// since is when the last one failed.
	since time.Time
	// newest returns the last resourceVersion of an object of the resource.
	newest func(context.Context) (uint64, error)
}

// view is what a request is judged by. It does not change.
type view struct {
	// interest is nil if there is no stream.
	interest *admissionclient.Interest
	// behind is true if the stream has not told yet of a change that is known here,
	// and doubtful if it is not known whether something has changed.
	behind, doubtful bool
	// quotas are the namespaces whose quotas have changed since.
	quotas map[string]struct{}
}

// New returns a tracker that knows nothing.
func New(service Service, namespaces *Namespaces) *Tracker {
	t := &Tracker{
		service: service, namespaces: namespaces, started: time.Now(), settle: settle,
		quotas: map[string]uint64{}, doubts: map[schema.GroupResource]doubt{},
	}
	t.heard.Store(-1)
	t.view.Store(&view{})
	return t
}

// NamespaceLifecycle returns whether the service has that plugin enabled, by what it has
// said last, now or on an earlier stream.
func (t *Tracker) NamespaceLifecycle() bool { return t.lifecycle.Load() }

// Observe takes note of a write through this gateway that etcd has acknowledged: no call
// is left out after it by an interest that has not seen it. The object has the
// resourceVersion of the write.
func (t *Tracker) Observe(resource schema.GroupResource, object runtime.Object, deleted bool) {
	if deleted {
		return
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return // None of the resources' objects is without metadata.
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	if err != nil {
		return // etcd's storage gives each object that it has written one.
	}
	if resource == namespaces {
		t.namespaces.written(version)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.publishLocked()
	if resource == quotas && len(t.quotas) < maxQuotas {
		t.quotas[accessor.GetNamespace()] = max(version, t.quotas[accessor.GetNamespace()])
		return
	}
	raise(&t.floor, resource, version)
}

// Doubt takes note of a write through this gateway of which it is not known whether it
// took effect. No call is left out until that is known: when the write cannot take effect
// any more, newest is asked for the resourceVersion of the last object that was written,
// which the stream has to reach then.
func (t *Tracker) Doubt(resource schema.GroupResource, newest func(context.Context) (uint64, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.publishLocked()
	t.doubts[resource] = doubt{since: time.Now(), newest: newest}
}

// raise raises the position of a resource.
func raise(p *admissionclient.InterestPositions, resource schema.GroupResource, version uint64) {
	var position *uint64
	switch resource.Resource {
	case "mutatingwebhookconfigurations":
		position = &p.MutatingWebhooks
	case "validatingwebhookconfigurations":
		position = &p.ValidatingWebhooks
	case "mutatingadmissionpolicies":
		position = &p.MutatingPolicies
	case "validatingadmissionpolicies":
		position = &p.ValidatingPolicies
	default:
		position = &p.Quotas
	}
	*position = max(*position, version)
}

// publishLocked makes what is known what requests are judged by.
func (t *Tracker) publishLocked() {
	v := &view{interest: t.interest, behind: !reached(t.position, t.floor), doubtful: len(t.doubts) > 0}
	for namespace, version := range t.quotas {
		if version <= t.position.Quotas && t.interest != nil {
			delete(t.quotas, namespace)
			continue
		}
		if v.quotas == nil {
			v.quotas = map[string]struct{}{}
		}
		v.quotas[namespace] = struct{}{}
	}
	t.view.Store(v)
}

// reached returns whether position has all changes that floor has.
func reached(position, floor admissionclient.InterestPositions) bool {
	return position.MutatingWebhooks >= floor.MutatingWebhooks && position.ValidatingWebhooks >= floor.ValidatingWebhooks &&
		position.MutatingPolicies >= floor.MutatingPolicies && position.ValidatingPolicies >= floor.ValidatingPolicies &&
		position.Quotas >= floor.Quotas
}

// Run follows what is of interest until ctx ends.
func (t *Tracker) Run(ctx context.Context) {
	var settling sync.WaitGroup
	settling.Go(func() { t.settleUntil(ctx) })
	defer settling.Wait()
	backoff := wait.Backoff{Duration: watchBackoff, Factor: 2, Jitter: 0.2, Steps: 6, Cap: watchMaxBackoff}
	pause := backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := t.follow(ctx)
		t.lose()
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Making each call of admission until its stream is back", "reason", err)
		if time.Since(began) > watchMaxBackoff {
			pause = backoff
		}
		select {
		case <-time.After(pause.Step()):
		case <-ctx.Done():
		}
	}
}

// follow serves one stream until it ends or falls silent.
func (t *Tracker) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	first := true
	err := t.service.WatchInterest(ctx, func(update admissionclient.InterestUpdate) {
		watchdog.Reset(silence)
		if first {
			if update.Interest == nil {
				cancel(errNothing)
				return
			}
			first = false
			t.counts.streams.Add(1)
		}
		if ctx.Err() == nil {
			t.hear(update)
		}
	})
	return errors.Join(err, context.Cause(ctx))
}

// hear takes note of a message. The objects that this replica has read have to be known
// to every other one that is listened to later.
func (t *Tracker) hear(update admissionclient.InterestUpdate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if update.Interest != nil {
		t.interest = update.Interest
		t.lifecycle.Store(update.Interest.NamespaceLifecycle)
	}
	t.position = update.Position
	t.floor = union(t.floor, update.Changed)
	t.publishLocked()
	if update.Following {
		t.heard.Store(int64(time.Since(t.started)))
	} else {
		t.heard.Store(-1)
	}
}

func union(a, b admissionclient.InterestPositions) admissionclient.InterestPositions {
	return admissionclient.InterestPositions{
		MutatingWebhooks: max(a.MutatingWebhooks, b.MutatingWebhooks), ValidatingWebhooks: max(a.ValidatingWebhooks, b.ValidatingWebhooks),
		MutatingPolicies: max(a.MutatingPolicies, b.MutatingPolicies), ValidatingPolicies: max(a.ValidatingPolicies, b.ValidatingPolicies),
		Quotas: max(a.Quotas, b.Quotas),
	}
}

// lose takes note of the stream's end.
func (t *Tracker) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard.Store(-1)
	t.interest, t.position = nil, admissionclient.InterestPositions{}
	t.publishLocked()
}

// settleUntil ends doubts when what they are about has settled.
func (t *Tracker) settleUntil(ctx context.Context) {
	ticker := time.NewTicker(min(settleLook, t.settle))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for resource, about := range t.settled() {
			t.resolve(ctx, resource, about)
		}
	}
}

func (t *Tracker) settled() map[schema.GroupResource]doubt {
	t.mu.Lock()
	defer t.mu.Unlock()
	settled := map[schema.GroupResource]doubt{}
	for resource, about := range t.doubts {
		if time.Since(about.since) >= t.settle {
			settled[resource] = about
		}
	}
	return settled
}

// resolve asks what has become of the writes. If that fails, it is asked again later.
func (t *Tracker) resolve(ctx context.Context, resource schema.GroupResource, about doubt) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	newest, err := about.newest(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot tell yet what has become of a write", "resource", resource, "reason", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if resource == namespaces {
		t.namespaces.written(newest)
	} else {
		raise(&t.floor, resource, newest)
	}
	if t.doubts[resource].since.Equal(about.since) {
		delete(t.doubts, resource)
	}
	t.publishLocked()
}

// live reports whether the stream tells of changes as they happen.
func (t *Tracker) live() bool {
	heard := t.heard.Load()
	return heard >= 0 && time.Since(t.started)-time.Duration(heard) < silence
}

// age is the time since the stream last said that it follows, or negative if there is
// none.
func (t *Tracker) age() time.Duration {
	heard := t.heard.Load()
	if heard < 0 {
		return -1
	}
	return time.Since(t.started) - time.Duration(heard)
}

// Nobody reports whether a call may be left out, since nobody is interested in the
// request, and counts it.
func (t *Tracker) Nobody(phase Phase, a admission.Attributes, o admission.ObjectInterfaces) bool {
	v := t.judge(phase, a, o)
	if v == ahead {
		v = interested
	}
	t.counts.calls[phase][v].Add(1)
	return v == nobody
}

// Settled reports whether everybody who is interested in the validation of the request
// would say at the end of Admit what they say later. It counts nothing.
func (t *Tracker) Settled(a admission.Attributes, o admission.ObjectInterfaces) bool {
	return a.GetOperation() == admission.Create && t.judge(Validating, a, o) == ahead
}

// CountAhead counts a call of Validate that is left out since Admit has said what it
// would.
func (t *Tracker) CountAhead() { t.counts.calls[Validating][ahead].Add(1) }

func (t *Tracker) judge(phase Phase, a admission.Attributes, o admission.ObjectInterfaces) verdict {
	// The view is read after the clock: a stream that falls silent in between has been
	// heard a moment ago all the same.
	live, v := t.live(), t.view.Load()
	switch {
	case !live || v.interest == nil:
		return noStream
	case v.doubtful:
		return doubtful
	case v.behind:
		return behind
	case !intelligible(a, o):
		return unintelligible
	}
	if _, ok := v.quotas[a.GetNamespace()]; ok {
		return behind
	}
	rules := v.interest.Mutating
	if phase == Validating {
		rules = v.interest.Validating
	}
	return matchRules(rules, a, o, t.namespaces)
}
