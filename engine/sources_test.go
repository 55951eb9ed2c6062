package engine

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

func addrPorts(all ...string) (out []netip.AddrPort) {
	for _, a := range all {
		out = append(out, netip.MustParseAddrPort(a))
	}
	return out
}

func advertise(hosts ...string) (out []alloc.ServerEndpoint) {
	for _, h := range hosts {
		out = append(out, alloc.ServerEndpoint{ConnectionType: "udp", Network: "udp", Host: h, Port: 7777})
	}
	return out
}

// The relays of TestSources: what they listen on, what players are advertised, and
// what the operator allows.
var (
	publicRelay = newSources(addrPorts("0.0.0.0:7777", "[::]:7777"),
		[]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("10.0.0.7"),
			netip.MustParseAddr("2001:db8::7")},
		advertise("203.0.113.7"), &Config{Siblings: addrPorts("203.0.113.8:7778", "[2001:db8::8]:7777", "[::ffff:203.0.113.9]:7777")})
	homeRelay     = newSources(addrPorts("192.168.1.2:7777"), nil, advertise("192.168.1.2"), &Config{})
	loopbackRelay = newSources(addrPorts("127.0.0.1:7777", "[::1]:7777"), nil, advertise("127.0.0.1"), &Config{})
	lenientRelay  = newSources(addrPorts("0.0.0.0:7777"), nil, advertise("203.0.113.7"), &Config{AllowPrivateSources: true})
	namedRelay    = newSources(addrPorts("0.0.0.0:7777"), nil, advertise("relay.example"), &Config{})
)

func TestSources(t *testing.T) {
	t.Parallel()
	const public, home, loopback, lenient, named = 1, 2, 4, 8, 16
	const all, none = 31, 0
	for _, c := range []struct {
		name    string
		refused int // bits of the relays that refuse
		from    []string
	}{
		{"any client", none, []string{"203.0.113.1:40000", "8.8.8.8:1024", "1.0.0.0:65535", "223.255.255.255:5000", "[2001:db8::1]:40000",
			"[3fff::1]:40000"}},
		{"this network", all, []string{"0.0.0.0:40000", "0.0.0.1:40000", "0.255.255.255:40000"}},
		{"loopback", public | home | lenient | named, []string{"127.0.0.1:40000", "127.0.0.0:40000", "127.255.255.255:40000", "[::1]:40000",
			"[::ffff:127.0.0.1]:40000"}},
		{"beside loopback", none, []string{"126.255.255.255:40000", "128.0.0.0:40000"}},
		{"link-local", all, []string{"169.254.0.0:40000", "169.254.169.254:40000", "169.254.255.255:40000"}},
		{"beside link-local", none, []string{"169.253.255.255:40000", "169.255.0.0:40000"}},
		{"multicast, reserved, broadcast", all, []string{"224.0.0.0:40000", "239.255.255.255:40000", "240.0.0.1:40000", "255.255.255.255:40000"}},
		{"RFC 1918", public, []string{
			"10.0.0.0:40000", "10.255.255.255:40000", "172.16.0.0:40000", "172.31.255.255:40000",
			"192.168.0.0:40000", "192.168.255.255:40000", "[::ffff:10.1.2.3]:40000",
		}},
		{"beside RFC 1918", none, []string{
			"9.255.255.255:40000", "11.0.0.0:40000", "172.15.255.255:40000", "172.32.0.0:40000",
			"192.167.255.255:40000", "192.169.0.0:40000",
		}},
		{"RFC 6598", public, []string{"100.64.0.0:40000", "100.127.255.255:40000"}},
		{"beside RFC 6598", none, []string{"100.63.255.255:40000", "100.128.0.0:40000"}},
		{"unspecified, and IPv4 in IPv6", all, []string{"[::]:40000", "[::2]:40000", "[::127.0.0.1]:40000", "[::8.8.8.8]:40000",
			"[::ffff:0.0.0.0]:40000", "[::ffff:224.0.0.1]:40000", "[::fffe:0:1]:40000"}},
		{"link-local of IPv6", all, []string{"[fe80::1]:40000", "[fe80:ffff::1]:40000", "[febf:ffff::1]:40000"}},
		{"beside link-local of IPv6", none, []string{"[fe7f:ffff::1]:40000", "[fec0::1]:40000"}},
		{"multicast of IPv6", all, []string{"[ff00::]:40000", "[ff02::1]:40000", "[ffff:ffff::1]:40000"}},
		{"RFC 4193", public, []string{"[fc00::1]:40000", "[fd12:3456::1]:40000", "[fdff:ffff::1]:40000"}},
		{"beside RFC 4193", none, []string{"[fbff:ffff::1]:40000", "[fe00::1]:40000"}},
		{"ports of services", all, []string{"203.0.113.1:0", "203.0.113.1:1", "203.0.113.1:53", "203.0.113.1:1023", "[2001:db8::1]:0",
			"[2001:db8::1]:123", "[2001:db8::1]:1023"}},
		{"own address, relay's port", public, []string{"203.0.113.7:7777", "[2001:db8::7]:7777", "[::ffff:203.0.113.7]:7777", "10.0.0.7:7777"}},
		{"own address, another port", none, []string{"203.0.113.7:7776", "203.0.113.7:7778", "[2001:db8::7]:40000"}},
		{"another address, relay's port", none, []string{"203.0.113.6:7777", "[2001:db8::6]:7777"}},
		{"own address of the home relay", home | public, []string{"192.168.1.2:7777"}},
		{"own address on loopback", all, []string{"127.0.0.1:7777", "[::1]:7777"}},
		{"sibling", public, []string{"203.0.113.8:7778", "[2001:db8::8]:7777", "203.0.113.9:7777", "[::ffff:203.0.113.8]:7778"}},
		{"sibling's address, another port", none, []string{"203.0.113.8:7777", "203.0.113.8:40000", "203.0.113.9:7778"}},
	} {
		for i, s := range []*sources{publicRelay, homeRelay, loopbackRelay, lenientRelay, namedRelay} {
			for _, from := range c.from {
				want := c.refused>>i&1 == 1
				if _, got := s.refuses(udp(from)); got != want {
					t.Errorf("%s: relay %d refuses %s: %v, want %v", c.name, i, from, got, want)
				}
				// On which listener, and at which of its addresses, makes no difference.
				if _, got := s.refuses(endpoint.UDP(netip.MustParseAddrPort(from), 3, 1)); got != want {
					t.Errorf("%s: relay %d refuses %s at another listener: %v, want %v", c.name, i, from, got, want)
				}
			}
		}
	}
	for _, kind := range []endpoint.Kind{endpoint.KindDTLS, endpoint.KindSession} {
		if _, refused := publicRelay.refuses(endpoint.Serial(kind, 7777)); refused {
			t.Errorf("a session of kind %v is refused", kind)
		}
	}
}

