package evict

import (
	"container/heap"
	"container/list"
	"net/netip"
)

// Networks finds which connection of a full table ends first, by the networks that they
// come from: the one whose last progress is the longest ago, of the address, /24 or /16
// with most connections; for IPv6 of the /56, /48 or /32. A /24 or /48 has four times the
// share of an address, a /16 or /32 sixteen times. So neither an address, nor a network
// from which one machine takes its addresses, has the place of others. Each operation
// costs O(log networks). The zero value is empty. The caller locks it.
type Networks[V any] struct {
	root  network[V]
	all   map[networkKey]*network[V]
	steps uint64 // calls of Add and Touch
}

type Conn[V any] struct {
	Value V

	address  *network[V]
	progress uint64        // the step of the last Add or Touch
	at       *list.Element // of the address's connections
}

// networkKey is the key of a network. The level tells those of connections without an IP
// address apart.
type networkKey struct {
	prefix netip.Prefix
	level  int
}

// levels are the networks of a connection, the largest first, and how much each connection
// counts there. The last one is the address.
var levels = [...]struct{ bits4, bits6, weight int }{{16, 32, 1}, {24, 48, 4}, {32, 56, 16}}

// network is a network with at least one connection.
type network[V any] struct {
	key    networkKey
	parent *network[V]
	parts  ranking[*network[V]] // the highest score first, then the oldest connection to end; nil for an address
	rank   int                  // index in parts of parent
	count  int
	score  int       // the largest count by weight, of the network and its parts
	conns  list.List // of an address, that without progress for longest first
}

func (n *network[V]) first() *Conn[V] {
	for len(n.parts) > 0 {
		n = n.parts[0]
	}
	if oldest := n.conns.Front(); oldest != nil {
		return oldest.Value.(*Conn[V])
	}
	return nil
}

// Add adds a connection from an address, which is an IPv4 address, the /56 of an IPv6
// address or the zero prefix.
func (s *Networks[V]) Add(address netip.Prefix, value V) *Conn[V] {
	s.steps++
	c := &Conn[V]{Value: value, address: s.network(address), progress: s.steps}
	c.at = c.address.conns.PushBack(c)
	c.address.add(1)
	return c
}

func (s *Networks[V]) Touch(c *Conn[V]) {
	s.steps++
	c.progress = s.steps
	first := c.address.conns.Front() == c.at
	c.address.conns.MoveToBack(c.at)
	if first {
		c.address.fix()
	}
}

// Remove removes a connection, which must be present.
func (s *Networks[V]) Remove(c *Conn[V]) {
	c.address.conns.Remove(c.at)
	c.address.add(-1)
	for n := c.address; n.parent != nil && n.count == 0; n = n.parent {
		delete(s.all, n.key)
	}
}

func (s *Networks[V]) Len() int { return s.root.count }

func (s *Networks[V]) Count(address netip.Prefix) int {
	if n := s.all[networkKey{address, len(levels) - 1}]; n != nil {
		return n.count
	}
	return 0
}

func (s *Networks[V]) First() *Conn[V] { return s.root.first() }

// FirstOf returns the connection of an address that ends first, nil if there is none.
func (s *Networks[V]) FirstOf(address netip.Prefix) *Conn[V] {
	if n := s.all[networkKey{address, len(levels) - 1}]; n != nil {
		return n.first()
	}
	return nil
}

func (s *Networks[V]) network(address netip.Prefix) *network[V] {
	if s.all == nil {
		s.all = make(map[networkKey]*network[V])
	}
	n := &s.root
	for level := range levels {
		key := networkKey{containing(address, level), level}
		part := s.all[key]
		if part == nil {
			part = &network[V]{key: key, parent: n, rank: len(n.parts)}
			s.all[key] = part
		}
		n = part
	}
	return n
}

func containing(address netip.Prefix, level int) netip.Prefix {
	bits := levels[level].bits6
	if address.Addr().Is4() {
		bits = levels[level].bits4
	}
	p, _ := address.Addr().Prefix(bits) // zero for no address
	return p
}

func (n *network[V]) add(count int) {
	for ; n.parent != nil; n = n.parent {
		n.count += count
		switch p := &n.parent.parts; {
		case n.count == 0:
			heap.Remove(p, n.rank)
		case n.count == 1 && count == 1:
			n.setScore()
			heap.Push(p, n)
		default:
			n.setScore()
			heap.Fix(p, n.rank)
		}
	}
	n.count += count // of the root
}

func (n *network[V]) fix() {
	for ; n.parent != nil; n = n.parent {
		heap.Fix(&n.parent.parts, n.rank)
	}
}

func (n *network[V]) setScore() {
	n.score = n.count * levels[n.key.level].weight
	if len(n.parts) > 0 {
		n.score = max(n.score, n.parts[0].score)
	}
}

func (n *network[V]) precedes(other *network[V]) bool {
	if n.score != other.score {
		return n.score > other.score
	}
	return n.first().progress < other.first().progress
}

func (n *network[V]) setRank(rank int) { n.rank = rank }
