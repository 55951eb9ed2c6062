package lab

import (
	"slices"
	"testing"
)

// TestPairwise compares the pairs of the rows with those of all permitted rows.
func TestPairwise(t *testing.T) {
	t.Parallel()
	sizes := []int{4, 3, 5, 2, 3}
	// Without 0 and 0 in the first two, and the last is 0 or the third is even.
	permitted := func(r []int) bool {
		return !(r[0] == 0 && r[1] == 0) && !(r[4] > 0 && r[2] >= 0 && r[2]%2 == 1)
	}
	pairsOf := func(rows [][]int) map[pair]bool {
		p := pairing{covered: make(map[pair]bool)}
		for _, r := range rows {
			p.cover(r)
		}
		return p.covered
	}
	var all [][]int
	row := make([]int, len(sizes))
	var each func(at int)
	each = func(at int) {
		if at == len(sizes) {
			if permitted(row) {
				all = append(all, slices.Clone(row))
			}
			return
		}
		for row[at] = range sizes[at] {
			each(at + 1)
		}
	}
	each(0)
	rows := pairwise(sizes, permitted)
	want, got := pairsOf(all), pairsOf(rows)
	for q := range want {
		if !got[q] {
			t.Errorf("no row has choice %d of dimension %d with choice %d of %d", q.i, q.a, q.j, q.b)
		}
	}
	for _, r := range rows {
		if slices.Contains(r, -1) || !permitted(r) {
			t.Errorf("row %v is not permitted", r)
		}
	}
	if len(rows) > 26 { // the two largest dimensions have 20 pairs
		t.Errorf("%d rows of %d", len(rows), len(all))
	}
	if again := pairwise(sizes, permitted); !slices.EqualFunc(rows, again, slices.Equal[[]int]) {
		t.Error("another call returns other rows")
	}
}
