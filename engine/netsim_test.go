package engine

import (
	"bytes"
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/habits"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// A network in virtual time, between one relay and many clients: it loses,
// delays, reorders and duplicates, and gives the address of one client to
// another. What it does is drawn from a seed.

type flight struct {
	at      int64 // ms; when it arrives
	seq     int
	toRelay bool
	client  endpoint.Endpoint // where it comes from, or goes to
	pkt     []byte
}

type flights []flight

func (f flights) Len() int      { return len(f) }
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].seq < f[j].seq
}
func (f *flights) Push(x any) { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}

type networkConditions struct{ loss, dup, delay, jitter int }

// netsim belongs to the test's goroutine.
type netsim struct {
	*rig
	rnd     *rand.Rand
	weather networkConditions
	air     flights
	seq     int
	ports   int
	at      map[endpoint.Endpoint]*player // the client at each address
	players []*player
	events  []string     // of the round
	leavers map[mID]bool // clients that have left

	downUntil  int64    // ms; the relay does not run before
	stallUntil int64    // ms; it stands still before
	darkUntil  int64    // ms; nothing gets through before
	backlog    []flight // in its receive queue meanwhile
	checker    ruleChecker
}

func (n *netsim) fail(format string, args ...any) {
	n.t.Helper()
	n.t.Fatalf("at %d ms: %s\nwhat happened:\n%s", n.now-clockStart, fmt.Sprintf(format, args...), strings.Join(n.events, "\n"))
}

func (n *netsim) address() endpoint.Endpoint {
	n.ports++
	ip := netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + n.ports/6)})
	return endpoint.UDP(netip.AddrPortFrom(ip, uint16(20_000+n.ports)), 0, 0)
}

func (n *netsim) move(p *player, to endpoint.Endpoint) {
	if n.at[p.ep] == p {
		delete(n.at, p.ep)
	}
	p.ep, n.at[to] = to, p
}

func (n *netsim) schedule(f flight) {
	if n.rnd.IntN(100) < n.weather.loss || n.now < n.darkUntil {
		return
	}
	for again := true; again; again = n.rnd.IntN(100) < n.weather.dup {
		n.seq++
		f.seq, f.at = n.seq, n.now+1+int64(n.weather.delay+n.rnd.IntN(n.weather.jitter+1))
		heap.Push(&n.air, f)
	}
}

func (n *netsim) pass(d time.Duration) {
	for end := n.now + d.Milliseconds(); n.now < end; {
		n.now++
		for len(n.air) > 0 && n.air[0].at <= n.now {
			n.deliver(heap.Pop(&n.air).(flight))
		}
		if n.now >= n.stallUntil && n.now >= n.downUntil {
			for _, f := range n.backlog {
				n.relayGets(f)
			}
			n.backlog = nil
			if n.now%25 == 0 {
				n.pump()
				n.emit(nil)
			}
		}
		for i, p := range n.players {
			if (n.now+int64(i)*7)%50 == 0 && !p.paused && !p.hasQuit {
				p.update()
			}
		}
		if n.now%1000 == 0 {
			n.checker.check(n)
		}
	}
}

func (n *netsim) deliver(f flight) {
	if f.toRelay {
		switch {
		case n.now < n.downUntil:
		case n.now < n.stallUntil:
			n.backlog = append(n.backlog, f)
		default:
			n.relayGets(f)
		}
		return
	}
	if p := n.at[f.client]; p != nil && !p.paused && !p.hasQuit {
		p.handle(f.pkt)
	}
}

func (n *netsim) relayGets(f flight) {
	n.feed(f.client, f.pkt)
	n.emit(&f)
}

func (n *netsim) emit(cause *flight) {
	out := n.take()
	n.checker.sent(n, cause, out)
	for _, o := range out {
		n.schedule(flight{client: o.to, pkt: o.pkt})
	}
}

