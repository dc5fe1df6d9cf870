package interest

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Phase is one of the two calls of admission.
type Phase int

// The phases.
const (
	// Mutating is Admit.
	Mutating Phase = iota
	// Validating is Validate.
	Validating

	phaseCount = int(Validating) + 1
)

// verdict is why a call is made or left out.
type verdict int

const (
	// nobody is interested: the call is left out. All others are made.
	nobody verdict = iota
	interested
	// behind: what the service has said is older than a change that is known here.
	behind
	// doubtful: it is not known whether something has changed.
	doubtful
	// noStream: the service does not tell at the moment.
	noStream
	// unintelligible: the request cannot be held against rules.
	unintelligible
	// refused: calls are not to be left out, or cannot be yet.
	refused
	// ahead: only plugins are interested whose say is settled at the end of Admit, and
	// Admit has told it.
	ahead

	verdictCount = int(ahead) + 1
)

var (
	phaseNames   = [phaseCount]string{"mutating", "validating"}
	outcomeNames = [verdictCount]string{"skipped", "called", "called", "called", "called", "called", "called", "skipped"}
	reasonNames  = [verdictCount]string{"nobody", "interested", "behind", "doubtful", "no_stream", "unintelligible", "not_allowed", "ahead"}
)

// counts are what a tracker counts.
type counts struct {
	calls   [phaseCount][verdictCount]atomic.Uint64
	streams atomic.Uint64
}

// CountCall counts a call that is made without asking whether anybody is interested.
func (t *Tracker) CountCall(phase Phase) { t.counts.calls[phase][refused].Add(1) }

var (
	callsDesc = prometheus.NewDesc("trigate_gateway_admission_calls_total",
		"Calls of the admission service that requests were due, by phase (mutating or validating), whether they were called or skipped, and why: "+
			"nobody or somebody was interested; what the service had told was behind a change that is known here; "+
			"it was doubtful whether something had changed; there was no_stream; the request was unintelligible; skipping was not_allowed; "+
			"the mutating call had said ahead what the validating one would.",
		[]string{"phase", "outcome", "reason"}, nil)
	streamsDesc = prometheus.NewDesc("trigate_gateway_interest_streams_total", "Streams of what is of interest to admission that have begun.", nil, nil)
	ageDesc     = prometheus.NewDesc("trigate_gateway_interest_stream_age_seconds",
		"Time since the stream of what is of interest to admission last said that it follows, or -1 if there is none.", nil, nil)
)

var _ prometheus.Collector = (*Tracker)(nil)

// Describe implements prometheus.Collector.
func (t *Tracker) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{callsDesc, streamsDesc, ageDesc} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (t *Tracker) Collect(metrics chan<- prometheus.Metric) {
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	for phase, name := range phaseNames {
		for v := range t.counts.calls[phase] {
			counter(callsDesc, t.counts.calls[phase][v].Load(), name, outcomeNames[v], reasonNames[v])
		}
	}
	counter(streamsDesc, t.counts.streams.Load())
	metrics <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, max(t.age().Seconds(), -1))
}
