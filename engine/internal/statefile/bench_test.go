package statefile

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	modes(t, func(t *testing.T, cfg Config) {
		cfg.Capacity = 5 * chunkPlaces
		l, _ := open(t, cfg)
		defer closed(t, l)
		r, c := sample(t, 1), code(t, "6789BC")
		p := l.Add(&r)
		fill(t, l, 2*chunkPlaces) // The mapping now has four chunks.
		for name, change := range map[string]func(){
			"add":        func() { l.Add(&r) },
			"add remove": func() { l.Remove(l.Add(&r)) },
			"binding":    func() { l.SetBinding(p, 1, 2, Bound) },
			"endpoint":   func() { l.SetEndpoint(p, 3) },
			"links":      func() { l.SetLinks(p, 4, Host) },
			"code":       func() { l.SetCode(p, c) },
		} {
			if n := testing.AllocsPerRun(1100, change); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	})
}

func BenchmarkChange(b *testing.B) {
	for _, mode := range []struct {
		name     string
		unmapped bool
	}{{"mapped", false}, {"unmapped", true}} {
		cfg := testConfig(b, mode.unmapped)
		cfg.Capacity = 100_000
		l, _ := open(b, cfg)
		for i := range 50_000 {
			r := sample(b, i)
			l.Add(&r)
		}
		b.Run("binding/"+mode.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.SetBinding(Place(i*7919%50_000+1), uint16(i), uint64(i), Bound)
			}
		})
		r := sample(b, 1)
		b.Run("addremove/"+mode.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.Remove(l.Add(&r))
			}
		})
		closed(b, l)
	}
}
