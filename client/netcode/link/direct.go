package link

import (
	"errors"
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
)

// directLink is a link over a relay whose datagrams take a direct path to each peer that can be
// reached. See the package documentation.
type directLink struct {
	relay       Link
	socket      Link
	socketEnded bool
	addrs       ownAddrs
	peers       directPeers
	now         time.Time

	turn      bool  // the socket is asked first
	held      Event // a Left that waits until the socket was read
	heldPolls int

	probes perSecond
	counts directCounts
	parsed offer
	signal [maxOffer]byte
	sum    [64]byte
}

// directPeers finds the peers of a link by each of their names.
type directPeers struct {
	byAddr map[address.Addr]*directPeer
	order  []*directPeer // the same, as they joined
	byID   map[uint64]*directPeer
	byPath map[address.Addr]*directPeer
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
		relay: relay, socket: socket, addrs: ownAddrs{local: local, extra: addrs},
		peers: directPeers{
			byAddr: make(map[address.Addr]*directPeer),
			byID:   make(map[uint64]*directPeer),
			byPath: make(map[address.Addr]*directPeer),
		},
	}
	if r, ok := relay.(*relayLink); ok {
		d.addrs.relay = r.servers
	}
	return d, nil
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
				d.peers.remove(left.Addr)
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
		for _, p := range d.peers.byPath {
			p.losePath()
		}
		return Event{}
	case ev.Kind != Datagram:
		return Event{}
	case isSignal(b[:ev.N]):
		d.onProbe(ev.Addr, b[:ev.N])
		return Event{}
	}
	p := d.peers.byPath[ev.Addr]
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
	p := d.peers.byAddr[ev.Addr]
	switch {
	case ev.Kind == Joined && p == nil:
		d.peers.add(newDirectPeer(d, ev.Addr))
	case ev.Kind == Left && p != nil && p.path.exists():
		d.held, d.heldPolls = ev, 0
		return Event{}
	case ev.Kind == Left:
		d.peers.remove(ev.Addr)
	case ev.Kind == Datagram && isSignal(b[:ev.N]):
		if p == nil {
			d.counts.Malformed++
		} else {
			p.onOffer(b[:ev.N])
		}
		return Event{}
	}
	return ev
}

func (t *directPeers) add(p *directPeer) {
	t.byAddr[p.at] = p
	t.byID[p.keys.own.id] = p
	t.order = append(t.order, p)
}

func (t *directPeers) remove(at address.Addr) {
	p := t.byAddr[at]
	if p == nil {
		return
	}
	delete(t.byAddr, at)
	delete(t.byID, p.keys.own.id)
	if p.path.exists() {
		delete(t.byPath, p.path.addr)
	}
	i := slices.Index(t.order, p)
	t.order = slices.Delete(t.order, i, i+1)
}

func (d *directLink) Send(to address.Addr, b []byte) error {
	switch {
	case isSignal(b):
		return errReserved
	case len(b) > MaxDatagram:
		return ErrTooLarge
	}
	if p := d.peers.byAddr[to]; p != nil && p.path.usable() {
		if d.socket.Send(p.path.addr, b) == nil {
			d.counts.Sent++
			return nil
		}
		p.losePath()
	}
	return d.relay.Send(to, b)
}

// Flush runs the timers of the paths and flushes both links.
func (d *directLink) Flush() {
	if len(d.peers.order) > 0 {
		d.addrs.refresh(d.now)
	}
	for _, p := range d.peers.order {
		p.tick()
	}
	d.socket.Flush()
	d.relay.Flush()
}

func (d *directLink) Dial() error { return d.relay.Dial() }

func (d *directLink) Disconnect(peer address.Addr) {
	d.socket.Flush()
	d.peers.remove(peer)
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
	for _, p := range d.peers.order {
		if p.path.usable() {
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
