package link

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Node is a link of a network in memory. Unlike other links it may be used from
// several goroutines, since the lock of its network guards it.
type Node struct {
	network *Network
	at      address.Addr
	inbox   messages
	links   map[address.Addr]uint64 // on a Linked network: the peers, numbered as they joined
	linked  uint64                  // the number of the newest
	closed  bool
	stats   Stats
}

var _ Link = (*Node)(nil)

// accepts reports whether a message that arrives is still wanted: on a Linked
// network both sides may have let go while it was on its way. Links come and go
// here, as the messages about them arrive.
func (n *Node) accepts(m *message) bool {
	if n.links == nil || m.kind == NoLink {
		return true
	}
	_, linked := n.links[m.from]
	switch m.kind {
	case Joined:
		if linked || n.network.nodes[m.from] == nil {
			return false
		}
		n.linked++
		n.links[m.from] = n.linked
		return true
	case Left:
		delete(n.links, m.from)
	}
	return linked
}

// Advance does nothing: a network in memory has no clock.
func (n *Node) Advance(time.Time) {}

// Receive returns what arrived with the last Steps.
func (n *Node) Receive(b []byte) Event {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	for m := n.inbox.pop(); m != nil; m = n.inbox.pop() {
		e := Event{Kind: m.kind, Addr: m.from}
		fits := m.n <= len(b)
		if m.kind == Datagram {
			e.N = copy(b, m.buf[:m.n])
		}
		n.network.spare.push(m)
		if !fits {
			n.stats.TooLarge++
			continue
		}
		if e.Kind == Datagram {
			n.stats.Received++
			n.stats.ReceivedBytes += uint64(e.N)
		}
		return e
	}
	return Event{}
}

// Send puts a datagram on its way. On a Linked network one without a link comes
// to nothing but the event NoLink, which names the peer.
func (n *Node) Send(to address.Addr, b []byte) error {
	w := n.network
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case n.closed:
		return net.ErrClosed
	case len(b) > MaxDatagram:
		return ErrTooLarge
	case !to.Reachable():
		return ErrAddr
	}
	if _, ok := n.links[to]; n.links != nil && !ok {
		n.stats.Unreachable++
		w.launch(NoLink, to, n.at, nil)
		return nil
	}
	if !w.launch(Datagram, n.at, to, b) {
		n.stats.QueueFull++
		return nil
	}
	if w.nodes[to] == nil {
		n.stats.Unreachable++
	}
	n.stats.Sent++
	n.stats.SentBytes += uint64(len(b))
	return nil
}

// Flush does nothing: Step delivers.
func (n *Node) Flush() {}

// Dial does nothing: on a Linked network, Network.Link makes the links.
func (n *Node) Dial() error {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	return nil
}

// Disconnect ends the link to a peer of a Linked network, which receives Left. Over a
// network that plays UDP it does nothing.
func (n *Node) Disconnect(peer address.Addr) {
	w := n.network
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.links == nil || n.closed {
		return
	}
	n.forget(peer)
	if _, ok := n.links[peer]; ok {
		delete(n.links, peer)
		w.launch(Left, n.at, peer, nil)
	}
}

// forget drops what of a peer waits to be received.
func (n *Node) forget(peer address.Addr) {
	for range n.inbox.count {
		m := n.inbox.pop()
		if m.from == peer {
			n.network.spare.push(m)
			continue
		}
		n.inbox.push(m)
	}
}

// Local returns the node's address.
func (n *Node) Local() address.Addr {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	return n.at
}

// Overhead returns 0.
func (n *Node) Overhead() int { return 0 }

// Stats returns the counters.
func (n *Node) Stats() Stats {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	return n.stats
}

// Move gives the node another address, as a player gets when it changes networks:
// what is on its way to the old one is lost. Errors: ErrTaken, ErrAddr,
// net.ErrClosed, and errors.ErrUnsupported on a Linked network, where peers have ids.
func (n *Node) Move(to address.Addr) error {
	w := n.network
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case n.closed:
		return net.ErrClosed
	case w.cfg.Linked:
		return errors.ErrUnsupported
	case !to.IsValid():
		return ErrAddr
	}
	if err := w.free(to); err != nil {
		return err
	}
	delete(w.nodes, n.at)
	n.at = to
	w.nodes[to] = n
	return nil
}

// Close takes the node off the network. On a Linked one its peers receive Left.
func (n *Node) Close() error {
	w := n.network
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	for _, peer := range n.peers() {
		w.launch(Left, n.at, peer, nil)
	}
	clear(n.links)
	delete(w.nodes, n.at)
	for m := n.inbox.pop(); m != nil; m = n.inbox.pop() {
		w.spare.push(m)
	}
	return nil
}

// peers returns the linked peers in the order in which they joined.
func (n *Node) peers() []address.Addr {
	peers := make([]address.Addr, 0, len(n.links))
	for peer := range n.links {
		peers = append(peers, peer)
	}
	slices.SortFunc(peers, func(a, b address.Addr) int { return cmp.Compare(n.links[a], n.links[b]) })
	return peers
}
