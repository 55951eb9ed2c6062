//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"golang.org/x/sys/unix"
)

type pair struct {
	a, b     *Conn
	rxA, rxB *RecvBatch
	txA, txB *SendBatch
	toB      endpoint.Endpoint
}

func newPair(t testing.TB, listenAddr, dialAddr string) *pair {
	a := listen(t, Config{Addr: netip.MustParseAddrPort(listenAddr)}, 1)
	b := listen(t, Config{Addr: netip.MustParseAddrPort(listenAddr)}, 1)
	p := &pair{a: a.Conns()[0], b: b.Conns()[0]}
	p.rxA, p.rxB = p.a.NewRecvBatch(), p.b.NewRecvBatch()
	p.txA, p.txB = p.a.NewSendBatch(DefaultBatch), p.b.NewSendBatch(DefaultBatch)
	p.toB = endpoint.UDP(netip.AddrPortFrom(netip.MustParseAddr(dialAddr), b.Addr().Port()), 0, 0)
	return p
}

func (p *pair) echo(n int, pkt []byte) bool {
	for range n {
		p.txA.Add(p.toB, pkt)
	}
	p.a.Send(p.txA)
	return relayBack(p.b, p.rxB, p.txB, n) && relayBack(p.a, p.rxA, nil, n)
}

// relayBack receives as many as it wants, and sends them back if it has a batch
// for that. Recv may come back with nothing, now and then.
func relayBack(c *Conn, rx *RecvBatch, tx *SendBatch, want int) bool {
	for idle := 0; want > 0; {
		n, err := c.Recv(rx)
		if n == 0 {
			idle++
		}
		if err != nil || idle > int(testkit.WaitLimit/recvTimeout) {
			return false
		}
		want -= n
		for i := range n {
			from, pkt, truncated := rx.At(i)
			if truncated || from.IsZero() {
				return false
			}
			if tx != nil {
				tx.Add(from, pkt)
			}
		}
		if tx != nil && c.Send(tx).Failed > 0 {
			return false
		}
	}
	return true
}

func testAllocs(t *testing.T, listenAddr, dialAddr string) {
	t.Helper()
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	p := newPair(t, listenAddr, dialAddr)
	pkt := make([]byte, 200)
	for _, n := range []int{1, 8, 64} {
		ok := true
		if allocs := testing.AllocsPerRun(100, func() { ok = ok && p.echo(n, pkt) }); allocs != 0 || !ok {
			t.Errorf("batch %d: %v allocations, all arrived: %v", n, allocs, ok)
		}
	}
}

func TestAllocsIPv4(t *testing.T) { testAllocs(t, "127.0.0.1:0", "127.0.0.1") }

func TestAllocsIPv6(t *testing.T) {
	needV6(t)
	testAllocs(t, "[::1]:0", "::1")
}

func TestAllocsWildcardIPv4(t *testing.T) { testAllocs(t, "0.0.0.0:0", "127.0.0.2") }

func TestAllocsWildcardIPv6(t *testing.T) {
	needV6(t)
	testAllocs(t, "[::]:0", "::1")
}

// TestHeldReceiver: a receiver that keeps its processor receives every datagram, before
// and after it was idle, ends on Close, and does not stop the collector.
func TestHeldReceiver(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, before))
	defer runtime.GOMAXPROCS(before)
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), HoldProcessor: true}, 1)
	c := g.Conns()[0]
	got, ended := make(chan byte, 64), make(chan error, 1)
	go func() {
		b := c.NewRecvBatch()
		for {
			n, err := c.Recv(b)
			if err != nil {
				ended <- err
				return
			}
			for i := range n {
				_, pkt, _ := b.At(i)
				got <- pkt[0]
			}
		}
	}()
	client := dial(t, netip.AddrPort{}, g.Addr())
	for i := range byte(6) {
		time.Sleep(time.Duration(i) * heldTimeout) // at first busy, then idle
		write(t, client, []byte{i})
		select {
		case n := <-got:
			if n != i {
				t.Fatalf("got %d, want %d", n, i)
			}
		case <-time.After(testkit.WaitLimit):
			t.Fatalf("datagram %d never came", i)
		}
		runtime.GC() // It stops every goroutine, or never returns.
	}
	g.Close()
	if err := <-ended; err != net.ErrClosed {
		t.Error(err)
	}
}

// TestQuietReceiver: after a wait without a datagram only a datagram ends the next one, and it
// starts over with a short wait.
func TestQuietReceiver(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, before))
	defer runtime.GOMAXPROCS(before)
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), HoldProcessor: true}, 1)
	c := g.Conns()[0]
	b, client := c.NewRecvBatch(), dial(t, netip.AddrPort{}, g.Addr())
	for range 2 {
		for waits := true; waits; waits = !b.quiet {
			began := time.Now()
			if n, err := c.Recv(b); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			if took := time.Since(began); took > quietTimeout/2 {
				t.Errorf("a first wait of %v", took)
			}
		}
		time.AfterFunc(2*recvTimeout, func() { write(t, client, []byte{1}) })
		n, err := c.Recv(b)
		for n == 0 && b.errors.signals > 0 { // A signal of the runtime ended the wait.
			n, err = c.Recv(b)
		}
		if n != 1 || err != nil {
			t.Errorf("a quiet receiver woke up for %d datagrams: %v", n, err)
		}
	}
}