func TestPrivateSources(t *testing.T) {
	t.Parallel()
	private := udp("192.168.1.9:40000")
	for _, c := range []struct {
		advertised []string
		allow      bool
		refused    bool
	}{
		{nil, false, false},
		{[]string{"192.168.1.2"}, false, false},
		{[]string{"127.0.0.1"}, false, false},
		{[]string{"100.64.1.1"}, false, false},
		{[]string{"fd00::1"}, false, false},
		{[]string{"relay.example"}, false, false},
		{[]string{"203.0.113.7"}, false, true},
		{[]string{"2001:db8::7"}, false, true},
		{[]string{"192.168.1.2", "203.0.113.7"}, false, true},
		{[]string{"203.0.113.7"}, true, false},
	} {
		s := newSources(addrPorts("0.0.0.0:7777"), nil, advertise(c.advertised...), &Config{AllowPrivateSources: c.allow})
		if o, got := s.refuses(private); got != c.refused || got && o != dropPrivate {
			t.Errorf("advertised %v, allowed %v: refused %v with %v, want %v", c.advertised, c.allow, got, o, c.refused)
		}
	}
	for from, want := range map[string]outcome{
		"10.0.0.1:40000": dropPrivate, "172.17.0.1:40000": dropPrivate, "100.64.0.1:40000": dropPrivate, "[fd00::1]:40000": dropPrivate,
		"127.0.0.1:40000": dropForbidden, "[fe80::1]:40000": dropForbidden, "10.0.0.1:53": dropForbidden, "10.0.0.7:7777": dropForbidden,
	} {
		if o, refused := publicRelay.refuses(udp(from)); !refused || o != want {
			t.Errorf("%s: refused %v with %v, want %v", from, refused, o, want)
		}
	}
}

// TestRefusedBindIsReported: a BIND that is dropped for its source or its accept mode is reported with
// the allocation that it names, and gets no answer. No other message is.
func TestRefusedBindIsReported(t *testing.T) {
	t.Parallel()
	banned := netip.MustParsePrefix("198.51.100.0/24")
	for _, c := range []struct {
		name       string
		from       endpoint.Endpoint
		acceptMode byte
		want       outcome
	}{
		{"private", udp("172.17.0.1:40000"), 0, dropPrivate},
		{"private IPv6", udp("[fd00::1]:40000"), 0, dropPrivate},
		{"banned", udp("198.51.100.7:40000"), 0, dropForbidden},
		{"port of a service", udp("192.0.2.7:53"), 0, dropForbidden},
		{"endpoint of a DTLS session", endpointAt(atUnknown), 0, dropPlain},
		{"accept mode", udp("192.0.2.7:40000"), 1, dropAcceptMode},
	} {
		t.Run(c.name, func(t *testing.T) {
			var reported []privateapi.RefuseEvent
			r := newRig(t, Config{
				Advertise: advertise("203.0.113.7"),
				Hooks:     Hooks{Private: privateapi.Hooks{OnRefuse: func(e privateapi.RefuseEvent) { reported = append(reported, e) }}},
			})
			(&Server{shared: r.shared}).SetBannedSources([]netip.Prefix{banned})
			host := r.host(udpN(0), 4)
			late := r.unlinked(udpN(1), host)
			for _, w := range r.workers {
				w.records = &fakeRecords{session: driver.Session{Serial: 7, ID: proto.AllocationID(late.id)}}
			}
			key := proto.Key(late.key)
			bind := func(data string) []byte {
				var signer proto.Signer
				return signer.Append(nil, proto.Bind{AcceptMode: c.acceptMode, Nonce: 2, ConnectionData: []byte(data)}, &key)
			}
			junk := bind(string(late.data))
			junk[20] ^= 1
			others := [][]byte{junk, bind(string(late.data))[:100], bind(string(late.ticket))}
			if c.acceptMode == 0 { // which only a BIND has
				others = append(others, pingMessage(late.id))
			}
			for _, pkt := range others {
				if o := r.feed(c.from, pkt); o != c.want && o != dropSize {
					t.Errorf("%x: %v", head(pkt), o)
				}
			}
			if len(reported) != 0 {
				t.Errorf("reported before: %+v", reported)
			}
			if o := r.feed(c.from, bind(string(late.data))); o != c.want {
				t.Errorf("a BIND: %v", o)
			}
			if want := (privateapi.RefuseEvent{
				ID: proto.AllocationID(late.id), From: c.from.AddrPort(), Message: proto.TypeBind, Outcome: c.want.String(),
			}); len(reported) != 1 || reported[0] != want {
				t.Errorf("reported: %+v, want %+v", reported, want)
			}
			if sent := r.take(); len(sent) != 0 {
				t.Errorf("%d datagrams were sent", len(sent))
			}
		})
	}
}

