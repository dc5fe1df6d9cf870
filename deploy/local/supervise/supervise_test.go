package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trigate/trigate/deploy/local/supervise"
)

// deadline bounds each wait of the tests, which end much sooner when all is well.
const deadline = 30 * time.Second

// childEnv tells the test program to be a child, and which.
const childEnv = "SUPERVISE_TEST_CHILD"

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		children[child](os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}

// children are the programs that the tests supervise. Some tell that they are up
// by a file, the last argument.
var children = map[string]func(args []string){
	// obedient ends on SIGTERM.
	"obedient": func(args []string) {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		touch(args[len(args)-1])
		<-signals
		fmt.Println("ended by request")
	},
	// stubborn does not, and neither does the child of its own.
	"stubborn": func(args []string) {
		signal.Ignore(syscall.SIGTERM)
		grandchild := exec.Command("sleep", "1000")
		if err := grandchild.Start(); err != nil {
			panic(err)
		}
		if err := os.WriteFile(args[len(args)-1]+".grandchild", []byte(strconv.Itoa(grandchild.Process.Pid)), 0o600); err != nil {
			panic(err)
		}
		touch(args[len(args)-1])
		forever()
	},
	"failing": func([]string) {
		fmt.Println("about to fail")
		fmt.Fprint(os.Stderr, "\x1b[31m--kubeconfig: no such\tfile\n\n")
		os.Exit(3)
	},
	// parent supervises an obedient child and never ends by itself.
	"parent": func(args []string) {
		if err := os.Setenv(childEnv, "obedient"); err != nil {
			panic(err)
		}
		supervisor := supervise.New(supervise.Config{Report: func(string) {}})
		supervisor.Start(process("child", filepath.Dir(args[0]), args[0]))
		forever()
	},
}

func TestChildRunsUntilStopped(t *testing.T) {
	t.Setenv(childEnv, "obedient")
	dir := t.TempDir()
	up := filepath.Join(dir, "up")
	var lines recorder
	supervisor := supervise.New(supervise.Config{Report: lines.add})
	defer supervisor.Close()
	child := supervisor.Start(process("authz", dir, "one", "two words", up))
	eventually(t, "the child is up", exists(up))

	pid := readPID(t, filepath.Join(dir, "pid"))
	if got, err := syscall.Getpgid(pid); err != nil || got != pid {
		t.Errorf("process group of %d = %d (%v), want its own", pid, got, err)
	}
	child.Stop(t.Context())
	child.Stop(t.Context()) // again makes no difference

	if !gone(pid)() {
		t.Errorf("process %d is still there", pid)
	}
	if exists(filepath.Join(dir, "pid"))() {
		t.Errorf("the process id file is still there")
	}
	if got, want := readLog(t, dir), "ended by request\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	if got := lines.all(); len(got) != 1 || !strings.HasPrefix(got[0], fmt.Sprintf("authz: started, process %d", pid)) {
		t.Errorf("reported %q, want one start", got)
	}
}

func TestChildIsRestarted(t *testing.T) {
	t.Setenv(childEnv, "obedient")
	dir := t.TempDir()
	up := filepath.Join(dir, "up")
	var lines recorder
	supervisor := supervise.New(supervise.Config{Report: lines.add, Backoff: supervise.Backoff{Initial: time.Millisecond, Max: time.Millisecond}})
	defer supervisor.Close()
	child := supervisor.Start(process("authz", dir, up))
	defer child.Stop(t.Context())
	eventually(t, "the child is up", exists(up))
	first := readPID(t, filepath.Join(dir, "pid"))
	if err := os.Remove(up); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is up again", exists(up))
	if second := readPID(t, filepath.Join(dir, "pid")); second == first {
		t.Errorf("the process id file still says %d", first)
	}
	if got, want := lines.all()[1], regexp.MustCompile(`^authz: died \(signal: killed\) after [0-9.]+m?s, restarting in 1ms$`); !want.MatchString(got) {
		t.Errorf("reported %q, want %s", got, want)
	}
}

func TestChildThatFails(t *testing.T) {
	t.Setenv(childEnv, "failing")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "log"), []byte("of an earlier run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var lines recorder
	supervisor := supervise.New(supervise.Config{Report: lines.add, Backoff: supervise.Backoff{Initial: time.Millisecond, Max: 4 * time.Millisecond, ResetAfter: time.Hour}})
	defer supervisor.Close()
	child := supervisor.Start(process("authz", dir))
	eventually(t, "the child has failed four times", func() bool { return len(lines.deaths()) >= 4 })
	child.Stop(t.Context())
	for i, pause := range []string{"1ms", "2ms", "4ms", "4ms"} {
		want := regexp.MustCompile(`^authz: died \(exit status 3\) after [0-9.]+m?s, restarting in ` + pause + `: \[31m--kubeconfig: no such file$`)
		if got := lines.deaths()[i]; !want.MatchString(got) {
			t.Errorf("death %d is reported as %q, want %s", i, got, want)
		}
	}
	if got, want := readLog(t, dir), "of an earlier run\nabout to fail\n"; !strings.HasPrefix(got, want) {
		t.Errorf("log = %q, want it to begin with %q", got, want)
	}
}

