package link_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/proto"
)

func TestAddr(t *testing.T) {
	v4 := netip.MustParseAddrPort("192.0.2.1:7777")
	v6 := netip.MustParseAddrPort("[2001:db8::1]:7777")
	id := proto.AllocationID{0: 0x20, 1: 0x01, 15: 9}
	for _, c := range []struct {
		addr       link.Addr
		text       string
		udp, relay bool
	}{
		{link.Addr{}, "nowhere", false, false},
		{link.AddrFromUDP(netip.AddrPort{}), "nowhere", false, false},
		{link.AddrFromUDP(v4), "192.0.2.1:7777", true, false},
		{link.AddrFromUDP(v6), "[2001:db8::1]:7777", true, false},
		{link.NodeAddr(7), "[2001:db8:0:7::]:7777", true, false},
		{link.AddrFromAllocation(id), id.String(), false, true},
		{link.AddrFromAllocation(proto.AllocationID{}), proto.AllocationID{}.String(), false, true},
	} {
		ap, udp := c.addr.UDP()
		got, relay := c.addr.Allocation()
		if udp != c.udp || relay != c.relay || c.addr.IsValid() != (udp || relay) || c.addr.String() != c.text {
			t.Errorf("%v: UDP %v, allocation %v, want %v", c.addr, udp, relay, c.text)
		}
		if udp && link.AddrFromUDP(ap) != c.addr || relay && link.AddrFromAllocation(got) != c.addr {
			t.Errorf("%v does not survive the way there and back", c.addr)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(v4.Addr().As16()), v4.Port())
	if link.AddrFromUDP(mapped) != link.AddrFromUDP(v4) {
		t.Error("a mapped address is another place")
	}
}

func TestAddrCompare(t *testing.T) {
	sorted := []link.Addr{
		{},
		link.AddrFromUDP(netip.MustParseAddrPort("10.0.0.1:1")),
		link.AddrFromUDP(netip.MustParseAddrPort("10.0.0.1:2")),
		link.NodeAddr(1),
		link.NodeAddr(2),
		link.AddrFromAllocation(proto.AllocationID{15: 1}),
		link.AddrFromAllocation(proto.AllocationID{0: 1}),
	}
	for i, a := range sorted {
		for j, b := range sorted {
			if got, want := a.Compare(b), slices.Compare([]int{i}, []int{j}); got != want {
				t.Errorf("compare %v with %v: %d, want %d", a, b, got, want)
			}
		}
	}
}
