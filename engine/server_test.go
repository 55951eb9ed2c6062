package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(8)
	goleak.VerifyTestMain(m)
}

func newServer(t *testing.T, cfg engine.Config) *engine.Server {
	t.Helper()
	srv, err := engine.New(cfg, enginetest.NewIdentity(t))
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

func TestLifecycle(t *testing.T) {
	t.Run("never run", func(t *testing.T) {
		srv := newServer(t, engine.Config{})
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := srv.Run(context.Background()); !errors.Is(err, engine.ErrAlreadyRun) {
			t.Errorf("Run after Close: %v", err)
		}
		if _, err := srv.ReserveHost(context.Background(), alloc.HostRequest{MaxConnections: 1}); !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("reservation after Close: %v", err)
		}
	})
	t.Run("cancelled before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := newServer(t, engine.Config{}).Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("closed while it runs, twice", func(t *testing.T) {
		srv := newServer(t, engine.Config{Sockets: engine.Sockets{Workers: 3}})
		done := make(chan error, 1)
		go func() { done <- srv.Run(context.Background()) }()
		if err := check(srv); err != nil {
			t.Error(err)
		}
		srv.Close()
		srv.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := srv.Run(context.Background()); !errors.Is(err, engine.ErrAlreadyRun) {
			t.Errorf("second Run: %v", err)
		}
	})
	t.Run("address is free again", func(t *testing.T) {
		srv := newServer(t, engine.Config{})
		addr := srv.Addr()
		if _, err := engine.New(engine.Config{Listen: []netip.AddrPort{addr}}, enginetest.NewIdentity(t)); err == nil {
			t.Error("two servers share an address")
		}
		srv.Close()
		newServer(t, engine.Config{Listen: []netip.AddrPort{addr}}).Close()
	})
}

// check asks again and again: one Check gives up after 1.5 s, within which a busy
// machine need not run a thread.
func check(srv *engine.Server) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for err = srv.Private().Check(ctx); err != nil && ctx.Err() == nil; {
		err = srv.Private().Check(ctx)
	}
	return err
}

func TestCheck(t *testing.T) {
	r := enginetest.Start(t, onWildcard)
	if err := check(r.Server); err != nil {
		t.Error(err)
	}
	other := enginetest.Start(t, engine.Config{})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	dead := newServer(t, engine.Config{})
	defer dead.Close()
	if err := dead.Private().Check(ctx); err == nil {
		t.Error("a relay that does not run answers checks")
	}
	if st := other.Stats(); st.Received != 0 {
		t.Error("check went to another relay")
	}
}

var onWildcard = engine.Config{
	Listen:    []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:0")},
	Advertise: []alloc.ServerEndpoint{{ConnectionType: "udp", Network: "udp", Host: "127.0.0.1"}},
}

// TestAdvertisePort: an endpoint without a port has that of the relay.
func TestAdvertisePort(t *testing.T) {
	r := enginetest.Start(t, onWildcard)
	if e := r.Host("host", 1).Endpoints; len(e) != 1 || e[0].Port != r.Addr().Port() {
		t.Errorf("endpoints %+v, want port %d", e, r.Addr().Port())
	}
	if onWildcard.Advertise[0].Port != 0 {
		t.Error("New changed the configuration of its caller")
	}
}

