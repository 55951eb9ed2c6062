package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// The bounds of a network, so that a test that forgets to receive or to call Step ends with
// losses and not without memory: 6 MB at a node, 100 MB on their way.
const (
	maxWaiting  = 4096
	maxInFlight = 65536
)

// Network is a network in memory: what its nodes send arrives, in order and once, when Step is
// called. At one node up to 4096 datagrams wait to be received, and up to 65536 in all for
// Step; the newest is dropped then. A lock guards all of it. Its zero is ready to use, its
// fields must not change after the first call.
type Network struct {
	// Immediate delivers a datagram when it is sent: no Step is needed.
	Immediate bool
	// Linked makes the network play a relay, not UDP: datagrams pass only
	// between nodes that Link has joined, which receive Joined and Left.
	Linked bool

	maxWaiting, maxInFlight int // what a test has set, or the constants

	mu       sync.Mutex
	nodes    map[address.Addr]*node
	numbered uint32 // the newest node that the network gave an address
	flying   []*message
	spare    []*message
}

// Open adds a node; the zero address means the next free NodeAddr, from 1 on. Any goroutine may
// call it. Errors: ErrAddr if the address is taken, and for port 0.
func (w *Network) Open(at address.Addr) (Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes == nil {
		w.nodes = make(map[address.Addr]*node)
		w.maxWaiting, w.maxInFlight = cmp.Or(w.maxWaiting, maxWaiting), cmp.Or(w.maxInFlight, maxInFlight)
	}
	for !at.IsValid() {
		w.numbered++
		if next := NodeAddr(w.numbered); w.isFree(next) {
			at = next
		}
	}
	if !w.isFree(at) {
		return nil, ErrAddr
	}
	n := &node{network: w, at: at}
	if w.Linked {
		n.links = make(map[address.Addr]uint64)
	}
	w.nodes[at] = n
	return n, nil
}

const nodePort = 7777

// NodeAddr returns the address of a node of a network in memory, of the prefix
// for documentation (RFC 3849): node 7 is [2001:db8:0:7::]:7777.
func NodeAddr(n uint32) address.Addr {
	ip := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	binary.BigEndian.PutUint32(ip[4:], n)
	return address.FromUDP(netip.AddrPortFrom(netip.AddrFrom16(ip), nodePort))
}

func (w *Network) isFree(at address.Addr) bool { return isReachable(at) && w.nodes[at] == nil }

func isReachable(a address.Addr) bool {
	ap, udp := a.UDP()
	return a.IsValid() && (!udp || ap.Port() != 0)
}

// Link joins two nodes of a Linked network with the next Step. Errors: ErrAddr if a node is
// missing, errors.ErrUnsupported if the network is not Linked.
func (w *Network) Link(a, b address.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	left, right := w.nodes[a], w.nodes[b]
	switch {
	case !w.Linked:
		return errors.ErrUnsupported
	case left == nil || right == nil || left == right:
		return ErrAddr
	}
	w.launch(Joined, a, b, nil)
	w.launch(Joined, b, a, nil)
	return nil
}

// Move gives a node another address, as a player gets when it changes networks: what is on its
// way to the old one is lost. Errors: ErrAddr if there is no node or the new address is taken or
// not usable, errors.ErrUnsupported if the network is Linked, where peers have ids.
func (w *Network) Move(from, to address.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[from]
	switch {
	case w.Linked:
		return errors.ErrUnsupported
	case n == nil || !w.isFree(to):
		return ErrAddr
	}
	delete(w.nodes, from)
	n.at = to
	w.nodes[to] = n
	return nil
}

// Step delivers what was sent before it, and returns how many messages came.
func (w *Network) Step() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	arrived := 0
	for _, m := range w.flying {
		if w.deliver(m) {
			arrived++
		}
	}
	w.flying = w.flying[:0]
	return arrived
}

// launch takes what a node sends. It is false when there is no room, which
// there always is for the events Joined and Left.
func (w *Network) launch(kind Kind, from, to address.Addr, b []byte) bool {
	if kind == Datagram && len(w.flying) >= w.maxInFlight {
		return false
	}
	var m *message
	if n := len(w.spare); n > 0 {
		m, w.spare = w.spare[n-1], w.spare[:n-1]
	} else {
		m = new(message)
	}
	m.kind, m.from, m.to = kind, from, to
	m.n = copy(m.buf[:], b)
	if w.Immediate {
		w.deliver(m)
		return true
	}
	w.flying = append(w.flying, m)
	return true
}

// deliver does not tell the sender what became of a message, as on any network.
func (w *Network) deliver(m *message) bool {
	n := w.nodes[m.to]
	switch {
	case n == nil:
	case m.kind == Datagram && len(n.inbox) >= w.maxWaiting:
		n.stats.QueueFull++
	case !n.accepts(m):
	default:
		n.inbox = append(n.inbox, m)
		return true
	}
	w.spare = append(w.spare, m)
	return false
}

type message struct {
	kind     Kind
	from, to address.Addr
	n        int
	buf      [MaxDatagram]byte
}