func TestChildThatCannotBeStarted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *supervise.Process)
		want   string
	}{
		{"no program", func(p *supervise.Process) { p.Path = "/nowhere/trigate-authz" }, "/nowhere/trigate-authz: no such file or directory"},
		{"no log", func(p *supervise.Process) { p.LogFile = "/nowhere/log" }, "open /nowhere/log: no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines recorder
			supervisor := supervise.New(supervise.Config{Report: lines.add, Backoff: supervise.Backoff{Initial: time.Millisecond, Max: time.Millisecond}})
			defer supervisor.Close()
			p := process("authz", t.TempDir())
			tt.change(&p)
			child := supervisor.Start(p)
			eventually(t, "it was tried twice", func() bool { return len(lines.all()) >= 2 })
			child.Stop(t.Context())
			if got, want := lines.all()[0], "authz: cannot be started: "+tt.want+", restarting in 1ms"; got != want {
				t.Errorf("reported %q, want %q", got, want)
			}
		})
	}
}

func TestStopWhileWaitingToRestart(t *testing.T) {
	t.Setenv(childEnv, "failing")
	var lines recorder
	supervisor := supervise.New(supervise.Config{Report: lines.add, Backoff: supervise.Backoff{Initial: time.Hour, Max: time.Hour}})
	defer supervisor.Close()
	child := supervisor.Start(process("authz", t.TempDir()))
	eventually(t, "the child has failed", func() bool { return len(lines.deaths()) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	child.Stop(ctx)
	if err := ctx.Err(); err != nil {
		t.Errorf("Stop waited for the restart: %v", err)
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	t.Setenv(childEnv, "stubborn")
	dir := t.TempDir()
	up := filepath.Join(dir, "up")
	var lines recorder
	supervisor := supervise.New(supervise.Config{Report: lines.add})
	defer supervisor.Close()
	child := supervisor.Start(process("authz", dir, up))
	eventually(t, "the child is up", exists(up))
	pid, grandchild := readPID(t, filepath.Join(dir, "pid")), readPID(t, up+".grandchild")

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	child.Stop(ctx)
	if !gone(pid)() {
		t.Errorf("process %d is still there", pid)
	}
	eventually(t, "the grandchild is gone", gone(grandchild))
	if got := lines.all(); got[len(got)-1] != "authz: is still there, killing it" {
		t.Errorf("reported %q, want the killing last", got)
	}
}

// TestChildDiesWithParent kills a supervisor's process, also when the thread that
// started the child has had time to idle.
func TestChildDiesWithParent(t *testing.T) {
	t.Setenv(childEnv, "parent")
	dir := t.TempDir()
	up := filepath.Join(dir, "up")
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(executable, up)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Wait() }()
	defer func() { _ = parent.Process.Kill() }()
	eventually(t, "the child is up", exists(up))
	pid := readPID(t, filepath.Join(dir, "pid"))
	if gone(pid)() {
		t.Fatalf("process %d is gone before its parent", pid)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is gone", gone(pid))
}

func process(name, dir string, args ...string) supervise.Process {
	executable, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return supervise.Process{Name: name, Path: executable, Args: args, LogFile: filepath.Join(dir, "log"), PIDFile: filepath.Join(dir, "pid")}
}

// recorder keeps what is reported.
type recorder struct {
	lock  sync.Mutex
	lines []string
}

func (r *recorder) add(line string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.lines = append(r.lines, line)
}

func (r *recorder) all() []string {
	r.lock.Lock()
	defer r.lock.Unlock()
	return append([]string(nil), r.lines...)
}

func (r *recorder) deaths() []string {
	var deaths []string
	for _, line := range r.all() {
		if strings.Contains(line, " died ") {
			deaths = append(deaths, line)
		}
	}
	return deaths
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end, tick := time.Now().Add(deadline), time.Tick(time.Millisecond); !condition(); <-tick {
		if time.Now().After(end) {
			t.Fatalf("it did not happen that %s", what)
		}
	}
}

// forever is not select{}, which the runtime takes for a deadlock.
func forever() {
	for range time.Tick(time.Hour) {
	}
}

func touch(path string) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		panic(err)
	}
}

func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

// gone tells whether a process has ended; one that nobody has waited for counts.
func gone(pid int) func() bool {
	return func() bool {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	}
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func readLog(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
