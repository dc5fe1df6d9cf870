package dial

import (
	"testing"
	"time"
)

func TestReserve(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		-time.Second:           Reserve,
		10 * time.Millisecond:  Reserve,
		100 * time.Millisecond: Reserve,
		3 * time.Second:        300 * time.Millisecond,
		34 * time.Second:       time.Second,
		time.Hour:              time.Second,
	} {
		if got := ReserveOf(left); got != want {
			t.Errorf("ReserveOf(%s) = %s, want %s", left, got, want)
		}
	}
}
