package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	"github.com/trigate/trigate/gateway/chain"
	"github.com/trigate/trigate/gateway/stage"
)

// name is the command's.
const name = "trigate-gateway"

// NewCommand returns the gateway's command. It runs until a SIGINT or a SIGTERM;
// what keeps it from running ends in one error.
func NewCommand() *cobra.Command {
	opts := NewOptions()
	cmd := &cobra.Command{
		Use: name,
		Long: `The Trigate gateway is a Kubernetes API server whose three gates are services:
trigate-authn says who a token's bearer is, trigate-authz decides what a user may
do, and trigate-admission passes and changes what is written. The gateway has
kube-apiserver's flags; those that configure a gate moved to that gate's process.`,
		SilenceUsage:  true,
		SilenceErrors: false,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return applyGlobals(opts)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := applyLogs(opts); err != nil {
				return err
			}
			cliflag.PrintFlags(cmd.Flags())
			return run(genericapiserver.SetupSignalContext(), opts)
		},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
	}
	fss := opts.Flags()
	opts.Server.Flagz = flagz.NamedFlagSetsReader{FlagSets: fss}
	verflag.AddFlags(fss.FlagSet("global"))
	globalflag.AddGlobalFlags(fss.FlagSet("global"), name, logs.SkipLoggingConfigurationFlags())
	for _, fs := range sortedSections(fss) {
		cmd.Flags().AddFlagSet(fs)
	}
	cols, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, fss, cols)
	return cmd
}

func run(ctx context.Context, opts *Options) error {
	completed, err := opts.Complete(ctx)
	if err != nil {
		return oneLine(err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return oneLine(utilerrors.NewAggregate(errs))
	}
	recordGlobals(opts)
	return Run(ctx, completed)
}

// Run serves until ctx ends, then drains and returns. An error says why the
// gateway could not start, or that it stopped serving by itself.
func Run(ctx context.Context, opts CompletedOptions) error {
	klog.FromContext(ctx).Info("Starting", "version", version.Get().GitVersion)
	config, err := stage.BuildGenericConfig(ctx, opts.Server, opts.Gates.config(), opts.EtcdStartupTimeout)
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while it waited for etcd
		}
		return oneLine(err)
	}
	defer func() {
		if err := config.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Closing what the stages opened")
		}
	}()
	server, err := chain.New(config)
	if err != nil {
		return oneLine(err)
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return oneLine(fmt.Errorf("preparing the server: %w", err))
	}
	return prepared.Run(ctx)
}

// oneLine returns err with its lines joined, since one clear line is what an
// operator reads last.
func oneLine(err error) error {
	if text := err.Error(); strings.Contains(text, "\n") {
		return fmt.Errorf("%s", strings.Join(strings.Fields(text), " "))
	}
	return err
}

// sortedSections returns the flag sets in the order in which help shows them.
func sortedSections(fss cliflag.NamedFlagSets) []*pflag.FlagSet {
	sections := make([]*pflag.FlagSet, 0, len(fss.Order))
	for _, section := range fss.Order {
		sections = append(sections, fss.FlagSets[section])
	}
	return sections
}
