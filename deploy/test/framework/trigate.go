package framework

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/trigate/trigate/deploy/pki"
)

// TrigateOptions vary how Trigate is started.
type TrigateOptions struct {
	// Args are more arguments of trigate-local.
	Args []string
	// Dir holds all its files; a folder of the test's if it is empty. What a control
	// plane that has been stopped has left there is its data.
	Dir string
}

// StartTrigate starts Trigate by its local runner for one test.
func StartTrigate(tb testing.TB, opts TrigateOptions) *Cluster {
	tb.Helper()
	return cleanedUp(tb)(startTrigate(dirOf(tb, opts.Dir, Trigate), opts))
}

// dirOf is dir, or a folder of the test's if it is empty.
func dirOf(tb testing.TB, dir, name string) string {
	tb.Helper()
	if dir == "" {
		dir = filepath.Join(tb.TempDir(), name)
	}
	return dir
}

// cleanedUp stops a control plane at the end of the test.
func cleanedUp(tb testing.TB) func(*Cluster, error) *Cluster {
	return func(c *Cluster, err error) *Cluster {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := c.Stop(); err != nil {
				tb.Errorf("stopping %s: %v", c.Name, err)
			}
		})
		return c
	}
}

func startTrigate(dir string, opts TrigateOptions) (*Cluster, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	policy, err := writeAuditPolicy(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Name:       Trigate,
		Dir:        dir,
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		AuditLog:   filepath.Join(dir, "audit.log"),
		PKI:        &pki.Layout{Dir: filepath.Join(dir, "pki")},
	}
	args := append([]string{
		"--dir=" + dir, "--port=0",
		"--gateway-arg=--audit-policy-file=" + policy,
		"--gateway-arg=--audit-log-path=" + c.AuditLog,
		"--gateway-arg=" + auditLogMaxSize,
	}, opts.Args...)
	stdout := &lockedBuffer{}
	runner, err := start("trigate-local", filepath.Join(dir, "runner.log"), stdout, args...)
	if err != nil {
		return nil, err
	}
	c.stop = runner.stop
	ready := "ready: KUBECONFIG=" + c.Kubeconfig
	if err := poll(ctxBackground, Timeout, func() error {
		if err := runner.ended(); err != nil {
			return err
		}
		for line := range strings.SplitSeq(stdout.String(), "\n") {
			if line == ready {
				return nil
			}
		}
		return fmt.Errorf("trigate-local has not printed %q; its output ends with:\n%s", ready, tail(runner.log))
	}); err != nil {
		return nil, fmt.Errorf("%w\nstopping: %v", err, runner.stop())
	}
	return c, nil
}

// Gateways are the control plane as each of its gateways serves it, the first one
// first.
func (c *Cluster) Gateways(tb testing.TB) []*Cluster {
	tb.Helper()
	kubeconfigs, err := filepath.Glob(c.Kubeconfig + "*")
	if err != nil {
		tb.Fatal(err)
	}
	clusters := make([]*Cluster, len(kubeconfigs))
	for i, kubeconfig := range kubeconfigs {
		cluster := *c
		cluster.Kubeconfig = kubeconfig
		clusters[i] = &cluster
	}
	return clusters
}

// PID returns the process id of one of Trigate's processes, by the name of its pid
// file (gateway, authz.2).
func (c *Cluster) PID(name string) (int, error) {
	content, err := os.ReadFile(filepath.Join(c.Dir, "pids", name+".pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// Signal sends a signal to one of Trigate's processes.
func (c *Cluster) Signal(tb testing.TB, name string, signal syscall.Signal) {
	tb.Helper()
	pid, err := c.PID(name)
	if err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Kill(pid, signal); err != nil {
		tb.Fatalf("sending %v to %s (%d): %v", signal, name, pid, err)
	}
}

// lockedBuffer is a buffer that is written to while it is read.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

// String returns what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
