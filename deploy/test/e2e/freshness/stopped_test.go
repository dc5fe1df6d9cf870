package freshness

import (
	"syscall"
	"testing"
	"time"

	"github.com/trigate/trigate/deploy/test/framework"
)

// TestStoppedReplicas stops replicas of authz without ending them, as a machine does that
// is out of breath, and has them go on with what they knew: nobody is answered by it.
func TestStoppedReplicas(t *testing.T) {
	c := framework.StartTrigate(t, framework.TrigateOptions{Args: []string{"--gateways=2", "--replicas=2", "--controllers=false"}})
	s := newStage(t, c)
	replicas := []string{"authz", "authz.2"}
	const stops, roundsEach = 2, 8
	for stop := range stops {
		replica := replicas[stop%len(replicas)]
		c.Signal(t, replica, syscall.SIGSTOP)
		start := time.Now()
		var lags []time.Duration
		for round := range roundsEach {
			if round == roundsEach/2 {
				t.Logf("%d rounds with %s stopped took %s", round, replica, time.Since(start))
				c.Signal(t, replica, syscall.SIGCONT)
			}
			lags = append(lags, s.round(t, stop*roundsEach+round))
		}
		report(t, lags)
	}
}
