package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trigate/trigate/deploy/local/runner"
	"github.com/trigate/trigate/deploy/local/supervise"
	"github.com/trigate/trigate/deploy/pki"
)

// PartsOptions vary the parts of a Trigate.
type PartsOptions struct {
	// Gateways is how many gateways there are, and Replicas how many of each service;
	// 0 is one.
	Gateways, Replicas int
	// Controllers has kube-controller-manager be one of the parts.
	Controllers bool
}

// probeTimeout bounds one question for a health path.
const probeTimeout = 10 * time.Second

// Parts is a Trigate whose processes a test starts and ends by itself: some come
// late, some go and stay away. They have the arguments that the local runner gives
// them, and nothing restarts them. Its methods are for one goroutine at a time.
type Parts struct {
	*Cluster

	processes []supervise.Process
	running   map[string]*process
}

// NewParts makes what a Trigate needs and starts nothing. At the end of the test it
// stops what runs then.
func NewParts(tb testing.TB, opts PartsOptions) *Parts {
	tb.Helper()
	local, err := Binary("trigate-local")
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	policy, err := writeAuditPolicy(dir)
	if err != nil {
		tb.Fatal(err)
	}
	p := &Parts{
		Cluster: &Cluster{
			Name:       Trigate,
			Dir:        dir,
			Kubeconfig: filepath.Join(dir, "kubeconfig"),
			AuditLog:   filepath.Join(dir, "audit.log"),
			PKI:        &pki.Layout{Dir: filepath.Join(dir, "pki")},
		},
		running: map[string]*process{},
	}
	p.processes, err = runner.Processes(tb.Context(), runner.Config{
		Dir:         dir,
		ProgramDir:  filepath.Dir(local),
		EtcdCommand: []string{local, "etcd"},
		Gateways:    max(1, opts.Gateways),
		Replicas:    max(1, opts.Replicas),
		Controllers: opts.Controllers,
		ExtraArgs: map[string][]string{runner.GatewayProcess: {
			"--audit-policy-file=" + policy, "--audit-log-path=" + p.AuditLog, auditLogMaxSize,
		}},
		Out: io.Discard,
	})
	if err != nil {
		tb.Fatal(err)
	}
	p.stop = p.stopAll
	tb.Cleanup(func() {
		if err := p.Stop(); err != nil {
			tb.Errorf("stopping: %v", err)
		}
		if tb.Failed() {
			for _, process := range p.processes {
				tb.Logf("the log of %s ends with:\n%s", process.Name, tail(process.LogFile))
			}
		}
	})
	return p
}

// Names are the names of all parts: etcd, the services, the gateway, and
// controllers if it is one of them.
func (p *Parts) Names() []string {
	names := make([]string, len(p.processes))
	for i, process := range p.processes {
		names[i] = process.Name
	}
	return names
}

// Process tells how a part is run.
func (p *Parts) Process(tb testing.TB, name string) supervise.Process {
	tb.Helper()
	i := slices.IndexFunc(p.processes, func(process supervise.Process) bool { return process.Name == name })
	if i < 0 {
		tb.Fatalf("no part is called %q; there are %q", name, p.Names())
	}
	return p.processes[i]
}

// AddArgs gives a part more arguments, from its next start on. Of a flag with one
// value that is given twice the last counts.
func (p *Parts) AddArgs(tb testing.TB, name string, args ...string) {
	tb.Helper()
	for i := range p.processes {
		if p.processes[i].Name == name {
			p.processes[i].Args = slices.Concat(p.processes[i].Args, args)
			return
		}
	}
	tb.Fatalf("no part is called %q; there are %q", name, p.Names())
}

// Start starts parts, in the order given. It does not wait until they serve.
func (p *Parts) Start(tb testing.TB, names ...string) {
	tb.Helper()
	for _, name := range names {
		process := p.Process(tb, name)
		started, err := startPath(name, process.Path, process.LogFile, nil, process.Args...)
		if err != nil {
			tb.Fatal(err)
		}
		p.running[name] = started
		pid := strconv.Itoa(started.cmd.Process.Pid)
		if err := os.WriteFile(process.PIDFile, []byte(pid+"\n"), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// Kill ends parts at once, as a power cut would. They stay away until they are
// started again.
func (p *Parts) Kill(tb testing.TB, names ...string) {
	tb.Helper()
	for _, name := range names {
		running, ok := p.running[name]
		if !ok {
			tb.Fatalf("%s does not run", name)
		}
		if err := errors.Join(running.ended(), running.kill()); err != nil {
			tb.Fatal(err)
		}
		delete(p.running, name)
	}
}

// End ends parts as an operator would, one after the other. Each has to end by itself
// within limit, and with success.
func (p *Parts) End(tb testing.TB, limit time.Duration, names ...string) {
	tb.Helper()
	for _, name := range names {
		running, ok := p.running[name]
		if !ok {
			tb.Fatalf("%s does not run", name)
		}
		delete(p.running, name)
		begin := time.Now()
		if err := running.stop(); err != nil {
			tb.Fatal(err)
		}
		if took := time.Since(begin); took > limit {
			tb.Errorf("%s took %s to end, want at most %s", name, took, limit)
		}
		if running.err != nil {
			tb.Errorf("%s: %v; its log ends with:\n%s", name, running.err, tail(running.log))
		}
	}
}

// Log returns what a part has written so far.
func (p *Parts) Log(tb testing.TB, name string) string {
	tb.Helper()
	content, err := os.ReadFile(p.Process(tb, name).LogFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Fatal(err)
	}
	return string(content)
}

// Died returns an error that names the parts which ended by themselves, with the
// end of their logs.
func (p *Parts) Died() error {
	var errs []error
	for _, name := range p.Names() {
		if running, ok := p.running[name]; ok {
			errs = append(errs, running.ended())
		}
	}
	return errors.Join(errs...)
}

// AwaitReady waits until every gateway says that everything is ready. It fails as
// soon as a part dies.
func (p *Parts) AwaitReady(tb testing.TB) {
	tb.Helper()
	for _, gateway := range p.Gateways(tb) {
		Eventually(tb, "ready", func() error {
			if err := p.Died(); err != nil {
				tb.Fatal(err)
			}
			body, err := gateway.Probe(tb, "/readyz?verbose")
			if err != nil {
				return fmt.Errorf("%w: %s", err, body)
			}
			return nil
		})
	}
}

// Probe asks the API server for a path without any credentials, on a new
// connection, as who checks its health does, and returns the body of the answer. An
// answer that is not 200 is an error.
func (c *Cluster) Probe(tb testing.TB, path string) (string, error) {
	tb.Helper()
	config := c.Anonymous(tb)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, response.Status)
	}
	return string(body), err
}

// stopAll stops what runs in the order of the local runner, which is the opposite
// of that of their names.
func (p *Parts) stopAll() error {
	var errs []error
	for _, name := range slices.Backward(p.Names()) {
		running, ok := p.running[name]
		if !ok {
			continue
		}
		// Whoever was stopped has to go on to end.
		_ = running.cmd.Process.Signal(syscall.SIGCONT)
		errs = append(errs, running.stop())
		delete(p.running, name)
	}
	return errors.Join(errs...)
}
