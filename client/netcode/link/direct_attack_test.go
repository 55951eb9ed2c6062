package link_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// The layouts of signals, written a second time.
const (
	magic     = "\xfedir"
	probeSize = 38
)

func rawOffer(flags byte, id uint64, key [16]byte, addrs ...netip.AddrPort) []byte {
	b := append([]byte(magic), 1, flags)
	b = binary.BigEndian.AppendUint64(b, id)
	b = append(append(b, key[:]...), byte(len(addrs)))
	for _, ap := range addrs {
		family := byte(6)
		if ap.Addr().Is4() {
			family = 4
		}
		b = append(append(b, family), ap.Addr().AsSlice()...)
		b = binary.BigEndian.AppendUint16(b, ap.Port())
	}
	return b
}

func rawProbe(kind, flags byte, id, nonce uint64, key []byte, from, to address.Addr) []byte {
	b := append([]byte(magic), kind, flags)
	b = binary.BigEndian.AppendUint64(b, id)
	b = binary.BigEndian.AppendUint64(b, nonce)
	mac := hmac.New(sha256.New, key)
	mac.Write(b)
	mac.Write([]byte(from.String() + " " + to.String()))
	return append(b, mac.Sum(nil)[:16]...)
}

func isProbe(b []byte, kind byte) bool {
	return len(b) == probeSize && string(b[:4]) == magic && b[4] == kind
}

// malicious is a peer of the relay that speaks the signals itself, from any address.
type malicious struct {
	*end
	id  uint64 // of its victim, and the key, from the victim's offer
	key []byte
}

// newMalicious links a malicious peer to a new victim, whose offer it reads.
func newMalicious(t *testing.T) (d *directNet, victim *directEnd, m *malicious) {
	t.Helper()
	d = newDirectNet(t)
	victim, m = d.open(), &malicious{end: newEnd(t, d.node(d.relay, address.Addr{}))}
	d.link(victim, m)
	d.until(time.Second, "offer", func() bool { m.read(); return m.key != nil })
	return d, victim, m
}

// probe returns a probe to the victim that is marked as it has to be.
func (m *malicious) probe(kind, flags byte, nonce uint64, victim *directEnd) []byte {
	return rawProbe(kind, flags, m.id, nonce, m.key, m.Local(), victim.Local())
}

// read takes the victim's key from its offers.
func (m *malicious) read() {
	for ev, text := m.poll(); ev.Kind != link.Nothing; ev, text = m.poll() {
		if ev.Kind == link.Datagram && len(text) >= 31 && text[:5] == magic+"\x01" {
			m.id, m.key = binary.BigEndian.Uint64([]byte(text)[6:]), []byte(text)[14:30]
		}
	}
}

// sentBeside counts what a side sent to addresses other than one.
func (e *directEnd) sentBeside(t *testing.T, peer address.Addr) (datagrams, bytes, most int) {
	t.Helper()
	for to, all := range e.wire.sent {
		if to == peer {
			continue
		}
		datagrams += len(all)
		most = max(most, len(all))
		for _, b := range all {
			bytes += len(b)
			if !isProbe(b, 2) && !isProbe(b, 3) {
				t.Errorf("%v got %q", to, b)
			}
		}
	}
	return datagrams, bytes, most
}

