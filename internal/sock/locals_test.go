package sock

import (
	"sync"
	"testing"
)

func TestLocals(t *testing.T) {
	l := newLocals()
	if _, ok := l.at(0); ok {
		t.Error("number 0 has an address")
	}
	for i := range maxLocals {
		a := localAddr{lo: uint64(i + 1)}
		id := l.id(a)
		if int(id) != i+1 || l.id(a) != id {
			t.Fatalf("address %d has number %d, then %d", i, id, l.id(a))
		}
		if got, ok := l.at(id); !ok || got != a {
			t.Fatalf("number %d gives %v, %v", id, got, ok)
		}
	}
	if id := l.id(localAddr{lo: 1 << 40}); id != 0 {
		t.Errorf("beyond the bound: number %d", id)
	}
	if id := l.id(localAddr{lo: 5}); id != 5 {
		t.Errorf("a full table forgot address 5: %d", id)
	}
	if _, ok := l.at(maxLocals + 1); ok {
		t.Error("a number that was never given has an address")
	}
	if localAddr := (localAddr{lo: 5, zone: 1}); l.id(localAddr) != 0 {
		t.Error("the zone does not count")
	}
}

func TestLocalsConcurrent(t *testing.T) {
	l := newLocals()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 300 {
				a := localAddr{hi: 1, lo: uint64((i*7 + w) % 300)}
				id := l.id(a)
				if got, ok := l.at(id); !ok || got != a {
					t.Errorf("number %d gives %v, want %v", id, got, a)
				}
			}
		})
	}
	wg.Wait()
	if n := len(l.table.Load().addrs); n != 301 {
		t.Errorf("%d entries, want 301", n)
	}
}
