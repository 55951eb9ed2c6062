package netcode_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestRequests(t *testing.T) {
	w := new(link.Network)
	b := &testNetwork{t: t, net: w, now: start, step: 20 * ms}
	home := link.NodeAddr(50)
	var nodes [2]link.Link
	for i, at := range []address.Addr{home, {}} {
		var err error
		if nodes[i], err = w.Open(at); err != nil {
			t.Fatal(err)
		}
	}
	b.server = b.driver(netcode.NewServer, netcode.Config{Link: nodes[0]})
	d := b.driver(netcode.NewClient, netcode.Config{Link: nodes[1]})
	b.clients = []*netcode.Driver{d}
	failed := b.server.RequestListen(link.NodeAddr(51))
	b.tick(1)
	if failed.Err() != link.ErrAddr {
		t.Errorf("an address of another link: %v", failed.Err())
	}
	first, second := b.server.RequestListen(home), b.server.RequestListen(home)
	up, up2 := d.RequestConnect(home), d.RequestConnect(home)
	if first.Err() != netcode.ErrPending || up.Err() != netcode.ErrPending {
		t.Error("served inside the call")
	}
	b.tick(1)
	third, up3 := b.server.RequestListen(home), d.RequestConnect(home)
	b.tick(4)
	for i, k := range []struct{ got, want error }{
		{first.Err(), nil}, {second.Err(), netcode.ErrAlready}, {third.Err(), netcode.ErrAlready},
		{up.Err(), nil}, {up2.Err(), netcode.ErrAlready}, {up3.Err(), netcode.ErrAlready},
	} {
		if k.got != k.want {
			t.Errorf("request %d: %v, want %v", i, k.got, k.want)
		}
	}
	if up.Conn().State() != netcode.StateConnected || up2.Conn() != (netcode.Conn{}) {
		t.Errorf("connection is %v", up.Conn().State())
	}
	b.expect("2 C1: 0 connecting", "4 C1: 0 handshake", "5 S: 0 handshake", "5 S: 1 connected", "6 C1: 1 connected")
}

func TestRefusedCalls(t *testing.T) {
	b, _, c := pair(t, netcode.Config{}, netcode.Config{})
	d := b.clients[0]
	_, server := b.server.Connect(b.node.Local())
	_, busy := d.Connect(b.node.Local())
	c.Disconnect(netcode.ReasonConnectionClose, "")
	b.tick(1)
	_, zero := d.Connect(address.FromUDP(netip.MustParseAddrPort("127.0.0.1:0")))
	_, nowhere := d.Connect(address.Addr{})
	for i, k := range []struct{ got, want error }{
		{server, netcode.ErrNotAllowed}, {busy, netcode.ErrAlready},
		{zero, link.ErrAddr}, {nowhere, link.ErrAddr},
		{b.server.Listen(address.Addr{}), netcode.ErrAlready}, {d.Listen(address.Addr{}), netcode.ErrNotAllowed},
		{b.only().Approve(), netcode.ErrNotAllowed},
	} {
		if k.got != k.want {
			t.Errorf("call %d: %v, want %v", i, k.got, k.want)
		}
	}
}

func TestConfigIsRefused(t *testing.T) {
	refused := []netcode.Config{{MaxConnections: -1}, {MaxConnections: 65537}, {CommandsPerDatagram: 33}}
	for _, l := range []netcode.Limits{
		{MaxHandshaking: -1}, {MaxHandshakingPerSource: -1}, {MaxHandshakingPerSource: 65537}, {MaxMessageSize: 1473},
		{MaxRPCQueue: -1}, {MaxRPCLen: -1}, {MaxRPCLen: 1<<20 + 1}, {MaxSnapshotLen: -1}, {MaxSnapshotLen: 1<<20 - 21},
	} {
		refused = append(refused, netcode.Config{Limits: l})
	}
	for _, t := range []netcode.Timeouts{
		{HandshakeApproval: time.Second - 1}, {Connect: netcode.NoTimeout}, {ConnectAttempts: -1}, {Heartbeat: -2},
		{Disconnect: -2}, {MaxResend: time.Hour},
	} {
		refused = append(refused, netcode.Config{Timeouts: t})
	}
	for i, cfg := range refused {
		for _, start := range []func(netcode.Config) (*netcode.Driver, error){netcode.NewServer, netcode.NewClient} {
			if _, err := start(cfg); !errors.Is(err, netcode.ErrConfig) {
				t.Errorf("%d: %v", i, err)
			}
		}
	}
}

