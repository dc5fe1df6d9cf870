package app

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/util/templates"
)

var (
	statusLong = templates.LongDesc(`
	Show how each gate is, as the gateway sees it that answers: whether requests are decided, how many of
	its replicas serve, how long ago the gate last told that it follows changes, how many questions the
	gateway answers from what it keeps, and a digest of the configuration in force. Then the replicas.

	-o json and -o yaml print what the gateway answers at /gates/status.

	Exit codes: 0 if all gates are healthy, 1 if requests to one are not decided, 2 if that cannot be told.`)

	statusExample = templates.Examples(`
	# Are the gates healthy?
	kubectl gates status

	# Which configuration does the authorization gate decide by?
	kubectl gates status -o json | jq -r '.gates[] | select(.name == "authz").configuration'`)
)

// gatesStatus is what the gateway says of the gates.
type gatesStatus struct {
	Gates []gateStatus `json:"gates"`
}

// gateStatus is how one gate is.
type gateStatus struct {
	Name          string          `json:"name"`
	Endpoint      string          `json:"endpoint"`
	Ready         bool            `json:"ready"`
	Reason        string          `json:"reason"`
	Replicas      []replicaStatus `json:"replicas"`
	Configuration string          `json:"configuration"`
	Stream        *streamStatus   `json:"stream"`
	Cache         *cacheStatus    `json:"cache"`
}

// replicaStatus is how one replica of a gate is.
type replicaStatus struct {
	Address string `json:"address"`
	Health  string `json:"health"`
}

// streamStatus is how the stream is by which a gateway hears of changes.
type streamStatus struct {
	Following  bool    `json:"following"`
	AgeSeconds float64 `json:"ageSeconds"`
}

// cacheStatus is what a gateway keeps of a gate's answers.
type cacheStatus struct {
	Entries  int    `json:"entries"`
	Hits     uint64 `json:"hits"`
	Misses   uint64 `json:"misses"`
	Bypassed uint64 `json:"bypassed"`
}

// serving is the health of a replica that gets calls.
const serving = "SERVING"

// statusOptions are those of `kubectl gates status`.
type statusOptions struct {
	genericiooptions.IOStreams
	getter genericclioptions.RESTClientGetter
	format format
}

func newStatus(getter genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &statusOptions{IOStreams: streams, getter: getter}
	command := &cobra.Command{
		Use:                   "status",
		DisableFlagsInUseLine: true,
		Short:                 "Show how each gate is",
		Long:                  statusLong,
		Example:               statusExample,
		RunE:                  func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	o.format.addFlag(command.Flags(), formatJSON, formatYAML)
	return command
}

func (o *statusOptions) run(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(command, "unexpected argument %q", args[0])
	}
	gates, err := newGates(o.getter)
	if err != nil {
		return err
	}
	content, err := gates.get(command.Context(), pathStatus)
	if err != nil {
		return err
	}
	var status gatesStatus
	if err := json.Unmarshal(content, &status); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", pathStatus, err)
	}
	if len(status.Gates) == 0 {
		return fmt.Errorf("the answer of %s tells of no gate", pathStatus)
	}
	if o.format.forMachines() {
		err = o.format.printJSON(o.Out, content)
	} else {
		err = o.print(&status)
	}
	if err != nil {
		return err
	}
	for _, gate := range status.Gates {
		if !gate.Ready {
			return errNo
		}
	}
	return nil
}

// print prints the state for people.
func (o *statusOptions) print(status *gatesStatus) error {
	table := printers.GetNewTabWriter(o.Out)
	p := newPage(table)
	p.printf(plain, "GATE\tREADY\tREPLICAS\tFOLLOWING\tCACHE HITS\tENTRIES\tCONFIGURATION\n")
	for _, gate := range status.Gates {
		p.printf(plain, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", gate.Name, yesNo(gate.Ready), gate.serving(), gate.Stream, gate.Cache.rate(), gate.Cache.entries(), orNone(gate.Configuration))
	}
	p.printf(plain, "\nGATE\tHEALTH\tREPLICA\n")
	for _, gate := range status.Gates {
		for _, replica := range gate.Replicas {
			p.printf(plain, "%s\t%s\t%s\n", gate.Name, replica.Health, replica.Address)
		}
		if len(gate.Replicas) == 0 {
			p.printf(plain, "%s\tUNKNOWN\t%s (resolved to nothing)\n", gate.Name, gate.Endpoint)
		}
	}
	if p.err != nil {
		return p.err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	p = newPage(o.Out)
	for _, gate := range status.Gates {
		if !gate.Ready {
			p.printf(bad, "\n%s is not healthy: ", gate.Name)
			p.printf(plain, "%s\n", gate.Reason)
		}
	}
	return p.err
}

// serving is how many of the replicas do.
func (s *gateStatus) serving() string {
	n := 0
	for _, replica := range s.Replicas {
		if replica.Health == serving {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(s.Replicas))
}

// String is whether the gate tells of changes, and how long ago it last did.
func (s *streamStatus) String() string {
	switch {
	case s == nil:
		return none
	case !s.Following:
		return "no"
	default:
		age := time.Duration(s.AgeSeconds * float64(time.Second))
		return fmt.Sprintf("yes (%v ago)", age.Round(100*time.Millisecond))
	}
}

// rate is the part of the questions that the cache has answered.
func (s *cacheStatus) rate() string {
	if s == nil {
		return none
	}
	all := s.Hits + s.Misses + s.Bypassed
	if all == 0 {
		return "none asked"
	}
	return fmt.Sprintf("%.1f%% of %d", 100*float64(s.Hits)/float64(all), all)
}

// entries is how many answers are kept.
func (s *cacheStatus) entries() string {
	if s == nil {
		return none
	}
	return strconv.Itoa(s.Entries)
}

// none stands in a cell for what a gate does not have.
const none = "-"

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// orNone keeps a digest short enough for a table.
func orNone(digest string) string {
	const length = 12
	switch {
	case digest == "":
		return none
	case len(digest) > length:
		return digest[:length]
	default:
		return digest
	}
}
