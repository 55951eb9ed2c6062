package endpoint

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

func TestEndpointLayout(t *testing.T) {
	if size := binary.Size(Endpoint{}); size != 24 {
		t.Fatalf("size %d, want 24", size)
	}
	var _ map[Endpoint]struct{} // comparable, or this does not compile
	e := UDP(netip.MustParseAddrPort("1.2.3.4:5"), 6, 7)
	if want := (Endpoint{0, 0x01020304, 5 | 6<<16 | 1<<32 | 7<<40}); e != want {
		t.Errorf("IPv4 words %x, want %x", e, want)
	}
	e = UDP(netip.MustParseAddrPort("[102:304:506:708:90a:b0c:d0e:f10]:65535"), 65535, 255)
	if want := (Endpoint{0x0102030405060708, 0x090a0b0c0d0e0f10, 0xffff | 0xffff<<16 | 2<<32 | 0xff<<40}); e != want {
		t.Errorf("IPv6 words %x, want %x", e, want)
	}
	if e := Serial(KindSession, 9); e != (Endpoint{0, 9, 4 << 32}) {
		t.Errorf("serial words %x", e)
	}
}

func TestEndpointRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		addr, want string
		kind       Kind
	}{
		{"1.2.3.4:5", "1.2.3.4:5", KindUDP4},
		{"255.255.255.255:65535", "255.255.255.255:65535", KindUDP4},
		{"0.0.0.0:0", "0.0.0.0:0", KindUDP4},
		{"[::ffff:10.0.0.1]:7", "10.0.0.1:7", KindUDP4},
		{"[::]:1", "[::]:1", KindUDP6},
		{"[2001:db8::1]:7777", "[2001:db8::1]:7777", KindUDP6},
		{"[fe80::1%eth0]:7777", "[fe80::1]:7777", KindUDP6},
	} {
		e := UDP(netip.MustParseAddrPort(tt.addr), 513, 3)
		if e.AddrPort() != netip.MustParseAddrPort(tt.want) || e.String() != tt.want {
			t.Errorf("%s: AddrPort %v, String %s", tt.addr, e.AddrPort(), e)
		}
		if e.Kind() != tt.kind || e.Local() != 513 || e.Listener() != 3 || e.Serial() != 0 || e.IsZero() {
			t.Errorf("%s: kind %v local %d listener %d serial %d zero %v",
				tt.addr, e.Kind(), e.Local(), e.Listener(), e.Serial(), e.IsZero())
		}
	}
}

func TestEndpointOthers(t *testing.T) {
	none := UDP(netip.AddrPort{}, 1, 2)
	if !none.IsZero() || none.Kind() != KindNone || none.String() != "none" || none.AddrPort().IsValid() {
		t.Errorf("invalid address gives %v", none)
	}
	e := Serial(KindDTLS, 1<<63)
	if e.Serial() != 1<<63 || e.Kind() != KindDTLS || e.AddrPort().IsValid() || e.String() != "dtls#9223372036854775808" {
		t.Errorf("serial endpoint: %v", e)
	}
	if Serial(KindDTLS, 5) == Serial(KindSession, 5) {
		t.Error("two kinds with one serial are equal")
	}
	for k, want := range map[Kind]string{KindNone: "none", KindUDP4: "udp4", KindUDP6: "udp6", KindSession: "session0", 15: "session11"} {
		if k.String() != want {
			t.Errorf("kind %d prints %q, want %q", k, k, want)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, uint16(5), uint16(6), uint8(7))
	f.Add(binary.BigEndian.AppendUint64(make([]byte, 8), 1), uint16(0), uint16(65535), uint8(255))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 1, 2, 3, 4}, uint16(9), uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, ip []byte, port, local uint16, listener uint8) {
		addr, ok := netip.AddrFromSlice(ip)
		e := UDP(netip.AddrPortFrom(addr, port), local, listener)
		if !ok {
			if !e.IsZero() {
				t.Fatalf("%x gives %v", ip, e)
			}
			return
		}
		want := netip.AddrPortFrom(addr.Unmap(), port)
		if e.AddrPort() != want || e.Local() != local || e.Listener() != listener {
			t.Fatalf("%v %d %d became %v %d %d", want, local, listener, e.AddrPort(), e.Local(), e.Listener())
		}
	})
}

func TestEndpointRemote(t *testing.T) {
	addr := netip.MustParseAddrPort("[2001:db8::1]:4000")
	if got, want := UDP(addr, 3, 4).Remote(), UDP(addr, 0, 0); got != want {
		t.Errorf("remote is %x, want %x", got, want)
	}
	if e := Serial(KindSession, 1<<63); e.Remote() != e {
		t.Errorf("remote of %v is %v", e, e.Remote())
	}
}

// TestMix64: state files hold values that were made with it.
func TestMix64(t *testing.T) {
	for x, want := range map[uint64]uint64{0: 0, 1: 0xca009717327d1f6e, 1 << 63: 0xf39396e400000000} {
		if got := Mix64(x); got != want {
			t.Errorf("Mix64(%#x) = %#x, want %#x", x, got, want)
		}
	}
}

func TestNetwork(t *testing.T) {
	at := func(s string) Endpoint { return UDP(netip.MustParseAddrPort(s), 3, 2) }
	for _, pair := range []struct {
		a, b Endpoint
		same bool
	}{
		{at("192.0.2.1:1"), UDP(netip.MustParseAddrPort("192.0.2.1:2"), 0, 0), true},
		{at("192.0.2.1:1"), at("192.0.2.2:1"), false},
		{at("[2001:db8:0:1200::1]:1"), at("[2001:db8:0:12ff:1::2]:2"), true},
		{at("[2001:db8:0:1200::1]:1"), at("[2001:db8:0:1300::1]:1"), false},
		{at("0.0.0.7:1"), Serial(KindDTLS, 7), false},
		{Serial(KindDTLS, 7), Serial(KindSession, 7), false},
		{Serial(KindDTLS, 7), Serial(KindDTLS, 8), false},
	} {
		if same := pair.a.Network() == pair.b.Network(); same != pair.same {
			t.Errorf("%v and %v: %t, want %t", pair.a, pair.b, same, pair.same)
		}
	}
}