func (n *netsim) crash(file bool, down time.Duration) {
	if n.control.stateFile == nil { // the first run has no file
		file = false
	}
	n.checker.add(n)
	for _, p := range n.players {
		// Without a state file only the host restores a link, and that of one that is so
		// young does not know of it; the player asks no more.
		if !file && p.host != nil && n.entry(p.reservation).Link != 0 && p.host.peers[p.reservation.id] == nil {
			p.hasQuit, n.leavers[p.reservation.id] = true, true
		}
	}
	n.restart(file)
	clear(n.checker.errors) // budgets restart
	n.downUntil = n.now + down.Milliseconds()
	n.shared.rules.recoverUntil += down.Milliseconds()
	n.control.pause.lastRun = n.downUntil
	n.backlog = nil
	n.stallUntil = 0
	if !file {
		n.checker.nonces = map[mID]binding{}
	}
}

type ruleChecker struct {
	nonces           map[mID]binding // where each was when it was last looked at
	errors           map[errorTo]int64
	prefixes         map[netip.Addr]int // ERRORs to an IP, but 1 and 3
	received, counts uint64             // in runs that have ended
}

type binding struct {
	at    endpoint.Endpoint
	nonce uint16
}

type errorTo struct {
	to   endpoint.Endpoint
	code byte
}

// sent holds what one datagram caused, or time did, against the rules of
// replies: I1, I2, I7, I12, I13.
func (l *ruleChecker) sent(n *netsim, cause *flight, out []sending) {
	replies := 0
	for _, o := range out {
		relayed := o.pkt[3] == 10 || o.pkt[3] == 9
		replies++
		switch {
		case o.pkt[3] == 12 && o.pkt[20] == 1: // an end, which time brought about
			replies--
		case cause == nil && o.pkt[3] != 9:
			n.fail("type %d to %v for nothing", o.pkt[3], o.to)
		case cause != nil && len(o.pkt) > len(cause.pkt):
			n.fail("%d bytes for %d", len(o.pkt), len(cause.pkt))
		case cause != nil && o.to != cause.client && !relayed:
			n.fail("type %d to %v for a datagram from %v", o.pkt[3], o.to, cause.client)
		}
		if o.pkt[3] == 10 {
			l.relayed(n, cause, o)
		}
		if o.pkt[3] == 12 {
			l.erred(n, o)
		}
		for _, p := range n.players {
			if len(o.pkt) >= 36 && bytes.Contains(o.pkt, p.reservation.key[:16]) {
				n.fail("a key in type %d", o.pkt[3])
			}
		}
	}
	// A DISCONNECT goes to both, and a CONNECT_REQUEST may take the place of another link.
	if cause != nil && replies > 1 && (replies > 2 || cause.pkt[3] != 9 && cause.pkt[3] != 3) {
		n.fail("%d datagrams for one", replies)
	}
}

func (l *ruleChecker) relayed(n *netsim, cause *flight, o sending) {
	if cause == nil || !bytes.Equal(o.pkt, cause.pkt) {
		n.fail("a RELAY that differs from the one received")
	}
	from, to := n.shared.table, mID(o.pkt[20:36])
	var sender, peer table.Entry
	if !from.FindByEndpoint(cause.client, &sender) || mID(sender.ID) != mID(o.pkt[4:20]) {
		n.fail("a RELAY from an id that is not there")
	}
	if id := proto.AllocationID(to); !from.FindPeer(&sender, &id, &peer) || peer.Endpoint != o.to {
		n.fail("a RELAY to %v, which is no peer there", o.to)
	}
}

func (l *ruleChecker) erred(n *netsim, o sending) {
	key := errorTo{o.to, o.pkt[20]}
	if last, ok := l.errors[key]; ok && n.now-last < 200 && key.code != 1 {
		n.fail("two ERROR %d to %v within %d ms", key.code, o.to, n.now-last)
	}
	l.errors[key] = n.now
	if key.code != 1 && key.code != 3 {
		ip := o.to.AddrPort().Addr()
		if l.prefixes[ip]++; int64(l.prefixes[ip]) > 20*int64(n.run+1)+(n.now-clockStart)/100 {
			n.fail("%d ERRORs to %v", l.prefixes[ip], ip)
		}
	}
}