// TestDirectAmplification: whatever addresses a malicious peer offers, and however often, they
// receive few and small datagrams.
func TestDirectAmplification(t *testing.T) {
	t.Parallel()
	d, victim, m := newMalicious(t)
	offer := func(i int) {
		var addrs []netip.AddrPort
		for j := range 4 {
			addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i), byte(j + 1)}), 53))
		}
		m.say(t, victim.Local(), "%s", rawOffer(1, 7, [16]byte{9}, addrs...))
		if err := victim.Send(m.Local(), []byte("a datagram of the game")); err != nil {
			t.Fatal(err)
		}
		d.tick()
		m.read()
	}
	for i := range int(4 * time.Second / tickLength) {
		offer(i)
	}
	datagrams, bytes, most := victim.sentBeside(t, address.Addr{})
	if datagrams != 4*5 || bytes != 4*5*probeSize || most != 5 {
		t.Errorf("in one attempt: %d datagrams, %d bytes, %d to one address", datagrams, bytes, most)
	}
	for i := range int(10 * time.Minute / tickLength) {
		offer(i)
	}
	datagrams, bytes, _ = victim.sentBeside(t, address.Addr{})
	// Attempts at 5 s, 15 s, 35 s, and then every 30 s.
	if datagrams > 25*20 || bytes != datagrams*probeSize {
		t.Errorf("in ten minutes: %d datagrams, %d bytes", datagrams, bytes)
	}
	t.Logf("ten minutes of offers: %d datagrams, %d bytes", datagrams, bytes)
	if st := victim.DirectStats(); st.Validated != 0 || st.Sent != 0 {
		t.Errorf("%+v", st)
	}
}

// TestDirectAmplificationInAll: 200 malicious peers together stay below the bound of one side.
func TestDirectAmplificationInAll(t *testing.T) {
	t.Parallel()
	d := newDirectNet(t)
	victim := d.open()
	third := netip.MustParseAddrPort("203.0.113.1:53")
	for range 200 {
		m := newEnd(t, d.node(d.relay, address.Addr{}))
		d.link(victim, m)
		d.relay.Step()
		offer := rawOffer(1, 7, [16]byte{9}, third, netip.MustParseAddrPort("203.0.113.2:53"),
			netip.MustParseAddrPort("203.0.113.3:53"), netip.MustParseAddrPort("203.0.113.4:53"))
		m.say(t, victim.Local(), "%s", offer)
	}
	d.relay.Step()
	for second := range 5 {
		before, _, _ := victim.sentBeside(t, address.Addr{})
		d.run(time.Second)
		if after, _, _ := victim.sentBeside(t, address.Addr{}); after-before > 2*512 || second == 0 && after == 0 {
			t.Errorf("%d datagrams in second %d", after-before, second)
		}
	}
	if all, _, _ := victim.sentBeside(t, address.Addr{}); all > 6*512 {
		t.Errorf("%d datagrams in 5 s", all)
	}
}

// TestDirectRefusesAddresses: some addresses are never challenged.
func TestDirectRefusesAddresses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"203.0.113.1:0", "0.0.0.0:53", "224.0.0.1:53", "255.255.255.255:53", "127.0.0.1:53", "169.254.1.1:53",
		"[::]:53", "[::1]:53", "[ff02::1]:53", "[fe80::1]:53", "[::ffff:127.0.0.1]:53",
	} {
		d, victim, m := newMalicious(t)
		m.say(t, victim.Local(), "%s", rawOffer(1, 7, [16]byte{9}, netip.MustParseAddrPort(text)))
		d.relay.Step()
		d.run(4 * time.Second)
		if st := victim.DirectStats(); len(victim.wire.sent) != 0 || st.Refused != 1 {
			t.Errorf("%s: %+v, sent to %d addresses", text, st, len(victim.wire.sent))
		}
	}
}

// TestDirectGuess: a peer that knows its key, and forges its source, cannot answer for an
// address that it does not receive at.
func TestDirectGuess(t *testing.T) {
	t.Parallel()
	d, victim, m := newMalicious(t)
	third := d.node(d.direct, udpAddr("203.0.113.1:53"))
	ap, _ := third.Local().UDP()
	m.say(t, victim.Local(), "%s", rawOffer(1, 7, [16]byte{9}, ap))
	d.relay.Step()
	for i := range uint64(200) {
		for _, b := range [][]byte{
			m.probe(3, 1, i, victim), m.probe(3, 0, i<<32, victim), m.probe(2, 0, i, victim),
		} {
			if err := third.Send(victim.wire.Local(), b); err != nil {
				t.Fatal(err)
			}
		}
		d.tick()
	}
	d.tick()
	challenges, responses := 0, 0
	for _, b := range victim.wire.sent[third.Local()] {
		if isProbe(b, 2) {
			challenges++
		} else if isProbe(b, 3) {
			responses++
		}
	}
	if st := victim.DirectStats(); st.Validated != 0 || challenges != 5 || responses != 200 || st.Dropped < 400 {
		t.Errorf("%d challenges, %d responses, %+v", challenges, responses, st)
	}
}

