package supervise

import "time"

// Backoff says how long to wait before a child that died is started again.
type Backoff struct {
	// Initial is the pause after the first death; each further one doubles it, up to
	// Max.
	Initial, Max time.Duration
	// ResetAfter is how long a child must have run to begin with Initial again.
	ResetAfter time.Duration
}

// DefaultBackoff restarts a child that was killed almost at once, and does not
// busy the machine with one that cannot start.
var DefaultBackoff = Backoff{Initial: 200 * time.Millisecond, Max: 5 * time.Second, ResetAfter: 10 * time.Second}

// start returns the pauses of one child.
func (b Backoff) start() *pauses { return &pauses{backoff: b} }

type pauses struct {
	backoff Backoff
	last    time.Duration
}

// next is the pause after a run of the given length.
func (p *pauses) next(ran time.Duration) time.Duration {
	if ran >= p.backoff.ResetAfter || p.last == 0 {
		p.last = p.backoff.Initial
	} else {
		p.last = min(2*p.last, p.backoff.Max)
	}
	return p.last
}
