package nexthop

import (
	"errors"
	"net/netip"
	"testing"
)

func testNetwork() *network {
	n := &network{interfaces: map[int]Interface{
		1: {Name: "lo", Index: 1, Local: true, MTU: 65536, Carries: []netip.Addr{netip.MustParseAddr("127.0.0.1"),
			netip.MustParseAddr("203.0.113.9")}},
		2: {Name: "eth0", Index: 2, MTU: 1500, Usable: true, Carries: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		3: {Name: "eth1", Index: 3, MTU: 9000, Usable: true},
		4: {Name: "tun0", Index: 4, MTU: 1400},
	}}
	add := func(table int, to string, r route) {
		r.to = netip.MustParsePrefix(to)
		n.add(table, r)
	}
	gateway := netip.MustParseAddr("192.0.2.1")
	add(0, "192.0.2.2/32", route{ifindex: 2, kind: local})
	add(0, "192.0.2.255/32", route{ifindex: 2, kind: local})
	add(1, "0.0.0.0/0", route{ifindex: 2, via: gateway, priority: 100})
	add(1, "0.0.0.0/0", route{ifindex: 3, via: gateway, priority: 50})
	add(1, "0.0.0.0/0", route{ifindex: 4, via: gateway, priority: 200})
	add(1, "192.0.2.0/24", route{ifindex: 2})
	add(1, "10.0.0.0/8", route{ifindex: 2, via: gateway, mtu: 1300})
	add(1, "10.1.0.0/16", route{ifindex: 4})
	add(1, "10.2.0.0/16", route{kind: refused})
	add(1, "10.3.0.0/16", route{kind: notUnicast})
	add(1, "10.4.0.0/16", route{ifindex: 2, via: gateway})
	add(1, "10.4.0.0/16", route{ifindex: 3, via: gateway})
	add(1, "10.5.0.0/16", route{ifindex: 99})
	add(1, "2001:db8::/32", route{ifindex: 3, via: netip.MustParseAddr("fe80::1")})
	add(2, "198.51.100.0/24", route{ifindex: 2, via: gateway})
	return n
}

func TestHop(t *testing.T) {
	n := testNetwork()
	gateway := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		to   string
		want Hop
		err  error
	}{
		{"8.8.8.8", Hop{3, gateway, 9000}, nil},
		{"192.0.2.77", Hop{2, netip.MustParseAddr("192.0.2.77"), 1500}, nil},
		{"10.9.9.9", Hop{2, gateway, 1300}, nil},
		{"2001:db8::5", Hop{3, netip.MustParseAddr("fe80::1"), 9000}, nil},
		{"192.0.2.2", Hop{}, ErrDestination},
		{"192.0.2.255", Hop{}, ErrDestination},
		{"224.0.0.1", Hop{}, ErrDestination},
		{"fe80::9", Hop{}, ErrDestination},
		{"10.1.0.1", Hop{}, ErrInterface},
		{"10.2.0.1", Hop{}, ErrNoRoute},
		{"10.3.0.1", Hop{}, ErrNotSimple},
		{"10.4.0.1", Hop{}, ErrNotSimple},
		{"10.5.0.1", Hop{}, ErrInterface},
		{"2001:db9::5", Hop{}, ErrNoRoute},
	} {
		got, err := n.hop(netip.MustParseAddr(c.to))
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.to, got, err, c.want, c.err)
		}
	}
	n.policy = true
	if _, err := n.hop(gateway); !errors.Is(err, ErrPolicy) {
		t.Errorf("with a policy: %v", err)
	}
	n.policy, n.tooMany = false, true
	if _, err := n.hop(gateway); !errors.Is(err, ErrTooMany) {
		t.Errorf("with too many routes: %v", err)
	}
}

// TestMainBeforeDefault: a route of table main hides that of table default, as the kernel's
// rules say, even if it is less specific.
func TestMainBeforeDefault(t *testing.T) {
	if got, err := testNetwork().hop(netip.MustParseAddr("198.51.100.1")); err != nil || got.Interface != 3 {
		t.Errorf("%+v, %v, want by the default route of table main", got, err)
	}
}

func TestCarrier(t *testing.T) {
	n := testNetwork()
	for addr, want := range map[string]int{"192.0.2.2": 2, "203.0.113.9": 1, "192.0.2.3": 0} {
		if got, ok := n.carrier(netip.MustParseAddr(addr)); got != want || ok != (want != 0) {
			t.Errorf("%s is on %d, %t, want %d", addr, got, ok, want)
		}
	}
}
