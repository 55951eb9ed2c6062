package link_test

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

func netipPort(ap netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr(), port)
}

func udp(t testing.TB, local string) *end {
	t.Helper()
	u, err := link.OpenUDP(netip.MustParseAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	return newEnd(t, u)
}

func TestUDP(t *testing.T) {
	t.Parallel()
	for _, local := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(local, func(t *testing.T) {
			if conn, err := net.ListenPacket("udp", local); err != nil {
				t.Skipf("this machine has no %s: %v", local, err)
			} else {
				conn.Close()
			}
			a, b := udp(t, local), udp(t, local)
			b.quiet(t)
			for i := range 200 { // More than a batch either way.
				if err := a.Send(b.Local(), fmt.Append(nil, i)); err != nil {
					t.Fatal(err)
				}
			}
			a.Flush()
			for i := range 200 {
				b.expect(t, link.Datagram, a.Local(), fmt.Sprint(i))
			}
			b.say(t, a.Local(), "")
			a.expect(t, link.Datagram, b.Local(), "")
			if st := a.Stats(); st.Sent != 200 || st.SentBytes != 10+2*90+3*100 || st.Received != 1 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// TestUDPWaitsForFlush: Send gathers, and the buffer is the caller's at once.
func TestUDPWaitsForFlush(t *testing.T) {
	t.Parallel()
	a, b := udp(t, "127.0.0.1:0"), udp(t, "127.0.0.1:0")
	pkt := []byte("first")
	if err := a.Send(b.Local(), pkt); err != nil {
		t.Fatal(err)
	}
	copy(pkt, "XXXXX")
	if got := a.Stats().Sent; got != 0 {
		t.Errorf("%d sent before Flush", got)
	}
	a.Flush()
	b.expect(t, link.Datagram, a.Local(), "first")
	if err := a.Send(b.Local(), []byte("last")); err != nil || a.Close() != nil {
		t.Fatal(err)
	}
	b.expect(t, link.Datagram, a.Local(), "last")
}

// TestUDPRefusesLinkLocal: an address of netcode has no zone, so that no answer would arrive.
func TestUDPRefusesLinkLocal(t *testing.T) {
	t.Parallel()
	for _, local := range []string{"[fe80::1]:0", "[fe80::1%lo]:0"} {
		if u, err := link.OpenUDP(netip.MustParseAddrPort(local)); err != link.ErrAddr {
			t.Errorf("%s: %v", local, err)
			if err == nil {
				u.Close()
			}
		}
	}
	a := udp(t, "[::1]:0")
	for _, to := range []string{"[fe80::1]:7777", "[fe80::1%lo]:7777"} {
		if err := a.Send(address.FromUDP(netip.MustParseAddrPort(to)), []byte("x")); err != link.ErrAddr {
			t.Errorf("%s: %v", to, err)
		}
	}
}

func TestUDPRefuses(t *testing.T) {
	t.Parallel()
	a, b := udp(t, "127.0.0.1:0"), udp(t, "127.0.0.1:0")
	ap, _ := b.Local().UDP()
	for _, c := range []struct {
		to   address.Addr
		size int
		want error
	}{
		{b.Local(), link.MaxDatagram + 1, link.ErrTooLarge},
		{address.Addr{}, 1, link.ErrAddr},
		{address.FromAllocation([16]byte{1}), 1, link.ErrAddr},
		{address.FromUDP(netipPort(ap, 0)), 1, link.ErrAddr},
		{link.NodeAddr(1), 1, link.ErrAddr},
	} {
		if err := a.Send(c.to, make([]byte, c.size)); err != c.want {
			t.Errorf("%d bytes to %v: %v, want %v", c.size, c.to, err, c.want)
		}
	}
	if _, err := link.OpenUDP(ap); err == nil {
		t.Error("a port was bound twice")
	}
	if err := a.Close(); err != nil || a.Close() != nil {
		t.Errorf("close: %v", err)
	}
	if err := a.Send(b.Local(), nil); err != net.ErrClosed {
		t.Errorf("send after close: %v", err)
	}
	a.quiet(t)
}

// TestUDPDropsWhatIsTooLarge: for the link, and for the caller.
func TestUDPDropsWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	b := udp(t, "127.0.0.1:0")
	ap, _ := b.Local().UDP()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(ap))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, size := range []int{link.MaxDatagram + 1, 4000, link.MaxDatagram} {
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	if ev, _ := b.next(t); ev.N != link.MaxDatagram {
		t.Errorf("%d bytes came", ev.N)
	}
	b.buf = b.buf[:5]
	_, _ = conn.Write([]byte("larger"))
	_, _ = conn.Write([]byte("small"))
	if ev, text := b.next(t); text != "small" || b.Stats().Discarded != 3 {
		t.Errorf("%+v, stats %+v", ev, b.Stats())
	}
}

func TestUDPAllocs(t *testing.T) {
	a, b := udp(t, "127.0.0.1:0"), udp(t, "127.0.0.1:0")
	to, pkt := b.Local(), make([]byte, 1200)
	noAllocs(t, func() {
		if err := a.Send(to, pkt); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		arrives(t, b)
	})
}

// TestWildcardAnswersFromTheAskedAddress: a server on any address answers from the one that was
// asked, since a NAT and a client that connects its socket accept no other. A side that asked first
// leaves its address to the kernel, which follows changes of the network.
func TestWildcardAnswersFromTheAskedAddress(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("127.0.0.2 is an address of this machine on Linux")
	}
	l, err := link.OpenUDP(netip.MustParseAddrPort("0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	server := newEnd(t, l)
	at, _ := server.Local().UDP()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	local := address.FromUDP(conn.LocalAddr().(*net.UDPAddr).AddrPort())
	ask := func(ip string) {
		t.Helper()
		if _, err := conn.WriteToUDPAddrPort([]byte("are you there?"), netip.AddrPortFrom(netip.MustParseAddr(ip), at.Port())); err != nil {
			t.Fatal(err)
		}
		server.expect(t, link.Datagram, local, "are you there?")
	}
	answer := func(want string) {
		t.Helper()
		server.say(t, local, "yes")
		buf := make([]byte, 100)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil || from.Addr().Unmap() != netip.MustParseAddr(want) {
			t.Errorf("an answer from %v, %v, want %s", from, err, want)
		}
	}
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.1"} { // It may ask at another one, too.
		ask(ip)
		answer(ip)
		answer(ip)
	}
	l, err = link.OpenUDP(netip.MustParseAddrPort("0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	server = newEnd(t, l)
	at, _ = server.Local().UDP()
	answer("127.0.0.1")
	ask("127.0.0.2")
	answer("127.0.0.1")
}
