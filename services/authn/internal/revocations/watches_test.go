package revocations

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

// api answers every request, a watch with a body that ends when the test wants.
type api struct{ status int }

// RoundTrip implements http.RoundTripper.
func (a *api) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader("event"))}, nil
}

func TestWatches(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	w := newWatches([]string{"pods", "nodes"}, clock)
	server := &api{status: http.StatusOK}
	transport := w.Wrap(server)
	open := func(path string) io.ReadCloser {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://gateway"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		return response.Body
	}
	read := func(body io.Reader) {
		t.Helper()
		if _, err := io.ReadAll(body); err != nil {
			t.Fatal(err)
		}
	}
	closeBody := func(body io.Closer) {
		t.Helper()
		if err := body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// pass lets time pass in which the API answers.
	pass := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)); w.answer() }
	want := func(what string, following bool) {
		t.Helper()
		if got := w.Following(); got != following {
			t.Errorf("%s: Following() = %v, want %v", what, got, following)
		}
	}

	want("at the start", false)
	pods := open("/api/v1/pods?watch=true")
	closeBody(open("/api/v1/nodes"))
	closeBody(open("/api/v1/configmaps?watch=true"))
	pass(time.Minute)
	want("with one watch", false)
	server.status = http.StatusInternalServerError
	closeBody(open("/api/v1/nodes?watch=1"))
	want("with a watch that was refused", false)
	server.status = http.StatusOK
	nodes := open("/api/v1/nodes?watch=1&sendInitialEvents=true")
	want("not settled", false)
	pass(settle)
	want("settled", true)

	// The API ends watches now and then, and they go on.
	read(pods)
	want("a watch has just ended", true)
	pods = open("/api/v1/pods?watch=true")
	want("a watch that goes on", true)

	// A watch that broke takes longer, and has to catch up.
	closeBody(nodes)
	closeBody(nodes)
	pass(renewal)
	want("a watch is broken", false)
	nodes = open("/api/v1/nodes?watch=true")
	want("a watch catches up", false)
	pass(settle)
	want("a watch has caught up", true)

	// A second watch of the same, as client-go may have for a moment.
	closeBody(open("/api/v1/nodes?watch=true"))
	pass(time.Minute)
	want("one of two watches", true)

	clock.SetTime(clock.Now().Add(maxSilence))
	want("the API does not answer", false)
	pass(0)
	want("the API answers", true)
	closeBody(pods)
	closeBody(nodes)
}
