package sock

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestLoopback(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			if addr[0] == '[' {
				needV6(t)
			}
			g := listen(t, Config{Addr: netip.MustParseAddrPort(addr), Listener: 9}, 1)
			c := g.Conns()[0]
			rx, tx := c.NewRecvBatch(), c.NewSendBatch(8)
			client := dial(t, netip.AddrPort{}, g.Addr())
			want := endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 9)
			for _, size := range []int{0, 1, 38, 1472, SlotSize - 1, SlotSize} {
				pkt := bytes.Repeat([]byte{byte(size)}, size)
				write(t, client, pkt)
				if n := recvSome(t, c, rx); n != 1 {
					t.Fatalf("%d datagrams, want 1", n)
				}
				from, got, truncated := rx.At(0)
				if from != want || truncated || !bytes.Equal(got, pkt) {
					t.Fatalf("size %d: from %v, truncated %v, %d bytes", size, from, truncated, len(got))
				}
				if !tx.Add(from, got) {
					t.Fatal("an empty batch is full")
				}
				if res := c.Send(tx); res != (SendResult{Sent: 1, Bytes: size, Messages: 1, Failed: 0}) {
					t.Fatalf("size %d: %+v", size, res)
				}
				if echo := read(t, client); !bytes.Equal(echo, pkt) {
					t.Fatalf("size %d: %d bytes came back", size, len(echo))
				}
			}
			write(t, client, make([]byte, SlotSize+1))
			recvSome(t, c, rx)
			if _, pkt, truncated := rx.At(0); !truncated || !cutUnknown && len(pkt) != SlotSize {
				t.Errorf("a long datagram: truncated %v, %d bytes", truncated, len(pkt))
			}
		})
	}
}

func TestBatch(t *testing.T) {
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Batch: 8}, 1)
	c := g.Conns()[0]
	rx := c.NewRecvBatch()
	client := dial(t, netip.AddrPort{}, g.Addr())
	const total = 50
	for i := range total {
		write(t, client, []byte{byte(i)})
	}
	for next := 0; next < total; {
		n := recvSome(t, c, rx)
		if n > 8 {
			t.Fatalf("%d datagrams in a batch of 8", n)
		}
		for i := range n {
			if _, pkt, _ := rx.At(i); len(pkt) != 1 || int(pkt[0]) != next {
				t.Fatalf("datagram %v, want %d", pkt, next)
			}
			next++
		}
	}
}

func TestSendRefused(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	client := dial(t, netip.AddrPort{}, g.Addr())
	good := endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0)
	portless := endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:0"), 0, 0)
	v6 := endpoint.UDP(netip.MustParseAddrPort("[::1]:9"), 0, 0)
	b := c.NewSendBatch(7)
	for i, to := range []endpoint.Endpoint{portless, good, portless, v6, good, {}, good} {
		if !b.Add(to, []byte{byte(i)}) {
			t.Fatalf("full at %d", i)
		}
	}
	if b.Add(good, nil) || b.Len() != 7 {
		t.Fatalf("a full batch takes more; Len %d", b.Len())
	}
	messages := 3
	if g.Capabilities().GSO {
		messages = 1
	}
	if res := c.Send(b); res != (SendResult{Sent: 3, Bytes: 3, Messages: messages, Failed: 4}) {
		t.Errorf("%+v", res)
	}
	for _, want := range []byte{1, 4, 6} {
		if got := read(t, client); len(got) != 1 || got[0] != want {
			t.Errorf("got %v, want %d", got, want)
		}
	}
	if c.Stats().SendErrors != 4 || b.Len() != 0 {
		t.Errorf("stats %+v, Len %d", c.Stats(), b.Len())
	}
	b.Add(good, []byte{1})
	b.Add(v6, []byte{1})
	if b.Reset(); b.Len() != 0 || c.Send(b) != (SendResult{}) {
		t.Error("Reset leaves entries behind")
	}
}

