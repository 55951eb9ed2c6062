package link

import (
	"cmp"
	"net"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// node is a link of a network in memory, whose lock guards it.
type node struct {
	network *Network
	at      address.Addr
	inbox   []*message
	links   map[address.Addr]uint64 // on a Linked network: the peers, numbered as they joined
	linked  uint64                  // the number of the newest
	closed  bool
	stats   Stats
}

var _ Link = (*node)(nil)

// accepts reports whether a message is still wanted: on a Linked network links
// come and go as the messages about them arrive.
func (n *node) accepts(m *message) bool {
	if n.links == nil {
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

func (n *node) Advance(time.Time) {}

func (n *node) Receive(b []byte) Event {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	for len(n.inbox) > 0 {
		m := n.inbox[0]
		n.inbox = slices.Delete(n.inbox, 0, 1)
		e := Event{Kind: m.kind, Addr: m.from}
		fits := m.n <= len(b)
		if m.kind == Datagram {
			e.N = copy(b, m.buf[:m.n])
		}
		n.network.spare = append(n.network.spare, m)
		if !fits {
			n.stats.Discarded++
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

func (n *node) Send(to address.Addr, b []byte) error {
	w := n.network
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case n.closed:
		return net.ErrClosed
	case len(b) > MaxDatagram:
		return ErrTooLarge
	case !isReachable(to):
		return ErrAddr
	}
	if _, ok := n.links[to]; n.links != nil && !ok {
		n.stats.Unreachable++
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

func (n *node) Flush() {}

// Dial does nothing: on a Linked network, Network.Link makes the links.
func (n *node) Dial() error {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	return nil
}

func (n *node) Disconnect(peer address.Addr) {
	w := n.network
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.links == nil || n.closed {
		return
	}
	n.inbox = slices.DeleteFunc(n.inbox, func(m *message) bool { return m.from == peer })
	if _, ok := n.links[peer]; ok {
		delete(n.links, peer)
		w.launch(Left, n.at, peer, nil)
	}
}

func (n *node) Local() address.Addr {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	return n.at
}

func (n *node) Overhead() int { return 0 }

func (n *node) Stats() Stats {
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	return n.stats
}

func (n *node) Close() error {
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
	n.inbox = nil
	return nil
}

func (n *node) peers() []address.Addr {
	peers := make([]address.Addr, 0, len(n.links))
	for peer := range n.links {
		peers = append(peers, peer)
	}
	slices.SortFunc(peers, func(a, b address.Addr) int { return cmp.Compare(n.links[a], n.links[b]) })
	return peers
}
