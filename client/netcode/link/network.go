package link

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// NetworkConfig configures a network in memory.
type NetworkConfig struct {
	// Immediate delivers a datagram when it is sent, so that no caller has to call
	// Step: for two drivers in one process.
	Immediate bool
	// Linked makes the network play a relay: datagrams pass only between nodes
	// that Link has joined, and the nodes receive Joined and Left events.
	// Otherwise it plays UDP.
	Linked bool
	// Queue is how many datagrams may wait to be received at one node before
	// the newest is dropped. 0 means 4096.
	Queue int
	// InFlight is how many may wait for Step in all. 0 means 65536.
	InFlight int
}

// Network is a network in memory: what its nodes send arrives, in order and
// once, when Step is called. It has no clock and no chance in it. Its lock
// guards all of it and of its nodes, which may belong to different goroutines.
type Network struct {
	cfg NetworkConfig

	mu       sync.Mutex
	nodes    map[address.Addr]*Node
	numbered uint32 // the newest node that the network gave an address
	flying   messages
	spare    messages
}

// NewNetwork returns an empty network.
func NewNetwork(cfg NetworkConfig) *Network {
	if cfg.Queue <= 0 {
		cfg.Queue = 4096
	}
	if cfg.InFlight <= 0 {
		cfg.InFlight = 65536
	}
	return &Network{cfg: cfg, nodes: make(map[address.Addr]*Node)}
}

// Open adds a node at an address of any kind; nowhere means the next free
// NodeAddr, from 1 on. Errors: ErrTaken, and ErrAddr for port 0.
func (w *Network) Open(at address.Addr) (*Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !at.IsValid() {
		at = w.number()
	}
	if err := w.free(at); err != nil {
		return nil, err
	}
	n := &Node{network: w, at: at}
	if w.cfg.Linked {
		n.links = make(map[address.Addr]uint64)
	}
	w.nodes[at] = n
	return n, nil
}

// nodePort is the port of numbered nodes.
const nodePort = 7777

// NodeAddr returns the address of a node of a network in memory. It is a UDP
// address of the prefix that RFC 3849 keeps for documentation, in a /64 of its
// own, so that code which knows only UDP and allocations can hold it: node 7 is
// [2001:db8:0:7::]:7777.
func NodeAddr(n uint32) address.Addr {
	ip := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	binary.BigEndian.PutUint32(ip[4:], n)
	return address.FromUDP(netip.AddrPortFrom(netip.AddrFrom16(ip), nodePort))
}

// number returns the next numbered address that is free.
func (w *Network) number() address.Addr {
	for {
		w.numbered++
		if at := NodeAddr(w.numbered); w.nodes[at] == nil {
			return at
		}
	}
}

// free reports why no node can be at an address.
func (w *Network) free(at address.Addr) error {
	switch {
	case !at.Reachable():
		return ErrAddr
	case w.nodes[at] != nil:
		return ErrTaken
	}
	return nil
}

// Link joins two nodes of a Linked network, as a relay does with a host and a
// player. The next Step makes the link and queues Joined on both. Errors: ErrNoPeer when a node is
// missing, errors.ErrUnsupported when the network is not Linked.
func (w *Network) Link(a, b address.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	left, right := w.nodes[a], w.nodes[b]
	switch {
	case !w.cfg.Linked:
		return errors.ErrUnsupported
	case left == nil || right == nil || left == right:
		return ErrNoPeer
	}
	w.launch(Joined, a, b, nil)
	w.launch(Joined, b, a, nil)
	return nil
}

// Step delivers what was sent before it, in the order in which it was sent,
// and returns how many datagrams and events arrived.
func (w *Network) Step() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	arrived := 0
	for range w.flying.count {
		if w.deliver(w.flying.pop()) {
			arrived++
		}
	}
	return arrived
}

// InFlight returns how many datagrams and events wait for Step.
func (w *Network) InFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flying.count
}

// launch takes what a node sends. It is false when there is no room, which
// there always is for the events Joined and Left.
func (w *Network) launch(kind Kind, from, to address.Addr, b []byte) bool {
	if bounded(kind) && w.flying.count >= w.cfg.InFlight {
		return false
	}
	m := w.spare.pop()
	if m == nil {
		m = new(message)
	}
	m.kind, m.from, m.to = kind, from, to
	m.n = copy(m.buf[:], b)
	if w.cfg.Immediate {
		w.deliver(m)
		return true
	}
	w.flying.push(m)
	return true
}

// deliver hands a message to its node. The sender does not learn what became of
// it, as on any network.
func (w *Network) deliver(m *message) bool {
	n := w.nodes[m.to]
	switch {
	case n == nil:
	case bounded(m.kind) && n.inbox.count >= w.cfg.Queue:
		n.stats.QueueFull++
	case !n.accepts(m):
	default:
		n.inbox.push(m)
		return true
	}
	w.spare.push(m)
	return false
}

func bounded(kind Kind) bool { return kind == Datagram || kind == NoLink }

// message is a datagram or an event on its way, in memory that is used again.
type message struct {
	next     *message
	kind     Kind
	from, to address.Addr
	n        int
	buf      [MaxDatagram]byte
}

// messages is a queue. A message is in one at a time.
type messages struct {
	first, last *message
	count       int
}

func (q *messages) push(m *message) {
	m.next = nil
	if q.last == nil {
		q.first = m
	} else {
		q.last.next = m
	}
	q.last = m
	q.count++
}

// pop returns nil when the queue is empty.
func (q *messages) pop() *message {
	m := q.first
	if m == nil {
		return nil
	}
	q.first = m.next
	if q.first == nil {
		q.last = nil
	}
	q.count--
	m.next = nil
	return m
}