// otherLocals lists pairs of a client address and a local address to send to
// that the kernel would not choose as the source of the reply by itself.
func otherLocals(t *testing.T, v4 bool) [][2]netip.Addr {
	loop := netip.MustParseAddr("127.0.0.1")
	if v4 {
		return [][2]netip.Addr{
			{loop, loop},
			{loop, netip.MustParseAddr("127.0.0.2")},
			{loop, netip.MustParseAddr("127.0.0.3")},
		}
	}
	loop = netip.IPv6Loopback()
	pairs := [][2]netip.Addr{{loop, loop}}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && p.Addr() != loop {
			pairs = append(pairs, [2]netip.Addr{loop, p.Addr()})
		}
	}
	return pairs
}

// TestWildcardAnswersFromAddressSentTo uses connected clients, which receive only
// from the address they have sent to.
func TestWildcardAnswersFromAddressSentTo(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skipf("%s has no second loopback address without set-up", runtime.GOOS)
	}
	for _, addr := range []string{"0.0.0.0:0", "[::]:0"} {
		t.Run(addr, func(t *testing.T) {
			if addr[0] == '[' {
				needV6(t)
			}
			g := listen(t, Config{Addr: netip.MustParseAddrPort(addr), Listener: 3}, 1)
			if !g.Capabilities().LocalAddress {
				t.Fatal("Linux does not report the local address")
			}
			c := g.Conns()[0]
			rx, tx := c.NewRecvBatch(), c.NewSendBatch(1)
			seen := map[uint16]netip.Addr{}
			for _, pair := range otherLocals(t, addr[0] == '0') {
				to := netip.AddrPortFrom(pair[1], g.Addr().Port())
				client := dial(t, netip.AddrPortFrom(pair[0], 0), to)
				for range 2 {
					write(t, client, []byte("ping"))
					recvSome(t, c, rx)
					from, pkt, _ := rx.At(0)
					local, ok := g.LocalAddr(from.Local())
					if !ok || local != pair[1] || from.Listener() != 3 {
						t.Fatalf("sent to %v, local %d is %v, %v", to, from.Local(), local, ok)
					}
					seen[from.Local()] = local
					tx.Add(from, pkt)
					if res := c.Send(tx); res.Sent != 1 {
						t.Fatalf("reply from %v: %+v", local, res)
					}
					if got := read(t, client); string(got) != "ping" {
						t.Fatalf("reply %q", got)
					}
				}
			}
			if addr[0] == '0' && len(seen) != 3 {
				t.Errorf("local addresses %v, want 3", seen)
			}
		})
	}
}

func TestForeignLocal(t *testing.T) {
	g := listen(t, Config{Addr: netip.MustParseAddrPort("0.0.0.0:0"), Listener: 1}, 1)
	c := g.Conns()[0]
	g.locals.id(localAddr{lo: 0x7f000002})
	client := dial(t, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), g.Addr().Port()))
	addr := client.LocalAddr().(*net.UDPAddr).AddrPort()
	b := c.NewSendBatch(3)
	b.Add(endpoint.UDP(addr, 0, 1), []byte{1})   // any local address
	b.Add(endpoint.UDP(addr, 500, 1), []byte{2}) // a number never given
	b.Add(endpoint.UDP(addr, 1, 2), []byte{3})   // a number of another listener
	if res := c.Send(b); res.Sent != 3 {
		t.Fatalf("%+v", res)
	}
	for want := byte(1); want <= 3; want++ {
		if got := read(t, client); got[0] != want {
			t.Errorf("got %v, want %d", got, want)
		}
	}
}

func TestGroupSpreadsPeers(t *testing.T) {
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 4)
	if !g.Capabilities().ReusePort {
		if runtime.GOOS == "linux" || len(g.Conns()) != 1 {
			t.Fatalf("%d sockets, %+v", len(g.Conns()), g.Capabilities())
		}
		t.Skipf("%s does not spread peers over sockets", runtime.GOOS)
	}
	const peers = 64
	received := make([]map[endpoint.Endpoint]int, 4)
	var wg, all sync.WaitGroup
	all.Add(3 * peers)
	for i, c := range g.Conns() {
		received[i] = map[endpoint.Endpoint]int{}
		wg.Go(func() {
			rx := c.NewRecvBatch()
			for {
				n, err := c.Recv(rx)
				if err != nil {
					return
				}
				for k := range n {
					from, _, _ := rx.At(k)
					received[i][from]++
					all.Done()
				}
			}
		})
	}
	for range peers {
		client := dial(t, netip.AddrPort{}, g.Addr())
		for range 3 {
			write(t, client, []byte{1})
		}
	}
	waitFor(t, &all, "all datagrams")
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	total := 0
	for i, m := range received {
		if len(m) == 0 {
			t.Errorf("socket %d received nothing", i)
		}
		for from, n := range m {
			if n != 3 {
				t.Errorf("socket %d received from %v %d times, want 3", i, from, n)
			}
		}
		total += len(m)
	}
	if total != peers {
		t.Errorf("%d peers, want %d", total, peers)
	}
}

