package statefile

import (
	"math/rand/v2"
	"testing"
)

// TestFreePlaces compares with a plain list, for sizes around the powers of 64.
func TestFreePlaces(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 2, 63, 64, 65, 128, 4095, 4096, 4097, 5000} {
		random := rand.New(rand.NewPCG(7, uint64(count)))
		f, free := newFreePlaces(count), make([]bool, count)
		for i := range free {
			free[i] = true
		}
		lowest := func() Place {
			for i, is := range free {
				if is {
					return Place(i + 1)
				}
			}
			return 0
		}
		for step := range 3000 {
			if p := lowest(); p != 0 && random.IntN(3000) > step/2 {
				f.take(p)
				free[p-1] = false
			} else {
				p := Place(random.IntN(count) + 1)
				f.release(p)
				free[p-1] = true
			}
			if p := Place(random.IntN(count) + 1); step%5 == 0 {
				f.take(p)
				free[p-1] = false
			}
			if got, want := f.lowest(), lowest(); got != want {
				t.Fatalf("%d places, step %d: lowest %d, want %d", count, step, got, want)
			}
		}
	}
}

func TestFreePlacesBeyond(t *testing.T) {
	t.Parallel()
	f := newFreePlaces(2)
	f.take(1)
	f.take(2)
	f.take(200)
	f.release(200)
	f.release(3)
	if p := f.lowest(); p != 0 {
		t.Errorf("place %d of 2", p)
	}
}
