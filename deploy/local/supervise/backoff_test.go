package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const brief, long = time.Second, 10 * time.Second
	pauses := DefaultBackoff.start()
	for i, step := range []struct{ ran, want time.Duration }{
		{brief, 200 * time.Millisecond},
		{brief, 400 * time.Millisecond},
		{brief, 800 * time.Millisecond},
		{brief, 1600 * time.Millisecond},
		{brief, 3200 * time.Millisecond},
		{brief, 5 * time.Second},
		{brief, 5 * time.Second},
		{long, 200 * time.Millisecond},
		{brief, 400 * time.Millisecond},
	} {
		if got := pauses.next(step.ran); got != step.want {
			t.Errorf("step %d: next(%s) = %s, want %s", i, step.ran, got, step.want)
		}
	}
}

func TestLastLine(t *testing.T) {
	const before = "of an earlier run\n"
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"empty lines", "\n \n", ""},
		{"one line", "one\n", "one"},
		{"no end of line", "one\ntwo", "two"},
		{"empty lines at the end", "one\ntwo\n\n\n", "two"},
		{"control characters", "a\x1b[0m\tb\x00\n", "a [0m b"},
		{"not UTF-8", "a\xffb\n", "ab"},
		{"a long line", strings.Repeat("x", 10000) + "\n", strings.Repeat("x", maxLine) + "…"},
		{"a long log", strings.Repeat("line\n", 10000) + "last\n", "last"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(before+tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			log, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = log.Close() }()
			if got := lastLine(log, int64(len(before))); got != tt.want {
				t.Errorf("lastLine = %q, want %q", got, tt.want)
			}
		})
	}
}
