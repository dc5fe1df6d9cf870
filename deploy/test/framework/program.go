package framework

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Program is a program that a test runs beside the control planes. It ends with
// the test.
type Program struct {
	p *process
}

// StartProgram runs a program by its name in the Makefile.
func StartProgram(tb testing.TB, name string, args ...string) *Program {
	tb.Helper()
	p, err := start(name, filepath.Join(tb.TempDir(), name+".log"), nil, args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.stop(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("the log of %s ends with:\n%s", name, tail(p.log))
		}
	})
	return &Program{p: p}
}

// Ended returns an error with the end of the program's log once it has ended.
func (p *Program) Ended() error { return p.p.ended() }

// StartEtcd runs an etcd of the test's own that has the certificates of the
// cluster's, and returns its URL.
func (c *Cluster) StartEtcd(tb testing.TB) string {
	tb.Helper()
	url := "https://127.0.0.1:" + strconv.Itoa(FreePort(tb))
	StartProgram(tb, "trigate-local", append([]string{"etcd"}, etcdArgs(tb.TempDir(), url, c.PKI)...)...)
	return url
}

// FreePort returns a port of the loopback address that nobody listens on.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// Stream is a kubectl that runs on while the test does other things.
type Stream struct {
	// Lines are those that it prints on stdout. The channel is closed at its end.
	Lines <-chan string

	cmd  *exec.Cmd
	done chan struct{}
}

// KubectlStream starts the stock kubectl as the administrator. It is killed at the
// end of the test, unless it has ended.
func (c *Cluster) KubectlStream(tb testing.TB, args ...string) *Stream {
	tb.Helper()
	cmd, err := kubectl(context.Background(), c.Kubeconfig, args...)
	if err != nil {
		tb.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("running kubectl %s: %v", strings.Join(args, " "), err)
	}
	lines := make(chan string, 100)
	s := &Stream{Lines: lines, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process, which the cleanup waits for
		defer close(s.done)
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		close(lines)
		_ = cmd.Wait() // the exit code stays in cmd
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		for range s.Lines {
			// so that the goroutine does not wait for a reader
		}
		<-s.done
	})
	return s
}

// Wait waits for the end of kubectl and returns its exit code.
func (s *Stream) Wait() int {
	<-s.done
	return s.cmd.ProcessState.ExitCode()
}
