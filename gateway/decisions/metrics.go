package decisions

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are what the cache counts besides what its shards do.
type counts struct {
	bypassed, changes, streams, invalidated atomic.Uint64
}

var (
	requestsDesc = prometheus.NewDesc("trigate_gateway_decision_cache_requests_total",
		"Questions by how they were answered: hit from the cache; miss from the service; bypass from the service since there was no stream to trust the cache by.",
		[]string{"result"}, nil)
	entriesDesc = prometheus.NewDesc("trigate_gateway_decision_cache_entries", "Decisions that are kept.", nil, nil)
	bytesDesc   = prometheus.NewDesc("trigate_gateway_decision_cache_bytes", "About how much memory the kept decisions take.", nil, nil)
	changesDesc = prometheus.NewDesc("trigate_gateway_policy_changes_total",
		"Changes of the policy that have become known, by this gateway's own writes or from the service.", nil, nil)
	invalidatedDesc = prometheus.NewDesc("trigate_gateway_decision_cache_invalidations_total",
		"Decisions that were let go since the policy or its stream changed.", nil, nil)
	streamsDesc = prometheus.NewDesc("trigate_gateway_policy_streams_total", "Streams of policy changes that have begun.", nil, nil)
	ageDesc     = prometheus.NewDesc("trigate_gateway_policy_stream_age_seconds",
		"Time since the stream of policy changes last said that it follows, or -1 if there is none.", nil, nil)
)

var _ prometheus.Collector = (*Cache)(nil)

// Describe implements prometheus.Collector.
func (c *Cache) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{requestsDesc, entriesDesc, bytesDesc, changesDesc, invalidatedDesc, streamsDesc, ageDesc} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *Cache) Collect(metrics chan<- prometheus.Metric) {
	stats := c.Stats()
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	counter(requestsDesc, stats.Hits, "hit")
	counter(requestsDesc, stats.Misses, "miss")
	counter(requestsDesc, stats.Bypassed, "bypass")
	gauge(entriesDesc, float64(stats.Entries))
	gauge(bytesDesc, float64(stats.Bytes))
	counter(changesDesc, c.counts.changes.Load())
	counter(invalidatedDesc, c.counts.invalidated.Load())
	counter(streamsDesc, c.counts.streams.Load())
	gauge(ageDesc, max(stats.Age.Seconds(), -1))
}
