package placement

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

func TestHostsAgainstAList(t *testing.T) {
	t.Parallel()
	type item struct {
		id   proto.AllocationID
		sent uint32
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	h := newHosts()
	var list []item
	now := uint32(1)
	at := func(id proto.AllocationID) int {
		return slices.IndexFunc(list, func(x item) bool { return x.id == id })
	}
	for step := range 20_000 {
		now += uint32(rnd.IntN(2))
		id := hostID(rnd.IntN(1000))
		i := at(id)
		switch n := rnd.IntN(10); {
		case n < 2 && i < 0:
			h.add(id, 7, time.UnixMilli(int64(step)), 0)
			list = slices.Insert(list, 0, item{id, 0})
		case n < 6 && i < 0:
			h.add(id, 7, time.UnixMilli(int64(step)), now)
			list = append(list, item{id, now})
		case n < 4:
			if _, ok := h.remove(id); ok != (i >= 0) {
				t.Fatalf("step %d: removed %v", step, ok)
			}
			if i >= 0 {
				list = slices.Delete(list, i, i+1)
			}
		case n < 9:
			h.markSent(id, now)
			if i >= 0 {
				list = append(slices.Delete(list, i, i+1), item{id, now})
			}
		default:
			n, before := rnd.IntN(20), now-min(now, uint32(rnd.IntN(2000)))
			var want []proto.AllocationID
			for _, x := range list[:min(n, len(list))] {
				if x.sent >= before {
					break
				}
				want = append(want, x.id)
			}
			got := h.first(nil, n, before)
			if !slices.EqualFunc(got, want, func(a HostEntry, b proto.AllocationID) bool { return a.Host == b }) {
				t.Fatalf("step %d: first %d before %d: %v, want %v", step, n, before, got, want)
			}
		}
		if h.len() != len(list) || (h.find(id) == nil) != (at(id) < 0) {
			t.Fatalf("step %d: %d hosts, want %d", step, h.len(), len(list))
		}
		if oldest, ok := h.oldestSent(); ok != (len(list) > 0) || ok && oldest != list[0].sent {
			t.Fatalf("step %d: the longest is %d", step, oldest)
		}
	}
	if int(h.used) > 1001 || len(list) < 100 {
		t.Errorf("%d places were used for at most 1000 hosts; %d at the end", h.used, len(list))
	}
}

// TestHostsMemory fills the hosts of a relay and measures the heap that they
// take. It is not parallel: others would be measured with them.
func TestHostsMemory(t *testing.T) {
	const n, most = 500_000, 128
	before := heap()
	h := newHosts()
	for i := range n {
		h.add(hostID(i), 1, time.UnixMilli(1), 1)
	}
	each := float64(heap()-before) / n
	runtime.KeepAlive(&h)
	t.Logf("%.1f bytes per host", each)
	if each > most || h.len() != n {
		t.Errorf("%d hosts take %.1f bytes each, want at most %d", h.len(), each, most)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
