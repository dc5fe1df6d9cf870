// Package app is the command line of trigate-pki.
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
	"k8s.io/component-base/version"
)

const program = "trigate-pki"

const long = `trigate-pki makes the authorities, keys and certificates of a Trigate control
plane, renews them, and writes kubeconfigs. It keeps them as files in a directory
(--dir) or as Secrets in a namespace of a Kubernetes cluster (--kubeconfig,
--context or --in-cluster, with --namespace), one Secret for each certificate, with
the keys tls.crt, tls.key and ca.crt.

What is there and valid stays. An authority is never replaced by itself. All
processes of Trigate read renewed files without a restart.`

// errChecked is a failed check, which has been told of already.
var errChecked = errors.New("something must be renewed")

// Main runs the command and returns the exit code of the process: 0, 1 after a
// failure, which is one line on stderr, and 2 when check has found something.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := NewCommand()
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	err := command.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errChecked):
		return 2
	}
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", program, strings.ReplaceAll(err.Error(), "\n", "; "))
	return 1
}

// NewCommand returns the command.
func NewCommand() *cobra.Command {
	command := &cobra.Command{
		Use:                program,
		Short:              "Make and renew the certificates of a Trigate control plane",
		Long:               long,
		Version:            version.Get().String(),
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true,
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	command.SetVersionTemplate("Kubernetes {{.Version}}\n")
	command.AddCommand(newInitCommand(), newRenewCommand(), newCheckCommand(), newKubeconfigCommand(), newRotateCommand())
	return command
}

// newSubcommand is a command that takes flags only.
func newSubcommand(use, short, long string, o *Options, run func(ctx context.Context, out io.Writer) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q: there are only flags; see --help", args[0])
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			o.Complete()
			if err := errors.Join(o.Validate()...); err != nil {
				return err
			}
			return run(command.Context(), command.OutOrStdout())
		},
	}
}

func newInitCommand() *cobra.Command {
	o := NewOptions()
	command := newSubcommand("init", "Make what is missing", `Make the authorities, keys and certificates that are missing, and renew what ends
soon or lacks a name. Run again, it changes nothing that is valid. The namespace is
made if it does not exist.`, o, o.runInit)
	o.addStoreFlags(command.Flags())
	o.addIssueFlags(command.Flags())
	o.addServerFlags(command.Flags())
	command.Flags().StringVar(&o.Output, flagOutput, "", "Write the admin's kubeconfig, a member of system:masters, to `FILE`. Entries of others in it stay.")
	return command
}

func newRenewCommand() *cobra.Command {
	o := NewOptions()
	command := newSubcommand("renew", "Renew what ends soon", `Renew the certificates that end soon, each for the key that it has unless --new-keys
is given, with all names that it has. Nothing else is made: a PKI without authorities
is an error. With --watch it goes on until it is stopped, and a renewal that fails
is told of and tried again.`, o, o.runRenew)
	o.addStoreFlags(command.Flags())
	o.addIssueFlags(command.Flags())
	o.addServerFlags(command.Flags())
	command.Flags().DurationVar(&o.Before, flagBefore, 0, "Renew what ends within `DURATION`; by default, what is in the last third of its validity.")
	command.Flags().BoolVar(&o.All, flagAll, false, "Renew all certificates now.")
	command.Flags().BoolVar(&o.NewKeys, flagNewKeys, false, "Make new keys for what is renewed.")
	command.Flags().DurationVar(&o.Watch, flagWatch, 0, "Stay, and look again each `INTERVAL`.")
	command.Flags().StringVar(&o.Output, flagOutput, "", "Bring the admin's kubeconfig in `FILE` up to date as well.")
	return command
}

func newCheckCommand() *cobra.Command {
	o := NewOptions()
	command := newSubcommand("check", "List the certificates and their ends", `List each certificate with its end. The exit code is 2 if one is missing, broken or
ends soon.`, o, o.runCheck)
	o.addStoreFlags(command.Flags())
	o.addNameFlags(command.Flags())
	command.Flags().DurationVar(&o.Before, flagBefore, 0, "What ends within `DURATION` ends soon; by default 30 days or a quarter of its validity, whichever is shorter.")
	return command
}

func newKubeconfigCommand() *cobra.Command {
	o := NewOptions()
	command := newSubcommand("kubeconfig", "Write a kubeconfig for a user", `Make a client certificate for a user and groups, and write a kubeconfig with it. It
is kept nowhere else. By default the user is an administrator: kubernetes-admin in
system:masters. Kubernetes cannot revoke certificates: for people, give a short
--validity.`, o, o.runKubeconfig)
	o.addStoreFlags(command.Flags())
	o.addServerFlags(command.Flags())
	command.Flags().StringVar(&o.User, flagUser, o.User, "The `NAME` of the user.")
	command.Flags().StringArrayVar(&o.Groups, flagGroup, nil, "A `GROUP` of the user; may be repeated. By default system:masters if --user is not given either, else none.")
	command.Flags().DurationVar(&o.ClientValidity, flagValidity, o.ClientValidity, "How long the certificate is valid.")
	command.Flags().StringVar(&o.Output, flagOutput, "", "Write it to `FILE`, - for the standard output. Entries of others in it stay.")
	return command
}

func newRotateCommand() *cobra.Command {
	o := NewOptions()
	command := newSubcommand("rotate", "Replace an authority, step by step", `Replace an authority, or the key that signs service-account tokens, in three steps:
add makes the next one, which is trusted beside the present one; use signs by it, and
issues all certificates anew; retire ends the trust in the old one. Between two steps
every process and client has to have read the files. A step may be taken again.`, o, o.runRotate)
	o.addStoreFlags(command.Flags())
	o.addIssueFlags(command.Flags())
	o.addServerFlags(command.Flags())
	command.Flags().StringVar(&o.Authority, flagRotated, "", "The `NAME`: ca, gates-ca, front-proxy-ca, etcd-ca, or sa for the key of service-account tokens.")
	command.Flags().StringVar(&o.Step, flagStep, "", "The `STEP`: add, use or retire.")
	command.Flags().StringVar(&o.Output, flagOutput, "", "Bring the admin's kubeconfig in `FILE` up to date as well.")
	return command
}