// TestBannedSources: what comes from a banned network gets no answer and binds nothing, until the
// ban ends. An endpoint that was bound before stays bound, until its owner is kicked.
func TestBannedSources(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Unlimited: true})
	host := r.host(udpN(0), 4)
	player, late := r.joiner(udpN(1), host), r.unlinked(udpN(9), host)
	s := &Server{shared: r.shared}
	s.SetBannedSources([]netip.Prefix{netip.PrefixFrom(udpN(1).AddrPort().Addr(), 32), netip.MustParsePrefix("2001:db8::/32")})
	for _, pkt := range [][]byte{
		signed(late, 2, late.key), pingMessage(late.id), connectMessage(late.id, late.ticket), relayMessage(late.id, host.id, 9),
		message(9, late.id, host.id), message(11, late.id), append([]byte{0xDA, 0x72, 1}, pingMessage(late.id)[3:]...),
	} {
		for _, from := range []endpoint.Endpoint{udpN(1), udp("[2001:db8:7::1]:40000")} {
			if o := r.feed(from, pkt); o != dropForbidden && !(from == udpN(1) && proto.Type(pkt[3]) == proto.TypeRelay) {
				t.Errorf("%x from %v: %v", head(pkt), from, o)
			}
		}
	}
	if o := r.feed(udpN(1), relayMessage(player.id, host.id, 9)); o != outRelayed {
		t.Errorf("a bound player: %v", o)
	}
	if o := r.feed(udpN(2), pingMessage(late.id)); o == dropForbidden {
		t.Error("another address is refused")
	}
	s.SetBannedSources(nil)
	r.bind(late, udpN(3), 7)
}

// TestServicePorts (E2): services that might answer an answer get none, whatever
// is sent in their name, and nothing changes for it.
func TestServicePorts(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Unlimited: true})
	host := r.host(udpN(0), 4)
	joiner1 := r.unlinked(udpN(1), host)
	ports := []string{"7", "13", "17", "19", "53", "69", "123", "161", "389", "0", "1023"}
	for _, port := range ports {
		from := udp("203.0.113.9:" + port)
		for _, pkt := range [][]byte{
			signed(joiner1, 2, joiner1.key), pingMessage(joiner1.id), pingMessage(mID{9}), connectMessage(joiner1.id, joiner1.ticket),
			relayMessage(joiner1.id, host.id, 9), message(9, joiner1.id, host.id), message(11, joiner1.id),
			append([]byte{0xDA, 0x72, 1}, pingMessage(joiner1.id)[3:]...), []byte(mError(joiner1.id, 3)), message(1),
		} {
			if o := r.feed(from, pkt); o != dropForbidden {
				t.Errorf("port %s, %x: %v", port, head(pkt), o)
			}
		}
		cmd := command{kind: 0, from: from, nonce: 9, now: r.now, claims: claims{id: r.entry(joiner1).ID}}
		if o := r.control.commit(&cmd); o != dropForbidden {
			t.Errorf("port %s: control says %v", port, o)
		}
	}
	r.pump()
	if sent := r.take(); len(sent) != 0 {
		t.Errorf("%d datagrams were sent", len(sent))
	}
	if e := r.entry(joiner1); e.Endpoint != udpN(1) || e.Nonce != 1 {
		t.Errorf("joiner1 is at %v with nonce %d", e.Endpoint, e.Nonce)
	}
}

// TestLinkLocalListen: the relay refuses link-local sources, so that no client could bind there.
func TestLinkLocalListen(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"[fe80::1%lo]:0", "[fe80::1]:0", "169.254.1.1:0"} {
		s, err := New(Config{Listen: addrPorts(listen)}, testIdentity(t))
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "is link-local") {
			t.Errorf("%s: %v", listen, err)
		}
	}
}
