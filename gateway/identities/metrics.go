package identities

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of upstream's label "status".
const (
	statusHit      = "hit"
	statusMiss     = "miss"
	statusOK       = "ok"
	statusError    = "error"
	statusInFlight = "in_flight"
	statusBlocked  = "blocked"
)

// metrics are those of k8s.io/apiserver/pkg/authentication/token/cache, which does not give
// them out and which the gateway does not use, with the same names and meanings; and some
// that upstream has no need of.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	fetches  *prometheus.CounterVec
	active   *prometheus.GaugeVec
	revoked  prometheus.Counter
}

func newMetrics() *metrics {
	upstream := func(name string) prometheus.Opts {
		return prometheus.Opts{Namespace: "authentication", Subsystem: "token_cache", Name: name}
	}
	labels := []string{"status"}
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(upstream("request_total")), labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "authentication", Subsystem: "token_cache", Name: "request_duration_seconds",
		}, labels),
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts(upstream("fetch_total")), labels),
		active:  prometheus.NewGaugeVec(prometheus.GaugeOpts(upstream("active_fetch_count")), labels),
		revoked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trigate_gateway_identity_cache_revocations_total",
			Help: "Identities that were let go since an object that they hang on was deleted or changed.",
		}),
	}
}

// authenticating is called when a token comes, and what it returns when there is a verdict.
func (m *metrics) authenticating() func(hit bool) {
	start := time.Now()
	return func(hit bool) {
		status := statusMiss
		if hit {
			status = statusHit
		}
		m.requests.WithLabelValues(status).Inc()
		m.seconds.WithLabelValues(status).Observe(time.Since(start).Seconds())
	}
}

// waiting is called when a request begins to wait for the service.
func (m *metrics) waiting() func() {
	blocked := m.active.WithLabelValues(statusBlocked)
	blocked.Inc()
	return blocked.Dec
}

// fetching is called when the service is asked.
func (m *metrics) fetching() func(ok bool) {
	inFlight := m.active.WithLabelValues(statusInFlight)
	inFlight.Inc()
	return func(ok bool) {
		status := statusError
		if ok {
			status = statusOK
		}
		m.fetches.WithLabelValues(status).Inc()
		inFlight.Dec()
	}
}

var (
	entriesDesc = prometheus.NewDesc("trigate_gateway_identity_cache_entries", "Identities that are kept.", nil, nil)
	bytesDesc   = prometheus.NewDesc("trigate_gateway_identity_cache_bytes", "About how much memory the kept identities take.", nil, nil)
	ageDesc     = prometheus.NewDesc("trigate_gateway_revocation_stream_age_seconds",
		"Time since the stream of revocations last said that it follows, or -1 if it does not.", nil, nil)
)

var _ prometheus.Collector = (*Cache)(nil)

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.fetches, m.active, m.revoked}
}

// Describe implements prometheus.Collector.
func (c *Cache) Describe(descs chan<- *prometheus.Desc) {
	for _, collector := range c.metrics.collectors() {
		collector.Describe(descs)
	}
	for _, desc := range []*prometheus.Desc{entriesDesc, bytesDesc, ageDesc} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *Cache) Collect(metrics chan<- prometheus.Metric) {
	for _, collector := range c.metrics.collectors() {
		collector.Collect(metrics)
	}
	stats := c.Stats()
	for desc, value := range map[*prometheus.Desc]float64{entriesDesc: float64(stats.Entries), bytesDesc: float64(stats.Bytes), ageDesc: max(stats.Age.Seconds(), -1)} {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
}
