// Package nexthop answers by which interface, and to which neighbour, a datagram leaves
// this machine. Its answers are those of the kernel's routing where that is simple, and an
// error with the reason where it is not; it follows changes by netlink. Package fastpath
// needs it, whose program sends without the kernel's routing.
//
// Simple is a unicast route with one next hop, found by the three rules that every Linux
// has, over an Ethernet interface that is up. Not simple are further rules (ip rule), VRFs,
// several next hops, encapsulation, IPsec policies, and destinations on this machine.
// Routes of IPv6 that depend on the source are not told apart from others.
//
// Neighbours are not kept alive here: the kernel confirms and resolves those that sockets
// use, so the caller has to send something through a socket from time to time.
package nexthop

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Errors of [Resolver.Route].
var (
	ErrPolicy      = errors.New("routing depends on rules or IPsec policies")
	ErrNoRoute     = errors.New("there is no unicast route")
	ErrNotSimple   = errors.New("the route has several next hops or an encapsulation")
	ErrInterface   = errors.New("the interface is down, not Ethernet, or part of another one")
	ErrDestination = errors.New("the destination is link-local, or on this machine")
	ErrTooMany     = errors.New("there are too many routes")
)

// maxRoutes bounds the routes that are read: a table of the whole Internet is not simple.
const maxRoutes = 100_000

// Hop is how a datagram leaves. It is comparable.
type Hop struct {
	Interface int        // index
	Via       netip.Addr // the neighbour: a gateway, or the destination itself
	MTU       int        // bytes of the largest IP packet
}

type Interface struct {
	Name    string
	Index   int
	MTU     int
	MAC     [6]byte
	Usable  bool   // up, and Ethernet
	Local   bool   // loopback: others reach its addresses by any interface
	Kind    string // "device", "veth", "vlan", "bond", ...
	Carries []netip.Addr
}

// route is a route with one next hop, or one for which there is no answer.
type route struct {
	to        netip.Prefix
	ifindex   int
	via       netip.Addr // invalid: on the link
	mtu       int        // 0: the interface's
	priority  int
	kind      routeKind
	ambiguous bool // another one is as good
}

type routeKind uint8

const (
	unicast routeKind = iota
	local
	refused    // unreachable, prohibit, blackhole, throw
	notUnicast // several next hops, encapsulation
)

// network does not change, and is without neighbours.
type network struct {
	policy     bool // there are further rules, or IPsec policies
	tooMany    bool
	interfaces map[int]Interface
	// Routes by prefix, and the lengths of the prefixes, longest first, of IPv4 and IPv6.
	// A datagram is looked up in the tables in their order.
	tables  [3]map[netip.Prefix]route // local, main, default
	lengths [2][]int
}

var tableIDs = [3]int{255, 254, 253}

// add adds a route to table i, the better one of two.
func (n *network) add(i int, r route) {
	if n.tables[i] == nil {
		n.tables[i] = make(map[netip.Prefix]route)
	}
	if old, ok := n.tables[i][r.to]; ok {
		switch c := cmp.Compare(r.priority, old.priority); {
		case c > 0:
			return
		case c == 0:
			old.ambiguous = old.ambiguous || old.ifindex != r.ifindex || old.via != r.via || old.kind != r.kind
			r = old
		}
	}
	n.tables[i][r.to] = r
	family := 0
	if r.to.Addr().Is6() {
		family = 1
	}
	if !slices.Contains(n.lengths[family], r.to.Bits()) {
		n.lengths[family] = append(n.lengths[family], r.to.Bits())
		slices.SortFunc(n.lengths[family], func(a, b int) int { return b - a })
	}
}

func (n *network) find(to netip.Addr) (route, bool) {
	family := 0
	if to.Is6() {
		family = 1
	}
	for _, table := range n.tables {
		for _, bits := range n.lengths[family] {
			prefix, _ := to.Prefix(bits)
			if r, ok := table[prefix]; ok {
				return r, true
			}
		}
	}
	return route{}, false
}

func (n *network) hop(to netip.Addr) (Hop, error) {
	switch {
	case n.policy:
		return Hop{}, ErrPolicy
	case n.tooMany:
		return Hop{}, ErrTooMany
	case to.IsLinkLocalUnicast() || to.IsMulticast() || to.IsUnspecified():
		return Hop{}, ErrDestination
	}
	r, ok := n.find(to)
	switch {
	case !ok || r.kind == refused:
		return Hop{}, ErrNoRoute
	case r.kind == local:
		return Hop{}, ErrDestination
	case r.kind == notUnicast || r.ambiguous:
		return Hop{}, ErrNotSimple
	}
	i, ok := n.interfaces[r.ifindex]
	if !ok || !i.Usable {
		return Hop{}, fmt.Errorf("%w: %s", ErrInterface, i.Name)
	}
	h := Hop{Interface: r.ifindex, Via: r.via, MTU: i.MTU}
	if !h.Via.IsValid() {
		h.Via = to
	}
	if r.mtu > 0 {
		h.MTU = min(h.MTU, r.mtu)
	}
	return h, nil
}

func (n *network) carrier(addr netip.Addr) (index int, ok bool) {
	for _, i := range n.interfaces {
		if slices.Contains(i.Carries, addr) {
			return i.Index, true
		}
	}
	return 0, false
}
