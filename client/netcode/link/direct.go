package link

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// DirectConfig configures a Direct.
type DirectConfig struct {
	// Relay carries everything until there is a direct path, and the offers. It must report
	// Joined and Left, as a *Relay does, and must authenticate the senders.
	Relay Link
	// Socket is for the direct paths alone, such as one of OpenUDP. If it is bound to an
	// unspecified address, the addresses of the machine's interfaces are offered.
	Socket Link
	// Addrs are further addresses under which Socket may be reached, such as that of a port
	// that a router forwards. They are offered first; four are offered in all.
	Addrs []netip.AddrPort
}

// DirectStats is what a Direct has counted besides its Stats.
type DirectStats struct {
	Paths           int    // peers that datagrams reach directly now
	Sent, Received  uint64 // datagrams of the game over direct paths
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

// Direct is a link over a relay whose datagrams take a direct path to each peer that can be
// reached. See the package documentation.
type Direct struct {
	relay  Link
	socket Link
	server netip.AddrPort // the relay's own address, if known
	local  netip.AddrPort // of the socket
	extra  []netip.AddrPort

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

	second time.Time
	probes int // in this second

	counts DirectStats
	parsed offer
	signal [maxOffer]byte
	sum    [64]byte
}

var _ Link = (*Direct)(nil)

// OpenDirect returns a link over a relay and a socket, which it then owns. Errors: ErrAddr if
// one is missing or the socket has no UDP address; both remain the caller's then.
func OpenDirect(cfg DirectConfig) (*Direct, error) {
	if cfg.Relay == nil || cfg.Socket == nil {
		return nil, ErrAddr
	}
	local, ok := cfg.Socket.Local().UDP()
	if !ok {
		return nil, ErrAddr
	}
	d := &Direct{
		relay: cfg.Relay, socket: cfg.Socket, local: local, extra: cfg.Addrs,
		peers:  make(map[address.Addr]*directPeer),
		byID:   make(map[uint64]*directPeer),
		byPath: make(map[address.Addr]*directPeer),
	}
	if r, ok := cfg.Relay.(*Relay); ok {
		d.server = r.server
	}
	return d, nil
}

// permits reports whether an address of the other side may be challenged.
func (d *Direct) permits(ap netip.AddrPort) bool {
	ip := ap.Addr()
	switch {
	case !ip.IsValid(), ap.Port() == 0, ap == d.server, ip.IsUnspecified(), ip.IsMulticast(),
		ip.IsLinkLocalUnicast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return false
	}
	return !ip.IsLoopback() || d.local.Addr().IsLoopback()
}

// takeProbe counts the challenges of this second.
func (d *Direct) takeProbe() bool {
	if d.now.Sub(d.second) >= time.Second {
		d.second, d.probes = d.now, 0
	}
	if d.probes >= probesPerSecond {
		return false
	}
	d.probes++
	d.counts.Probes++
	return true
}

// refreshOffered looks which addresses this side has.
func (d *Direct) refreshOffered() {
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

func (d *Direct) offerAddr(ap netip.AddrPort) {
	ap = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	if ap.IsValid() && ap.Port() != 0 && d.offeredCount < maxOffered {
		d.offered[d.offeredCount] = ap
		d.offeredCount++
	}
}

// Advance sets the time of both links.
func (d *Direct) Advance(now time.Time) {
	if now.After(d.now) {
		d.now = now
	}
	d.relay.Advance(now)
	d.socket.Advance(now)
}

// Receive returns what came over the relay and over direct paths, in turn.
func (d *Direct) Receive(b []byte) Event {
	for polls, idle := 0, 0; polls < maxPolls && idle < 2; polls++ {
		d.turn = !d.turn
		var ev Event
		switch {
		case d.turn:
			ev = d.socket.Receive(b)
			if d.held.Kind != Nothing && (ev.Kind == Nothing || d.heldPolls >= maxPolls) {
				return d.release()
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

// release returns the Left that was held.
func (d *Direct) release() Event {
	ev := d.held
	d.held = Event{}
	d.forget(ev.Addr)
	return ev
}

// fromSocket returns what of the socket is for the caller.
func (d *Direct) fromSocket(ev Event, b []byte) Event {
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
func (d *Direct) fromRelay(ev Event, b []byte) Event {
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

func (d *Direct) join(at address.Addr) {
	p := newDirectPeer(d.relay.Local(), at)
	d.peers[at] = p
	d.byID[p.own.id] = p
	d.order = append(d.order, p)
}

// forget takes a peer out.
func (d *Direct) forget(at address.Addr) {
	p := d.peers[at]
	if p == nil {
		return
	}
	delete(d.peers, at)
	delete(d.byID, p.own.id)
	if p.hasPath() {
		delete(d.byPath, p.path.addr)
	}
	for i, other := range d.order {
		if other == p {
			d.order = append(d.order[:i], d.order[i+1:]...)
			break
		}
	}
}

// Send sends b over the direct path to a peer if there is one, and over the relay otherwise.
// Beyond the errors of the relay: ErrReserved.
func (d *Direct) Send(to address.Addr, b []byte) error {
	switch {
	case isSignal(b):
		return ErrReserved
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
func (d *Direct) Flush() {
	if len(d.order) > 0 && (d.offeredAt.IsZero() || d.now.Sub(d.offeredAt) >= localPeriod) {
		d.refreshOffered()
	}
	for _, p := range d.order {
		d.tick(p)
	}
	d.socket.Flush()
	d.relay.Flush()
}

// Dial is that of the relay.
func (d *Direct) Dial() error { return d.relay.Dial() }

// Disconnect ends the path to a peer and its connection on the relay.
func (d *Direct) Disconnect(peer address.Addr) {
	d.socket.Flush()
	d.forget(peer)
	if d.held.Addr == peer {
		d.held = Event{}
	}
	d.relay.Disconnect(peer)
}

// Local returns the address on the relay.
func (d *Direct) Local() address.Addr { return d.relay.Local() }

// Overhead is that of the relay, which may carry any datagram.
func (d *Direct) Overhead() int { return d.relay.Overhead() }

// Stats returns the sum of both links, including offers and probes.
func (d *Direct) Stats() Stats {
	st := d.relay.Stats()
	st.add(d.socket.Stats())
	return st
}

// DirectStats returns the counters of the direct paths.
func (d *Direct) DirectStats() DirectStats {
	st := d.counts
	for _, p := range d.order {
		if p.usable() {
			st.Paths++
		}
	}
	return st
}

// Close closes the socket and the relay.
func (d *Direct) Close() error {
	return errors.Join(d.socket.Close(), d.relay.Close())
}
