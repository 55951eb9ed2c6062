package engine

// A network in virtual time, between one relay and many clients: it loses,
// delays, reorders and duplicates, and gives the address of one client to
// another. What it does is drawn from a seed.

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// flight is a datagram on its way, to the relay or from it.
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

// networkConditions is how bad the network is, in parts of a hundred, and milliseconds.
type networkConditions struct{ loss, dup, delay, jitter int }

// netsim belongs to the test's goroutine.
type netsim struct {
	*rig
	rnd     *rand.Rand
	weather networkConditions
	air     flights
	seq     int
	ports   int
	at      map[endpoint.Endpoint]*player // who is behind an address
	players []*player
	events  []string     // of the round
	leavers map[mID]bool // who has left, and is not met again

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

// address returns one that nobody had; half a dozen share an IP.
func (n *netsim) address() endpoint.Endpoint {
	n.ports++
	ip := netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + n.ports/6)})
	return endpoint.UDP(netip.AddrPortFrom(ip, uint16(20_000+n.ports)), 0, 0)
}

// move puts a player behind another address.
func (n *netsim) move(p *player, to endpoint.Endpoint) {
	if n.at[p.ep] == p {
		delete(n.at, p.ep)
	}
	p.ep, n.at[to] = to, p
}

// schedule lets a datagram fly.
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

// pass lets time pass.
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

// deliver is the arrival of a datagram.
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

// emit sends on what the relay sent, after a look at whether it may.
func (n *netsim) emit(cause *flight) {
	out := n.take()
	n.checker.sent(n, cause, out)
	for _, o := range out {
		n.schedule(flight{client: o.to, pkt: o.pkt})
	}
}

// crash ends the relay's process; another one runs after a while.
func (n *netsim) crash(file bool, down time.Duration) {
	if n.control.stateFile == nil { // the first run has no file
		file = false
	}
	n.checker.add(n)
	for _, p := range n.players {
		// The host of a link that is so young does not know of it, and will not
		// restore it; the player asks no more.
		if p.host != nil && n.entry(p.reservation).Link != 0 && p.host.peers[p.reservation.id] == nil {
			p.hasQuit, n.leavers[p.reservation.id] = true, true
		}
	}
	n.restart(file)
	clear(n.checker.errors) // budgets begin anew
	n.downUntil = n.now + down.Milliseconds()
	n.shared.rules.recoverUntil += down.Milliseconds()
	n.control.pause.lastRun = n.downUntil
	n.backlog = nil
	n.stallUntil = 0
	if !file {
		n.checker.nonces = map[mID]binding{}
	}
}

// checker is what must hold of all that the relay does (reliability-security.md,
// 9.2).
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
	if cause != nil && replies > 1 && (replies > 2 || cause.pkt[3] != 9) {
		n.fail("%d datagrams for one", replies)
	}
}

func (l *ruleChecker) relayed(n *netsim, cause *flight, o sending) {
	if cause == nil || !bytes.Equal(o.pkt, cause.pkt) {
		n.fail("a RELAY that nobody sent so")
	}
	from, to := n.shared.table, mID(o.pkt[20:36])
	var sender, peer table.Entry
	if !from.FindByEndpoint(cause.client, &sender) || mID(sender.ID) != mID(o.pkt[4:20]) {
		n.fail("a RELAY from who is not there")
	}
	if id := proto.AllocationID(to); !from.FindPeer(&sender, &id, &peer) || peer.Endpoint != o.to {
		n.fail("a RELAY to %v, who is not a peer there", o.to)
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

// add takes what a run counted before it ends (I9).
func (l *ruleChecker) add(n *netsim) {
	n.pump()
	n.emit(nil)
	for _, w := range n.workers {
		l.received += w.counts.received
	}
	for o := range NumOutcomes {
		l.counts += n.counted(o)
	}
	if l.received != l.counts {
		n.fail("%d outcomes for %d datagrams", l.counts, l.received)
	}
}
