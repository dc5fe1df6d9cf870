// Package app is the command line of trigate-local.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"

	"github.com/trigate/trigate/deploy/local/etcd"
	"github.com/trigate/trigate/deploy/local/runner"
)

const (
	program = "trigate-local"
	// etcdCommand is the hidden command by which the program runs itself as etcd.
	etcdCommand = "etcd"
)

const long = `trigate-local runs a whole Trigate control plane on this machine: etcd, the
services authn, authz and admission, the gateway, and kube-controller-manager,
each as a process of its own. It makes the keys and certificates they need.

When everything works it prints a line
  ready: KUBECONFIG=DIR/kubeconfig
Processes that die are started again. Ctrl-C (SIGINT, SIGTERM) stops them all.
Their logs are in DIR/logs, their process ids in DIR/pids.

The pass-through flags may be repeated. A flag that is passed takes the place of
the one of the same name that trigate-local gives by itself.`

// Main runs the command and returns the exit code of the process. A failure is one
// line on stderr.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	// A second signal ends this process at once, and with it its children.
	context.AfterFunc(ctx, stop)
	command := NewCommand()
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	if err := command.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", program, oneLine(err))
		return 1
	}
	return 0
}

// NewCommand returns the command. It runs until the context of its execution is
// done, or fails at the start.
func NewCommand() *cobra.Command {
	options := NewOptions()
	command := &cobra.Command{
		Use:                program,
		Short:              "Run a Trigate control plane on this machine",
		Long:               long,
		Args:               noArguments,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true,
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(command *cobra.Command, _ []string) error {
			completed, err := options.Complete()
			if err != nil {
				return err
			}
			if err := errors.Join(completed.Validate()...); err != nil {
				return err
			}
			return runner.Run(command.Context(), completed.Config(command.OutOrStdout()))
		},
	}
	command.AddCommand(newEtcdCommand())
	sets := options.Flags()
	for _, set := range sets.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(command.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(command, sets, columns)
	return command
}

// newEtcdCommand is what the etcd process runs. Its flags are etcd's own.
func newEtcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:                etcdCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(command *cobra.Command, args []string) error {
			if err := etcd.Run(command.Context(), args); err != nil {
				return fmt.Errorf("%s: %w", etcdCommand, err)
			}
			return nil
		},
	}
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q: there are only flags; see --help", args[0])
	}
	return nil
}

// stopSignals are the signals that stop everything in order. A hangup is one,
// unless who started us (nohup) had it ignored.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// oneLine joins the lines of several problems.
func oneLine(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
