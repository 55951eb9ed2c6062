package nexthop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Resolver follows the network. Any goroutine may call its methods, but for Run.
type Resolver struct {
	socket *os.File
	now    atomic.Pointer[network]

	mu         sync.RWMutex // guards neighbours
	neighbours map[neighbour][6]byte
}

type neighbour struct {
	ifindex int
	addr    netip.Addr
}

// Events are called by [Resolver.Run].
type Events struct {
	// Changing and Changed are called before and after answers but those of Neighbour
	// change.
	Changing, Changed func()
	// Neighbour is called after the answer of Neighbour has changed.
	Neighbour func(ifindex int, addr netip.Addr)
}

const (
	// groupIPv6Rule is a group of rtnetlink(7) that package syscall has no name for.
	groupIPv6Rule = 19
	// maxMessage is what the kernel puts into one datagram at most.
	maxMessage = 64 << 10
)

// New subscribes to changes and reads the network. It starts no goroutine. The error is
// that of netlink(7).
func New() (*Resolver, error) {
	socket, err := sock.SubscribeNetlink(syscall.NETLINK_ROUTE, syscall.RTNLGRP_LINK, syscall.RTNLGRP_NEIGH,
		syscall.RTNLGRP_IPV4_IFADDR, syscall.RTNLGRP_IPV4_ROUTE, syscall.RTNLGRP_IPV4_RULE,
		syscall.RTNLGRP_IPV6_IFADDR, syscall.RTNLGRP_IPV6_ROUTE, groupIPv6Rule)
	if err != nil {
		return nil, fmt.Errorf("nexthop: subscribe: %w", err)
	}
	r := &Resolver{socket: socket}
	n, err := readNetwork()
	if err == nil {
		err = r.readNeighbours()
	}
	if err != nil {
		socket.Close()
		return nil, err
	}
	r.now.Store(n)
	return r, nil
}

// Close ends the subscription, and a Run.
func (r *Resolver) Close() { _ = r.socket.Close() }

// Run follows changes until ctx ends. No goroutine is left when it returns. The error is
// that of netlink(7); answers are not to be relied on then.
func (r *Resolver) Run(ctx context.Context, e Events) error {
	stop := context.AfterFunc(ctx, r.Close)
	defer stop()
	buf := make([]byte, maxMessage)
	for {
		var messages []syscall.NetlinkMessage
		n, err := r.socket.Read(buf)
		if err == nil {
			messages, err = syscall.ParseNetlinkMessage(buf[:n])
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && !r.changesNetwork(messages, e):
			continue
		case err != nil && !errors.Is(err, syscall.ENOBUFS): // then messages were lost
			return fmt.Errorf("nexthop: receive: %w", err)
		}
		now, err := readNetwork()
		if err != nil {
			return err
		}
		if lost := messages == nil; lost { // A dump follows.
			e.Changing()
			err = r.readNeighbours()
		} else if reflect.DeepEqual(now, r.now.Load()) {
			continue // such as an address whose lifetime was prolonged
		} else {
			e.Changing()
		}
		if err != nil {
			return err
		}
		r.now.Store(now)
		e.Changed()
	}
}

// changesNetwork reports whether a message is about something else than neighbours.
func (r *Resolver) changesNetwork(messages []syscall.NetlinkMessage, e Events) (changes bool) {
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWNEIGH && m.Header.Type != syscall.RTM_DELNEIGH {
			changes = true
			continue
		}
		n, err := netlink.NeighDeserialize(m.Data)
		if err != nil {
			changes = true
			continue
		}
		if key, mac, usable := readNeighbour(n); r.setNeighbour(key, mac, usable && m.Header.Type == syscall.RTM_NEWNEIGH) {
			e.Neighbour(key.ifindex, key.addr)
		}
	}
	return changes
}

// setNeighbour reports whether the answer has changed.
func (r *Resolver) setNeighbour(key neighbour, mac [6]byte, usable bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.neighbours[key]
	if ok == usable && (!ok || old == mac) {
		return false
	}
	if usable {
		r.neighbours[key] = mac
	} else {
		delete(r.neighbours, key)
	}
	return true
}

// readNeighbour also returns whether the kernel sends to it.
func readNeighbour(n *netlink.Neigh) (key neighbour, mac [6]byte, usable bool) {
	const states = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
		netlink.NUD_PERMANENT | netlink.NUD_NOARP
	addr, ok := netip.AddrFromSlice(n.IP)
	key = neighbour{n.LinkIndex, addr.Unmap()}
	usable = ok && n.State&states != 0 && len(n.HardwareAddr) == len(mac)
	if usable {
		mac = [6]byte(n.HardwareAddr)
	}
	return key, mac, usable
}

func (r *Resolver) readNeighbours() error {
	found := make(map[neighbour][6]byte)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.NeighList(0, family)
		if err != nil {
			return fmt.Errorf("nexthop: neighbours: %w", err)
		}
		for i := range all {
			if key, mac, usable := readNeighbour(&all[i]); usable {
				found[key] = mac
			}
		}
	}
	r.mu.Lock()
	r.neighbours = found
	r.mu.Unlock()
	return nil
}

