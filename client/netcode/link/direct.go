package link

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// errReserved is a datagram that the other side would take for a signal.
var errReserved = errors.New("link: datagram begins with reserved bytes")

// directCounts is what the direct paths of a link have counted.
type directCounts struct {
	Sent, Received  uint64 // datagrams of the game
	Validated, Lost uint64 // paths
	Probes          uint64 // challenges to addresses that were not validated
	Refused         uint64 // offered addresses that are never challenged
	Malformed       uint64 // signals that were no signals
	Dropped         uint64 // datagrams and probes that came to the socket from no known path
}

const (
	// maxPolls bounds what one Receive reads of datagrams that are not for the caller.
	maxPolls = 256
	// probesPerSecond bounds the challenges to all addresses that are not validated.
	probesPerSecond = 512
	// localPeriod is how long the addresses of the interfaces are remembered.
	localPeriod = 10 * time.Second
)

// directLink is a link over a relay whose datagrams take a direct path to each peer that can be
// reached. See the package documentation.
type directLink struct {
	relay   Link
	socket  Link
	servers []netip.AddrPort // the relay's own addresses, if known
	local   netip.AddrPort   // of the socket
	extra   []netip.AddrPort

	now    time.Time
	peers  map[address.Addr]*directPeer
	order  []*directPeer // the same, as they joined
	byID   map[uint64]*directPeer
	byPath map[address.Addr]*directPeer

	turn        bool  // the socket is asked first
	held        Event // a Left that waits until the socket was read
	heldPolls   int
	socketEnded bool

	offered      [maxOffered]netip.AddrPort
	offeredCount int
	offeredAt    time.Time

	probes perSecond
	counts directCounts
	parsed offer
	signal [maxOffer]byte
	sum    [64]byte
}

var _ Link = (*directLink)(nil)

// OpenDirect returns a link over a relay's link and a socket, which it then owns. The relay
// carries everything until there is a direct path, and the offers; it must report Joined and
// Left, and must authenticate the senders. The socket, such as one of OpenUDP, is for the direct
// paths alone. If it is bound to an unspecified address, the addresses of the machine's
// interfaces are offered, after addrs: further addresses under which the socket may be reached,
// such as that of a port that a router forwards. Four are offered in all.
//
// Send refuses datagrams that begin with the bytes fe 64 69 72, which are signals of the link
// itself; no packet of package netcode does.
//
// Errors: ErrAddr if a link is missing or the socket has no UDP address; both remain the
// caller's then.
func OpenDirect(relay, socket Link, addrs ...netip.AddrPort) (Link, error) {
	if relay == nil || socket == nil {
		return nil, ErrAddr
	}
	local, ok := socket.Local().UDP()
	if !ok {
		return nil, ErrAddr
	}
	d := &directLink{
		relay: relay, socket: socket, local: local, extra: addrs,
		peers:  make(map[address.Addr]*directPeer),
		byID:   make(map[uint64]*directPeer),
		byPath: make(map[address.Addr]*directPeer),
	}
	if r, ok := relay.(*relayLink); ok {
		d.servers = r.servers
	}
	return d, nil
}

// permits reports whether an address of the other side may be challenged.
func (d *directLink) permits(ap netip.AddrPort) bool {
	ip := ap.Addr()
	switch {
	case !ip.IsValid(), ap.Port() == 0, slices.Contains(d.servers, ap), ip.IsUnspecified(), ip.IsMulticast(),
		ip.IsLinkLocalUnicast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return false
	}
	return !ip.IsLoopback() || d.local.Addr().IsLoopback()
}

// refreshOffered looks which addresses this side has.
func (d *directLink) refreshOffered() {
	d.offeredCount, d.offeredAt = 0, d.now
	for _, ap := range d.extra {
		d.offerAddr(ap)
	}
	if !d.local.Addr().IsUnspecified() {
		d.offerAddr(d.local)
		return
	}
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return // The other side may still be reachable.
	}
	for _, n := range nets {
		prefix, err := netip.ParsePrefix(n.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() && prefix.Addr().Is4() == d.local.Addr().Is4() {
			d.offerAddr(netip.AddrPortFrom(prefix.Addr(), d.local.Port()))
		}
	}
}

func (d *directLink) offerAddr(ap netip.AddrPort) {
	ap = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	if ap.IsValid() && ap.Port() != 0 && d.offeredCount < maxOffered {
		d.offered[d.offeredCount] = ap
		d.offeredCount++
	}
}

func (d *directLink) Advance(now time.Time) {
	if now.After(d.now) {
		d.now = now
	}
	d.relay.Advance(now)
	d.socket.Advance(now)
}

