// Package runner runs a whole Trigate control plane on one machine: etcd, the
// three services, the gateways in front of them and kube-controller-manager, each
// a process of its own, with all that they keep in one directory.
//
//	DIR/kubeconfig           the operator's; kubeconfig.2, ... for further gateways
//	DIR/pki/                 authorities, keys, certificates, the processes' kubeconfigs
//	DIR/etcd/                etcd's data
//	DIR/logs/NAME.log        what a process writes, of all runs
//	DIR/pids/NAME.pid        its process id, while it runs
//	DIR/ports.json           the ports that the processes had
//	DIR/trigate-local.pid    the runner's process id, and its lock on the directory
//
// NAME is etcd, authn, authz, admission, gateway or controllers; further replicas
// are authz.2, gateway.2 and so on.
package runner

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trigate/trigate/deploy/local/supervise"
	"github.com/trigate/trigate/deploy/pki"
)

const (
	// certificateCheck is how often a long run looks whether certificates must be
	// renewed. They are renewed a month before their end.
	certificateCheck = 12 * time.Hour
	// stopSteps is the number of steps that stopping takes: controllers, gateways,
	// services, etcd.
	stopSteps = 4
)

// Config says what to run. All fields must be set, except Port and ExtraArgs.
type Config struct {
	// Dir is the absolute directory that holds everything.
	Dir string
	// ProgramDir is where the programs are: trigate-gateway and the other processes
	// of Trigate, and kube-controller-manager.
	ProgramDir string
	// EtcdCommand is the program, and its first arguments, that runs etcd.
	EtcdCommand []string
	// Port is the first gateway's; 0 means the one it had, or any.
	Port int
	// Gateways and Replicas are how many gateways there are, and how many of each
	// service.
	Gateways, Replicas int
	// Controllers has kube-controller-manager run as well.
	Controllers bool
	// ExtraArgs are further arguments by kind of process (EtcdProcess, ...). A flag
	// that is among them replaces the runner's own of the same name.
	ExtraArgs map[string][]string
	// StopTimeout is how long a process may take to end before it is killed.
	StopTimeout time.Duration
	// Out gets lines for people to read.
	Out io.Writer
}

// runner is one call of Run.
type runner struct {
	Config
	layout     layout
	pki        *pki.Layout
	ports      ports
	supervisor *supervise.Supervisor
	outLock    sync.Mutex // guards Out
}

// Run starts everything, writes "ready: KUBECONFIG=..." as a line of its own once
// every gateway's /readyz says ok, and keeps everything running until ctx is
// done. Then it stops all processes, in the order in which they need each other,
// and returns nil. An error means that nothing runs: what comes to the child
// processes later is reported and mended.
func Run(ctx context.Context, config Config) error {
	r, err := newRunner(config)
	if err != nil {
		return err
	}
	unlock, err := lock(r.layout.lockFile())
	if err != nil {
		return fmt.Errorf("--dir %s: %w", r.Dir, err)
	}
	defer unlock()
	r.print("everything is kept in " + r.Dir)
	if err := clearLeftovers(ctx, r.layout, r.print); err != nil {
		return orStopped(ctx, err)
	}
	if err := r.prepare(ctx); err != nil {
		return orStopped(ctx, err)
	}
	r.supervise(ctx)
	return nil
}

// Processes makes all that the processes need, as Run does, and returns them
// without starting any: etcd, the services, the gateways, and kube-controller-manager
// if it is asked for. It is for who starts and ends them by himself; nobody else may
// use the directory meanwhile.
func Processes(ctx context.Context, config Config) ([]supervise.Process, error) {
	r, err := newRunner(config)
	if err != nil {
		return nil, err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	processes := slices.Concat([]supervise.Process{r.etcd()}, r.services(), r.gateways())
	if r.Controllers {
		processes = append(processes, r.controllers())
	}
	return processes, nil
}

// newRunner looks for the programs and makes the directories.
func newRunner(config Config) (*runner, error) {
	r := &runner{Config: config, layout: layout{config.Dir}}
	if err := r.checkPrograms(); err != nil {
		return nil, err
	}
	for _, dir := range []string{r.Dir, r.layout.logs(), r.layout.pids()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("--dir: %w", err)
		}
	}
	return r, nil
}

// orStopped turns an error into success if it came from being told to stop.
func orStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare makes all files that the processes need.
func (r *runner) prepare(ctx context.Context) error {
	if err := r.ensureCertificates(ctx); err != nil {
		return err
	}
	others := replicas(EtcdProcess, 1)
	for _, service := range services {
		others = append(others, replicas(service, r.Replicas)...)
	}
	var err error
	if r.ports, err = choosePorts(r.layout.portsFile(), replicas(GatewayProcess, r.Gateways), others, r.Port); err != nil {
		return err
	}
	return r.writeKubeconfigs()
}