func readNetwork() (*network, error) {
	n := &network{interfaces: make(map[int]Interface)}
	if err := n.readInterfaces(); err != nil {
		return nil, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			return nil, fmt.Errorf("nexthop: rules: %w", err)
		}
		for i := range rules {
			n.policy = n.policy || !isDefaultRule(&rules[i])
		}
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE) // table 0: all
		if err != nil {
			return nil, fmt.Errorf("nexthop: routes: %w", err)
		}
		if len(routes) > maxRoutes {
			n.tooMany = true
			continue
		}
		for i := range routes {
			n.addRoute(&routes[i], family)
		}
	}
	// A kernel without IPsec has no policies.
	if policies, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL); err == nil && len(policies) > 0 {
		n.policy = true
	}
	return n, nil
}

// isDefaultRule reports whether a rule is one of the three that every Linux has.
func isDefaultRule(r *netlink.Rule) bool {
	for i, priority := range []int{0, 32766, 32767} {
		if r.Priority == priority && r.Table == tableIDs[i] && r.Src == nil && r.Dst == nil && r.Mark == 0 &&
			r.IifName == "" && r.OifName == "" && !r.Invert && r.Tos == 0 && r.IPProto == 0 && r.Sport == nil &&
			r.Dport == nil && r.UIDRange == nil {
			return true
		}
	}
	return r.Priority < 0 && r.Table == tableIDs[0] // the rule of table local has no priority in a dump
}

func (n *network) readInterfaces() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("nexthop: interfaces: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if a.MasterIndex != 0 {
			continue // a port of a bridge or bond, or in a VRF: the kernel routes nothing by it
		}
		i := Interface{Name: a.Name, Index: a.Index, MTU: a.MTU, Kind: l.Type()}
		i.Local = a.Flags&net.FlagLoopback != 0
		i.Usable = a.Flags&net.FlagUp != 0 && !i.Local && a.EncapType == "ether" &&
			len(a.HardwareAddr) == len(i.MAC) &&
			(a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown)
		if len(a.HardwareAddr) == len(i.MAC) {
			i.MAC = [6]byte(a.HardwareAddr)
		}
		n.interfaces[i.Index] = i
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("nexthop: addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if i, known := n.interfaces[a.LinkIndex]; ok && known {
			i.Carries = append(i.Carries, ip.Unmap())
			n.interfaces[a.LinkIndex] = i
		}
	}
	return nil
}

func (n *network) addRoute(r *netlink.Route, family int) {
	table := -1
	for i, id := range tableIDs {
		if r.Table == id {
			table = i
		}
	}
	if table < 0 || r.Tos != 0 {
		return
	}
	out := route{ifindex: r.LinkIndex, mtu: r.MTU, priority: r.Priority}
	switch r.Type {
	case syscall.RTN_UNICAST:
	case syscall.RTN_LOCAL, syscall.RTN_BROADCAST, syscall.RTN_ANYCAST, syscall.RTN_MULTICAST:
		out.kind = local
	default:
		out.kind = refused
	}
	if out.kind == unicast && (len(r.MultiPath) > 0 || r.Encap != nil || r.MPLSDst != nil || r.NewDst != nil || r.Via != nil) {
		out.kind = notUnicast
	}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok && !gw.IsUnspecified() {
		out.via = gw.Unmap()
	}
	out.to = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if family == netlink.FAMILY_V6 {
		out.to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		ip, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if !ok {
			return
		}
		if family == netlink.FAMILY_V4 {
			ip = ip.Unmap()
		}
		out.to = netip.PrefixFrom(ip, bits).Masked()
		if ip.IsLinkLocalUnicast() || ip.IsMulticast() {
			return // hop has no answer there
		}
	}
	n.add(table, out)
}

// Route returns how a datagram to an address leaves. Errors: see [ErrPolicy] and the others.
func (r *Resolver) Route(to netip.Addr) (Hop, error) { return r.now.Load().hop(to) }

// Neighbour returns the hardware address of a neighbour, and false if the kernel does not
// know it.
func (r *Resolver) Neighbour(ifindex int, addr netip.Addr) (mac [6]byte, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	mac, ok = r.neighbours[neighbour{ifindex, addr}]
	return mac, ok
}

// Interface returns an interface.
func (r *Resolver) Interface(index int) (Interface, bool) {
	i, ok := r.now.Load().interfaces[index]
	return i, ok
}

// Interfaces returns all interfaces.
func (r *Resolver) Interfaces() (all []Interface) {
	for _, i := range r.now.Load().interfaces {
		all = append(all, i)
	}
	return all
}

// Carrier returns the index of the interface that has an address.
func (r *Resolver) Carrier(addr netip.Addr) (index int, ok bool) { return r.now.Load().carrier(addr) }
