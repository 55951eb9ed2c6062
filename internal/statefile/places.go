package statefile

import "math/bits"

// freePlaces knows which places are free and gives out the lowest. It has a bit
// per place, and above each 64 bits one that says whether any of them is set.
type freePlaces struct {
	levels [][]uint64 // levels[0] has the places; the last has one word
	count  int
}

// newFreePlaces returns places 1 to count, all free.
func newFreePlaces(count int) freePlaces {
	f := freePlaces{count: count}
	for n := count; ; n = (n + 63) / 64 {
		level := make([]uint64, (n+63)/64)
		for i := range level {
			level[i] = ^uint64(0)
		}
		if rest := n % 64; rest != 0 {
			level[len(level)-1] = 1<<rest - 1
		}
		f.levels = append(f.levels, level)
		if len(level) == 1 {
			return f
		}
	}
}

// lowest returns the lowest free place, 0 if there is none. It stays free.
func (f *freePlaces) lowest() Place {
	i := 0
	for at := len(f.levels) - 1; at >= 0; at-- {
		word := f.levels[at][i]
		if word == 0 {
			return 0
		}
		i = i*64 + bits.TrailingZeros64(word)
	}
	return Place(i + 1)
}

// take makes p used. Places beyond the count are never free.
func (f *freePlaces) take(p Place) {
	i := int(p) - 1
	if i >= f.count {
		return
	}
	for _, level := range f.levels {
		level[i/64] &^= 1 << (i % 64)
		if level[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// release makes p free.
func (f *freePlaces) release(p Place) {
	i := int(p) - 1
	if i >= f.count {
		return
	}
	for _, level := range f.levels {
		level[i/64] |= 1 << (i % 64)
		i /= 64
	}
}
