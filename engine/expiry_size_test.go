package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// population is matches on a rig whose workers are idle: tests write the workers' time stamps.
type population struct {
	*rig
	handles  []table.Handle
	lastSent []int64 // ms, by client
	silent   []bool  // by client
}

// newPopulation binds n clients, an even number, in random order and within eight seconds, so
// that lists through their slots have no order that a processor could predict.
func newPopulation(t testing.TB, n int) *population {
	p := &population{
		rig:     newRig(t, Config{MaxAllocations: n}),
		handles: make([]table.Handle, n), lastSent: make([]int64, n), silent: make([]bool, n),
	}
	p.now = p.now / 1000 * 1000
	tenant := alloc.Tenant{Project: "p"}.Hash()
	for i := range n {
		m := claims{role: alloc.RoleHost, id: clientID(i), match: clientID(i &^ 1), tenant: tenant, maxConnections: 1}
		if i%2 == 1 {
			m.role, m.maxConnections = alloc.RoleJoiner, 0
		}
		h, err := p.control.insert(&m, tick(p.now))
		if err != nil {
			t.Fatal(err)
		}
		p.handles[i] = h
		p.shared.table.Bind(h, udpN(i))
		p.shared.table.RecordBind(h, 1)
		if i%2 == 1 {
			p.shared.table.Link(h, p.handles[i-1])
			p.shared.table.SetFlags(p.handles[i-1], table.EverLinked)
		}
	}
	start := p.now
	p.now += 10_000
	p.control.pause.lastRun = p.now
	p.control.wheel.now = tick(p.now)
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		p.send(i, start+int64(rand.N(32)+6)*table.TickMillis)
		p.control.schedule(p.handles[i])
	}
	return p
}

func clientID(i int) (id proto.AllocationID) {
	binary.LittleEndian.PutUint64(id[:], uint64(i)+1)
	return id
}

func clientOf(id proto.AllocationID) int { return int(binary.LittleEndian.Uint64(id[:])) - 1 }

func (p *population) send(i int, now int64) {
	p.lastSent[i] = now
	p.shared.table.Activity(p.handles[i]).RecordReceive(tick(now))
}

func (p *population) heartbeat() {
	n := len(p.handles)
	for i := n / 4 * int(p.now/table.TickMillis%4); i < n/4*int(p.now/table.TickMillis%4+1); i++ {
		if !p.silent[i] {
			p.send(i, p.now)
		}
	}
}

type work struct{ refiles, ends int }

func (p *population) run() (most work) {
	for more := true; more; {
		p.control.pace.advance(p.now)
		before, ended := p.control.pace, len(p.ended)
		more = p.control.runOnce(p.now)
		most.refiles = max(most.refiles, before.refiles-p.control.pace.refiles)
		most.ends = max(most.ends, len(p.ended)-ended)
	}
	return most
}

func (p *population) takeEnded(check func(client int)) (n int) {
	n = len(p.ended)
	for _, e := range p.ended {
		check(clientOf(e.ID))
	}
	p.ended = p.ended[:0]
	return n
}

// TestExpiryMillion: silent allocations end within a second after their limit, one in a hundred
// at once too, no other one ends, and no call of control does more than its share.
func TestExpiryMillion(t *testing.T) {
	testkit.OneGoroutine(t)
	n := 300_000 // With fewer, those that live would keep to the pace of ends.
	if testkit.RaceEnabled {
		n = 30_000
	} else if *long {
		n = 1_000_000
	}
	p := newPopulation(t, n)
	next, silenced := 7, 0
	silence := func(count int) {
		for range count {
			p.silent[next] = true
			next = (next + 77_773) % n // It shares no factor with n.
			silenced++
		}
	}
	begin := p.now
	for p.now < begin+32_000 {
		p.now++
		if p.now%table.TickMillis == 0 {
			p.heartbeat()
			if p.now <= begin+20_000 {
				silence(20)
			}
			if p.now == begin+15_000 {
				for i := range n / 100 {
					p.send((next+i*77_773)%n, p.now)
				}
				silence(n / 100)
			}
		} else if !p.control.backlog {
			continue
		}
		if most := p.run(); most.refiles > refilesPerCall || most.ends > maxMarked {
			t.Fatalf("one call did %+v", most)
		}
		silenced -= p.takeEnded(func(i int) {
			if after := p.now - p.lastSent[i]; !p.silent[i] || after <= 10_000 || after > 11_000 {
				t.Fatalf("client %d ended %d ms after its last datagram, silent: %v", i, after, p.silent[i])
			}
		})
	}
	if silenced != 0 || p.control.pause.pausesTotal.Load() != 0 {
		t.Errorf("%d silent ones live, %d pauses", silenced, p.control.pause.pausesTotal.Load())
	}
}

