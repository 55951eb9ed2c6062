package engine

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestExpiryPace: many allocations that are overdue at once end a few per
// millisecond, and all in the end.
func TestExpiryPace(t *testing.T) {
	s := newSim(newIdentity(t).sealer(0), true)
	const many = 3*expiriesPerMilli - 5
	for range many {
		s.reserve(alloc.RoleHost, nil, "p", "unbound", 1)
	}
	s.control.runOnce(s.now)
	s.now += (10*time.Second + table.TickMillis*time.Millisecond).Milliseconds()
	s.control.pace.at, s.control.pause.lastRun = s.now-1, s.now-1 // it did not stand still
	for left := many; left > 0; s.now++ {
		for range 3 { // However often control is woken up in a millisecond.
			s.control.runOnce(s.now)
		}
		want := max(0, left-expiriesPerMilli)
		if n, _, _ := s.shared.table.Counts(); n != want {
			t.Fatalf("%d allocations live, want %d", n, want)
		}
		if s.control.backlog != (want > 0) {
			t.Errorf("%d are left, behind is %v", want, s.control.backlog)
		}
		left = want
	}
}

// TestLastReply: the new owner of the endpoint of an allocation that ended gets no
// ERROR 1, since clients ignore the id in it.
func TestLastReply(t *testing.T) {
	for _, taken := range []bool{false, true} {
		s := newMatch(t, newIdentity(t))
		busy := 1 - workerOf(atJoiner1)
		unbound := signed(s.unboundJoiner(), 0, s.unboundJoiner().key)
		s.now += 10_000
		s.control.pause.lastRun = s.now - 1
		s.control.runOnce(s.now) // unbound was reserved when joiner1 last sent
		s.control.reserve(&claims{role: alloc.RoleHost, id: proto.AllocationID{1}, match: proto.AllocationID{1}}, nil, s.now)
		s.workers[busy].epoch.enter()
		s.now += 250
		s.control.runOnce(s.now) // marks joiner1
		s.workers[busy].epoch.leave()
		s.workers[busy].epoch.enter()
		s.sent = nil
		s.control.runOnce(s.now) // ends him; his ERROR 1 waits for the busy worker
		if taken {
			w := s.workers[workerOf(atJoiner1)]
			w.handleDatagram(s.now, endpointAt(atJoiner1), unbound, false)
			c := s.control
			var cmd *command
			w.inbox.drain(func(got *command) { cmd = got })
			cmd.claims.id = proto.AllocationID{1}
			c.commit(cmd)
		}
		s.workers[busy].epoch.leave()
		s.control.runOnce(s.now)
		errors := 0
		for _, x := range s.sent {
			if x.to == addrOf(endpointAt(atJoiner1)) && len(x.bytes) == errorLen {
				errors++
			}
		}
		if want := map[bool]int{false: 1}[taken]; errors != want {
			t.Errorf("endpoint taken: %v; %d ERRORs, want %d", taken, errors, want)
		}
	}
}

type clients struct {
	*rig
	host    *mReservation
	players []*mReservation
}

const clientsHost = 1 << 20 // number of the host's endpoint

func newClients(t *testing.T, n int) *clients {
	c := &clients{rig: newRig(t, Config{})}
	c.host = c.rig.host(udpN(clientsHost), 1)
	c.join(n)
	return c
}

func (c *clients) join(n int) {
	for range n {
		c.players = append(c.players, c.unlinked(udpN(len(c.players)), c.host))
	}
}

func (c *clients) ping(from int) {
	c.feed(udpN(clientsHost), pingMessage(c.host.id))
	for i := from; i < len(c.players); i++ {
		c.feed(udpN(i), pingMessage(c.players[i].id))
	}
	c.take()
}

func (c *clients) pass(d time.Duration, from int) {
	c.each(2*time.Second, d, func(int) { c.ping(from) })
}

func (c *clients) holds() uint64 { return c.control.pause.pausesTotal.Load() }

