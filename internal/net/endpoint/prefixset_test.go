package endpoint

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestPrefixSet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), byte(r.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(r.IntN(4)), 15: byte(r.IntN(4))})
	}
	for range 200 {
		var all []netip.Prefix
		for range r.IntN(6) {
			ip := random()
			all = append(all, netip.PrefixFrom(ip, r.IntN(ip.BitLen()+1)))
		}
		set := NewPrefixSet(all)
		for range 50 {
			ip, want := random(), false
			for _, p := range all {
				want = want || p.Contains(ip)
			}
			if got := set.Contains(ip); got != want {
				t.Fatalf("%v contains %v: %t", all, ip, got)
			}
		}
	}
	mapped := NewPrefixSet([]netip.Prefix{netip.MustParsePrefix("::ffff:10.1.0.0/112"), {}})
	for _, text := range []string{"10.1.2.3", "::ffff:10.1.2.3"} {
		if !mapped.Contains(netip.MustParseAddr(text)) {
			t.Errorf("an IPv4-mapped prefix does not contain %s", text)
		}
	}
	var none *PrefixSet
	if none.Contains(netip.MustParseAddr("10.1.2.3")) || mapped.Contains(netip.Addr{}) {
		t.Error("an empty set contains an address, or a set contains none")
	}
	zoned := NewPrefixSet([]netip.Prefix{netip.MustParsePrefix("fe80::/10")})
	if !zoned.Contains(netip.MustParseAddr("fe80::1%eth0")) {
		t.Error("a zone matters")
	}
	ip := netip.MustParseAddr("10.1.2.3")
	if n := testing.AllocsPerRun(100, func() { mapped.Contains(ip) }); n != 0 {
		t.Errorf("a lookup allocates %v times", n)
	}
}