// check holds the state against the rules of state: I3 to I6.
func (l *ruleChecker) check(n *netsim) {
	links, bound, total := map[mID]int{}, 0, 0
	for _, p := range n.players {
		e := n.entry(p.reservation)
		if e.Handle == 0 {
			continue
		}
		if total++; !e.Endpoint.IsZero() {
			bound++
			var back table.Entry
			if !n.shared.table.FindByEndpoint(e.Endpoint, &back) || back.Handle != e.Handle {
				n.fail("%s is not the one at its endpoint", p.name)
			}
		}
		was, known := l.nonces[p.reservation.id]
		if known && e.Nonce < was.nonce || known && !e.Endpoint.IsZero() && e.Endpoint != was.at && e.Nonce == was.nonce && !was.at.IsZero() {
			n.fail("%s went from %v, nonce %d, to %v, nonce %d", p.name, was.at, was.nonce, e.Endpoint, e.Nonce)
		}
		l.nonces[p.reservation.id] = binding{e.Endpoint, e.Nonce}
		if host, ok := n.shared.table.At(e.Link); ok {
			if mID(host.ID) != p.reservation.match {
				n.fail("%s is linked to another match", p.name)
			}
			links[p.reservation.match]++
		}
	}
	sum := 0
	for _, p := range n.players {
		if e := n.entry(p.reservation); e.Handle != 0 && p.host == nil {
			a := n.shared.table.Account(e.Handle)
			if sum += int(a.Links); int(a.Links) != links[p.reservation.id] || a.Links > a.MaxConnections {
				n.fail("%s has %d links, counts %d of %d", p.name, links[p.reservation.id], a.Links, a.MaxConnections)
			}
		}
	}
	if all, at, open := n.shared.table.Counts(); all != total || at != bound || open != sum {
		n.fail("counts %d, %d, %d, want %d, %d, %d", all, at, open, total, bound, sum)
	}
}

func (l *ruleChecker) add(n *netsim) {
	n.pump()
	n.emit(nil)
	for _, w := range n.workers {
		l.received += w.counts.received
	}
	for o := range numOutcomes {
		l.counts += n.counted(o)
	}
	if l.received != l.counts {
		n.fail("%d outcomes for %d datagrams", l.counts, l.received)
	}
}

var (
	playRounds = flag.Int("players.rounds", 0, "simulated rounds of trouble and calm, of about a minute each; 0: 60, or 12 with the race detector or -short")
	playSeed   = flag.Uint64("players.seed", 0, "first seed; 0: by the clock if -players.rounds is given, else 1")
)