// TestLostDescriptor closes a descriptor without the package, or puts a
// file in its place: only then Recv gives up, since it would wait for ever. An
// errno alone is not enough.
func TestLostDescriptor(t *testing.T) {
	file, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(file) }()
	for _, tt := range []struct {
		errno syscall.Errno
		lose  func(fd int) error
	}{
		{unix.EBADF, unix.Close},
		{unix.ENOTSOCK, func(fd int) error { return unix.Dup3(file, fd, unix.O_CLOEXEC) }},
	} {
		c := listenOn(t, "127.0.0.1:0").Conns()[0]
		b := c.NewRecvBatch()
		c.kernel = recvScript{c.sock, func(*RecvBatch) (int, syscall.Errno) { return 0, tt.errno }}
		if n, err := c.Recv(b); n != 0 || err != nil {
			t.Errorf("%v on a sound descriptor: %d, %v", tt.errno, n, err)
		}
		c.kernel = c.sock
		fd := c.sock.fd
		spare, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := tt.lose(fd); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Recv(b); n != 0 || !errors.Is(err, tt.errno) {
			t.Errorf("%v: %d, %v", tt.errno, n, err)
		}
		if n, err := c.TryRecv(b); n != 0 || !errors.Is(err, tt.errno) {
			t.Errorf("%v: TryRecv: %d, %v", tt.errno, n, err)
		}
		if err := unix.Dup3(spare, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(spare); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPktinfoRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name string
		v4   bool
		a    localAddr
		ok   bool
	}{
		{"v4", true, localAddr{lo: 0x7f000002}, true},
		{"v4 none", true, localAddr{}, false},
		{"v6", false, localAddr{hi: 0x20010db8 << 32, lo: 1}, true},
		{"v6 link-local", false, localAddr{hi: 0xfe80 << 48, lo: 7, zone: 3}, true},
		{"v6 multicast", false, localAddr{hi: 0xff02 << 48, lo: 1}, false},
	} {
		slot := make([]byte, unix.CmsgSpace(pktinfoLen(tt.v4)))
		initPktinfo(slot, tt.v4)
		putPktinfo(slot, tt.a, tt.v4)
		if tt.ok {
			msgs, err := unix.ParseSocketControlMessage(slot)
			if err != nil || len(msgs) != 1 || len(msgs[0].Data) != pktinfoLen(tt.v4) {
				t.Errorf("%s: x/sys reads %v, %v", tt.name, msgs, err)
			}
		}
		if got, ok := parsePktinfo(slot, len(slot), tt.v4); ok != tt.ok || (ok && got != tt.a) {
			t.Errorf("%s: %+v, %v", tt.name, got, ok)
		}
		if _, ok := parsePktinfo(slot, unix.CmsgLen(pktinfoLen(tt.v4))-1, tt.v4); ok {
			t.Errorf("%s: a short message is read", tt.name)
		}
		if _, ok := parsePktinfo(slot, len(slot), !tt.v4); ok {
			t.Errorf("%s: a message of the other family is read", tt.name)
		}
	}
}

// disableTimeout removes the time-out of a socket, so that only StopReceiving and
// Close can end a blocked receive.
func disableTimeout(t *testing.T, c *Conn) {
	t.Helper()
	if err := unix.SetsockoptTimeval(c.sock.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{}); err != nil {
		t.Fatal(err)
	}
}

// entryBase identifies entry i of a batch by its first byte.
func entryBase(b *SendBatch, i int) *byte { return b.iovs[i].Base }

// fill fills as the kernel does slots 0 to len(pkts)-1 of an IPv4 socket.
func fill(b *RecvBatch, from netip.AddrPort, pkts [][]byte) int {
	b.reset()
	ip := from.Addr().As4()
	for i, pkt := range pkts {
		name := b.names[i*b.nameLen:]
		binary.BigEndian.PutUint16(name[2:], from.Port())
		copy(name[4:8], ip[:])
		b.hdrs[i].len = uint32(copy(b.buf[i*SlotSize:(i+1)*SlotSize], pkt))
		b.hdrs[i].hdr.Flags = 0
		if len(pkt) > SlotSize {
			b.hdrs[i].hdr.Flags = unix.MSG_TRUNC
		}
	}
	b.used = len(pkts)
	return len(pkts)
}

func descriptor(t *testing.T, c *Conn, f func(fd int)) {
	t.Helper()
	f(c.sock.fd)
}