// TestForecastBias: when most clients share a tick, as after a restart of the relay, those
// that fall silent come first in its bucket; the forecast does not take them for all.
func TestForecastBias(t *testing.T) {
	testkit.OneGoroutine(t)
	const n = 20_000
	for _, c := range []struct {
		silent int
		pauses uint64
	}{{3000, 0}, {6000, 1}} {
		p := newPopulation(t, n)
		for i := range c.silent {
			p.silent[i*3] = true
		}
		begin := p.now
		for p.now < begin+22_000 {
			p.now++
			if p.now%1000 == 0 {
				for i := range n {
					if !p.silent[i] || p.now < begin+5000 {
						p.send(i, p.now)
					}
				}
			}
			if p.now%table.TickMillis == 0 || p.control.backlog {
				p.run()
			}
		}
		if got := p.control.pause.pausesTotal.Load(); got != c.pauses {
			t.Errorf("%d of %d silent: %d pauses, want %d", c.silent, n, got, c.pauses)
		}
	}
}

// TestExpirySlowWorker: while a worker is in a batch for long, few allocations are marked, so
// that they do not all end in one call.
func TestExpirySlowWorker(t *testing.T) {
	testkit.OneGoroutine(t)
	const n, silent = 20_000, 1000
	p := newPopulation(t, n)
	for i := range silent {
		p.silent[i*3] = true
		p.send(i*3, p.now)
	}
	for until := p.now + 10_000; p.now < until; {
		p.now += table.TickMillis
		p.heartbeat()
		p.run()
	}
	slow := p.workers[0].epoch
	slow.enter()
	for range 500 {
		p.now++
		if p.now%table.TickMillis == 0 {
			p.heartbeat()
		}
		p.run()
	}
	if got := p.control.pace.marked; got != maxMarked || len(p.ended) != 0 {
		t.Errorf("%d are marked, want %d; %d ended", got, maxMarked, len(p.ended))
	}
	slow.leave()
	for p.control.backlog {
		p.now++
		if most := p.run(); most.ends > maxMarked {
			t.Fatalf("%d ended in one call", most.ends)
		}
	}
	if len(p.ended) != silent || p.control.pace.marked != 0 {
		t.Errorf("%d of %d ended, %d are marked", len(p.ended), silent, p.control.pace.marked)
	}
}

func BenchmarkExpiryMillion(b *testing.B) {
	p := newPopulation(b, 1_000_000)
	var busy, longest time.Duration
	seconds := 0
	for ; b.Loop(); seconds++ {
		for range 1000 {
			p.now++
			if p.now%table.TickMillis == 0 {
				p.heartbeat()
			} else if !p.control.backlog {
				continue
			}
			for more := true; more; {
				begin := time.Now()
				more = p.control.runOnce(p.now)
				d := time.Since(begin)
				busy, longest = busy+d, max(longest, d)
			}
		}
	}
	b.ReportMetric(busy.Seconds()*100/float64(seconds), "%processor")
	b.ReportMetric(float64(longest.Microseconds()), "longest-us")
	b.ReportMetric(0, "ns/op")
}