// TestExpiryPause: when all clients are silent at once, no allocation ends for half a
// minute. Those still silent then end, and expiry does not pause again at
// once.
func TestExpiryPause(t *testing.T) {
	t.Parallel()
	const n = 150
	c := newClients(t, n)
	start := c.now
	c.pass(38*time.Second, n) // the host alone pings
	if c.live() != n+1 || c.holds() != 1 || !c.control.pause.active || !c.control.pause.isActive.Load() {
		t.Fatalf("%d live, %d holds, holding: %v, said: %v", c.live(), c.holds(), c.control.pause.active, c.control.pause.isActive.Load())
	}
	for _, e := range c.players[:n/3] { // a third comes back in time
		c.feed(c.entry(e).Endpoint, pingMessage(e.id))
	}
	c.each(250*time.Millisecond, 3*time.Second, func(int) { c.feed(udpN(clientsHost), pingMessage(c.host.id)) })
	if c.live() != n/3+1 || c.holds() != 1 || c.control.pause.isActive.Load() {
		t.Fatalf("after %v s: %d live, %d holds, said: %v", (c.now-start)/1000, c.live(), c.holds(), c.control.pause.isActive.Load())
	}
	c.join(n)
	c.pass(12*time.Second, 2*n)
	if c.live() != 1 || c.holds() != 1 {
		t.Fatalf("%d live, %d holds so soon after one", c.live(), c.holds())
	}
	c.pass(60*time.Second, len(c.players))
	c.join(n)
	c.pass(14*time.Second, len(c.players))
	if c.live() != n+1 || c.holds() != 2 {
		t.Errorf("a minute later: %d live, %d holds", c.live(), c.holds())
	}
}

// TestExpiryPauseFraction: fewer than a hundred, or a fifth, are no sign of a fault.
func TestExpiryPauseFraction(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	for _, c := range []struct {
		silent, all int
		holds       bool
	}{
		{99, 99, false}, {100, 100, true}, {100, 498, true}, {100, 499, false}, {101, 503, true}, {140, 900, false},
		{250, 1000, true},
	} {
		r := newClients(t, c.all)
		r.pass(14*time.Second, c.silent)
		want := 1 + c.all
		if !c.holds {
			want -= c.silent
		}
		if (r.holds() > 0) != c.holds || r.live() != want {
			t.Errorf("%d of %d silent: %d holds, %d live, want %v, %d", c.silent, c.all, r.holds(), r.live(), c.holds, want)
		}
	}
}

func TestExpiryPauseUnbound(t *testing.T) {
	t.Parallel()
	c := newClients(t, 10)
	for range 300 {
		if _, err := c.reserve(alloc.RoleJoiner, c.host, "p", 0); err != nil {
			t.Fatal(err)
		}
	}
	c.pass(12*time.Second, 0)
	if c.live() != 11 || c.holds() != 0 {
		t.Errorf("%d live, %d holds", c.live(), c.holds())
	}
}

// TestExpiryPauseNetworkDown: while the network is down, and for a while after, not
// even one ends; but a network that never comes back does not hold for ever.
func TestExpiryPauseNetworkDown(t *testing.T) {
	t.Parallel()
	var sends sendCounts
	for name, down := range map[string]func(c *clients, down bool){
		"link": func(c *clients, down bool) { c.control.pause.linkDown.Store(down) },
		"sends": func(_ *clients, down bool) {
			sends.tried += 12
			if down {
				sends.down += 9
			}
		},
	} {
		for _, seconds := range []int{2, 12, 25} {
			c := newClients(t, 5)
			c.control.sendTotals = func() sendCounts { return sends }
			c.control.pause.sends = sends
			c.each(time.Second, time.Duration(seconds)*time.Second, func(int) { down(c, true) })
			down(c, false)
			if c.live() != 6 || c.holds() != 1 {
				t.Fatalf("%s, %d s: %d live, %d holds", name, seconds, c.live(), c.holds())
			}
			c.pass(20*time.Second, 0)
			if c.live() != 6 {
				t.Errorf("%s, %d s: %d live once it is back", name, seconds, c.live())
			}
			c.pass(45*time.Second, 5)
			if c.live() != 1 {
				t.Errorf("%s, %d s: %d live, yet all but the host are silent", name, seconds, c.live())
			}
		}
	}
	// Some that fail among many are no sign of it, and neither is silence.
	c := newClients(t, 5)
	sends = sendCounts{}
	c.control.sendTotals = func() sendCounts { return sends }
	c.each(time.Second, 12*time.Second, func(int) { sends.tried, sends.down = sends.tried+10, sends.down+5 })
	if c.live() != 1 || c.holds() != 0 {
		t.Errorf("half of the sends fail: %d live, %d holds", c.live(), c.holds())
	}
	c = newClients(t, 5)
	c.control.pause.linkDown.Store(true)
	c.advance(29 * time.Second)
	if c.live() != 6 {
		t.Errorf("%d live after 29 s without a network", c.live())
	}
	c.advance(3 * time.Second)
	if c.live() != 1 { // the host, alone, has a minute
		t.Errorf("%d live after 32 s without a network", c.live())
	}
}

