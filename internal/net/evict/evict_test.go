package evict

import (
	"math/rand/v2"
	"testing"
)

// entry is a value of the model: items in the order of Add.
type entry struct {
	key, class, n int
	item          *Item[int, int]
}

// before reports whether x is evicted before y, by the rule of the package.
func before(x, y *entry, count map[int]int) bool {
	switch {
	case x.key != y.key && count[x.key] != count[y.key]:
		return count[x.key] > count[y.key]
	case x.key == y.key && x.class != y.class:
		return x.class < y.class
	}
	return x.n < y.n
}

func TestSet(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var s Set[int, int]
	var all []*entry
	count := make(map[int]int)
	firstOf := func(key int) (first *entry) {
		for _, e := range all {
			if e.key == key && (first == nil || before(e, first, count)) {
				first = e
			}
		}
		return first
	}
	for n := range 5_000 {
		if grow := n%1000 < 600; rnd.IntN(10) < 7 == grow || len(all) == 0 {
			e := &entry{key: rnd.IntN(1 + rnd.IntN(12)), class: rnd.IntN(classes), n: n}
			e.item = s.Add(e.key, e.class, n)
			all = append(all, e)
			count[e.key]++
		} else {
			i := rnd.IntN(len(all))
			s.Remove(all[i].item)
			count[all[i].key]--
			all = append(all[:i], all[i+1:]...)
		}
		var first *entry
		for key := range 12 {
			of := firstOf(key)
			if got := s.FirstOf(key); (got == nil) != (of == nil) || got != nil && got.Value != of.n {
				t.Fatalf("step %d: the first of %d is %v, want %v", n, key, got, of)
			}
			if s.Count(key) != count[key] {
				t.Fatalf("step %d: %d items of %d, want %d", n, s.Count(key), key, count[key])
			}
			if of != nil && (first == nil || before(of, first, count)) {
				first = of
			}
		}
		if got := s.First(); (got == nil) != (first == nil) || got != nil && got.Value != first.n {
			t.Fatalf("step %d: the first is %v, want %v", n, got, first)
		}
	}
	for len(all) > 0 {
		s.Remove(all[0].item)
		all = all[1:]
	}
	if s.First() != nil || len(s.owners) != 0 || len(s.byRank) != 0 {
		t.Errorf("%d owners are left", len(s.owners))
	}
}
