package rbactest

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRandom makes worlds again from the same seed, and wants the same ones.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		rng, again := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 0))
		w, same := Random(rng), Random(again)
		before := w.Clone()
		for range 50 {
			w.Question(rng)
			same.Question(again)
			if diff := cmp.Diff(w.Mutate(rng), same.Mutate(again)); diff != "" {
				t.Fatalf("seed %d: Mutate() (-one +other):\n%s", seed, diff)
			}
		}
		if diff := cmp.Diff(w.Objects(), same.Objects()); diff != "" {
			t.Fatalf("seed %d: Objects() (-one +other):\n%s", seed, diff)
		}
		if w.Revision() <= before.Revision() || len(before.Objects()) == 0 {
			t.Errorf("seed %d: revision %d after %d, %d objects at first", seed, w.Revision(), before.Revision(), len(before.Objects()))
		}
	}
}