// TestDirectResponsesAreBounded: 64 challenges per second and peer are answered, each by as many bytes.
func TestDirectResponsesAreBounded(t *testing.T) {
	t.Parallel()
	d, victim, m := newMalicious(t)
	third := d.node(d.direct, udpAddr("203.0.113.1:53"))
	m.say(t, victim.Local(), "%s", rawOffer(1, 7, [16]byte{9}))
	d.relay.Step()
	d.tick()
	for i := range uint64(5000) {
		if err := third.Send(victim.wire.Local(), m.probe(2, 0, i, victim)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 {
			d.tick() // 50 in all: one second
		}
	}
	d.tick()
	if n, _, _ := victim.sentBeside(t, address.Addr{}); n < 64 || n > 2*64+5 {
		t.Errorf("%d datagrams", n)
	}
}

// TestDirectForgery: an attacker that sees all that passes, but has no key, takes no path over and
// gets nothing but probes.
func TestDirectForgery(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	attacker := d.node(d.direct, udpAddr("203.0.113.66:666"))
	send := func(p []byte) {
		t.Helper()
		if err := attacker.Send(a.wire.Local(), p); err != nil {
			t.Fatal(err)
		}
	}
	d.connect(a, b)
	bAddr := b.wire.Local()
	for range 50 {
		for _, p := range b.wire.sent[a.wire.Local()] { // What b has sent to a, from another address.
			send(p)
			forged := append([]byte(nil), p...)
			forged[len(forged)-1] ^= 1
			send(forged)
		}
		for _, p := range a.wire.sent[bAddr] { // What a has sent comes back.
			send(p)
		}
		send(rawProbe(2, 0, 1, 2, nil, b.Local(), a.Local()))
		send([]byte("\x01 data of the game"))
		a.say(t, b.Local(), "a datagram")
		d.tick()
	}
	d.run(10 * time.Second)
	if n, _, _ := a.sentBeside(t, bAddr); n > 2*64+5 { // Responses of two seconds, and challenges.
		t.Errorf("the attacker got %d datagrams", n)
	}
	st := a.DirectStats()
	if st.Validated != 1 || st.Lost != 0 || st.Paths != 1 || st.Dropped < 1000 {
		t.Errorf("%+v", st)
	}
	for _, text := range a.got {
		t.Errorf("a got %q", text)
	}
	if lostB, lostA := d.talk(a, b, 100); len(lostB)+len(lostA) != 0 {
		t.Errorf("lost %v and %v", lostB, lostA)
	}
}

// TestDirectEcho: two players together cannot make an echo service a path, by offering the ids and
// keys of their host to each other's account.
func TestDirectEcho(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		d, victim, first := newMalicious(t)
		second := first
		if !same {
			second = &malicious{end: newEnd(t, d.node(d.relay, address.Addr{}))}
			d.link(victim, second)
			d.until(time.Second, "offer", func() bool { second.read(); return second.key != nil })
		}
		echo := d.node(d.direct, udpAddr("203.0.113.1:7"))
		ap, _ := echo.Local().UDP()
		first.say(t, victim.Local(), "%s", rawOffer(1, second.id, [16]byte(second.key), ap))
		second.say(t, victim.Local(), "%s", rawOffer(1, first.id, [16]byte(first.key), ap))
		d.relay.Step()
		buf := make([]byte, link.MaxDatagram)
		for range 200 {
			d.tick()
			for ev := echo.Receive(buf); ev.Kind == link.Datagram; ev = echo.Receive(buf) {
				_ = echo.Send(ev.Addr, buf[:ev.N])
			}
		}
		if st := victim.DirectStats(); st.Validated != 0 || echo.Stats().Received < 5 || echo.Stats().Received > 10 || st.Dropped < 5 {
			t.Errorf("one player %v: %+v; echo %+v", same, st, echo.Stats())
		}
	}
}