func TestNoIdentity(t *testing.T) {
	if _, err := engine.New(engine.Config{}, engine.Identity{}); err == nil || !strings.Contains(err.Error(), "Identity.Master") {
		t.Errorf("%v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	advertise := func(e alloc.ServerEndpoint) engine.Config { return engine.Config{Advertise: []alloc.ServerEndpoint{e}} }
	for _, cfg := range []engine.Config{
		advertise(alloc.ServerEndpoint{}),
		advertise(alloc.ServerEndpoint{ConnectionType: "udp", Network: "udp", Port: 1}),
		advertise(alloc.ServerEndpoint{ConnectionType: "udp", Network: "tcp", Host: "192.0.2.1", Port: 1}),
		advertise(alloc.ServerEndpoint{ConnectionType: "udp", Network: "udp", Host: "relay.example.org", Port: 1}),
		advertise(alloc.ServerEndpoint{ConnectionType: "udp", Network: "udp", Host: "0.0.0.0", Port: 1}),
		advertise(alloc.ServerEndpoint{ConnectionType: "wss", Network: "tcp", Host: "wss://relay.example.org", Port: 443}),
		advertise(alloc.ServerEndpoint{ConnectionType: "wss", Network: "tcp", Host: "relay.example.org"}),
		{Listen: onWildcard.Listen},
		{Listen: []netip.AddrPort{{}}},
		{Siblings: []netip.AddrPort{{}}},
		{Sockets: engine.Sockets{WorkerCPUs: []int{-1}}},
		{Transports: []engine.Transport{nil}},
		{Transports: []engine.Transport{(*nilTransport)(nil)}},
		{Transports: []engine.Transport{&nilTransport{}}}, // MaxMessage is 0
		{MaxSeats: -1}, {HostMigration: engine.HostMigration{Window: -1}}, {Timeouts: engine.Timeouts{Receive: -1}},
		{Sockets: engine.Sockets{ReceiveDelay: -1}},
		{Sockets: engine.Sockets{Workers: -1}}, {MaxContent: 1435}, {MaxConnections: 1 << 16},
		{MaxAllocations: -1}, {Sockets: engine.Sockets{ReceiveDelay: time.Second}},
		{Timeouts: engine.Timeouts{Idle: -time.Second}}, {Timeouts: engine.Timeouts{Bind: 25 * time.Hour}},
		{Listen: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:1")}},
	} {
		srv, err := engine.New(cfg, enginetest.NewIdentity(t))
		if err == nil {
			srv.Close()
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestReserve(t *testing.T) {
	r := enginetest.Start(t, engine.Config{MaxConnections: 7, MaxAllocations: 3, Region: "here"})
	ctx := context.Background()
	for _, max := range []int{-1, 0, 8, 1 << 40} {
		if _, err := r.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, MaxConnections: max}); !errors.Is(err,
			alloc.ErrMaxConnections) {
			t.Errorf("MaxConnections %d: %v", max, err)
		}
	}
	host := r.Host("host", 7)
	if host.Region != "here" || len(host.Endpoints) != 1 || host.Endpoints[0].Port != r.Addr().Port() {
		t.Errorf("reservation says %q, %v", host.Region, host.Endpoints)
	}
	foreign := alloc.Tenant{Project: "other"}
	if _, err := r.ReserveJoiner(ctx, alloc.JoinerRequest{
		Caller: alloc.Caller{Tenant: foreign}, Host: host.ID,
	}); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("joiner of another tenant: %v", err)
	}
	joiner := r.Joiner("p", host.ID)
	if _, err := r.ReserveJoiner(ctx, alloc.JoinerRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: joiner.ID,
	}); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("joiner of a joiner: %v", err)
	}
	d, err := r.Describe(ctx, joiner.ID)
	if err != nil || d.Role != alloc.RoleJoiner || d.Bound || d.Player != alloc.HashPlayer(enginetest.Tenant, "p") {
		t.Errorf("Describe: %+v, %v", d, err)
	}
	r.Joiner("q", host.ID)
	if _, err := r.ReserveHost(ctx, alloc.HostRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, MaxConnections: 1,
	}); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("one more than the relay holds: %v", err)
	}
	if _, err := r.Describe(ctx, [16]byte{1}); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("Describe of an unknown id: %v", err)
	}
}

type nilTransport struct{ faultyTransport }

func (*nilTransport) MaxMessage() int { return 0 }

func TestLastCounts(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 64} { // one holds its processor while datagrams come, many cannot
		srv := newServer(t, engine.Config{Sockets: engine.Sockets{Workers: workers}})
		done := make(chan error, 1)
		go func() { done <- srv.Run(context.Background()) }()
		if err := check(srv); err != nil {
			t.Fatal(err)
		}
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(srv.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			want := srv.Stats().Received + 10
			for range 10 {
				if _, err := conn.Write([]byte{1}); err != nil {
					t.Fatal(err)
				}
			}
			deadline := time.Now().Add(15 * time.Second)
			for srv.Stats().Received < want && time.Now().Before(deadline) {
				time.Sleep(5 * time.Millisecond)
			}
			if got := srv.Stats().Received; got < want {
				t.Fatalf("%d workers: %d datagrams are counted 15 s after the last one, want %d", workers, got, want)
			}
		}
		conn.Close()
		srv.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestSourceAddress(t *testing.T) {
	r := enginetest.Start(t, onWildcard)
	host := r.Host("host", 4)
	for nonce, to := range []string{"127.0.0.1", "127.0.0.9"} {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		relay := netip.AddrPortFrom(netip.MustParseAddr(to), r.Addr().Port())
		cred := r.Credentials(host)
		conn.WriteToUDPAddrPort(enginetest.SignedBind(cred, uint16(nonce)), relay)
		conn.SetReadDeadline(time.Now().Add(15 * time.Second))
		buf := make([]byte, 100)
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil || n != 4 || from != relay {
			t.Errorf("asked %v, got %d bytes from %v, %v", relay, n, from, err)
		}
		conn.Close()
	}
}

// TestFreePort: one free port for two addresses is found although the second one
// has less of them. A try fails about 1 time in 14 here.
func TestFreePort(t *testing.T) {
	for range 2000 {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
		if err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal("CI needs 127.0.0.2 and 2,100 descriptors: ", err)
			}
			t.Skip("this machine gives a test no 2,000 sockets on 127.0.0.2: ", err)
		}
		defer conn.Close()
	}
	id := enginetest.NewIdentity(t)
	for range 100 {
		srv, err := engine.New(engine.Config{Sockets: engine.Sockets{Workers: 1}, MaxAllocations: 16, Listen: []netip.AddrPort{
			netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("127.0.0.2:0"),
		}}, id)
		if err != nil {
			t.Fatal(err)
		}
		if all := srv.Addrs(); all[0].Port() != all[1].Port() {
			t.Errorf("it listens on %v", all)
		}
		srv.Close()
	}
}