const (
	playMatches = 5
	playMost    = 5 // players of a match

	// calmMillis is how long it is quiet after trouble, and backMillis within
	// which all clients must be connected again: three silent PING periods of the
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

func (n *netsim) join(host *player, kind habits.Kind) *player {
	habit := habits.Habit{Name: kind.Name, Kind: kind, Ping: [...]time.Duration{habits.NGOPing, 3 * time.Second}[n.rnd.IntN(2)]}
	name := fmt.Sprint("host ", len(n.players))
	if host != nil {
		name = fmt.Sprint("player ", len(n.players), " of ", host.name)
	}
	p, err := n.enter(name, habit, host, 2*playMost)
	// ErrNotFound: a file that is new knows nothing of hosts to come.
	if err != nil && (host == nil || !n.shared.recovering(n.now) || !errors.Is(err, alloc.ErrUnavailable) &&
		!errors.Is(err, alloc.ErrNotFound)) {
		n.fail("%s: %v", name, err)
	}
	return p
}

func (n *netsim) enter(name string, habit habits.Habit, host *player, seats int) (*player, error) {
	role, of := alloc.RoleHost, (*mReservation)(nil)
	if host != nil {
		role, of = alloc.RoleJoiner, host.reservation
	}
	card, err := n.reserve(role, of, name, seats)
	if err != nil {
		return nil, err
	}
	p := newPlayer(n, name, habit, host, card)
	n.at[p.ep] = p
	n.players = append(n.players, p)
	return p, nil
}

func (n *netsim) randomClient(fits func(*player) bool) *player {
	for range 20 {
		if p := n.players[n.rnd.IntN(len(n.players))]; p.isAlive() && fits(p) {
			return p
		}
	}
	return nil
}

func (n *netsim) record(what string) {
	n.events = append(n.events, fmt.Sprintf("%8d ms: %s", n.now-clockStart, what))
}

func (n *netsim) faults() string {
	second := func(k int) time.Duration { return time.Duration(n.rnd.IntN(k*1000)) * time.Millisecond }
	modern := func(p *player) bool { return p.Kind.RaisesNonce && p.Status == habits.Bound }
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
		return n.reuse(n.randomClient(modern), n.randomClient(func(p *player) bool { return p.Kind.RaisesNonce || p.hasQuit }))
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
			n.join(host, host.Kind)
			return "one joins " + host.name
		}
	}
	return "nothing"
}

// settle lets time pass until the relay knows the address of every client, so that two
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

func (n *netsim) depart() string {
	p := n.randomClient(func(p *player) bool { return p.host != nil && len(p.Peers) > 0 })
	if p == nil || n.size(p.host) < 2 {
		return "nothing"
	}
	n.leavers[p.reservation.id] = true
	switch n.rnd.IntN(3) {
	case 0:
		p.hasQuit = true
		p.host.Forget(p.reservation.id)
		return p.name + " quits"
	case 1:
		p.Leave(p.clock(), p.host.reservation.id, false)
		p.Left = true
		p.host.Forget(p.reservation.id)
		return p.name + " leaves"
	}
	p.Left = true
	p.host.Leave(p.clock(), p.reservation.id, false)
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

func (n *netsim) end() {
	for _, p := range n.players {
		p.hasQuit = true
	}
	n.air = nil
	n.pass(100 * time.Second)
	if all, bound, links := n.shared.table.Counts(); all != 0 || bound != 0 || links != 0 || n.control.queue.len() != 0 {
		n.fail("100 s after the last client: %d allocations, %d bound, %d links, actions: %v", all, bound, links, n.control.queue.len() != 0)
	}
	for i, size := range n.control.wheel.sizes {
		if size != 0 {
			n.fail("%d are left in bucket %d", size, i)
		}
	}
	for _, w := range n.workers {
		if b := w.inbox; b.rings[known].size()+b.rings[fresh].size() != 0 {
			n.fail("commands are left")
		}
	}
	if r := &n.control.recovery; len(r.records) != 0 || !r.over {
		n.fail("%d records of before are left", len(r.records))
	}
	n.checker.add(n)
}

// TestPlayers plays matches over a bad network and a relay that stands still, dies and comes back.
func TestPlayers(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
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
	t.Logf("%d datagrams, all clients connected again %d ms after each fault", received, slowest)
}

// stepsPerSeed is how many rounds of trouble and calm one relay has.
const stepsPerSeed = 6

// playOne plays what one seed says, and returns after how many milliseconds
// all clients were connected again at the latest, and how many datagrams there were.
func playOne(t *testing.T, seed uint64) (slowest int64, received uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("run with -players.rounds=%d -players.seed=%d", stepsPerSeed, seed)
		}
	}()
	n := newNetsim(t, seed)
	for k := range playMatches {
		host := n.join(nil, []habits.Kind{habits.UTP1(), habits.UTP27()}[k%2])
		for range 3 {
			n.join(host, host.Kind)
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
