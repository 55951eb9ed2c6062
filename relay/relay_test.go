package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cws "github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"github.com/ferryrelay/ferry/relay"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func exchange(t *testing.T, host *client.Session, toHost *client.Peer) {
	t.Helper()
	var peer *client.Peer
	buf := make([]byte, 1500)
	testkit.Eventually(t, "the host hears the player", func() bool {
		_, err := toHost.Write([]byte("hello"))
		if err == nil && peer == nil {
			peer, err = host.TryAccept()
		}
		if err != nil {
			t.Fatal(err)
		}
		if peer == nil {
			return false
		}
		n, ok, err := peer.TryRead(buf)
		return ok && err == nil && string(buf[:n]) == "hello"
	})
	testkit.Eventually(t, "the player hears the host", func() bool {
		if _, err := peer.Write([]byte("welcome")); err != nil {
			t.Fatal(err)
		}
		n, ok, err := toHost.TryRead(buf)
		return ok && err == nil && string(buf[:n]) == "welcome"
	})
}

func page(t *testing.T, r *relaytest.Relay, path string) (status int, text string) {
	t.Helper()
	resp, err := r.HTTP.Get(r.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// TestPaths: the API, WebSockets and the program's pages are at one port, and all transports are
// advertised.
func TestPaths(t *testing.T) {
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "page "+r.URL.Path) })
	r := relaytest.Start(t, relay.Config{Pages: pages, DTLS: &dtls.Config{}, WebSocket: &websocket.Config{}})
	for path, want := range map[string]string{"/": "page /", "/v1": "page /v1", "/index.html": "page /index.html"} {
		if status, got := page(t, r, path); status != http.StatusOK || got != want {
			t.Errorf("%s: %d %q", path, status, got)
		}
	}
	for _, path := range []string{"/v1/openapi.yaml", "//v1/openapi.yaml"} {
		if status, got := page(t, r, path); status == http.StatusOK && strings.HasPrefix(got, "page") {
			t.Errorf("%s is a page", path)
		}
	}
	conn, _, err := cws.Dial(t.Context(), "ws"+strings.TrimPrefix(r.URL, "http"), &cws.DialOptions{HTTPClient: r.HTTP})
	if err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()

	res, err := r.Service().Allocate(t.Context(), alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}}, 3, "")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range res.Endpoints {
		kinds = append(kinds, e.ConnectionType)
		if e.Port == 0 || e.Host != "127.0.0.1" {
			t.Errorf("endpoint %+v", e)
		}
	}
	if !slices.Equal(kinds, []string{"udp", "dtls", "ws"}) {
		t.Errorf("endpoints %v", kinds)
	}
	regions := r.Service().RegionsOf(alloc.Caller{})
	if len(regions) != 1 || regions[0].QoSAddress != r.Engine().Addr().String() || regions[0].WebSocketURL != "ws"+
		strings.TrimPrefix(r.URL, "http")+"/" {
		t.Errorf("regions %+v", regions)
	}
	host, code := r.Host("", 1)
	_, toHost := r.Join("", code)
	exchange(t, host, toHost)
}

type socketConn struct {
	*cws.Conn
	server netip.AddrPort
}

func (c socketConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	_, msg, err := c.Read(context.Background())
	if err != nil {
		err = net.ErrClosed
	}
	return copy(b, msg), c.server, err
}

func (c socketConn) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	return len(b), c.Write(context.Background(), cws.MessageBinary, b)
}

func (c socketConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.server) }

func (c socketConn) Close() error { return c.CloseNow() }