// TestDirectMisbinding: a peer of two hosts cannot make one send it datagrams to the other, by
// offering to each the id, key and address of the other.
func TestDirectMisbinding(t *testing.T) {
	t.Parallel()
	d, first, m := newMalicious(t)
	second := d.open()
	n := &malicious{end: m.end}
	d.link(second, m)
	d.until(time.Second, "offer", func() bool { n.read(); return n.key != nil })
	a, _ := first.wire.Local().UDP()
	b, _ := second.wire.Local().UDP()
	m.say(t, first.Local(), "%s", rawOffer(0, n.id, [16]byte(n.key), b))
	m.say(t, second.Local(), "%s", rawOffer(0, m.id, [16]byte(m.key), a))
	d.relay.Step()
	d.run(4 * time.Second)
	for _, e := range d.ends {
		if st := e.DirectStats(); st.Validated != 0 || st.Probes != 5 || st.Dropped != 5 {
			t.Errorf("%+v", st)
		}
	}
}

// TestDirectRefusesRelay: the relay itself is never challenged.
func TestDirectRefusesRelay(t *testing.T) {
	t.Parallel()
	g := newGame(t, 1)
	socket, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	direct, err := link.OpenDirect(g.host.Link, socket)
	if err != nil {
		t.Fatal(err)
	}
	host := newEnd(t, direct)
	p := g.player(t, "player", nil)
	other := netip.MustParseAddrPort("127.0.0.1:9")
	p.say(t, host.Local(), "%s", rawOffer(0, 7, [16]byte{9}, g.relay.Addr(), other))
	for give := time.Now().Add(patience); link.CountDirect(direct).Probes < 5; pause() {
		host.poll()
		host.Flush()
		if time.Now().After(give) {
			t.Fatalf("%+v", link.CountDirect(direct))
		}
	}
	if st := link.CountDirect(direct); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}

// TestDirectOffers: a side offers the game's addresses first, then those of its interfaces.
func TestDirectOffers(t *testing.T) {
	t.Parallel()
	d := newDirectNet(t)
	m, r := newEnd(t, d.node(d.relay, address.Addr{})), d.node(d.relay, address.Addr{})
	socket, err := link.OpenUDP(netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	given := netip.MustParseAddrPort("203.0.113.1:5")
	direct, err := link.OpenDirect(r, socket, given, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	e := newEnd(t, direct)
	d.link(r, m)
	d.relay.Step()
	e.poll()
	e.Flush()
	d.relay.Step()
	m.expect(t, link.Joined, r.Local(), "")
	_, text := m.next(t)
	local, _ := socket.Local().UDP()
	want := []netip.AddrPort{given}
	nets, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nets {
		if ip := n.(*net.IPNet).IP.To4(); ip != nil && ip.IsGlobalUnicast() && len(want) < 4 {
			want = append(want, netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip)), local.Port()))
		}
	}
	if head := text[:30]; text != head+string(rawOffer(0, 0, [16]byte{}, want...)[30:]) {
		t.Errorf("offer %x, want the addresses %v", text, want)
	}
}

