package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/util/templates"

	authzv1 "github.com/trigate/trigate/proto/gen/go/trigate/authz/v1"
)

var (
	watchRevisionsLong = templates.LongDesc(`
	Print each revision of the policy, as soon as the authorization gate decides by it: the resourceVersions
	up to which it has read cluster roles, cluster role bindings, roles and role bindings, and the
	namespaces whose policy has changed ("*" for the cluster's). The first line says where the gate is.

	It goes on until it is interrupted or --timeout is over. A stream that breaks is asked for again,
	which is told on the standard error stream.

	-o json prints each WatchPolicyRevisionResponse of the package trigate.authz.v1 in one line, those
	included that come each second to say that nothing has changed.

	Exit codes: 0 when it ends as it should, 2 if it cannot go on.`)

	watchRevisionsExample = templates.Examples(`
	# Watch the policy change
	kubectl gates watch-revisions

	# What is in force now, for a script?
	kubectl gates watch-revisions --timeout 1s --no-headers`)
)

// watchBackoff is how long is waited between streams.
var watchBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Cap: 10 * time.Second, Steps: 10}

// watchRevisionsOptions are those of `kubectl gates watch-revisions`.
type watchRevisionsOptions struct {
	genericiooptions.IOStreams
	getter    genericclioptions.RESTClientGetter
	timeout   time.Duration
	noHeaders bool
	format    format
	// last is the line that was printed last.
	last string
}

func newWatchRevisions(getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &watchRevisionsOptions{IOStreams: streams, getter: getter}
	command := &cobra.Command{
		Use:                   "watch-revisions [--timeout DURATION]",
		DisableFlagsInUseLine: true,
		Short:                 "Print each revision of the policy",
		Long:                  watchRevisionsLong,
		Example:               watchRevisionsExample,
		RunE:                  func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	command.Flags().DurationVar(&o.timeout, "timeout", 0, "How long to watch; 0 is without end.")
	command.Flags().BoolVar(&o.noHeaders, "no-headers", false, "If true, print the table without its headers.")
	o.format.addFlag(command.Flags(), formatJSON)
	return command
}

func (o *watchRevisionsOptions) run(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(command, "unexpected argument %q", args[0])
	}
	if o.timeout < 0 {
		return usageError(command, "--timeout must not be negative, got %v", o.timeout)
	}
	gates, err := newGates(o.getter)
	if err != nil {
		return err
	}
	ctx := command.Context()
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	backoff := watchBackoff
	for {
		heard, err := o.follow(ctx, gates)
		if ctx.Err() != nil {
			return nil
		}
		if !heard && !comesBack(err) {
			return err
		}
		if heard {
			backoff = watchBackoff
		}
		printWarning(o.IOStreams, fmt.Sprintf("the stream ended and is asked for again: %v", err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff.Step()):
		}
	}
}

// comesBack tells whether a stream that could not be had may be had later.
func comesBack(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err)
}

// follow prints what comes on one stream, and tells whether anything came. It never
// returns without an error.
func (o *watchRevisionsOptions) follow(ctx context.Context, gates *gates) (bool, error) {
	stream, err := gates.client.Get().AbsPath(pathWatchRevisions).Stream(ctx)
	if err != nil {
		return false, newGateError("get", pathWatchRevisions, err)
	}
	defer stream.Close() //nolint:errcheck // It was only read.
	decoder := json.NewDecoder(stream)
	heard := false
	for {
		// As grpc-gateway has it.
		var line struct {
			Result json.RawMessage `json:"result"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := decoder.Decode(&line); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server closed it")
			}
			return heard, err
		}
		if line.Error != nil {
			return heard, errors.New(line.Error.Message)
		}
		message := &authzv1.WatchPolicyRevisionResponse{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(line.Result, message); err != nil {
			return heard, fmt.Errorf("reading a revision: %w", err)
		}
		heard = true
		if err := o.print(message); err != nil {
			return heard, err
		}
	}
}

// print prints one message, unless nothing has changed.
func (o *watchRevisionsOptions) print(message *authzv1.WatchPolicyRevisionResponse) error {
	if o.format.forMachines() {
		content, err := protojson.Marshal(message)
		if err != nil {
			return err
		}
		return o.format.printLine(o.Out, content)
	}
	p := newPage(o.Out)
	const columns = "%-12s %-12s %-12s %-12s %-9s"
	revision := message.GetRevision()
	line := fmt.Sprintf(columns, number(revision.GetClusterRoles()), number(revision.GetClusterRoleBindings()),
		number(revision.GetRoles()), number(revision.GetRoleBindings()), yesNo(message.GetFollowing()))
	changes := message.GetChanges()
	if len(changes) == 0 && line == o.last {
		return nil
	}
	if o.last == "" && !o.noHeaders {
		p.printf(plain, columns+" %s\n", "CLUSTERROLES", "CRBINDINGS", "ROLES", "ROLEBINDINGS", "FOLLOWING", "CHANGED")
	}
	o.last = line
	changed := make([]string, len(changes))
	for i, change := range changes {
		changed[i] = cmp.Or(change.GetNamespace(), "*")
	}
	p.printf(plain, "%s\n", strings.TrimRight(line+" "+strings.Join(changed, ","), " "))
	return p.err
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
