package servetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trigate/trigate/services/internal/dial"
)

// ParseFlags parses arguments with the flags that addFlags binds.
func ParseFlags(t testing.TB, addFlags func(*cliflag.NamedFlagSets), args ...string) {
	t.Helper()
	var sections cliflag.NamedFlagSets
	addFlags(&sections)
	all := pflag.NewFlagSet("all", pflag.ContinueOnError)
	for _, name := range sections.Order {
		all.AddFlagSet(sections.FlagSets[name])
	}
	if err := all.Parse(args); err != nil {
		t.Fatalf("parsing %q: %v", args, err)
	}
}

// TLSFlags are the TLS files of a service, as flags.
func (p *PKI) TLSFlags(t testing.TB, service string) []string {
	t.Helper()
	cert := p.Process(t, service)
	return []string{
		"--tls-cert-file=" + cert.CertFile,
		"--tls-private-key-file=" + cert.KeyFile,
		"--peer-ca-file=" + p.Gates.File,
		"--client-ca-file=" + p.Cluster.File,
	}
}

// Go runs a service until the test ends. It has to end then, and without an error.
func Go(t testing.TB, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }() // The cleanup waits for it.
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		case <-time.After(stopTimeout):
			t.Error("the service does not stop")
		}
	})
}

// AwaitReady waits until the service that a connection leads to is SERVING.
func AwaitReady(t testing.TB, link dial.Link) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopTimeout)
	defer cancel()
	if err := link.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady() = %v, want nil", err)
	}
}

// WantFlagError wants an error as a service has for flags that it cannot use: one
// line that says what is in want.
func WantFlagError(t testing.TB, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("the service ran, want an error")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error = %q, want one line", err)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error = %q, want %q in it", err, part)
		}
	}
}
