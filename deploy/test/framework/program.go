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
	"time"
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

// Kill ends the program at once, before the test does.
func (p *Program) Kill(tb testing.TB) {
	tb.Helper()
	if err := p.p.kill(); err != nil {
		tb.Fatal(err)
	}
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
	cmd   *exec.Cmd
	lines <-chan string // of its stdout, closed at its end
	done  chan struct{}
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
	s := &Stream{cmd: cmd, lines: lines, done: make(chan struct{})}
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
		for range s.lines {
			// so that the goroutine does not wait for a reader
		}
		<-s.done
	})
	return s
}

// Next returns the next line that kubectl prints on stdout.
func (s *Stream) Next(tb testing.TB) string {
	tb.Helper()
	select {
	case line, open := <-s.lines:
		if !open {
			<-s.done
			tb.Fatalf("kubectl ended with exit code %d", s.cmd.ProcessState.ExitCode())
		}
		return line
	case <-time.After(Timeout):
		tb.Fatalf("kubectl printed nothing within %v", Timeout)
		return ""
	}
}

// Running tells whether kubectl has neither ended nor printed anything more.
func (s *Stream) Running() bool {
	select {
	case <-s.lines:
		return false
	default:
		return true
	}
}

// Wait waits for the end of kubectl and returns its exit code.
func (s *Stream) Wait(tb testing.TB) int {
	tb.Helper()
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(Timeout):
		tb.Fatalf("kubectl did not end within %v", Timeout)
		return -1
	}
}
