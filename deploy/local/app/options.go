package app

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trigate/trigate/deploy/local/runner"
)

const (
	flagDir         = "dir"
	flagPort        = "port"
	flagGateways    = "gateways"
	flagReplicas    = "replicas"
	flagControllers = "controllers"
	flagStopTimeout = "stop-timeout"
	flagProgramDir  = "program-dir"
)

// passedThrough are the processes to which flags can be passed, in the order of
// the help text.
var passedThrough = []struct{ process, what, example string }{
	{runner.GatewayProcess, "the gateways", "--v=4"},
	{runner.AuthnProcess, "the authn services", "--authentication-config=FILE"},
	{runner.AuthzProcess, "the authz services", "--authorization-mode=Node,RBAC"},
	{runner.AdmissionProcess, "the admission services", "--disable-admission-plugins=NAME"},
	{runner.EtcdProcess, "etcd", "--quota-backend-bytes=8589934592"},
	{runner.ControllersProcess, "kube-controller-manager", "--kube-api-qps=100"},
}

// Options are the flags of trigate-local.
type Options struct {
	// Dir holds everything that the control plane keeps.
	Dir string
	// Port is the first gateway's, 0 for any.
	Port int
	// Gateways and Replicas are how many gateways, and services of each kind, run.
	Gateways, Replicas int
	// Controllers has kube-controller-manager run.
	Controllers bool
	// StopTimeout is how long a process may take to end.
	StopTimeout time.Duration
	// ProgramDir is where the programs are; empty means beside this one.
	ProgramDir string
	// ExtraArgs are the flags for the processes, by process.
	ExtraArgs map[string]*[]string
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{
		Dir:         ".trigate",
		Port:        6443,
		Gateways:    1,
		Replicas:    1,
		Controllers: true,
		StopTimeout: 20 * time.Second,
		ExtraArgs:   map[string]*[]string{},
	}
	for _, p := range passedThrough {
		o.ExtraArgs[p.process] = &[]string{}
	}
	return o
}

// Flags binds the flags, in sections for the help text.
func (o *Options) Flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets
	fs := sets.FlagSet("control plane")
	fs.StringVar(&o.Dir, flagDir, o.Dir, "Keep everything in `DIR`: kubeconfig, pki/, etcd/, logs/, pids/. Started again on the same directory, the control plane has all its data.")
	fs.IntVar(&o.Port, flagPort, o.Port, "Serve the first gateway on `PORT` of the loopback address; 0 for the one it had before, or a free one.")
	fs.BoolVar(&o.Controllers, flagControllers, o.Controllers, "Run kube-controller-manager too, so that namespaces end, quotas are counted and Deployments make Pods.")
	fs.IntVar(&o.Gateways, flagGateways, o.Gateways, "Run `N` gateways. The further ones have DIR/kubeconfig.2 and so on.")
	fs.IntVar(&o.Replicas, flagReplicas, o.Replicas, "Run `N` replicas of each service (authn, authz, admission).")
	fs.DurationVar(&o.StopTimeout, flagStopTimeout, o.StopTimeout, "Kill a process that takes longer than `DURATION` to end.")
	fs.StringVar(&o.ProgramDir, flagProgramDir, o.ProgramDir, "Take the other programs (trigate-gateway, trigate-authn, trigate-authz, trigate-admission, kube-controller-manager) from `DIR`, by default that of this program.")

	// Each may be repeated. Not StringSlice: a comma belongs to the flag that is passed.
	fs = sets.FlagSet("pass-through")
	for _, p := range passedThrough {
		fs.StringArrayVar(o.ExtraArgs[p.process], p.process+"-arg", nil, fmt.Sprintf("Give `FLAG` to %s, like --%s-arg=%s.", p.what, p.process, p.example))
	}
	return sets
}

// CompletedOptions are options that Complete has filled.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct {
	Options
	executable string
}

// Complete makes paths absolute and finds the programs.
func (o *Options) Complete() (CompletedOptions, error) {
	c := &completedOptions{Options: *o}
	var err error
	if c.executable, err = os.Executable(); err != nil {
		return CompletedOptions{}, fmt.Errorf("finding this program: %w", err)
	}
	if c.ProgramDir == "" {
		c.ProgramDir = filepath.Dir(c.executable)
	}
	if c.Dir != "" {
		if c.Dir, err = filepath.Abs(c.Dir); err != nil {
			return CompletedOptions{}, fmt.Errorf("--%s: %w", flagDir, err)
		}
	}
	return CompletedOptions{c}, nil
}

// Config is what the runner needs.
func (o CompletedOptions) Config(out io.Writer) runner.Config {
	config := runner.Config{
		Dir:         o.Dir,
		ProgramDir:  o.ProgramDir,
		EtcdCommand: []string{o.executable, etcdCommand},
		Port:        o.Port,
		Gateways:    o.Gateways,
		Replicas:    o.Replicas,
		Controllers: o.Controllers,
		ExtraArgs:   map[string][]string{},
		StopTimeout: o.StopTimeout,
		Out:         out,
	}
	for process, args := range o.ExtraArgs {
		config.ExtraArgs[process] = *args
	}
	return config
}
