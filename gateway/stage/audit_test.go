package stage

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	genericaudit "k8s.io/apiserver/pkg/audit"
)

// eventLog is an audit back end that keeps the events.
type eventLog struct {
	genericaudit.Backend
	events []*auditinternal.Event
}

func (l *eventLog) ProcessEvents(events ...*auditinternal.Event) bool {
	l.events = append(l.events, events...)
	return true
}

// TestTruthfulBackend wants the events of undecided requests to say 503, and all
// others to pass as they are.
func TestTruthfulBackend(t *testing.T) {
	undecided := newUndecidedRequests()
	undecided.add("undecided", gateAuthn)
	undecided.add("over", gateAuthn)
	undecided.remove("over")
	for _, test := range []struct {
		name  string
		event auditinternal.Event
		want  int32
	}{
		{"unauthorized since authn is down", auditinternal.Event{AuditID: "undecided", ResponseStatus: &metav1.Status{Code: http.StatusUnauthorized}}, http.StatusServiceUnavailable},
		{"success", auditinternal.Event{AuditID: "undecided", ResponseStatus: &metav1.Status{Code: http.StatusOK}}, http.StatusOK},
		{"unauthorized", auditinternal.Event{AuditID: "decided", ResponseStatus: &metav1.Status{Code: http.StatusUnauthorized}}, http.StatusUnauthorized},
		{"unauthorized with an ID that was used before", auditinternal.Event{AuditID: "over", ResponseStatus: &metav1.Status{Code: http.StatusUnauthorized}}, http.StatusUnauthorized},
	} {
		t.Run(test.name, func(t *testing.T) {
			log, given := &eventLog{}, test.event.ResponseStatus.Code
			(&truthfulBackend{Backend: log, undecided: undecided}).ProcessEvents(&test.event)
			if got := log.events[0].ResponseStatus.Code; got != test.want {
				t.Errorf("code = %d, want %d", got, test.want)
			}
			if got := test.event.ResponseStatus.Code; got != given {
				t.Errorf("the caller's event was changed to code %d", got)
			}
		})
	}
	log := &eventLog{}
	(&truthfulBackend{Backend: log, undecided: undecided}).ProcessEvents(&auditinternal.Event{AuditID: "undecided"})
	if log.events[0].ResponseStatus != nil {
		t.Error("an event without an answer got one")
	}
}