// Receive returns what came over the relay and over direct paths, in turn.
func (d *directLink) Receive(b []byte) Event {
	for polls, idle := 0, 0; polls < maxPolls && idle < 2; polls++ {
		d.turn = !d.turn
		var ev Event
		switch {
		case d.turn:
			ev = d.socket.Receive(b)
			if d.held.Kind != Nothing && (ev.Kind == Nothing || d.heldPolls >= maxPolls) {
				left := d.held
				d.held = Event{}
				d.forget(left.Addr)
				return left
			}
			d.heldPolls++
		case d.held.Kind == Nothing:
			ev = d.relay.Receive(b)
		}
		if ev.Kind == Nothing {
			idle++
			continue
		}
		idle = 0
		if d.turn {
			ev = d.fromSocket(ev, b)
		} else {
			ev = d.fromRelay(ev, b)
		}
		if ev.Kind != Nothing {
			return ev
		}
	}
	return Event{}
}

// fromSocket returns what of the socket is for the caller.
func (d *directLink) fromSocket(ev Event, b []byte) Event {
	switch {
	case ev.Kind == Ended:
		d.socketEnded = true
		for _, p := range d.byPath {
			d.losePath(p)
		}
		return Event{}
	case ev.Kind != Datagram:
		return Event{}
	case isSignal(b[:ev.N]):
		d.onProbe(ev.Addr, b[:ev.N])
		return Event{}
	}
	p := d.byPath[ev.Addr]
	if p == nil {
		d.counts.Dropped++
		return Event{}
	}
	d.counts.Received++
	ev.Addr = p.at
	return ev
}

// fromRelay returns what of the relay is for the caller. A Left waits until the socket has
// been read, since the last datagrams of the peer may be there.
func (d *directLink) fromRelay(ev Event, b []byte) Event {
	p := d.peers[ev.Addr]
	switch {
	case ev.Kind == Joined && p == nil:
		d.join(ev.Addr)
	case ev.Kind == Left && p != nil && p.hasPath():
		d.held, d.heldPolls = ev, 0
		return Event{}
	case ev.Kind == Left:
		d.forget(ev.Addr)
	case ev.Kind == Datagram && isSignal(b[:ev.N]):
		if p == nil {
			d.counts.Malformed++
		} else {
			d.onOffer(p, b[:ev.N])
		}
		return Event{}
	}
	return ev
}

func (d *directLink) join(at address.Addr) {
	p := newDirectPeer(d.relay.Local(), at)
	d.peers[at] = p
	d.byID[p.own.id] = p
	d.order = append(d.order, p)
}

// forget takes a peer out.
func (d *directLink) forget(at address.Addr) {
	p := d.peers[at]
	if p == nil {
		return
	}
	delete(d.peers, at)
	delete(d.byID, p.own.id)
	if p.hasPath() {
		delete(d.byPath, p.path.addr)
	}
	i := slices.Index(d.order, p)
	d.order = slices.Delete(d.order, i, i+1)
}

func (d *directLink) Send(to address.Addr, b []byte) error {
	switch {
	case isSignal(b):
		return errReserved
	case len(b) > MaxDatagram:
		return ErrTooLarge
	}
	if p := d.peers[to]; p != nil && p.usable() {
		if d.socket.Send(p.path.addr, b) == nil {
			d.counts.Sent++
			return nil
		}
		d.losePath(p)
	}
	return d.relay.Send(to, b)
}

// Flush runs the timers of the paths and flushes both links.
func (d *directLink) Flush() {
	if len(d.order) > 0 && (d.offeredAt.IsZero() || d.now.Sub(d.offeredAt) >= localPeriod) {
		d.refreshOffered()
	}
	for _, p := range d.order {
		d.tick(p)
	}
	d.socket.Flush()
	d.relay.Flush()
}

func (d *directLink) Dial() error { return d.relay.Dial() }

func (d *directLink) Disconnect(peer address.Addr) {
	d.socket.Flush()
	d.forget(peer)
	if d.held.Addr == peer {
		d.held = Event{}
	}
	d.relay.Disconnect(peer)
}

func (d *directLink) Local() address.Addr { return d.relay.Local() }

// Overhead is that of the relay, which may carry any datagram.
func (d *directLink) Overhead() int { return d.relay.Overhead() }

// Stats returns the sum of both links, including offers and probes.
func (d *directLink) Stats() Stats {
	st := d.relay.Stats()
	st.add(d.socket.Stats())
	for _, p := range d.order {
		if p.usable() {
			st.DirectPaths++
		}
	}
	st.DirectSent, st.DirectReceived = d.counts.Sent, d.counts.Received
	st.Discarded += d.counts.Malformed + d.counts.Dropped
	return st
}

func (d *directLink) Close() error {
	return errors.Join(d.socket.Close(), d.relay.Close())
}