// TestTransports: two transports over WebSocket and one of the program's own carry one match, beside UDP and
// DTLS. Each is shown by its own name, and its endpoint is that of the program.
func TestTransports(t *testing.T) {
	second, err := websocket.New(websocket.Config{Name: "ws-lan"})
	if err != nil {
		t.Fatal(err)
	}
	lan := httptest.NewServer(second)
	t.Cleanup(lan.Close)
	network := new(relaytest.Network)
	r := relaytest.Start(t, relay.Config{DTLS: &dtls.Config{}, WebSocket: &websocket.Config{}, Engine: engine.Config{
		Listen:     []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")},
		Transports: []engine.Transport{second, network.Transport()},
		Advertise: []alloc.ServerEndpoint{
			{ConnectionType: "udp", Network: "udp", Host: "127.0.0.1"},
			{
				ConnectionType: "ws-lan", Network: "tcp", Host: "127.0.0.1", Reliable: true,
				Port: lan.Listener.Addr().(*net.TCPAddr).AddrPort().Port(),
			},
			{ConnectionType: "simulated", Network: "udp", Host: "192.0.2.1", Port: 7777},
		},
	}})
	socket := func(url string) func(netip.AddrPort) (client.Conn, error) {
		return func(server netip.AddrPort) (client.Conn, error) {
			conn, _, err := cws.Dial(t.Context(), "ws"+strings.TrimPrefix(url, "http"), &cws.DialOptions{HTTPClient: r.HTTP})
			return socketConn{conn, server}, err
		}
	}
	host, code := r.Host("", 4)
	want := make(map[string]string)
	for name, listen := range map[string]func(netip.AddrPort) (client.Conn, error){
		"ws": socket(r.URL), "ws-lan": socket(lan.URL), "simulated": func(netip.AddrPort) (client.Conn, error) { return network.Listen(), nil },
	} {
		joined, err := r.API("").Join(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := client.TicketFrom(joined)
		if err != nil {
			t.Fatal(err)
		}
		var types []string
		for _, e := range joined.ServerEndpoints {
			types = append(types, e.ConnectionType)
		}
		if !slices.Equal(types, []string{"udp", "dtls", "ws", "ws-lan", "simulated"}) {
			t.Errorf("endpoints %v", types)
		}
		if name == "simulated" {
			ticket = network.Client(ticket).Ticket
		}
		toHost, err := r.Play(client.Config{Ticket: ticket, Listen: listen}).Connect(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		exchange(t, host, toHost)
		want[ticket.ID.String()], want[toHost.ID().String()] = name, "udp4"
	}
	all, _, err := r.Engine().Allocations(t.Context(), engine.Filter{}, 0, 0)
	got := make(map[string]string)
	for _, a := range all {
		got[a.ID.String()] = a.Transport
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	received := make(map[string]uint64)
	for _, w := range r.Engine().Stats().Private.Workers {
		received[w.Transport] += w.Received
	}
	if len(received) != 4 || received["ws"] == 0 || received["ws-lan"] == 0 || received["simulated"] == 0 {
		t.Errorf("received %v", received)
	}
}

// TestExpiredHosts: no join code remains of hosts that have ended.
func TestExpiredHosts(t *testing.T) {
	store := alloc.NewMemoryStore()
	r := relaytest.Start(t, relay.Config{
		Engine: engine.Config{Timeouts: engine.Timeouts{Bind: 2 * time.Second}}, Service: alloc.ServiceConfig{Store: store},
	})
	tenant := alloc.Tenant{Project: "game", Environment: "live"}
	caller := alloc.Caller{Tenant: tenant, Server: true}
	for range 100 {
		res, err := r.Service().Allocate(t.Context(), caller, 1, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Service().JoinCode(t.Context(), caller, res.ID); err != nil && !errors.Is(err, alloc.ErrNotFound) {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all hosts have expired", func() bool { return r.Engine().Stats().Allocations == 0 })
	testkit.Eventually(t, "no code remains", func() bool {
		_, n, err := store.Codes(t.Context(), tenant, proto.AllocationID{})
		return err == nil && n == 0
	})
}

// TestRestart: with a directory, a match goes on in the next run, with its code.
func TestRestart(t *testing.T) {
	udp := netip.MustParseAddrPort(testkit.FreeAddr(t, "udp"))
	start := func(dir string) *relaytest.Relay {
		return relaytest.Start(t, relay.Config{
			Dir: dir, DTLS: &dtls.Config{}, Engine: engine.Config{Listen: []netip.AddrPort{udp}},
		})
	}
	dir := t.TempDir()
	first := start(dir)
	host, code := first.Host("player:anna", 2)
	_, toHost := first.Join("", code)
	exchange(t, host, toHost)
	if _, err := relay.New(relay.Config{Dir: dir, API: httpapi.Config{Anonymous: true}}); err == nil ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("a second relay in the directory: error %v", err)
	}
	first.Stop()

	second := start(dir)
	testkit.Eventually(t, "host and player are back", func() bool { return second.Engine().Stats().Rebuilt == 2 })
	buf := make([]byte, 1500)
	testkit.Eventually(t, "the match goes on", func() bool {
		if _, err := toHost.Write([]byte("again")); err != nil {
			t.Fatal(err)
		}
		peer, ok := host.Peer(toHost.LocalAddr().(client.Addr).ID)
		if !ok {
			return false
		}
		n, ok, err := peer.TryRead(buf)
		return ok && err == nil && string(buf[:n]) == "again"
	})
	second.Join("", code)
}

// TestPlacer: a service places matches on two relays of one program, and joiners follow.
func TestPlacer(t *testing.T) {
	first := relaytest.Start(t, relay.Config{})
	store := alloc.NewMemoryStore()
	second := relaytest.Start(t, relay.Config{
		Dir:     t.TempDir(), // It keeps the codes of its own hosts.
		Service: alloc.ServiceConfig{Store: store},
		Place: func(own alloc.Relay) alloc.Relay {
			p, err := alloc.NewPlacer([]alloc.Relay{own, first.Reserver()}, nil)
			if err != nil {
				t.Error(err)
			}
			return p
		},
	})
	for range 4 {
		host, code := second.Host("", 1)
		_, toHost := second.Join("", code)
		exchange(t, host, toHost)
	}
	for n, r := range []*relaytest.Relay{first, second} {
		if got := r.Engine().Stats().Links; got != 2 {
			t.Errorf("relay %d has %d matches, want 2", n+1, got)
		}
	}
	tenant := alloc.Tenant{Project: "dev", Environment: "dev"}
	if _, n, err := store.Codes(t.Context(), tenant, proto.AllocationID{}); n != 4 || err != nil {
		t.Errorf("%d codes, %v", n, err)
	}
	all, _, err := first.Engine().Allocations(t.Context(), engine.Filter{Role: alloc.RoleHost}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if err := first.Engine().End(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the codes of the first relay's hosts are gone", func() bool {
		_, n, err := store.Codes(t.Context(), tenant, proto.AllocationID{})
		return err == nil && n == 2
	})
	first.Stop()
	for range 2 {
		second.Host("", 1) // The first one is unavailable.
	}
}

type events struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (e *events) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, fmt.Sprintf(format, args...))
}

func (e *events) has(line string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.lines, line)
}

// TestTag: events name the match, the player and the program's own number of it, also after a
// restart.
func TestTag(t *testing.T) {
	tenant := alloc.Tenant{Project: "game", Environment: "live"}
	players := map[alloc.PlayerHash]string{alloc.HashPlayer(tenant, "anna"): "anna", alloc.HashPlayer(tenant, "ben"): "ben"}
	var seen events
	udp := netip.MustParseAddrPort(testkit.FreeAddr(t, "udp"))
	dir := t.TempDir()
	var host proto.AllocationID
	start := func() *relaytest.Relay {
		return relaytest.Start(t, relay.Config{Dir: dir, Engine: engine.Config{Listen: []netip.AddrPort{udp}, Hooks: engine.Hooks{
			OnReserve: func(e engine.ReserveEvent) { seen.add("reserve %s %d", e.Player, e.Tag) },
			OnBind: func(e engine.BindEvent) {
				seen.add("bind %s %d %v", players[e.Player], e.Tag, e.Role == alloc.RoleJoiner && e.Match != e.ID || e.Match == e.ID)
			},
			OnConnect: func(e engine.ConnectEvent) {
				seen.add("connect %s %d %v", players[e.Player], e.Tag, e.Match == e.Host)
			},
			OnReturn: func(e engine.ReserveEvent) { seen.add("return %s %d", e.Player, e.Tag) },
			OnEnd:    func(e engine.EndEvent) { seen.add("end %s %d %v", players[e.Player], e.Tag, e.Reason) },
		}}})
	}
	wait := func(line string) {
		t.Helper()
		testkit.Eventually(t, line, func() bool { return seen.has(line) })
	}
	r := start()
	play := func(res alloc.Reservation, err error) *client.Session {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := relay.TicketOf(res)
		if err != nil {
			t.Fatal(err)
		}
		s := r.Play(client.Config{Ticket: ticket})
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	anna := alloc.Caller{Tenant: tenant, Player: "anna", Individual: true, Tag: 7}
	first := play(r.Service().Allocate(t.Context(), anna, 2, ""))
	host = first.ID()
	code, err := r.Service().JoinCode(t.Context(), anna, host)
	if err != nil {
		t.Fatal(err)
	}
	ben := play(r.Service().Join(t.Context(), alloc.Caller{Tenant: tenant, Player: "ben", Individual: true, Tag: 1 << 63}, code))
	if _, err := ben.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"reserve anna 7", "bind anna 7 true", "reserve ben 9223372036854775808",
		"connect ben 9223372036854775808 true"} {
		wait(line)
	}
	r.Stop()
	r = start()
	wait("return anna 7")
	wait("return ben 9223372036854775808")
	if err := ben.Close(); err != nil {
		t.Fatal(err)
	}
	wait("end ben 9223372036854775808 closed")
}

// TestMigration: the join code leads to the player that takes the place of the host.
func TestMigration(t *testing.T) {
	r := relaytest.Start(t, relay.Config{Engine: engine.Config{HostMigration: engine.HostMigration{Window: time.Minute}}})
	host, code := r.Host("player:anna", 2)
	calls := r.API("player:ben")
	ticket, err := client.Redeem(t.Context(), calls, code)
	if err != nil {
		t.Fatal(err)
	}
	player := r.Play(client.Config{Ticket: ticket})
	if _, err := player.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := client.Migrate(t.Context(), client.MigrationConfig{API: calls, Code: code, Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	newHost := r.Play(client.Config{Ticket: next})
	if err := newHost.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, toHost := r.Join("player:carl", code)
	if toHost.ID() != newHost.ID() {
		t.Errorf("the code leads to %v, not to %v", toHost.ID(), newHost.ID())
	}
}

// TestShutdown: a relay that shuts down refuses hosts, and ends when its matches have.
func TestShutdown(t *testing.T) {
	r := relaytest.Start(t, relay.Config{})
	host, _ := r.Host("", 1)
	expired, cancel := context.WithCancel(t.Context())
	var err error
	down := make(chan struct{})
	go func() {
		defer close(down)
		err = r.Shutdown(t.Context())
	}()
	testkit.Eventually(t, "hosts are refused", func() bool {
		_, err := client.Reserve(t.Context(), r.API(""), 1, "")
		return err != nil
	})
	select {
	case <-down:
		t.Fatal("it has ended while a host was there")
	default:
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	<-down
	if err != nil {
		t.Error(err)
	}

	r = relaytest.Start(t, relay.Config{})
	r.Host("", 1)
	cancel()
	if err := r.Shutdown(expired); err == nil {
		t.Error("no error, but a match was left")
	}
}

// TestOwnServer: a program mounts the handler on its own server.
func TestOwnServer(t *testing.T) {
	r, err := relay.New(relay.Config{
		URL: "https://play.example.org", WebSocket: &websocket.Config{}, API: httpapi.Config{Anonymous: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := r.Service().RegionsOf(alloc.Caller{})[0].WebSocketURL; got != "wss://play.example.org:443/" {
		t.Errorf("WebSocket at %q", got)
	}
	if r.Handler(nil) == nil {
		t.Error("no handler")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := r.Run(t.Context()); !errors.Is(err, engine.ErrAlreadyRun) {
		t.Errorf("Run after Close: %v", err)
	}
}

// TestConfigErrors: New refuses what would not work, and closes what it has opened.
func TestConfigErrors(t *testing.T) {
	anonymous := httpapi.Config{Anonymous: true}
	wildcard := engine.Config{Listen: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:0")}}
	for name, c := range map[string]struct {
		cfg  relay.Config
		want error
		say  string
	}{
		"no credential":      {relay.Config{}, httpapi.ErrConfig, "no token"},
		"wildcard":           {relay.Config{API: anonymous, Engine: wildcard}, relay.ErrConfig, "Engine.Advertise"},
		"no URL":             {relay.Config{API: anonymous, WebSocket: &websocket.Config{}}, relay.ErrConfig, "URL"},
		"URL with a path":    {relay.Config{API: anonymous, URL: "https://a.example/relay"}, relay.ErrConfig, "path"},
		"URL without a host": {relay.Config{API: anonymous, URL: "relay.example.org"}, relay.ErrConfig, "http://host"},
		"address of another machine": {relay.Config{
			API: anonymous, Engine: engine.Config{Listen: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}},
		}, nil, "192.0.2.1"},
	} {
		r, err := relay.New(c.cfg)
		if err == nil {
			r.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEarlyEnd: a part that fails ends the relay, with its error.
func TestEarlyEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(relay.Config{Listener: listener, API: httpapi.Config{Anonymous: true}})
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if err := r.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	if _, err := r.Engine().Describe(t.Context(), proto.AllocationID{1}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("the relay still runs: %v", err)
	}
}

// TestCloseOfZero: what no constructor has made has nothing to close.
func TestCloseOfZero(t *testing.T) {
	for _, r := range []io.Closer{new(relay.Relay), new(relaytest.Relay)} {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Errorf("%T: %v", r, err)
			}
		}
	}
}