func TestAutoConnect(t *testing.T) {
	far := netip.MustParseAddr("192.0.2.7")
	for i, c := range []struct {
		auto            netcode.Config
		listen, connect string
	}{
		{netcode.Config{}, "", ""},
		{netcode.Config{AutoConnect: netcode.AutoConnect{Port: 7979}}, "0.0.0.0:7979", "127.0.0.1:7979"},
		{netcode.Config{AutoConnect: netcode.AutoConnect{Port: 1, ConnectAddress: netip.IPv4Unspecified()}}, "0.0.0.0:1", ""},
		{netcode.Config{AutoConnect: netcode.AutoConnect{Port: 1, ConnectAddress: far, ListenAddress: far}}, "192.0.2.7:1", "192.0.2.7:1"},
	} {
		l, to := c.auto.AutoAddrs()
		if want := address.FromUDP(parsed(c.listen)); l != want {
			t.Errorf("case %d: listens at %v", i, l)
		}
		if want := address.FromUDP(parsed(c.connect)); to != want {
			t.Errorf("case %d: connects to %v", i, to)
		}
	}
}

func parsed(text string) netip.AddrPort {
	if text == "" {
		return netip.AddrPort{}
	}
	return netip.MustParseAddrPort(text)
}

// TestRun plays over real sockets, each side in a goroutine of its own, found
// by the port alone.
func TestRun(t *testing.T) {
	at := netip.MustParseAddrPort(testkit.FreeAddr(t, "udp"))
	cfg := netcode.Config{AutoConnect: netcode.AutoConnect{Port: at.Port(), ListenAddress: at.Addr()}}
	b := &testNetwork{t: t}
	server := b.driver(netcode.NewServer, cfg)
	client := b.driver(netcode.NewClient, cfg)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() {
		if err := server.Run(ctx, 200, nil); err != ctx.Err() {
			t.Errorf("server: %v", err)
		}
	})
	connected := false
	ticks, last := uint32(0), time.Time{}
	err := client.Run(ctx, 200, func(now time.Time, tick uint32) {
		if ticks++; tick != ticks || !now.After(last) {
			t.Errorf("turn %d has the number %d and the time %v", ticks, tick, now)
		}
		last = now
		for c := range client.Conns() {
			if c.State() == netcode.StateConnected {
				connected = true
				cancel()
			}
		}
	})
	work.Wait()
	if !connected || err != context.Canceled {
		t.Errorf("connected is %v, %v", connected, err)
	}
	if err := client.Run(ctx, 0, nil); !errors.Is(err, netcode.ErrConfig) {
		t.Errorf("no tick rate: %v", err)
	}
}

// TestConnectIPv6: a client without a link of its own connects to an IPv6 address, and one
// whose link is of the other family, or of a relay, is told so at once.
func TestConnectIPv6(t *testing.T) {
	loopback := address.FromUDP(netip.MustParseAddrPort("[::1]:0"))
	if l, err := link.OpenUDP(netip.MustParseAddrPort("[::1]:0")); err != nil {
		testkit.Missing(t, "IPv6 on loopback", "none: net.ipv6.conf.lo.disable_ipv6=0")
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b := &testNetwork{t: t}
	server := b.driver(netcode.NewServer, netcode.Config{})
	if err := server.Listen(loopback); err != nil {
		t.Fatal(err)
	}
	client := b.driver(netcode.NewClient, netcode.Config{})
	c, err := client.Connect(server.Link().Local())
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the client to connect", func() bool {
		for _, d := range []*netcode.Driver{server, client} {
			if err := d.Update(time.Now()); err != nil {
				t.Fatal(err)
			}
			d.Flush()
		}
		return c.State() == netcode.StateConnected
	})
	l, err := link.OpenUDP(netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	wrong := b.driver(netcode.NewClient, netcode.Config{Link: l})
	for _, to := range []address.Addr{server.Link().Local(), address.FromAllocation(proto.AllocationID{1})} {
		if _, err := wrong.Connect(to); err != link.ErrAddr {
			t.Errorf("connect to %v by a link of IPv4: %v, want %v", to, err, link.ErrAddr)
		}
	}
}
