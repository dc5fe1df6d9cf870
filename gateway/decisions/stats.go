package decisions

import "time"

// Stats is what the cache holds and how it is used.
type Stats struct {
	// Enabled is false if nothing is ever kept.
	Enabled bool
	// Entries is how many decisions are kept, Bytes about how much memory they take.
	Entries int
	Bytes   int64
	// Hits, Misses and Bypassed count questions, see the metric of the same meaning.
	Hits, Misses, Bypassed uint64
	// Following is true while the service tells of changes as they happen; Age is the
	// time since it last said so, or negative.
	Following bool
	Age       time.Duration
	// Configuration is the digest that the service told last. Empty: none yet.
	Configuration string
}

// Stats returns what the cache holds and how it is used.
func (c *Cache) Stats() Stats {
	s := Stats{
		Enabled:   len(c.shards) > 0,
		Bypassed:  c.counts.bypassed.Load(),
		Following: c.policy.live(),
		Age:       c.policy.age(),
	}
	c.policy.mu.Lock()
	s.Configuration = c.policy.configuration
	c.policy.mu.Unlock()
	for _, shard := range c.shards {
		entries, bytes, hits, misses := shard.size()
		s.Entries, s.Bytes, s.Hits, s.Misses = s.Entries+entries, s.Bytes+bytes, s.Hits+hits, s.Misses+misses
	}
	return s
}