func TestBothFamilies(t *testing.T) {
	probe, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("CI needs IPv6 on loopback: ", err)
		}
		t.Skip("this machine has no ::1: ", err)
	}
	probe.Close()
	r := enginetest.Start(t, engine.Config{Listen: []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("[::1]:0"),
	}})
	hostRes := r.Host("host", 4)
	cred := r.Credentials(hostRes)
	cred.Relay = r.Addrs()[1]
	host := enginetest.Play(t, enginetest.UTP2, cred)
	p := player(t, r, enginetest.UTP2, r.Joiner("p", hostRes.ID))
	testkit.Eventually(t, "both are bound", func() bool { return r.Stats().Bound == 2 })
	p.Connect()
	testkit.Eventually(t, "accepted", p.HasPeers(1))
	p.Send(host.Cred.ID, "over four")
	testkit.Eventually(t, "host receives", host.HasReceived(p.Cred.ID, "over four"))
	host.Send(p.Cred.ID, "over six")
	testkit.Eventually(t, "player receives", p.HasReceived(host.Cred.ID, "over six"))
}

func TestHooks(t *testing.T) {
	var mu sync.Mutex
	var events []string
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf(format, args...))
	}
	r := enginetest.Start(t, engine.Config{Hooks: engine.Hooks{
		OnReserve: func(e engine.ReserveEvent) {
			tell("reserve %v %v %v %v", e.ID, e.Role, e.Tenant == enginetest.Tenant.Hash(), e.MaxConnections)
		},
		OnBind:       func(e engine.BindEvent) { tell("bind %v %v %v", e.ID, e.Role, e.First) },
		OnConnect:    func(e engine.ConnectEvent) { tell("connect %v %v", e.Host, e.Joiner) },
		OnDisconnect: func(e engine.DisconnectEvent) { tell("disconnect %v %v", e.From, e.To) },
		OnEnd:        func(e engine.EndEvent) { tell("end %v %v %v", e.ID, e.Role, e.Reason) },
	}})
	hostRes := r.Host("host", 4)
	joinRes := r.Joiner("p", hostRes.ID)
	host := player(t, r, enginetest.UTP2, hostRes)
	testkit.Eventually(t, "host is bound", host.HasStatus(enginetest.Established))
	p := player(t, r, enginetest.UTP2, joinRes)
	testkit.Eventually(t, "player is bound", p.HasStatus(enginetest.Established))
	p.Inject(enginetest.SignedBind(p.Cred, 50)) // the same endpoint: no change
	p.Connect()
	testkit.Eventually(t, "accepted", p.HasPeers(1))
	p.Connect()
	p.Inject(slices.Concat([]byte{0xDA, 0x72, 0, 9}, joinRes.ID[:], hostRes.ID[:]))
	testkit.Eventually(t, "left", func() bool { return r.Stats().Links == 0 })
	p.SetPaused(true)
	p.Inject(append([]byte{0xDA, 0x72, 0, 11}, joinRes.ID[:]...))
	testkit.Eventually(t, "closed", func() bool { return r.Stats().Allocations == 1 })
	want := []string{
		fmt.Sprintf("reserve %v host true 4", hostRes.ID),
		fmt.Sprintf("reserve %v joiner true 0", joinRes.ID),
		fmt.Sprintf("bind %v host true", hostRes.ID),
		fmt.Sprintf("bind %v joiner true", joinRes.ID),
		fmt.Sprintf("connect %v %v", hostRes.ID, joinRes.ID),
		fmt.Sprintf("disconnect %v %v", joinRes.ID, hostRes.ID),
		fmt.Sprintf("end %v joiner closed", joinRes.ID),
	}
	testkit.Eventually(t, "all events", func() bool { // control counts an end before it calls the hook
		mu.Lock()
		defer mu.Unlock()
		return len(events) >= len(want)
	})
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(events, want) {
		t.Errorf("events\n%q\nwant\n%q", events, want)
	}
}

// TestCloseOfZero: what no constructor has made has nothing to close.
func TestCloseOfZero(t *testing.T) {
	t.Parallel()
	for range 2 {
		if err := new(engine.Server).Close(); err != nil {
			t.Error(err)
		}
	}
	new(privateapi.Handover).Close()
}
