package engine

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

var (
	playRounds = flag.Int("players.rounds", 0, "simulated rounds of trouble and calm, of about a minute each; 0: 60, or 12 with the race detector or -short")
	playSeed   = flag.Uint64("players.seed", 0, "first seed; 0: by the clock if -players.rounds is given, else 1")
)

const (
	playMatches = 5
	playMost    = 5 // players of a match

	// calmMillis is how long it is quiet after trouble, and backMillis within
	// which everybody must be in touch again: three silent PING periods of the
	// slower clients, and what the ten seconds without ERROR 3 add.
	calmMillis = 25_000
	backMillis = 16_000
)

func newNetsim(t *testing.T, seed uint64) *netsim {
	n := &netsim{
		rig: newRig(t, Config{MaxAllocations: 512}), rnd: rand.New(rand.NewPCG(seed, 3)),
		at: map[endpoint.Endpoint]*player{}, leavers: map[mID]bool{},
		checker: ruleChecker{nonces: map[mID]binding{}, errors: map[errorTo]int64{}, prefixes: map[netip.Addr]int{}},
	}
	n.weather = networkConditions{delay: 20, jitter: 30, dup: 2}
	return n
}

// join starts a client, of a host unless it is one.
func (n *netsim) join(host *player, version int) *player {
	p := &player{
		net: n, host: host, version: version, ping: [...]int64{500, 3000}[n.rnd.IntN(2)], ep: n.address(),
		peers: map[mID]*peerState{}, errors: map[byte]int{}, lastBind: -playerRetry, lastConn: -playerRetry,
	}
	p.name = fmt.Sprint("host ", len(n.players))
	role, of := alloc.RoleHost, (*mReservation)(nil)
	if host != nil {
		p.name = fmt.Sprint("player ", len(n.players), " of ", host.name)
		role, of = alloc.RoleJoiner, host.reservation
	}
	var err error
	if p.reservation, err = n.reserve(role, of, p.name, 2*playMost); err != nil {
		// ErrNotFound: a file that is new knows nothing of hosts to come.
		if host == nil || !n.shared.recovering(n.now) || !errors.Is(err, alloc.ErrUnavailable) && !errors.Is(err, alloc.ErrNotFound) {
			n.fail("%s: %v", p.name, err)
		}
		return nil
	}
	n.at[p.ep] = p
	n.players = append(n.players, p)
	return p
}

// randomClient returns a client that lives, if one that fits is found.
func (n *netsim) randomClient(fits func(*player) bool) *player {
	for range 20 {
		if p := n.players[n.rnd.IntN(len(n.players))]; p.isAlive() && fits(p) {
			return p
		}
	}
	return nil
}

// record notes what has happened, for the one who reads why a test failed.
func (n *netsim) record(what string) {
	n.events = append(n.events, fmt.Sprintf("%8d ms: %s", n.now-clockStart, what))
}

// faults does one bad thing, drawn from the seed, and says what.
func (n *netsim) faults() string {
	second := func(k int) time.Duration { return time.Duration(n.rnd.IntN(k*1000)) * time.Millisecond }
	modern := func(p *player) bool { return p.version == 2 && p.status == playerBound }
	switch n.rnd.IntN(11) {
	case 0:
		n.weather = networkConditions{loss: n.rnd.IntN(30), dup: n.rnd.IntN(20), delay: n.rnd.IntN(200), jitter: n.rnd.IntN(400)}
		return fmt.Sprintf("weather %+v", n.weather)
	case 1, 2:
		if p := n.randomClient(modern); p != nil {
			n.move(p, n.address())
			return p.name + " roams"
		}
	case 3:
		return n.reuse(n.randomClient(modern), n.randomClient(func(p *player) bool { return p.version == 2 || p.hasQuit }))
	case 4:
		n.settle()
		if p := n.randomClient(func(p *player) bool { return true }); p != nil {
			p.paused = true
			n.pass(second(8))
			p.paused = false
			return p.name + " pauses"
		}
	case 5:
		n.settle()
		n.darkUntil = n.now + second(7).Milliseconds()
		return "nothing gets through for a while"
	case 6:
		d := second(25)
		n.stallUntil = n.now + d.Milliseconds()
		n.pass(d)
		return "the relay stands still for " + d.String()
	case 7, 8:
		file := n.rnd.IntN(3) > 0
		n.crash(file, second(3))
		return fmt.Sprint("the relay starts again, with its file: ", file)
	case 9:
		return n.depart()
	case 10:
		if host := n.randomClient(func(p *player) bool { return p.host == nil }); host != nil && n.size(host) < playMost {
			n.join(host, host.version)
			return "one joins " + host.name
		}
	}
	return "nothing"
}

// settle lets time pass until everybody is where the relay knows, so that two
// silences do not add up to one at which an allocation ends.
func (n *netsim) settle() {
	n.weather = networkConditions{delay: 20, jitter: 30}
	for range backMillis / 100 {
		known := true
		for _, p := range n.players {
			e := n.entry(p.reservation)
			known = known && (!p.isAlive() || e.Endpoint == p.ep)
		}
		if n.pass(100 * time.Millisecond); known && n.now > n.darkUntil+1000 {
			return
		}
	}
}