func (r *runner) ensureCertificates(ctx context.Context) error {
	layout, err := pki.Ensure(ctx, pki.Config{Dir: r.layout.pki()})
	if err != nil {
		return err
	}
	r.pki = layout
	if n := len(r.pki.Written); n > 0 {
		r.print(fmt.Sprintf("made or renewed %d keys and certificates in %s", n, r.pki.Dir))
	}
	return nil
}

func (r *runner) writeKubeconfigs() error {
	kubeconfigs := []pki.Kubeconfig{
		{Path: r.layout.processKubeconfig(ControllersProcess), Server: r.gatewayURL(1), Identity: pki.Controllers},
	}
	for i := 1; i <= r.Gateways; i++ {
		kubeconfigs = append(kubeconfigs,
			pki.Kubeconfig{Path: r.layout.adminKubeconfig(i), Server: r.gatewayURL(i), Identity: pki.Admin, Embed: true})
	}
	for _, service := range services {
		for i := 1; i <= r.Replicas; i++ {
			kubeconfigs = append(kubeconfigs, pki.Kubeconfig{
				Path: r.layout.processKubeconfig(replica(service, i)),
				// A kubeconfig names one server. The replicas of a service are spread over
				// the gateways, so that the death of one leaves a replica of each service
				// that still hears from the API.
				Server:   r.gatewayURL(1 + (i-1)%r.Gateways),
				Identity: pki.Name(service),
			})
		}
	}
	for _, kubeconfig := range kubeconfigs {
		if err := r.pki.WriteKubeconfig(kubeconfig); err != nil {
			return err
		}
	}
	return nil
}

// supervise runs the processes until ctx is done and all of them are gone.
func (r *runner) supervise(ctx context.Context) {
	r.supervisor = supervise.New(supervise.Config{Report: r.print})
	defer r.supervisor.Close()

	// All at once: each of them waits for those that it needs.
	etcd := r.startAll(r.etcd())
	services := r.startAll(r.services()...)
	gateways := r.startAll(r.gateways()...)
	var controllers []*supervise.Child

	if r.waitUntilReady(ctx) {
		// kube-controller-manager comes last since it gives up after 10 s without an
		// API server, and has nothing to do before.
		if r.Controllers {
			controllers = r.startAll(r.controllers())
		}
		r.print("ready: KUBECONFIG=" + r.layout.adminKubeconfig(1))
		wait.UntilWithContext(ctx, r.renew, certificateCheck)
	}

	r.print("stopping")
	for _, children := range [stopSteps][]*supervise.Child{controllers, gateways, services, etcd} {
		r.stopAll(children)
	}
	r.print("stopped")
}

// renew renews what is near its end. The processes read their files again.
func (r *runner) renew(ctx context.Context) {
	err := r.ensureCertificates(ctx)
	if err == nil {
		err = r.writeKubeconfigs()
	}
	if err != nil && ctx.Err() == nil {
		r.print(err.Error())
	}
}

func (r *runner) startAll(processes ...supervise.Process) []*supervise.Child {
	var children []*supervise.Child
	for _, process := range processes {
		children = append(children, r.supervisor.Start(process))
	}
	return children
}

// stopAll stops children at the same time, and returns when they are gone.
func (r *runner) stopAll(children []*supervise.Child) {
	ctx, cancel := context.WithTimeout(context.Background(), r.StopTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, child := range children {
		all.Go(func() { child.Stop(ctx) })
	}
	all.Wait()
}

// print writes a line for people. That it cannot be written is no reason to stop.
func (r *runner) print(line string) {
	r.outLock.Lock()
	defer r.outLock.Unlock()
	_, _ = fmt.Fprintln(r.Out, line)
}

// checkPrograms finds out before anything is started that a program is missing.
func (r *runner) checkPrograms() error {
	for _, program := range r.programs() {
		path := filepath.Join(r.ProgramDir, program)
		info, err := os.Stat(path)
		hint := `"make build" builds it`
		if program == controllersProgram {
			hint += ", and --controllers=false does without it"
		}
		switch {
		case err != nil:
			return fmt.Errorf("looking for the program %s: %w (%s)", program, err, hint)
		case info.IsDir() || info.Mode()&0o111 == 0:
			return fmt.Errorf("%s is not a program (%s)", path, hint)
		}
	}
	return nil
}
