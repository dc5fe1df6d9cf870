package revocations

import (
	"context"
	"io"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// renewal is how long a watch may take to begin again where it ended, as the API ends
	// every watch after some minutes. A watch that broke takes client-go longer.
	renewal = time.Second
	// settle is for how long watches that broke have to be open again before their events
	// count as seen: they have to bring first what happened meanwhile.
	settle = time.Second
	// probeInterval is how often the API is asked whether it is still there. A connection
	// that went silent breaks no watch, and client-go finds out after 45 s.
	probeInterval = time.Second
	// probeTimeout bounds such a question, and maxSilence is how old the last answer may
	// be.
	probeTimeout = 2 * time.Second
	maxSilence   = 4 * time.Second
)

// Watches sees by an HTTP transport whether the watches of the objects are open. The
// informers themselves tell neither of the end of a watch nor of a new one. It is safe
// for concurrent use.
type Watches struct {
	resources []string
	clock     clock.PassiveClock

	// mu guards what follows.
	mu   sync.Mutex
	open map[string]int
	// opened is since when all watches are open, but for renewals. Zero: they are not.
	opened time.Time
	// closed is since when one of them is not open. Zero: all are.
	closed time.Time
	// answered is when the API answered last.
	answered time.Time
}

// NewWatches returns the watches of resources, none of which is open yet.
func NewWatches(resources []string) *Watches { return newWatches(resources, clock.RealClock{}) }

func newWatches(resources []string, clock clock.PassiveClock) *Watches {
	return &Watches{resources: resources, clock: clock, open: map[string]int{}, closed: clock.Now()}
}

// Following returns whether the watches of all resources are open, have been for long
// enough to have brought what they missed, and the API answers.
func (w *Watches) Following() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	return !w.opened.IsZero() && now.Sub(w.opened) >= settle &&
		(w.closed.IsZero() || now.Sub(w.closed) < renewal) &&
		now.Sub(w.answered) < maxSilence
}

// Run asks the API every second whether it is there, until ctx ends.
func (w *Watches) Run(ctx context.Context, api rest.Interface) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		var code int
		_ = api.Get().AbsPath("/livez/ping").MaxRetries(0).Do(ctx).StatusCode(&code) // 0 without an answer
		if code != 0 {
			w.answer()
		}
	}, probeInterval)
}

func (w *Watches) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = w.clock.Now()
}

// Wrap is for rest.Config.Wrap.
func (w *Watches) Wrap(next http.RoundTripper) http.RoundTripper {
	return &watchedTransport{next: next, watches: w}
}

func (w *Watches) change(resource string, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[resource] += by
	now := w.clock.Now()
	if slices.ContainsFunc(w.resources, func(resource string) bool { return w.open[resource] == 0 }) {
		if w.closed.IsZero() {
			w.closed = now
		}
		return
	}
	if w.opened.IsZero() || !w.closed.IsZero() && now.Sub(w.closed) >= renewal {
		w.opened = now
	}
	w.closed = time.Time{}
}

// watchedTransport tells of watches.
type watchedTransport struct {
	next    http.RoundTripper
	watches *Watches
}

// RoundTrip implements http.RoundTripper.
func (t *watchedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	resource := path.Base(request.URL.Path)
	if watch := request.URL.Query().Get("watch"); watch != "true" && watch != "1" || !slices.Contains(t.watches.resources, resource) {
		return response, nil
	}
	t.watches.change(resource, 1)
	response.Body = &watchedBody{ReadCloser: response.Body, ended: sync.OnceFunc(func() { t.watches.change(resource, -1) })}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *watchedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// watchedBody tells of the end of a watch.
type watchedBody struct {
	io.ReadCloser
	ended func()
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended()
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	b.ended()
	return b.ReadCloser.Close()
}
