// Package process has what the processes of Trigate's services share above
// their server: the command with its flags, logs and one line for what went
// wrong, the client of the gateway's Kubernetes API, and informers as a task
// of the server.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	_ "time/tzdata" // the time zones of CEL expressions, where the machine has none

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the metrics of clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
)

// Config says what a service's command is.
type Config struct {
	// Name is the program's name ("trigate-authz").
	Name string
	// Long is what --help says first.
	Long string
	// AddFlags binds the service's flags, in sections.
	AddFlags func(sections *cliflag.NamedFlagSets)
	// Run runs the service until ctx ends. The flags are parsed, logs and
	// feature gates are set when it is called. Several problems are returned by
	// errors.Join, each starting with its flag.
	Run func(ctx context.Context) error
}

// NewCommand returns a service's command: the service's flags and those that
// all have (logs, feature gates, version). Main runs it.
//
// Feature gates are Kubernetes' own, which are one for each process.
func NewCommand(cfg Config) *cobra.Command {
	registerLogGates()
	registry := utilcompatibility.DefaultComponentGlobalsRegistry
	logOptions := logs.NewOptions()
	var sections cliflag.NamedFlagSets
	cfg.AddFlags(&sections)
	logging, gates := sections.FlagSet("logs"), sections.FlagSet("features")
	cmd := &cobra.Command{
		Use:           cfg.Name,
		Long:          cfg.Long,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("takes no arguments, but got %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := registry.Set(); err != nil {
				return ofFlags(gates, err)
			}
			if err := errors.Join(registry.Validate()...); err != nil {
				return ofFlags(gates, err)
			}
			logs.InitLogs()
			if err := logsapi.ValidateAndApply(logOptions, utilfeature.DefaultFeatureGate); err != nil {
				return ofFlags(logging, err)
			}
			quietGRPC()
			cliflag.PrintFlags(cmd.Flags())
			utilfeature.DefaultMutableFeatureGate.AddMetrics()
			registry.AddMetrics()
			return cfg.Run(cmd.Context())
		},
	}
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)

	logsapi.AddFlags(logOptions, logging)
	registry.AddFlags(gates)
	global := sections.FlagSet("global")
	verflag.AddFlags(global)
	globalflag.AddGlobalFlags(global, cfg.Name, logs.SkipLoggingConfigurationFlags())
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	cols, _, _ := term.TerminalSize(cmd.OutOrStdout()) // 0 where there is no terminal
	cliflag.SetUsageAndHelpFunc(cmd, sections, cols)
	return cmd
}

// quietGRPC drops gRPC's own warnings, unless much is to be logged. There is one for
// each attempt to connect to a peer that is away, once a second, which says nothing
// that health and the errors of calls do not say; and one after the connections
// have been closed, which would come after the process' last word.
func quietGRPC() {
	if !klog.V(4).Enabled() {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
	}
}

// ofFlags puts the flags of a set that were given before an error that is about
// one of them.
func ofFlags(fs *pflag.FlagSet, err error) error {
	var given []string
	fs.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			given = append(given, "--"+flag.Name)
		}
	})
	return fmt.Errorf("%s: %w", strings.Join(given, ", "), err)
}

// registerLogGates adds the feature gates of logs to the process' own, unless
// another command of the process has done so.
func registerLogGates() {
	if _, known := utilfeature.DefaultMutableFeatureGate.GetAll()[logsapi.ContextualLogging]; known {
		return
	}
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// Main runs a command until it ends or the process gets SIGINT or SIGTERM, and
// returns the exit code. A second signal ends the process at once. An error is
// one line on stderr, after all logs.
func Main(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return execute(ctx, cmd, os.Stderr)
}

func execute(ctx context.Context, cmd *cobra.Command, stderr io.Writer) int {
	err := cmd.ExecuteContext(ctx)
	logs.FlushLogs()
	if err == nil {
		return 0
	}
	// Nothing is left to do if stderr cannot be written.
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), oneLine(err))
	return 1
}

// oneLine returns an error's text without line breaks.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
