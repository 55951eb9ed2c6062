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

// TestRun plays over real sockets, each side in a goroutine of its own.
func TestRun(t *testing.T) {
	b := &testNetwork{t: t}
	server, client := b.driver(netcode.NewServer, netcode.Config{}), b.driver(netcode.NewClient, netcode.Config{})
	if err := server.Listen(address.FromUDP(netip.MustParseAddrPort("127.0.0.1:0"))); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Connect(server.Link().Local()); err != nil {
		t.Fatal(err)
	}
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
