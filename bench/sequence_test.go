package bench

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// naive keeps every number for ever.
type naive struct {
	seen map[uint32]bool
	next uint32
}

func (n *naive) arrive(seq uint32) arrival {
	switch {
	case n.seen[seq]:
		return arrivedDuplicate
	case seq < n.next:
		n.seen[seq] = true
		return arrivedReordered
	}
	n.seen[seq] = true
	n.next = seq + 1
	return arrivedInOrder
}

// TestWindow plays random losses, duplicates and permutations against the naive
// reference. Displacements stay inside the window.
func TestWindow(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const sent = 3000
		order := scramble(rng, sent, 1+rng.IntN(200))
		w := window{bits: make([]uint64, 4)}
		ref := naive{seen: map[uint32]bool{}}
		for i, seq := range order {
			got, want := w.arrive(seq, sent), ref.arrive(seq)
			if got != want {
				t.Fatalf("seed %d: arrival %d, number %d: %d, want %d", seed, i, seq, got, want)
			}
		}
	}
}

// scramble returns numbers below n, some lost, some twice, each at most depth
// places away from where it belongs.
func scramble(rng *rand.Rand, n, depth int) (order []uint32) {
	pending := []uint32{}
	for seq := range uint32(n) {
		switch rng.IntN(10) {
		case 0: // lost
		case 1:
			pending = append(pending, seq, seq)
		default:
			pending = append(pending, seq)
		}
		for len(pending) > 0 && (int(seq-pending[0]) >= depth || rng.IntN(2) == 0) {
			i := rng.IntN(len(pending))
			if int(seq-pending[0]) >= depth {
				i = 0
			}
			order = append(order, pending[i])
			pending = append(pending[:i], pending[i+1:]...)
		}
	}
	return append(order, pending...)
}

func TestWindowEdges(t *testing.T) {
	type step struct {
		seq  uint32
		want arrival
	}
	for i, steps := range [][]step{
		{{0, arrivedInOrder}, {0, arrivedDuplicate}, {1, arrivedInOrder}},
		{{5, arrivedInOrder}, {0, arrivedReordered}, {0, arrivedDuplicate}, {5, arrivedDuplicate}},
		// The window has 256 numbers: 745 to 1000.
		{{1000, arrivedInOrder}, {745, arrivedReordered}, {744, arrivedLate}, {745, arrivedDuplicate}},
		// A jump of more than the window forgets everything.
		{{3, arrivedInOrder}, {1 << 20, arrivedInOrder}, {1<<20 - 253, arrivedReordered}, {3, arrivedLate}},
		{{1 << 21, arrivedUnsent}, {1<<21 - 1, arrivedInOrder}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := window{bits: make([]uint64, 4)}
			for _, s := range steps {
				if got := w.arrive(s.seq, 1<<21); got != s.want {
					t.Errorf("%d: %d, want %d", s.seq, got, s.want)
				}
			}
		})
	}
}

func TestWindowWords(t *testing.T) {
	for flows, want := range map[int]int{1: 64, 400: 64, 1 << 14: 64, 1 << 16: 16, 1 << 21: 4} {
		if got := windowWords(flows); got != want {
			t.Errorf("%d flows: %d words, want %d", flows, got, want)
		}
	}
}
