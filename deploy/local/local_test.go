package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/trigate/trigate/deploy/pki"
)

// local is trigate-local with fake programs beside it.
type local struct {
	t *testing.T
	// dir is its --dir, fakes the directory of the fakes' events, programs that of
	// the programs.
	dir, fakes, programs string
	cmd                  *exec.Cmd
	// ended is closed when the process has ended and all its output is read.
	ended chan struct{}
	lock  sync.Mutex
	out   []string
	seen  int // of out, by waitForLine
}

func newLocal(t *testing.T) *local {
	t.Helper()
	root := t.TempDir()
	l := &local{t: t, dir: filepath.Join(root, "dir"), fakes: filepath.Join(root, "fakes"), programs: filepath.Join(root, "bin")}
	t.Setenv(fakeDirEnv, l.fakes)
	for _, dir := range []string{l.fakes, l.programs} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(l.programs, "trigate-local")
	if err := os.Link(self, first); err != nil {
		// The two directories are on different file systems.
		if err := os.WriteFile(first, []byte(read(t, self)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"trigate-gateway", "trigate-authn", "trigate-authz", "trigate-admission", "kube-controller-manager"} {
		if err := os.Link(first, filepath.Join(l.programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// start starts trigate-local, which is stopped at the end of the test at the
// latest.
func (l *local) start(args ...string) {
	l.t.Helper()
	cmd := exec.Command(filepath.Join(l.programs, "trigate-local"), args...)
	cmd.Stderr = &bytes.Buffer{}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // stop, or the clean-up, waits for it
		defer close(ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			l.lock.Lock()
			l.out = append(l.out, lines.Text())
			l.lock.Unlock()
		}
		_ = cmd.Wait()
	}()
	l.cmd, l.ended = cmd, ended
	l.lock.Lock()
	l.seen = len(l.out)
	l.lock.Unlock()
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(deadline):
			_ = cmd.Process.Kill()
			<-ended
		}
		if l.t.Failed() {
			l.t.Logf("trigate-local said:\n%s\n%s", strings.Join(l.lines(), "\n"), cmd.Stderr)
		}
	})
}

// stop ends trigate-local, which must succeed.
func (l *local) stop(signal os.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(signal); err != nil {
		l.t.Fatal(err)
	}
	select {
	case <-l.ended:
	case <-time.After(deadline):
		l.t.Fatalf("trigate-local did not end on %s", signal)
	}
	if code := l.cmd.ProcessState.ExitCode(); code != 0 {
		l.t.Errorf("trigate-local ended with %s", l.cmd.ProcessState)
	}
	if got := l.lines()[len(l.lines())-1]; got != "stopped" {
		l.t.Errorf("the last line is %q, want stopped", got)
	}
}

// fail runs trigate-local, which must fail, and returns what it says on stderr.
func (l *local) fail(args ...string) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(l.programs, "trigate-local"), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		l.t.Errorf("trigate-local ended with %v, want exit status 1", err)
	}
	return stderr.String()
}

func (l *local) lines() []string {
	l.lock.Lock()
	defer l.lock.Unlock()
	return slices.Clone(l.out)
}

// waitForLine returns the first line that matches, of those that no earlier call
// has gone past.
func (l *local) waitForLine(pattern string) string {
	l.t.Helper()
	expression := regexp.MustCompile(pattern)
	var found string
	l.eventually("it prints "+pattern, func() bool {
		lines := l.lines()
		for l.seen < len(lines) {
			line := lines[l.seen]
			l.seen++
			if expression.MatchString(line) {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

func (l *local) eventually(what string, condition func() bool) {
	l.t.Helper()
	for end, tick := time.Now().Add(deadline), time.Tick(5*time.Millisecond); !condition(); <-tick {
		if time.Now().After(end) {
			l.t.Fatalf("it did not happen that %s", what)
		}
	}
}

// running are the names of the processes whose process id files say that they run.
func (l *local) running() []string {
	l.t.Helper()
	entries, err := os.ReadDir(filepath.Join(l.dir, "pids"))
	if err != nil {
		l.t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".pid")
		if err := syscall.Kill(l.pid(name), 0); err != nil {
			l.t.Errorf("process of %s: %v", name, err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (l *local) pid(name string) int {
	l.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(read(l.t, filepath.Join(l.dir, "pids", name+".pid"))))
	if err != nil {
		l.t.Fatal(err)
	}
	return pid
}

func (l *local) waitForNewPID(name string, old int) int {
	l.t.Helper()
	pid := 0
	l.eventually("there is a new process of "+name, func() bool {
		data, err := os.ReadFile(filepath.Join(l.dir, "pids", name+".pid"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil && pid != old
	})
	return pid
}

// checkNothingLeft wants no process, and no file that says that there is one.
func (l *local) checkNothingLeft() {
	l.t.Helper()
	if left := l.processesOfDir(); len(left) > 0 {
		l.t.Errorf("left behind the processes %v", left)
	}
	if left := l.running(); len(left) > 0 {
		l.t.Errorf("left behind the process id files of %v", left)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "trigate-local.pid")); !errors.Is(err, fs.ErrNotExist) {
		l.t.Errorf("left behind the lock: %v", err)
	}
}

// processesOfDir are all processes that have the directory among their arguments.
func (l *local) processesOfDir() []string {
	l.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		l.t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		if arguments, err := os.ReadFile(file); err == nil && bytes.Contains(arguments, []byte(l.dir)) {
			found = append(found, strings.ReplaceAll(string(arguments), "\x00", " "))
		}
	}
	return found
}

func (l *local) log(name string) string {
	l.t.Helper()
	return read(l.t, filepath.Join(l.dir, "logs", name+".log"))
}

// events are the programs of the events of a kind, in order.
func (l *local) events(kind string) []string {
	l.t.Helper()
	var programs []string
	data, err := os.ReadFile(filepath.Join(l.fakes, "events"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); fields[0] == kind {
			programs = append(programs, fields[1])
		}
	}
	return programs
}

// args waits until a program has started, and returns its arguments.
func (l *local) args(program string) []string {
	l.t.Helper()
	var args []string
	l.eventually(program+" starts", func() bool {
		for line := range strings.Lines(read(l.t, filepath.Join(l.fakes, "events"))) {
			if fields := strings.Fields(line); fields[0] == "start" && fields[1] == program {
				args = fields[2:]
				return true
			}
		}
		return false
	})
	return args
}

// misbehave makes a file that fakes look for.
func (l *local) misbehave(name, content string) {
	l.t.Helper()
	write(l.t, filepath.Join(l.fakes, name), content)
}

// ask asks for /readyz as the owner of a kubeconfig.
func (l *local) ask(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	response, err := client.Get(config.Host + "/readyz")
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// etcdClient is one with the gateway's rights.
func (l *local) etcdClient() *clientv3.Client {
	l.t.Helper()
	layout := pki.Layout{Dir: filepath.Join(l.dir, "pki")}
	certificate, err := tls.LoadX509KeyPair(layout.Cert(pki.EtcdClient), layout.Key(pki.EtcdClient))
	if err != nil {
		l.t.Fatal(err)
	}
	roots, err := cert.NewPool(layout.Cert(pki.EtcdCA))
	if err != nil {
		l.t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{fakeFlags(l.args("trigate-gateway")).get("etcd-servers")},
		TLS:       &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = client.Close() })
	return client
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
