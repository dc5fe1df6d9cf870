package framework

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// stopGrace is how long a process may take to end by itself.
const stopGrace = 60 * time.Second

// process is a program that a control plane consists of. A goroutine waits for its
// end until stop or kill was called; done is closed then.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // of Wait; read after done
}

// start runs the program name from the folder of programs. Its output goes to a
// file; stdout too, unless it is given.
func start(name, logFile string, stdout io.Writer, args ...string) (*process, error) {
	path, err := Binary(name)
	if err != nil {
		return nil, err
	}
	return startPath(name, path, logFile, stdout, args...)
}

// startPath is start for a program whose path is known. Name is what errors call it.
func startPath(name, path, logFile string, stdout io.Writer, args ...string) (*process, error) {
	if err := os.MkdirAll(filepath.Dir(logFile), 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if stdout != nil {
		cmd.Stdout = io.MultiWriter(log, stdout)
	}
	// Nothing outlives the tests, even if they are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", name, err), log.Close())
	}
	p := &process{name: name, cmd: cmd, log: logFile, done: make(chan struct{})}
	go func() {
		p.err = errors.Join(cmd.Wait(), log.Close())
		close(p.done)
	}()
	return p, nil
}

// stop ends the process as an operator would, and kills it if it does not.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopGrace):
		return errors.Join(fmt.Errorf("%s did not stop within %v", p.name, stopGrace), p.kill())
	}
}

// kill ends the process at once.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// ended returns an error once the process has ended, with the end of its log.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %w; its log ends with:\n%s", p.name, p.err, tail(p.log))
	default:
		return nil
	}
}

// tail returns the end of a file.
func tail(path string) string {
	const size = 4 << 10
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-size):])
}
