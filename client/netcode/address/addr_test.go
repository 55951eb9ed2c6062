package address_test

import (
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/proto"
)

func TestAddr(t *testing.T) {
	v4 := netip.MustParseAddrPort("192.0.2.1:7777")
	v6 := netip.MustParseAddrPort("[2001:db8::1]:7777")
	id := proto.AllocationID{0: 0x20, 1: 0x01, 15: 9}
	for _, c := range []struct {
		addr       address.Addr
		text       string
		udp, relay bool
	}{
		{address.Addr{}, "nowhere", false, false},
		{address.FromUDP(netip.AddrPort{}), "nowhere", false, false},
		{address.FromUDP(v4), "192.0.2.1:7777", true, false},
		{address.FromUDP(v6), "[2001:db8::1]:7777", true, false},
		{address.FromAllocation(id), id.String(), false, true},
		{address.FromAllocation(proto.AllocationID{}), proto.AllocationID{}.String(), false, true},
	} {
		ap, udp := c.addr.UDP()
		got, relay := c.addr.Allocation()
		if udp != c.udp || relay != c.relay || c.addr.IsValid() != (udp || relay) || c.addr.String() != c.text {
			t.Errorf("%v: UDP %v, allocation %v, want %v", c.addr, udp, relay, c.text)
		}
		if udp && address.FromUDP(ap) != c.addr || relay && address.FromAllocation(got) != c.addr {
			t.Errorf("%v does not survive the way there and back", c.addr)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(v4.Addr().As16()), v4.Port())
	if address.FromUDP(mapped) != address.FromUDP(v4) {
		t.Error("a mapped address is another place")
	}
}