// TestDirectReplies: an offer that asks for one is answered, within 200 ms once.
func TestDirectReplies(t *testing.T) {
	t.Parallel()
	d, victim, m := newMalicious(t)
	d.run(4 * time.Second) // Its own offers are sent.
	m.read()
	m.key = nil
	for flags, want := range []bool{false, true} {
		sent := victim.relay.Stats().Sent
		for range 9 {
			m.say(t, victim.Local(), "%s", rawOffer(byte(flags), 7, [16]byte{9}))
			d.relay.Step()
			d.tick()
			m.read()
		}
		if n := victim.relay.Stats().Sent - sent; (m.key != nil) != want || n > 1 {
			t.Errorf("flags %d: %d offers, key %x", flags, n, m.key)
		}
	}
}

// TestDirectMalformed: malformed signals are counted, and are nothing to the game.
func TestDirectMalformed(t *testing.T) {
	t.Parallel()
	d, victim, m := newMalicious(t)
	good := rawOffer(0, 7, [16]byte{9}, netip.MustParseAddrPort("203.0.113.1:5"))
	family5 := rawOffer(0, 7, [16]byte{9}, netip.MustParseAddrPort("[2001:db8::1]:5"))
	family5[31] = 5
	bad := [][]byte{
		family5,
		[]byte(magic), good[:len(good)-1], append(append([]byte(nil), good...), 0), rawOffer(2, 7, [16]byte{}),
		m.probe(2, 0, 1, victim),
		good[:30], rawOffer(0, 7, [16]byte{9}, slices.Repeat([]netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:5")}, 5)...),
	}
	for _, b := range bad {
		m.say(t, victim.Local(), "%s", b)
	}
	d.relay.Step()
	victim.got = nil
	d.tick()
	if st := victim.DirectStats(); st.Malformed != uint64(len(bad)) || len(victim.got) != 0 {
		t.Errorf("%+v, got %q", st, victim.got)
	}
	third := d.node(d.direct, udpAddr("203.0.113.1:53"))
	for _, b := range [][]byte{[]byte(magic), m.probe(9, 0, 1, victim), m.probe(2, 1, 1, victim), good} {
		_ = third.Send(victim.wire.Local(), b)
	}
	d.direct.Step()
	d.tick()
	if st := victim.DirectStats(); st.Malformed != uint64(len(bad)+4) || victim.Stats().Discarded != st.Malformed ||
		len(victim.wire.sent) != 0 {
		t.Errorf("%+v", st)
	}
}

// FuzzDirect: whatever comes over the relay and the socket, there is no path, and the game gets
// what is not a signal.
func FuzzDirect(f *testing.F) {
	f.Add(rawOffer(1, 7, [16]byte{1}, netip.MustParseAddrPort("192.0.2.9:5"), netip.MustParseAddrPort("[2001:db8::1]:5")), []byte("x"))
	f.Add(rawProbe(2, 0, 7, 8, make([]byte, 16), address.Addr{}, address.Addr{}),
		rawProbe(3, 1, 7, 8, make([]byte, 16), address.Addr{}, address.Addr{}))
	f.Add([]byte(magic), []byte("UTP"))
	f.Add([]byte{}, []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, overRelay, overSocket []byte) {
		d := newDirectNet(t)
		victim, m := d.open(), d.node(d.relay, address.Addr{})
		d.link(victim, m)
		d.tick()
		third := d.node(d.direct, udpAddr("203.0.113.1:53"))
		for range 30 {
			_ = m.Send(victim.Local(), overRelay)
			_ = third.Send(victim.wire.Local(), overSocket)
			d.tick()
		}
		victim.sentBeside(t, address.Addr{})
		if st := victim.DirectStats(); st.Validated != 0 || st.Received != 0 {
			t.Fatalf("%+v", st)
		}
		want := 30 // The last arrives with the next tick.
		if len(overRelay) >= 4 && string(overRelay[:4]) == magic || len(overRelay) > link.MaxDatagram {
			want = 0
		}
		d.tick()
		got := 0
		for _, text := range victim.got {
			if text != "joined " {
				got++
			}
		}
		if got != want {
			t.Fatalf("the game got %d datagrams, want %d", got, want)
		}
	})
}
