package decisions

import (
	"sync"
	"sync/atomic"
	"time"

	authzclient "github.com/trigate/trigate/services/authz/client"
)

// silence is how long the stream may be silent before nothing is served on its word.
// The service says something every second.
const silence = 5 * time.Second

// maxBreak is for how long the service may have lost its own watch without everything
// kept before being given up. It says that it follows again when the watch is open, and
// what it has missed comes a moment later; until then, what is kept is as old as the
// break was long. A watch that ends in the ordinary way is back within milliseconds.
const maxBreak = time.Second

// policy is what the gateway knows of the policy's changes: by its own writes, and
// from the service. It is safe for concurrent use.
type policy struct {
	// started is the zero of heard; a difference of monotonic times is cheaper than
	// a time.
	started time.Time
	// heard is when the stream last said that it follows, as the time since started.
	// Negative: there is no stream, or it does not follow.
	heard atomic.Int64
	// epoch counts the streams and configurations: what was asked in an earlier one
	// is of no use any more.
	epoch atomic.Uint64
	// clusterRoles and clusterRoleBindings are the last changes of cluster-wide
	// objects that are known.
	clusterRoles, clusterRoleBindings atomic.Uint64

	mu sync.Mutex
	// floor has the last change of each resource that is known, in any namespace.
	floor authzclient.Revision
	// base is where the service was when the stream began. What had changed before
	// is not known one by one, so nothing is kept that has not seen it.
	base authzclient.Revision
	// broke is when the service has lost its own watch. Zero while it follows.
	broke time.Time
	// configuration is the digest that the stream told last.
	configuration string
	// scopes are the namespaces of which decisions are kept.
	scopes map[string]*scope
}

// scope is what is known of the changes in a namespace since a decision of it was
// first kept.
type scope struct {
	namespace           string
	roles, roleBindings atomic.Uint64
	// entries counts the decisions that are kept. policy.mu guards it.
	entries int
}

func newPolicy() *policy {
	p := &policy{started: time.Now(), scopes: map[string]*scope{}}
	p.heard.Store(-1)
	return p
}

// live reports whether the stream tells of changes as they happen.
func (p *policy) live() bool {
	heard := p.heard.Load()
	return heard >= 0 && time.Since(p.started)-time.Duration(heard) < silence
}

// age is the time since the stream last said something, or negative if there is none.
func (p *policy) age() time.Duration {
	heard := p.heard.Load()
	if heard < 0 {
		return -1
	}
	return time.Since(p.started) - time.Duration(heard)
}

// asked is what an answer has to meet to be kept.
type asked struct {
	atLeast authzclient.Revision
	epoch   uint64
}

// ask returns what to ask a question with.
func (p *policy) ask() asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return asked{atLeast: p.floor, epoch: p.epoch.Load()}
}

// admit returns the scope of an answer that may be kept, which may be nil for one
// that holds in any namespace. An answer that has not seen a change which is known by
// now is not kept, wherever the change was: what it concerned is known only for
// namespaces with decisions.
func (p *policy) admit(question asked, answer *authzclient.Answer, namespace string) (*scope, bool) {
	if answer.Reuse == authzclient.ReuseNever || answer.Err != nil || !p.live() {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if question.epoch != p.epoch.Load() || answer.Configuration != p.configuration ||
		!answer.Revision.Covers(p.floor) || !answer.Revision.Covers(p.base) {
		return nil, false
	}
	if answer.Reuse == authzclient.ReuseAnyNamespace {
		return nil, true
	}
	s := p.scopes[namespace]
	if s == nil {
		s = &scope{namespace: namespace}
		p.scopes[namespace] = s
	}
	s.entries++
	return s, true
}

// release takes back what admit returned, when the decision is no longer kept.
func (p *policy) release(s *scope) {
	if s == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.entries--; s.entries == 0 {
		delete(p.scopes, s.namespace)
	}
}

// covers reports whether a kept decision is of this epoch and has seen all changes
// that concern it.
func (p *policy) covers(epoch uint64, revision *authzclient.Revision, s *scope) bool {
	if epoch != p.epoch.Load() || revision.ClusterRoles < p.clusterRoles.Load() || revision.ClusterRoleBindings < p.clusterRoleBindings.Load() {
		return false
	}
	return s == nil || revision.Roles >= s.roles.Load() && revision.RoleBindings >= s.roleBindings.Load()
}

// change takes note of a change. It reports whether it was news.
func (p *policy) change(change authzclient.PolicyChange) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen(change) {
		return false
	}
	p.raise(change.Revision)
	if s := p.scopes[change.Namespace]; s != nil {
		s.roles.Store(max(s.roles.Load(), change.Revision.Roles))
		s.roleBindings.Store(max(s.roleBindings.Load(), change.Revision.RoleBindings))
	}
	return true
}

// raise raises the floor. The caller holds mu.
func (p *policy) raise(revision authzclient.Revision) {
	p.floor = p.floor.Union(revision)
	p.clusterRoles.Store(p.floor.ClusterRoles)
	p.clusterRoleBindings.Store(p.floor.ClusterRoleBindings)
}

// seen reports whether the change makes no difference: this gateway's own write that
// comes back on the stream. A namespace without decisions has nothing to lose.
func (p *policy) seen(change authzclient.PolicyChange) bool {
	if !p.floor.Covers(change.Revision) {
		return false
	}
	s := p.scopes[change.Namespace]
	return s == nil || s.roles.Load() >= change.Revision.Roles && s.roleBindings.Load() >= change.Revision.RoleBindings
}

// begin takes note of a new stream's first message. Everything kept before has to go.
// What had changed before it, and was told on no stream, is asked for from now on: a
// replica that has not seen it would go back in time.
func (p *policy) begin(update authzclient.PolicyUpdate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beginLocked(update)
	p.configuration = update.Configuration
	p.hearLocked(update.Following)
}

func (p *policy) beginLocked(update authzclient.PolicyUpdate) {
	p.epoch.Add(1)
	p.base = update.Revision
	p.broke = time.Time{}
	p.raise(update.Changed)
}

// configure takes note of the service's configuration. It reports whether everything
// kept before has to go, since it is another one.
func (p *policy) configure(configuration string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.configuration == configuration {
		return false
	}
	p.epoch.Add(1)
	p.configuration = configuration
	return true
}

// hear takes note of a sign of life. It reports whether everything kept before has to
// go, since the service was cut off for too long.
func (p *policy) hear(update authzclient.PolicyUpdate) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := update.Following && !p.broke.IsZero() && time.Since(p.broke) > maxBreak
	if again {
		p.beginLocked(update)
	}
	p.hearLocked(update.Following)
	return again
}

func (p *policy) hearLocked(following bool) {
	switch {
	case following:
		p.broke = time.Time{}
		p.heard.Store(int64(time.Since(p.started)))
	case p.broke.IsZero():
		p.broke = time.Now()
		fallthrough
	default:
		p.heard.Store(-1)
	}
}

// lose takes note of the stream's end.
func (p *policy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch.Add(1)
	p.heard.Store(-1)
}
