package engine

import (
	"flag"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// The long form of TestTurnover, as of make million.
var (
	turnoverMatches = flag.Int("turnover.matches", 4000, "live matches of TestTurnover, two allocations each")
	turnoverRate    = flag.Int("turnover.rate", 100, "matches that TestTurnover replaces in a simulated second")
	turnoverRelays  = flag.Int("turnover.relays", 2000, "RELAYs in a simulated second")
	turnoverTime    = flag.Duration("turnover.time", 30*time.Second, "simulated time of TestTurnover")
)

const (
	// turnoverPing is the PING period of a client in ms, below the idle limit.
	turnoverPing = 8000
	// turnoverArrivals is how many matches arrive at first in a ms. One in two allocations
	// has a link whose first use is checked, which draws on the pace of ends.
	turnoverArrivals = 8
	// replaceStride is the step between matches that are replaced, so that their PINGs
	// are spread over the period. In order they would all be due within a moment.
	replaceStride = 77_773
	// turnoverLimit is the default idle limit, and turnoverLate the latest end, in ms.
	turnoverLimit, turnoverLate = 10_000, 11_000
)

type seatedClient struct {
	id         proto.AllocationID
	at         endpoint.Endpoint
	lastActive int64 // ms; when it last sent or received
}

// turnover is a relay whose matches fall silent and are replaced by new ones, in virtual time.
type turnover struct {
	*rig
	live     [][2]seatedClient            // host and joiner, by position
	silent   map[proto.AllocationID]int64 // when it was last active
	next     int                          // position that is replaced next
	pinged   int                          // clients that sent their PING in this round
	endpoint int                          // number of the last endpoint
	dice     uint64
	buf      []byte

	sent    map[proto.Type]uint64 // by the relay
	errors  [256]uint64           // of those, ERRORs by code
	relayed uint64                // offered
	ends    uint64
	late    uint64        // of those, more than turnoverLate after they were last active
	worst   int64         // ms; longest time from silence to the end
	busy    time.Duration // of control
	longest time.Duration // call of control
}

// newTurnover returns a relay without allocations that has room for the live matches and
// the silent ones, and no more: slots and records that are not reused run out.
func newTurnover(t testing.TB, matches, rate int) *turnover {
	room := 2*matches + 2*rate*(turnoverLate+1500)/1000 + 64
	u := &turnover{
		rig: newRig(t, Config{MaxAllocations: room}), silent: map[proto.AllocationID]int64{},
		sent: map[proto.Type]uint64{}, dice: 1,
	}
	u.openStateFile()
	u.now = u.now / 1000 * 1000
	u.control.out.deliver = u.deliver
	for _, w := range u.workers {
		w.out.deliver = u.deliver
	}
	for range matches {
		u.live = append(u.live, u.arrive())
		if len(u.live)%turnoverArrivals == 0 {
			u.advance(time.Millisecond, 0, 0)
		}
	}
	return u
}

func (u *turnover) openStateFile() statefile.PreviousRun {
	u.t.Helper()
	sealer := u.ident.sealer(u.run)
	file, left, err := statefile.Open(statefile.Config{
		Path: u.path, Capacity: u.cfg.MaxAllocations, Relay: sealer.Relay(), Boot: sealer.Boot(),
	})
	if err != nil {
		u.t.Fatal(err)
	}
	u.control.stateFile = file
	u.t.Cleanup(func() { file.Close() })
	return left
}

func (u *turnover) deliver(queue []sessionDatagram) sock.SendResult {
	for _, out := range queue {
		kind, _ := proto.ParseType(out.pkt)
		u.sent[kind]++
		if kind == proto.TypeError {
			e, _ := proto.ParseError(out.pkt)
			u.errors[e.Code]++
		}
	}
	return sock.SendResult{Sent: len(queue)}
}

func (u *turnover) decide() {
	for more := true; more; {
		begin := time.Now()
		more = u.control.runOnce(u.now)
		d := time.Since(begin)
		u.busy, u.longest = u.busy+d, max(u.longest, d)
	}
	for _, e := range u.ended {
		last, ok := u.silent[e.ID]
		after := u.now - last
		if !ok || after <= turnoverLimit {
			u.t.Fatalf("%v ended %d ms after it was last active, silent: %v", e.ID, after, ok)
		}
		if u.worst = max(u.worst, after); after > turnoverLate {
			u.late++
		}
		u.ends++
		delete(u.silent, e.ID)
	}
	u.ended = u.ended[:0]
}

func (u *turnover) handle(from endpoint.Endpoint, pkt []byte) {
	u.step(from, pkt)
	u.decide()
}

func (u *turnover) arrive() (m [2]seatedClient) {
	var host *mReservation
	for i, role := range []alloc.Role{alloc.RoleHost, alloc.RoleJoiner} {
		begin := time.Now()
		card, err := u.reserve(role, host, "player", 1-i)
		u.busy += time.Since(begin) // With the sealing, which the API does in production.
		if err != nil {
			u.t.Fatalf("with %d live and %d silent allocations, of which %d ended, and %d pauses of expiry: %v",
				2*len(u.live), len(u.silent), u.ends, u.control.pause.pausesTotal.Load(), err)
		}
		u.endpoint++
		m[i] = seatedClient{id: proto.AllocationID(card.id), at: udpN(u.endpoint), lastActive: u.now}
		u.handle(m[i].at, signed(card, 1, card.key))
		if host == nil {
			host = card
		} else {
			u.handle(m[i].at, connectMessage(card.id, card.ticket))
		}
	}
	u.relay(&m[1], &m[0]) // A link that is never used would be closed.
	return m
}

// replace ends a match by silence, and begins another one.
func (u *turnover) replace() {
	m := &u.live[u.next]
	for _, c := range m {
		u.silent[c.id] = c.lastActive
	}
	*m = u.arrive()
	u.next = (u.next + replaceStride) % len(u.live)
}

func (u *turnover) relayRandom() {
	u.dice ^= u.dice << 13
	u.dice ^= u.dice >> 7
	u.dice ^= u.dice << 17
	m := &u.live[u.dice>>8%uint64(len(u.live))]
	u.relay(&m[u.dice&1], &m[u.dice&1^1])
}

func (u *turnover) relay(from, to *seatedClient) {
	u.buf = proto.Relay{From: from.id, To: to.id, Payload: u.buf[:0]}.Append(u.buf[:0])
	from.lastActive, to.lastActive = u.now, u.now
	u.relayed++
	if o := u.step(from.at, u.buf); o != outRelayed {
		u.t.Fatalf("a RELAY had outcome %v", o)
	}
}

func (u *turnover) ping() {
	n := 2 * len(u.live)
	for due := int(int64(n) * (u.now % turnoverPing) / turnoverPing); u.pinged != due; u.pinged = (u.pinged + 1) % n {
		c := &u.live[u.pinged/2][u.pinged%2]
		u.buf = proto.Ping{ID: c.id}.Append(u.buf[:0])
		c.lastActive = u.now
		if o := u.step(c.at, u.buf); o != outPong {
			u.t.Fatalf("a PING had outcome %v", o)
		}
	}
}

func (u *turnover) advance(d time.Duration, relays, rate int) {
	for until := u.now + d.Milliseconds(); u.now < until; {
		u.now++
		perMilli := func(rate int) int { return rate*int(u.now%1000+1)/1000 - rate*int(u.now%1000)/1000 }
		u.ping()
		for range perMilli(relays) {
			u.relayRandom()
		}
		for range perMilli(rate) {
			u.replace()
		}
		if u.now%table.TickMillis == 0 || u.control.backlog || u.control.queue.len() > 0 {
			u.decide()
		}
	}
}

func (u *turnover) checkCounts(matches int) {
	u.t.Helper()
	allocations, bound, links := u.shared.table.Counts()
	seats := int(u.control.seats.taken.Load())
	if allocations != 2*matches || bound != 2*matches || links != matches || seats != 2*matches {
		u.t.Errorf("%d allocations, %d bound, %d links, %d seats with %d matches", allocations, bound, links, seats, matches)
	}
	var use liveCounts
	for _, tenant := range u.control.projects.tenants {
		use.allocations += tenant.use.allocations
		use.players += tenant.use.players
	}
	if use.allocations != 2*matches || use.players != 2*matches {
		u.t.Errorf("usage has %+v with %d matches", use, matches)
	}
	if !u.control.stateFile.Storing() {
		u.t.Error("the state file is full")
	}
}

// TestTurnover: matches fall silent and new ones arrive at a rate, under the default limits.
// Every silent allocation ends within a second after its limit and no other one does; all
// RELAYs arrive; slots, seats, usage and records of the state file are reused; and at last,
// when all clients are silent, nothing is left. The long form is make million.
func TestTurnover(t *testing.T) {
	matches, rate, relays, lasts := *turnoverMatches, *turnoverRate, *turnoverRelays, *turnoverTime
	if testkit.RaceEnabled {
		matches, rate, relays = matches/8, rate/8, relays/8
	}
	u := newTurnover(t, matches, rate)
	u.advance(turnoverPing*time.Millisecond, 0, 0)
	u.checkCounts(matches)
	u.busy, u.longest = 0, 0
	begin := time.Now()
	u.advance(lasts, relays, rate)
	busy, took := u.busy, time.Since(begin)
	arrivals := uint64(2 * rate * int(lasts.Seconds()))
	u.advance((turnoverLate+500)*time.Millisecond, relays, 0)
	u.checkCounts(matches)
	if len(u.silent) != 0 || u.ends != arrivals || u.control.pause.pausesTotal.Load() != 0 {
		t.Errorf("%d of %d silent ones ended, %d live, %d pauses", u.ends, arrivals, len(u.silent), u.control.pause.pausesTotal.Load())
	}
	if u.late != 0 {
		t.Errorf("%d ended late, up to %d ms after they were last active", u.late, u.worst)
	}
	if got := u.sent[proto.TypeRelay]; got != u.relayed {
		t.Errorf("%d of %d RELAYs were forwarded", got, u.relayed)
	}
	binds, accepted := u.sent[proto.TypeBindReceived], u.sent[proto.TypeAccepted]
	if want := uint64(2*matches) + arrivals; binds != want || accepted != want/2 {
		t.Errorf("%d BIND_RECEIVED and %d ACCEPTED, want %d and %d", binds, accepted, want, want/2)
	}
	t.Logf("%d live allocations, %v simulated in %v: %d arrived, %d ended by silence, the last of them after %d ms; %d RELAYs, %d PINGs; ERRORs %v",
		2*matches, lasts, took.Round(time.Millisecond), arrivals, u.ends, u.worst, u.relayed, u.sent[proto.TypePing], codes(u.errors[:]))
	t.Logf("control, with the sealing of reservations: %.2f %% of a processor, longest call %v", 100*busy.Seconds()/lasts.Seconds(), u.longest)
	u.endAll()
}

func (u *turnover) endAll() {
	u.t.Helper()
	for _, m := range u.live {
		for _, c := range m {
			u.silent[c.id] = c.lastActive
		}
	}
	for range 10 * 60 * 1000 {
		u.now++
		u.control.runOnce(u.now)
		if allocations, _, _ := u.shared.table.Counts(); allocations == 0 {
			break
		}
	}
	if len(u.ended) != 2*len(u.live) {
		u.t.Errorf("%d of %d ended at last", len(u.ended), 2*len(u.live))
	}
	u.checkCounts(0)
	if err := u.control.stateFile.Close(); err != nil {
		u.t.Error(err)
	}
	u.run++
	if left := u.openStateFile(); len(left.Records) != 0 || !left.Complete {
		u.t.Errorf("the state file has %d records, complete: %v", len(left.Records), left.Complete)
	}
}

func codes(counts []uint64) map[int]uint64 {
	all := map[int]uint64{}
	for code, n := range counts {
		if n > 0 {
			all[code] = n
		}
	}
	return all
}
