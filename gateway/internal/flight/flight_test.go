package flight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// blocking returns a question that is answered when release is closed, or gives up with
// its context.
func blocking(release <-chan struct{}, asked *int) func(context.Context) string {
	return func(ctx context.Context) string {
		*asked++
		select {
		case <-release:
			return "answered"
		case <-ctx.Done():
			return "given up"
		}
	}
}

// ask asks in the background.
func ask(ctx context.Context, g *Group[string], question func(context.Context) string) <-chan string {
	answers := make(chan string, 1)
	go func() { // The test takes its answer.
		answer, err := g.Do(ctx, "key", question)
		if err != nil {
			answer = err.Error()
		}
		answers <- answer
	}()
	return answers
}

// TestOthersGoOn wants the answer for those who still wait when the first has gone.
func TestOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release, asked := &Group[string]{Timeout: time.Minute}, make(chan struct{}), 0
		first, giveUp := context.WithCancel(t.Context())
		one := ask(first, g, blocking(release, &asked))
		synctest.Wait()
		two := ask(t.Context(), g, blocking(release, &asked))
		synctest.Wait()
		if got := g.Waiting(); got != 2 {
			t.Errorf("Waiting() = %d, want 2", got)
		}
		giveUp()
		if got := <-one; got != context.Canceled.Error() {
			t.Errorf("who gave up got %q", got)
		}
		close(release)
		if got := <-two; got != "answered" || asked != 1 {
			t.Errorf("who waited got %q after %d questions, want an answer after one", got, asked)
		}
	})
}

// TestNobodyWaits wants a question to end with the last who waits for it, and nobody
// to join it then.
func TestNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, asked := &Group[string]{Timeout: time.Minute}, 0
		ended := make(chan error, 1)
		ctx, giveUp := context.WithCancel(t.Context())
		answers := ask(ctx, g, func(ctx context.Context) string {
			<-ctx.Done()
			ended <- ctx.Err()
			return "late"
		})
		synctest.Wait()
		giveUp()
		<-answers
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the question ended with %v, want that it was canceled", err)
		}
		release := make(chan struct{})
		close(release)
		if got := <-ask(t.Context(), g, blocking(release, &asked)); got != "answered" || asked != 1 {
			t.Errorf("the next got %q after %d questions, want an answer of its own", got, asked)
		}
	})
}

// TestBounds wants a question to end after its time, and to be joined no longer than
// it may be.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, asked := &Group[string]{Timeout: time.Minute, Joinable: time.Second}, 0
		begun := time.Now()
		one := ask(t.Context(), g, blocking(nil, &asked))
		<-time.After(2 * time.Second) // of the bubble's clock
		two := ask(t.Context(), g, blocking(nil, &asked))
		for _, answers := range []<-chan string{one, two} {
			if got := <-answers; got != "given up" {
				t.Errorf("got %q, want it given up", got)
			}
		}
		if took := time.Since(begun); asked != 2 || took != 62*time.Second {
			t.Errorf("%d questions in %s, want 2 in 62s", asked, took)
		}
	})
}
