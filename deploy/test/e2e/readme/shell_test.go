package readme

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

// done is what the shell prints after each command, followed by the exit code.
const done = "done-with-this-command:"

// shell is a session of bash. The test that started it owns it; it ends with that.
type shell struct {
	dir, path string
	owner     *testing.T
	stdin     io.Writer
	lines     chan string
}

// startShell starts bash in a folder, with the programs of its bin in PATH.
func startShell(t *testing.T, dir string) *shell {
	t.Helper()
	s := &shell{dir: dir, owner: t, path: filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), lines: make(chan string)}
	cmd := s.command("exec bash 2>&1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.stdin = stdin
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			select {
			case s.lines <- scanner.Text():
			case <-t.Context().Done():
			}
		}
	}()
	t.Cleanup(func() {
		// It ends with its input; a command that hangs is killed.
		if err := stdin.Close(); err != nil {
			t.Error(err)
		}
		timer := time.AfterFunc(framework.Timeout, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		defer timer.Stop()
		for range s.lines {
		}
		_ = cmd.Wait() // The exit code of the last command.
	})
	return s
}

// command is a command of bash in the folder, in a process group of its own.
func (s *shell) command(text string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", text)
	cmd.Dir = s.dir
	for _, variable := range os.Environ() {
		// A reader's environment, not that of the tests.
		if !strings.HasPrefix(variable, "KUBE") && !strings.HasPrefix(variable, "TRIGATE_") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+s.path, "HOME="+s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

// run runs a command, and compares its output with what the README shows.
func (s *shell) run(t *testing.T, c *command) {
	t.Helper()
	// The command has no input of the session's.
	if _, err := fmt.Fprintf(s.stdin, "{ %s\n} </dev/null\necho; echo %s$?\n", c.text, done); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	timeout := time.After(framework.Timeout)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				t.Fatalf("the shell has ended; its output:\n%s", &output)
			}
			text, ended := strings.CutPrefix(line, done)
			if !ended {
				fmt.Fprintln(&output, line)
				continue
			}
			code, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.output == "" && code != 0:
				t.Errorf("exit code %d:\n%s", code, &output)
			case c.output != "" && !c.shows(output.String()):
				t.Errorf("exit code %d:\n%s\nwant:\n%s", code, &output, c.output)
			}
			return
		case <-timeout:
			s.owner.Fatalf("%s takes longer than %v:\n%s", c.name(), framework.Timeout, &output)
		}
	}
}

// startServer starts what runs until the end of the owner, and waits until it is ready.
func (s *shell) startServer(t, owner *testing.T, text string) {
	t.Helper()
	cmd := s.command("exec " + strings.TrimPrefix(text, "exec "))
	output := &buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	owner.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			owner.Errorf("interrupting %s: %v", text, err)
			return
		}
		select {
		case err := <-ended:
			owner.Logf("%s ended: %v", text, err)
		case <-time.After(framework.Timeout):
			owner.Errorf("%s did not end within %v", text, framework.Timeout)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	})
	framework.Eventually(t, text, func() error {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended: %v\n%s", text, err, output)
		default:
		}
		if !strings.Contains(output.String(), "ready: KUBECONFIG=") {
			return fmt.Errorf("it is not ready:\n%s", output)
		}
		return nil
	})
}

// buffer is a buffer that is written to while it is read.
type buffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

// String returns what was written so far.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