// TestExpiryPauseStalls: a limit is longer by every stall that falls into it, and by
// no other.
func TestExpiryPauseStalls(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		stalls             []stall
		since, limit, want table.Tick
	}{
		{nil, 100, 40, 140},
		{[]stall{{110, 130}}, 100, 40, 160},
		{[]stall{{50, 90}}, 100, 40, 140},   // before it began
		{[]stall{{50, 100}}, 100, 40, 140},  // ended when it began
		{[]stall{{50, 101}}, 100, 40, 191},  // received within the stall: in doubt, longer
		{[]stall{{140, 150}}, 100, 40, 150}, // began at the last tick
		{[]stall{{141, 150}}, 100, 40, 140}, // it was over
		{[]stall{{110, 120}, {130, 140}}, 100, 40, 160},
		{[]stall{{110, 120}, {145, 165}}, 100, 40, 170}, // the second falls into what the first added
		{[]stall{{110, 120}, {151, 165}}, 100, 40, 150},
		{[]stall{{50, 60}, {110, 120}, {300, 310}}, 100, 40, 150},
	} {
		var b expiryPause
		for _, s := range c.stalls {
			b.stalls[b.stallCount%maxStalls] = s
			b.stallCount++
		}
		if got := b.extend(c.since, c.limit); got != c.want {
			t.Errorf("case %d: %d, want %d", i, got, c.want)
		}
	}
	var b expiryPause
	for n := range int64(3 * maxStalls) {
		b.lastRun = 1000 * (1 + 10*n)
		b.noteTime(b.lastRun + 2000)
	}
	if got := b.extend(0, 1<<20); got != 1<<20+maxStalls*8 {
		t.Errorf("with all stalls %d, want those of the last %d", got-1<<20, maxStalls)
	}
	if got := b.stallsTotal.Load(); got != 3*maxStalls {
		t.Errorf("%d stalls were counted", got)
	}
	for gap, want := range map[int64]uint64{stallMillis: 0, stallMillis + 1: 1, 5: 0} {
		b := expiryPause{lastRun: 5000}
		if b.noteTime(5000 + gap); b.stallsTotal.Load() != want {
			t.Errorf("%d ms counted as %d stalls", gap, b.stallsTotal.Load())
		}
	}
}

// TestForecastSample: when a tick holds more than are looked at, the share of the
// sample stands for all.
func TestForecastSample(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	for _, c := range []struct{ silent, all, least, most int }{
		{3000, 3000, 3000, 3000}, {0, 3000, 0, 0}, {1500, 3000, 1200, 1800}, {500, 500, 500, 500},
	} {
		r := newRig(t, Config{})
		host := r.host(udpN(clientsHost), 1)
		var players []*mReservation
		for i := range c.all {
			players = append(players, r.unlinked(udpN(i), host))
		}
		at := r.control.nextTick(r.entry(players[0]).Handle) + 1
		for i, p := range players { // those that are not silent are spread over the bucket
			if (i+1)*(c.all-c.silent)/c.all > i*(c.all-c.silent)/c.all {
				r.shared.table.Activity(r.entry(p).Handle).RecordReceive(tick(r.now) + 8)
			}
		}
		if size := r.control.wheel.sizes[at%wheelBuckets]; size < c.all {
			t.Fatalf("%d are filed under the tick, want %d", size, c.all)
		}
		if got := r.control.countExpiring(at); got < c.least || got > c.most {
			t.Errorf("%d of %d silent: %d are expected to expire", c.silent, c.all, got)
		}
	}
}