func waitFor(t *testing.T, wg *sync.WaitGroup, what string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(testkit.WaitLimit):
		t.Fatalf("%s: not within %v", what, testkit.WaitLimit)
	}
}

func TestListenErrors(t *testing.T) {
	ok := netip.MustParseAddrPort("127.0.0.1:0")
	for _, tt := range []struct {
		name string
		cfg  Config
		n    int
		want error
	}{
		{"no address", Config{}, 1, ErrAddress},
		{"no sockets", Config{Addr: ok}, 0, ErrConfig},
		{"too many sockets", Config{Addr: ok}, MaxSockets + 1, ErrConfig},
		{"batch", Config{Addr: ok, Batch: MaxBatch + 1}, 1, ErrConfig},
		{"negative batch", Config{Addr: ok, Batch: -1}, 1, ErrConfig},
		{"read buffer", Config{Addr: ok, ReadBuffer: -1}, 1, ErrConfig},
		{"write buffer", Config{Addr: ok, WriteBuffer: maxBuffer + 1}, 1, ErrConfig},
		{"foreign address", Config{Addr: netip.MustParseAddrPort("192.0.2.77:0")}, 1, nil},
		{"unknown zone", Config{Addr: netip.MustParseAddrPort("[fe80::1%nosuchzone]:0")}, 1, nil},
	} {
		g, err := Listen(tt.cfg, tt.n)
		if err == nil {
			t.Errorf("%s: no error; close: %v", tt.name, g.Close())
		} else if tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestSecondInstance(t *testing.T) {
	for _, first := range []int{1, 2} {
		for _, second := range []int{1, 2} {
			t.Run(fmt.Sprintf("%d then %d", first, second), func(t *testing.T) {
				g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, first)
				if g2, err := Listen(Config{Addr: g.Addr()}, second); err == nil {
					t.Fatalf("two groups on %v; close: %v", g.Addr(), g2.Close())
				}
				if err := g.Close(); err != nil {
					t.Fatal(err)
				}
				listen(t, Config{Addr: g.Addr()}, second)
			})
		}
	}
}

func TestMappedListenAddress(t *testing.T) {
	g := listenOn(t, "[::ffff:127.0.0.1]:0")
	if ip := g.Addr().Addr(); ip != netip.MustParseAddr("127.0.0.1") || g.Addr().Port() == 0 {
		t.Errorf("listens on %v", g.Addr())
	}
}

func TestDualStack(t *testing.T) {
	needV6(t)
	g4, g6 := bothFamilies(t)
	var wg sync.WaitGroup
	for _, g := range []*Group{g4, g6} {
		wg.Go(func() {
			if err := serve(g.Conns()[0]); err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		client := dial(t, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(ip), g4.Addr().Port()))
		write(t, client, []byte(ip))
		if got := read(t, client); string(got) != ip {
			t.Errorf("%s: %q", ip, got)
		}
	}
	g4.StopReceiving()
	g6.StopReceiving()
	wg.Wait()
}

// bothFamilies tries some ports, since a port that is free for IPv4 may be in use
// for IPv6.
func bothFamilies(t *testing.T) (g4, g6 *Group) {
	t.Helper()
	for range 5 {
		g4 = listenOn(t, "0.0.0.0:0")
		var err error
		g6, err = Listen(Config{Addr: netip.AddrPortFrom(netip.IPv6Unspecified(), g4.Addr().Port())}, 1)
		if err == nil {
			t.Cleanup(func() {
				if err := g6.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			return g4, g6
		}
		t.Logf("port %d: %v", g4.Addr().Port(), err)
	}
	t.Fatal("of five ports none is free for both families")
	return nil, nil
}

func TestKernelDrops(t *testing.T) {
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: 8192}, 1)
	if !g.Capabilities().DropCounter {
		t.Skipf("the %s build has no drop counter", g.Capabilities().Path)
	}
	client := dial(t, netip.AddrPort{}, g.Addr())
	for range 200 {
		write(t, client, make([]byte, 1000))
	}
	// A busy kernel may deliver late, so each has to be accounted for.
	c := g.Conns()[0]
	rx, taken, drops := c.NewRecvBatch(), uint64(0), uint64(0)
	for end := time.Now().Add(testkit.WaitLimit); taken+drops < 200 && time.Now().Before(end); {
		n, err := c.TryRecv(rx)
		if err != nil {
			t.Fatal(err)
		}
		taken, drops = taken+uint64(n), c.Stats().KernelDrops
	}
	if drops == 0 || taken+drops != 200 {
		t.Errorf("%d drops, %d taken", drops, taken)
	}
	if err := c.Close(); err != nil || c.Stats().KernelDrops != drops {
		t.Errorf("after Close (%v): %d drops, before %d", err, c.Stats().KernelDrops, drops)
	}
}

func TestCapabilities(t *testing.T) {
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: 65536, WriteBuffer: 65536}, 1)
	caps := g.Capabilities()
	if caps.ReusePort || !caps.LocalAddress || caps.Path == "" {
		t.Errorf("%+v", caps)
	}
	if runtime.GOOS == "linux" && (!caps.PathMTU || caps.ReadBuffer != 65536 || caps.WriteBuffer != 65536) {
		t.Errorf("%+v", caps)
	}
}

