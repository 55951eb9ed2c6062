package nexthop

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
)

// TestResolver reads the network of this machine, follows it, and leaves nothing behind.
func TestResolver(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	loopback, ok := r.Carrier(netip.MustParseAddr("127.0.0.1"))
	if i, known := r.Interface(loopback); !ok || !known || !i.Local || i.Usable {
		t.Errorf("127.0.0.1 is on %+v", i)
	}
	if _, err := r.Route(netip.MustParseAddr("127.0.0.1")); err == nil {
		t.Error("there is a way to this machine itself")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- r.Run(ctx, Events{Changing: func() {}, Changed: func() {}, Neighbour: func(int, netip.Addr) {}})
	}()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNeighbours(t *testing.T) {
	r := &Resolver{neighbours: map[neighbour][6]byte{}}
	neigh := netlink.Neigh{LinkIndex: 3, IP: net.IPv4(192, 0, 2, 1), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	for i, c := range []struct {
		state   int
		mac     byte
		changed bool
		usable  bool
	}{
		{netlink.NUD_INCOMPLETE, 1, false, false},
		{netlink.NUD_REACHABLE, 1, true, true},
		{netlink.NUD_STALE, 1, false, true},
		{netlink.NUD_PROBE, 1, false, true},
		{netlink.NUD_REACHABLE, 2, true, true},
		{netlink.NUD_FAILED, 2, true, false},
		{netlink.NUD_FAILED, 2, false, false},
		{netlink.NUD_PERMANENT, 3, true, true},
	} {
		neigh.State, neigh.HardwareAddr[5] = c.state, c.mac
		key, mac, usable := readNeighbour(&neigh)
		if got := r.setNeighbour(key, mac, usable); got != c.changed {
			t.Errorf("step %d: changed %t, want %t", i, got, c.changed)
		}
		if mac, ok := r.Neighbour(3, netip.MustParseAddr("192.0.2.1")); ok != c.usable || ok && mac != [6]byte{2, 0, 0, 0, 0, c.mac} {
			t.Errorf("step %d: %x, %t", i, mac, ok)
		}
	}
}

func TestRules(t *testing.T) {
	any := netlink.Rule{Priority: 32766, Table: 254}
	if !isDefaultRule(&any) || !isDefaultRule(&netlink.Rule{Priority: -1, Table: 255}) ||
		!isDefaultRule(&netlink.Rule{Priority: 32767, Table: 253}) {
		t.Error("a rule of every machine counts as policy")
	}
	_, source, _ := net.ParseCIDR("192.0.2.0/24")
	for _, r := range []netlink.Rule{
		{Priority: 100, Table: 254}, {Priority: 32766, Table: 100}, {Priority: 32766, Table: 254, Src: source},
		{Priority: 32766, Table: 254, Mark: 1}, {Priority: 32766, Table: 254, IifName: "eth0"},
	} {
		if isDefaultRule(&r) {
			t.Errorf("%v counts as a rule of every machine", r)
		}
	}
}

func TestAddRoute(t *testing.T) {
	_, to, _ := net.ParseCIDR("10.0.0.0/8")
	base := netlink.Route{LinkIndex: 2, Dst: to, Table: 254, Type: syscall.RTN_UNICAST, Gw: net.IPv4(192, 0, 2, 1).To4(), MTU: 1400}
	for name, c := range map[string]struct {
		change func(*netlink.Route)
		kind   routeKind
		absent bool
	}{
		"unicast":       {func(*netlink.Route) {}, unicast, false},
		"local":         {func(r *netlink.Route) { r.Type = syscall.RTN_LOCAL }, local, false},
		"unreachable":   {func(r *netlink.Route) { r.Type = syscall.RTN_UNREACHABLE }, refused, false},
		"two hops":      {func(r *netlink.Route) { r.MultiPath = make([]*netlink.NexthopInfo, 2) }, notUnicast, false},
		"other table":   {func(r *netlink.Route) { r.Table = 100 }, 0, true},
		"another TOS":   {func(r *netlink.Route) { r.Tos = 16 }, 0, true},
		"MPLS":          {func(r *netlink.Route) { label := 7; r.MPLSDst = &label }, notUnicast, false},
		"via IPv6":      {func(r *netlink.Route) { r.Via = &netlink.Via{} }, notUnicast, false},
		"encapsulation": {func(r *netlink.Route) { r.Encap = &netlink.MPLSEncap{} }, notUnicast, false},
	} {
		n, r := &network{}, base
		c.change(&r)
		n.addRoute(&r, netlink.FAMILY_V4)
		got, ok := n.tables[1][netip.MustParsePrefix("10.0.0.0/8")]
		if table := n.tables[0]; table != nil {
			t.Errorf("%s: in table local", name)
		}
		if ok == c.absent || ok && (got.kind != c.kind || got.via != netip.MustParseAddr("192.0.2.1") || got.mtu != 1400) {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
}