// TestStall: a process that stood still for 25 s, with a hundred clients
// and their datagrams in its receive queues, ends none of them; a client that was silent
// before and after ends 10 s later, not counting that time.
func TestStall(t *testing.T) {
	t.Parallel()
	for _, controlFirst := range []bool{true, false} {
		for _, n := range []int{5, 120} {
			c := newClients(t, n)
			quiet := n / 5
			c.pass(4*time.Second, 0)
			c.now += 25_000 // SIGSTOP
			for range 3 {
				if controlFirst {
					c.pump()
				}
				c.now += 10
			}
			for i := quiet; i < n; i++ { // the queues are emptied, some of it late
				c.step(udpN(i), pingMessage(c.players[i].id))
				if i%20 == 0 {
					c.advance(40 * time.Millisecond)
				}
			}
			c.feed(udpN(clientsHost), pingMessage(c.host.id))
			if c.live() != n+1 || c.control.pause.stallsTotal.Load() != 1 {
				t.Fatalf("%d of %d live, %d stalls", c.live(), n+1, c.control.pause.stallsTotal.Load())
			}
			c.pass(6*time.Second, quiet)
			if c.live() != n+1 {
				t.Fatalf("%d live soon after", c.live())
			}
			c.pass(6*time.Second, quiet)
			if c.live() != n+1-quiet {
				t.Errorf("%d live, want %d: a fifth was silent for more than 10 s besides", c.live(), n+1-quiet)
			}
			for _, s := range c.take() {
				if s.pkt[3] == 12 {
					t.Errorf("an ERROR %d went to %v", s.pkt[20], s.to)
				}
			}
		}
	}
}

// TestQuietLink: a link over which nothing is relayed, as in a lobby, lives as long as its joiner.
func TestQuietLink(t *testing.T) {
	t.Parallel()
	s := newMatch(t, newIdentity(t))
	defer s.close()
	s.keepAlive(70)
	s.datagram(atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 10))
	s.compare()
	if got := s.totals(); s.err != nil || got[outRelayed] != 1 {
		t.Errorf("%d of 1 relayed after 70 s, %v", got[outRelayed], s.err)
	}
}

func TestOversizeIsHeard(t *testing.T) {
	t.Parallel()
	s := newMatch(t, newIdentity(t))
	defer s.close()
	for range 40 {
		s.advance(time.Second)
		s.datagram(atHost, pingMessage(s.hostData().id))
		s.datagram(atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1401))
	}
	s.compare()
	if _, live := s.shared.table.ByID(proto.AllocationID(s.joiner1().id)); s.err != nil || !live {
		t.Errorf("live: %t, %v", live, s.err)
	}
}

// TestStallThenResume: an allocation that was about to end when the process stopped, and
// whose datagrams wait in the receive queues, has another second.
func TestStallThenResume(t *testing.T) {
	t.Parallel()
	c := newClients(t, 5)
	c.each(2*time.Second, 10*time.Second, func(int) { c.feed(udpN(clientsHost), pingMessage(c.host.id)) })
	c.now += 12_000 // SIGSTOP, at the last moment
	c.pump()
	c.advance(700 * time.Millisecond)
	if c.live() != 6 {
		t.Fatalf("%d live before the queues were emptied", c.live())
	}
	c.ping(1)
	c.advance(time.Second)
	if c.live() != 5 {
		t.Errorf("%d live, want all but the silent one", c.live())
	}
}

// TestAddressFlap: of two outages, each holds.
func TestAddressFlap(t *testing.T) {
	c := newClients(t, 20)
	for range 2 {
		c.control.pause.linkDown.Store(true)
		c.advance(12 * time.Second)
		c.control.pause.linkDown.Store(false)
		c.pass(20*time.Second, 0)
	}
	if c.live() != 21 {
		t.Errorf("%d of 21 live", c.live())
	}
}

// TestUnreachablePeer: one reply without a route, on a quiet relay, is no outage.
func TestUnreachablePeer(t *testing.T) {
	c := newClients(t, 5)
	var n sendCounts
	c.control.sendTotals = func() sendCounts { return n }
	c.advance(5 * time.Second)
	n = sendCounts{1, 1}
	c.advance(7 * time.Second)
	if c.holds() != 0 {
		t.Errorf("%d holds for one datagram", c.holds())
	}
}