// reuse gives the address of one client to another, as translators do.
func (n *netsim) reuse(p, before *player) string {
	if p == nil || before == nil || p == before {
		return "nothing"
	}
	// In a bad network a client whose address was taken may lose three BINDs,
	// meet silence for ten seconds, and have ended by then.
	n.settle()
	ep := before.ep
	n.move(before, n.address())
	n.move(p, ep)
	n.pass(2 * time.Second)
	return p.name + " gets the address of " + before.name
}

// depart is when somebody quits, leaves, or is kicked.
func (n *netsim) depart() string {
	p := n.randomClient(func(p *player) bool { return p.host != nil && len(p.peers) > 0 })
	if p == nil || n.size(p.host) < 2 {
		return "nothing"
	}
	n.leavers[p.reservation.id] = true
	switch n.rnd.IntN(3) {
	case 0:
		p.hasQuit = true
		p.host.forget(p.reservation.id)
		return p.name + " quits"
	case 1:
		p.left = true
		p.leave(p.host.reservation.id)
		p.host.forget(p.reservation.id)
		return p.name + " leaves"
	}
	p.left = true
	p.host.leave(p.reservation.id)
	return p.name + " is kicked"
}

func (n *netsim) size(host *player) (k int) {
	for _, p := range n.players {
		if p.host == host && p.isAlive() {
			k++
		}
	}
	return k
}

// quietPeriod lets time pass until everybody is in touch again, and then some.
func (n *netsim) quietPeriod() (slowest int64) {
	n.weather = networkConditions{delay: 20, jitter: 60, dup: 3}
	begun := max(n.now, n.stallUntil, n.downUntil, n.darkUntil)
	for _, p := range n.players {
		p.backAt = 0
	}
	for n.now < begun+calmMillis {
		n.pass(100 * time.Millisecond)
		for _, p := range n.players {
			if p.backAt == 0 && p.isAlive() && p.isInTouch(begun) {
				p.backAt = n.now
				slowest = max(slowest, n.now-begun)
			}
		}
	}
	for _, p := range n.players {
		switch {
		case !p.isAlive():
		case p.backAt == 0 || p.backAt > begun+backMillis:
			n.fail("%v is back after %d ms", p, p.backAt-begun)
		case !p.isInTouch(n.now - 3000):
			n.fail("%v was back and has lost touch", p)
		}
	}
	return slowest
}

// end lets everybody quit, and looks at what is left.
func (n *netsim) end() {
	for _, p := range n.players {
		p.hasQuit = true
	}
	n.air = nil
	n.pass(100 * time.Second)
	if all, bound, links := n.shared.table.Counts(); all != 0 || bound != 0 || links != 0 || !n.control.queue.empty() {
		n.fail("100 s after the last client: %d allocations, %d bound, %d links, deeds: %v", all, bound, links, !n.control.queue.empty())
	}
	for i, size := range n.control.wheel.sizes {
		if size != 0 {
			n.fail("%d are left in bucket %d", size, i)
		}
	}
	for _, b := range n.control.inboxes {
		if b.rings[known].size()+b.rings[fresh].size() != 0 {
			n.fail("commands are left")
		}
	}
	if r := &n.control.recovery; len(r.records) != 0 || !r.over {
		n.fail("%d records of before are left", len(r.records))
	}
	n.checker.add(n)
}

// TestPlayers plays matches of clients of both generations over a bad network
// and a relay that stands still, dies and comes back; what no relay may do fails
// it, and so does a client that is not back in time.
func TestPlayers(t *testing.T) {
	t.Parallel()
	rounds, seed := *playRounds, *playSeed
	if seed == 0 {
		seed = randomSeed(rounds)
	}
	if rounds == 0 {
		if rounds = 60; testkit.RaceEnabled || testing.Short() {
			rounds = 12
		}
	}
	var slowest int64
	var received uint64
	for i := range uint64(rounds+stepsPerSeed-1) / stepsPerSeed {
		back, n := playOne(t, seed+i)
		slowest, received = max(slowest, back), received+n
	}
	t.Logf("%d datagrams, everybody in touch again %d ms after each trouble", received, slowest)
}

// stepsPerSeed is how many rounds of trouble and calm one relay has.
const stepsPerSeed = 6

// playOne plays what one seed says, and returns after how many milliseconds
// everybody was in touch again at the latest, and how many datagrams there were.
func playOne(t *testing.T, seed uint64) (slowest int64, received uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("run with -players.rounds=%d -players.seed=%d", stepsPerSeed, seed)
		}
	}()
	n := newNetsim(t, seed)
	for k := range playMatches {
		host := n.join(nil, 1+k%2)
		for range 3 {
			n.join(host, host.version)
		}
	}
	slowest = n.quietPeriod()
	for range stepsPerSeed {
		n.events = nil
		for range 1 + n.rnd.IntN(4) {
			n.record(n.faults())
			n.pass(time.Duration(n.rnd.IntN(4000)) * time.Millisecond)
		}
		slowest = max(slowest, n.quietPeriod())
	}
	n.end()
	return slowest, n.checker.received
}
