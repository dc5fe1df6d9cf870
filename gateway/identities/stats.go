package identities

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Stats is what the cache holds and how it is used.
type Stats struct {
	// Entries is how many identities are kept, Bytes about how much memory they take.
	Entries int
	Bytes   int64
	// Hits and Misses count tokens that were known, and that authn was asked about.
	Hits, Misses uint64
	// Following is true while the service tells of revocations as they happen; Age is the
	// time since it last said so, or negative.
	Following bool
	Age       time.Duration
	// Configuration is the digest that the service told last. Empty while it is not
	// followed.
	Configuration string
}

// Stats returns what the cache holds and how it is used.
func (c *Cache) Stats() Stats {
	now := c.clock.Now()
	s := Stats{
		Hits:      valueOf(c.metrics.requests.WithLabelValues(statusHit)),
		Misses:    valueOf(c.metrics.requests.WithLabelValues(statusMiss)),
		Following: c.stream.live(now) != nil,
		Age:       -time.Second,
	}
	if state := c.stream.state.Load(); state != nil {
		s.Age, s.Configuration = now.Sub(state.heard), state.configuration
	}
	for _, shard := range c.shards {
		entries, bytes := shard.size()
		s.Entries, s.Bytes = s.Entries+entries, s.Bytes+bytes
	}
	return s
}

func valueOf(counter prometheus.Counter) uint64 {
	var m dto.Metric
	if err := counter.Write(&m); err != nil {
		return 0 // Only a counter with labels that are no UTF-8 has an error.
	}
	return uint64(m.GetCounter().GetValue())
}
