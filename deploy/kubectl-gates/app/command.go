// Package app holds the commands of kubectl-gates. They reach the gates by REST,
// through a gateway, with kubectl's own flags and kubeconfig.
package app

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/cmd/options"
	"k8s.io/kubectl/pkg/util/templates"
)

// The exit codes of every command.
const (
	// exitYes: it is so: allowed, healthy, authenticated.
	exitYes = 0
	// exitNo: it is not so.
	exitNo = 1
	// exitError: nothing is known, since the question could not be asked or answered.
	exitError = 2
)

// errNo is returned by a command whose answer is no, and that has printed why.
var errNo = errors.New("no")

var rootLong = templates.LongDesc(`
	Ask Trigate's gates (authentication, authorization, admission) what they decide, and why.

	The questions go to the gates through the API server that the kubeconfig names. Asking needs
	rights of its own: the verb "post" (for watch-revisions and status "get") on the path below
	/gates/ of what is asked.

	Exit codes: 0 if the answer is yes (allowed, authenticated, healthy), 1 if it is no, and 2 if
	there is no answer. kubectl auth can-i, which has 1 for both, is told apart from this.`)

// Main runs the command line args and returns the exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	command := NewCommand(genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut})
	command.SetArgs(args)
	switch err := command.ExecuteContext(ctx); {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	default:
		if text := strings.TrimRight(message(err), "\n"); text != "" {
			// There is nowhere to report it if this fails.
			_ = printers.WriteEscaped(errOut, text+"\n")
		}
		return exitError
	}
}

// NewCommand returns `kubectl gates` with its commands. Errors are returned by
// ExecuteContext and not printed.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-gates",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gates"},
		Short:         "Ask Trigate's gates what they decide, and why",
		Long:          rootLong,
		Version:       version.Get().String(),
		SilenceErrors: true,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
		Args:          cobra.NoArgs,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.WarningHandler = rest.NewWarningWriter(streams.ErrOut, rest.WarningWriterOptions{
			Deduplicate: true, Color: printers.AllowsColorOutput(streams.ErrOut),
		})
		return config
	}
	flags.AddFlags(root.PersistentFlags())
	addLogFlag(root)
	// Set here, for cobra would give it the letter of the log flag.
	root.Flags().Bool("version", false, "Print the version.")

	groups := templates.CommandGroups{
		{Message: "Questions:", Commands: []*cobra.Command{
			newExplain(flags, streams),
			newWhoCan(flags, streams),
			newWhoAmI(flags, streams),
			newAdmit(flags, streams),
		}},
		{Message: "State:", Commands: []*cobra.Command{
			newStatus(flags, streams),
			newWatchRevisions(flags, streams),
		}},
	}
	groups.Add(root)
	templates.ActsAsRootCommand(root, []string{"options"}, groups...)
	sayKubectlGates(root)
	root.AddCommand(options.NewCmdOptions(streams.Out))
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return usageError(command, "%v", err)
	})
	return root
}

// addLogFlag adds kubectl's -v, which shows requests from 6 on.
func addLogFlag(root *cobra.Command) {
	all := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(all)
	root.PersistentFlags().AddGoFlag(all.Lookup("v"))
}

// sayKubectlGates has the root's usage name the command as users type it, where
// kubectl's template has the program's name.
func sayKubectlGates(root *cobra.Command) {
	usage := root.UsageFunc()
	root.SetUsageFunc(func(command *cobra.Command) error {
		if command != root {
			return usage(command)
		}
		out := command.OutOrStderr()
		var text bytes.Buffer
		command.SetOut(&text)
		command.SetErr(&text)
		err := usage(command)
		command.SetOut(out)
		command.SetErr(out)
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, strings.ReplaceAll(text.String(), root.Name()+" <command>", root.CommandPath()+" <command>"))
		return err
	})
}

// usageError is an error in how a command was called.
func usageError(command *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%s\nSee '%s --help' for usage", fmt.Sprintf(format, args...), command.CommandPath())
}
