package bench

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// naiveWindow keeps every number for ever.
type naiveWindow struct {
	seen map[uint32]bool
	next uint32
}

func (n *naiveWindow) arrive(seq uint32) arrival {
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
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const sent = 1000
		order := reorder(rng, sent, 1+rng.IntN(200))
		w := window{bits: make([]uint64, 4)}
		ref := naiveWindow{seen: map[uint32]bool{}}
		for i, seq := range order {
			got, want := w.arrive(seq, sent), ref.arrive(seq)
			if got != want {
				t.Fatalf("seed %d: arrival %d, number %d: %d, want %d", seed, i, seq, got, want)
			}
		}
	}
}

// reorder returns numbers below n, some lost, some twice, each at most depth
// places away from where it belongs.
func reorder(rng *rand.Rand, n, depth int) (order []uint32) {
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

// TestSchedule verifies the due times of the first datagrams, in ms after the
// start.
func TestSchedule(t *testing.T) {
	const ms = 1_000_000
	links := func(groups ...int) (l []benchrig.Link) {
		for _, g := range groups {
			l = append(l, benchrig.Link{Group: g})
		}
		return l
	}
	for _, test := range []struct {
		name  string
		rate  float64
		links []benchrig.Link
		want  []int64
	}{
		{"one flow", 100, links(0), []int64{0, 10, 20, 30}},
		{"even", 100, links(0, 1, 2, 3), []int64{0, 10, 20, 30, 40, 50, 60, 70, 80}},
		{"all at once", 100, links(0, 0, 0, 0), []int64{0, 0, 0, 0, 40, 40, 40, 40, 80}},
		{"by match", 100, links(0, 0, 1, 1), []int64{0, 0, 20, 20, 40, 40, 60, 60, 80}},
		{"slow", 0.5, links(0, 1), []int64{0, 2000, 4000, 6000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const start = 12345
			s := newTickSchedule(start, test.rate, 0, test.links)
			var got []int64
			for n := range test.want {
				flows := len(test.links)
				got = append(got, (s.due(int64(n/flows), n%flows)-start)/ms)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("due at %v, want %v", got, test.want)
			}
		})
	}
}

// TestScheduleBefore compares the count with counting one by one.
func TestScheduleBefore(t *testing.T) {
	for _, groups := range []int{1, 3, 7} {
		var links []benchrig.Link
		for i := range 21 {
			links = append(links, benchrig.Link{Group: i * groups / 21})
		}
		s := newTickSchedule(1000, 12_345.6, 0, links)
		for _, end := range []int64{0, 1000, 1001, 50_000, 1_000_000, 1_700_001, 123_456_789} {
			want := uint64(0)
			for n := 0; s.due(int64(n/21), n%21) < end; n++ {
				want++
			}
			if got := s.before(end); got != want {
				t.Errorf("%d groups: %d before %d, want %d", groups, got, end, want)
			}
		}
	}
}

// TestScheduleExact verifies that a second at 100,000/s has 100,000 datagrams,
// also after an hour.
func TestScheduleExact(t *testing.T) {
	var links []benchrig.Link
	for i := range 400 {
		links = append(links, benchrig.Link{Group: i})
	}
	s := newTickSchedule(0, 100_000, 0, links)
	for _, sec := range []int64{0, 1, 59, 3599} {
		if n := s.before((sec+1)*1e9) - s.before(sec*1e9); n != 100_000 {
			t.Errorf("second %d has %d datagrams", sec, n)
		}
	}
}

var goldenStamp = stamp{run: 0x01020304, flow: 5, seq: 0x10002, due: 0x1122334455667788}

const goldenStampHex = "0102030400000005000100021122334455667788" // after the check

func TestStamp(t *testing.T) {
	b := make([]byte, stampLen+3)
	goldenStamp.put(b[:stampLen])
	if got := hex.EncodeToString(b[4:stampLen]); got != goldenStampHex {
		t.Errorf("put %s, want %s", got, goldenStampHex)
	}
	if got, ok := parseStamp(b[:stampLen]); !ok || got != goldenStamp {
		t.Errorf("parsed %+v, %v", got, ok)
	}
	for n := range stampLen {
		if _, ok := parseStamp(b[:n]); ok {
			t.Errorf("%d bytes are taken for a stamp", n)
		}
	}
	goldenStamp.put(b)
	for i := range b {
		b[i] ^= 1
		if _, ok := parseStamp(b); ok {
			t.Errorf("a payload with another byte %d is taken for the same", i)
		}
		b[i] ^= 1
	}
}

func FuzzStamp(f *testing.F) {
	b := make([]byte, stampLen)
	goldenStamp.put(b)
	f.Add(b)
	f.Add(b[:stampLen-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseStamp(b)
		if !ok {
			return
		}
		again := bytes.Clone(b)
		s.put(again)
		if !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

func drain(c *credits, flows []flow) (taken []int32) {
	for {
		i, ok := c.take()
		if !ok {
			return taken
		}
		flows[i].inFlight++
		taken = append(taken, i)
	}
}

func TestCredits(t *testing.T) {
	flows := make([]flow, 3)
	c := newCredits(3, 2)
	if got := drain(&c, flows); len(got) != 6 || got[0] != 0 || got[1] != 1 || got[3] != 0 {
		t.Fatalf("first credits %v", got)
	}
	c.creditArrival(&flows[1], 1, 1, 10)
	if got := drain(&c, flows); len(got) != 1 || got[0] != 1 {
		t.Errorf("after an arrival: %v", got)
	}
	c.creditArrival(&flows[2], 2, 2, 10) // The first was overtaken.
	if got := drain(&c, flows); len(got) != 2 {
		t.Errorf("after a gap: %v", got)
	}
	c.creditArrival(&flows[2], 2, 0, 11) // And arrives late.
	if got := drain(&c, flows); len(got) != 0 {
		t.Errorf("after what was overtaken: %v", got)
	}
}

func TestCreditsRevive(t *testing.T) {
	flows := make([]flow, 2)
	c := newCredits(2, 4)
	drain(&c, flows)
	now := int64(time.Second)
	c.restoreStalled(flows, now)
	c.creditArrival(&flows[0], 0, 1, now+stallTimeout)
	drain(&c, flows)
	c.restoreStalled(flows, now+stallTimeout+1) // Flow 1 was silent for too long.
	got := drain(&c, flows)
	if len(got) != 4 || got[0] != 1 || flows[1].inFlight != 4 || flows[0].inFlight != 4 {
		t.Errorf("revived %v, in flight %d and %d", got, flows[0].inFlight, flows[1].inFlight)
	}
	for range 9 {
		c.creditArrival(&flows[1], 1, 1, now+2*stallTimeout) // Those that were given up, and more.
	}
	if got := drain(&c, flows); len(got) != 4 {
		t.Errorf("%d credits for a window of 4", len(got))
	}
}

// TestCreditsByArrival: an overtaken datagram returns its credit once.
func TestCreditsByArrival(t *testing.T) {
	g := directGenerator(t, Config{Load: Load{Matches: 1, Window: 8, Warmup: -1}}, 1)
	drain(&g.loop, g.flows)
	f := &g.flows[0]
	f.seq = 8
	for _, step := range []struct {
		seq  uint32
		left int32 // in flight after it
	}{{0, 7}, {3, 4}, {1, 4}, {3, 4}, {4, 3}, {2, 3}, {7, 0}} {
		g.account(f, &stamp{run: 1, seq: step.seq, due: g.times.measure}, g.times.measure+1)
		if f.inFlight != step.left {
			t.Errorf("after number %d: %d in flight, want %d", step.seq, f.inFlight, step.left)
		}
	}
	if g.loop.size != 8 {
		t.Errorf("%d credits, want 8", g.loop.size)
	}
}
