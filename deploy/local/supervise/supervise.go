// Package supervise keeps child processes running: it restarts one that dies,
// stops them when told, and sees to it that none outlives its parent.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Process says how to run a child.
type Process struct {
	// Name is what messages call it.
	Name string
	// Path is the program, Args are its arguments without the program's name.
	Path string
	Args []string
	// LogFile gets what the child writes to stdout and stderr, after what is there.
	LogFile string
	// PIDFile holds the process id while the child runs.
	PIDFile string
}

// Config is what a Supervisor needs. Report must be set.
type Config struct {
	// Report gets one line for each start of a child and for each of its deaths. It
	// is called by several goroutines.
	Report func(line string)
	// Backoff is the pause before a restart; the zero value is DefaultBackoff.
	Backoff Backoff
}

// Supervisor starts and restarts child processes.
//
// Each child is the leader of a process group, so that what is typed at the
// terminal reaches the supervisor alone, which then decides about the order. On
// Linux the kernel kills the children when the supervisor's process dies in
// whatever way. New starts a goroutine, and Start one for each child; Stop ends a
// child's, and Close, after all children were stopped, the first.
type Supervisor struct {
	config Config
	spawn  chan *exec.Cmd
	// spawned answers spawn.
	spawned chan error
	// lock makes a pair of spawn and spawned one call.
	lock sync.Mutex
	done chan struct{}
}

// New returns a Supervisor without children.
func New(config Config) *Supervisor {
	if config.Backoff == (Backoff{}) {
		config.Backoff = DefaultBackoff
	}
	s := &Supervisor{config: config, spawn: make(chan *exec.Cmd), spawned: make(chan error), done: make(chan struct{})}
	// Close waits for it.
	go s.spawnLoop()
	return s
}

// spawnLoop starts all children from one thread that lives as long as the
// supervisor does: what Linux calls the parent of a child, whose death kills it,
// is the thread that started it, and Go ends idle threads.
func (s *Supervisor) spawnLoop() {
	defer close(s.done)
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	for cmd := range s.spawn {
		s.spawned <- cmd.Start()
	}
}

// Close frees what New took. All children must have been stopped.
func (s *Supervisor) Close() {
	close(s.spawn)
	<-s.done
}

// Child is a process that is kept running until Stop.
type Child struct {
	process    Process
	supervisor *Supervisor
	// tried is closed after the first attempt to start the process.
	tried     chan struct{}
	triedOnce sync.Once
	stop      chan struct{}
	stopOnce  sync.Once
	kill      chan struct{}
	killOnce  sync.Once
	done      chan struct{}
}

// Start keeps a process running from now on, and returns when it runs. That it
// cannot be started is reported and tried again, as if it had died at once.
func (s *Supervisor) Start(process Process) *Child {
	c := &Child{
		process: process, supervisor: s,
		tried: make(chan struct{}), stop: make(chan struct{}), kill: make(chan struct{}), done: make(chan struct{}),
	}
	// Stop waits for it.
	go c.run()
	<-c.tried
	return c
}

// Stop asks the child to end, with SIGTERM, and returns when it is gone. When ctx
// is done its whole process group is killed. It may be called more than once, and
// from several goroutines; the first ctx that is done counts.
func (c *Child) Stop(ctx context.Context) {
	c.stopOnce.Do(func() { close(c.stop) })
	select {
	case <-c.done:
	case <-ctx.Done():
		c.killOnce.Do(func() { close(c.kill) })
		<-c.done
	}
}

func (c *Child) run() {
	defer close(c.done)
	pause := c.supervisor.config.Backoff.start()
	for {
		began := time.Now()
		death, stopped := c.runOnce()
		if stopped {
			return
		}
		delay := pause.next(time.Since(began))
		c.report("%s, restarting in %s%s", death.how, delay, death.lastWords())
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-c.stop:
			timer.Stop()
			return
		}
	}
}

func (c *Child) report(format string, args ...any) {
	c.supervisor.config.Report(c.process.Name + ": " + fmt.Sprintf(format, args...))
}

// death is what is known of a child that has ended.
type death struct {
	how      string
	lastLine string
}

func (d death) lastWords() string {
	if d.lastLine == "" {
		return ""
	}
	return ": " + d.lastLine
}

// runOnce runs the process until it dies, or until the child is stopped.
func (c *Child) runOnce() (death, bool) {
	tried := func() { c.triedOnce.Do(func() { close(c.tried) }) }
	defer tried()
	log, err := os.OpenFile(c.process.LogFile, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return death{how: "cannot be started: " + err.Error()}, false
	}
	defer func() { _ = log.Close() }()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return death{how: "cannot be started: " + err.Error()}, false
	}
	began := time.Now()
	cmd, err := c.supervisor.start(c.process, log)
	if err != nil {
		return death{how: "cannot be started: " + err.Error()}, false
	}
	defer func() { _ = os.Remove(c.process.PIDFile) }()
	if err := os.WriteFile(c.process.PIDFile, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600); err != nil {
		c.report("writing its process id: %v", err)
	}
	c.report("started, process %d, log %s", cmd.Process.Pid, c.process.LogFile)
	tried()

	exited := make(chan struct{})
	// It ends with the process, for which both ways out of here wait.
	go func() {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
	}()
	select {
	case <-exited:
		how := fmt.Sprintf("died (%s) after %s", cmd.ProcessState, time.Since(began).Round(time.Millisecond))
		return death{how: how, lastLine: lastLine(log, begin)}, false
	case <-c.stop:
		c.terminate(cmd, exited)
		return death{}, true
	}
}

// terminate ends a running process and returns when it is gone.
func (c *Child) terminate(cmd *exec.Cmd, exited <-chan struct{}) {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.report("ending it: %v", err)
	}
	select {
	case <-exited:
		return
	case <-c.kill:
	}
	c.report("is still there, killing it")
	// The process has not been waited for, or exited would be closed, so the id of
	// its group is still its own.
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		c.report("killing it: %v", err)
	}
	<-exited
}

func (s *Supervisor) start(process Process, log *os.File) (*exec.Cmd, error) {
	cmd := exec.Command(process.Path, process.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	s.lock.Lock()
	defer s.lock.Unlock()
	s.spawn <- cmd
	if err := <-s.spawned; err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return nil, fmt.Errorf("%s: %w", process.Path, pathErr.Err)
		}
		return nil, err
	}
	return cmd, nil
}
