package stage

import (
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	genericaudit "k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// audit sets up the audit policy and the log and webhook back ends.
func audit(config *genericapiserver.Config, opts *genericoptions.AuditOptions, undecided *undecidedRequests) error {
	if err := opts.ApplyTo(config); err != nil {
		return err
	}
	if config.AuditBackend != nil {
		config.AuditBackend = &truthfulBackend{Backend: config.AuditBackend, undecided: undecided}
	}
	return nil
}

// undecidedRequests are the requests under way on which a gate could not decide, by
// their audit IDs. It is safe for concurrent use.
type undecidedRequests struct {
	mu    sync.Mutex
	gates map[types.UID]string
}

func newUndecidedRequests() *undecidedRequests {
	return &undecidedRequests{gates: map[types.UID]string{}}
}

func (u *undecidedRequests) add(id types.UID, gate string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.gates[id] = gate
}

func (u *undecidedRequests) remove(id types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.gates, id)
}

func (u *undecidedRequests) gate(id types.UID) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.gates[id]
}

// truthfulBackend has events say how a request was answered. Upstream sends some of
// them when a filter writes its answer, of requests that watch and of those that are
// unauthorized, and only after that the answer becomes a 503.
type truthfulBackend struct {
	genericaudit.Backend
	undecided *undecidedRequests
}

// ProcessEvents implements audit.Sink.
func (b *truthfulBackend) ProcessEvents(events ...*auditinternal.Event) bool {
	for i, event := range events {
		status := event.ResponseStatus
		if status == nil || status.Code < http.StatusBadRequest || status.Code == http.StatusServiceUnavailable {
			continue
		}
		gate := b.undecided.gate(event.AuditID)
		if gate == "" {
			continue
		}
		// The event belongs to the caller.
		truthful := *event
		truthful.ResponseStatus = &newUnavailable(gate).ErrStatus
		events[i] = &truthful
	}
	return b.Backend.ProcessEvents(events...)
}