// TestOddDatagrams: empty datagrams are datagrams, which count against the
// batch and end nothing, and a truncated one, which is reported, does not affect
// its neighbours. One socket per batch size, through the real kernel.
func TestOddDatagrams(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		for _, held := range []bool{false, true} {
			t.Run(addr+map[bool]string{true: "/held"}[held], func(t *testing.T) {
				if addr[0] == '[' {
					needV6(t)
				}
				testOdd(t, Config{Addr: netip.MustParseAddrPort(addr), Batch: 8, HoldProcessor: held})
			})
		}
	}
}

// cutUnknown: on Windows a truncated datagram has no source, and may be empty.
const cutUnknown = runtime.GOOS == "windows"

func testOdd(t *testing.T, cfg Config) {
	g := listen(t, cfg, 1)
	c := g.Conns()[0]
	to := g.Addr()
	if cfg.Addr.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
	}
	client := dial(t, netip.AddrPort{}, to)
	rng := rand.New(rand.NewPCG(3, 4))
	sizes := []int{0, 0, 0, 1, 38, SlotSize, SlotSize + 1, 9000}
	rx := c.NewRecvBatch()
	for round := range 30 {
		var want [][]byte
		for range 1 + rng.IntN(20) {
			size := sizes[rng.IntN(len(sizes))]
			if round == 0 {
				size = 0
			}
			want = append(want, bytes.Repeat([]byte{byte(rng.Uint32())}, size))
			write(t, client, want[len(want)-1])
		}
		for len(want) > 0 {
			n := recvSome(t, c, rx)
			if n > min(cfg.Batch, len(want)) {
				t.Fatalf("round %d: %d datagrams in a batch of %d, %d to come", round, n, cfg.Batch, len(want))
			}
			for i, pkt := range want[:n] {
				from, got, truncated := rx.At(i)
				if cutUnknown && truncated && len(pkt) > SlotSize {
					continue
				}
				if truncated != (len(pkt) > SlotSize) || !bytes.Equal(got, pkt[:min(len(pkt), SlotSize)]) || from.IsZero() {
					t.Fatalf("round %d: %d bytes arrive as %d from %v, truncated %v", round, len(pkt), len(got), from, truncated)
				}
			}
			want = want[n:]
		}
	}
	if s := c.Stats(); s.RecvErrors != 0 || s.KernelDrops != 0 {
		t.Errorf("%+v", s)
	}
}
