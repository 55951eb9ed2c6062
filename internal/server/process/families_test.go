package process

import (
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestFamilies: a host and a player play together, whatever families the relay has, each of
// them calls by, names and has, and an endpoint that does not answer costs about a second.
func TestFamilies(t *testing.T) {
	t.Parallel()
	const v4, v6 = "127.0.0.1", "::1"
	for name, udp := range map[string][]string{"IPv4": {v4}, "IPv6": {v6}, "both": {v4, v6}, "both, IPv6 first": {v6, v4}} {
		for _, lost := range append([]string{""}, udp...) { // the family whose datagrams are lost
			if len(udp) == 1 && lost != "" {
				continue
			}
			t.Run(name+", lost "+lost, func(t *testing.T) {
				t.Parallel()
				c := local()
				c.UDP, c.HTTP = nil, addr("[::]:0")
				for _, ip := range udp {
					a := config.Addr{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(ip), 0)}
					c.UDP = append(c.UDP, a)
					h := config.Host{IP: a.Addr()}
					if ip == lost {
						h.Port = silent(t, ip)
					}
					if h.Port != 0 {
						c.Advertise = append(c.Advertise, h)
					}
				}
				r := start(t, options(c, Dev))
				for _, call := range []struct {
					callee string
					family int
					want   string
				}{{v4, 0, v4}, {v6, 0, v6}, {v4, 6, v6}, {v6, 4, v4}} {
					got, took := r.playAcross(t, "", call.callee, call.family)
					want := call.want
					if len(udp) == 1 {
						want = udp[0]
					}
					switch {
					case want == lost && (got == lost || took < time.Second):
						t.Errorf("%+v: over %s after %v", call, got, took)
					case want != lost && got != want:
						t.Errorf("%+v: over %s", call, got)
					}
				}
			})
		}
	}
}

// TestFleetFamilies: the API process of a fleet orders the endpoints of a relay.
func TestFleetFamilies(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	relay := k.relayOptions(1, "eu")
	relay.Config.UDP = []config.Addr{addr("[::1]:0"), addr("127.0.0.1:0")}
	start(t, relay)
	c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
	c.HTTP, c.Tokens[0].Kind = addr("[::]:0"), "player"
	c.TrustedProxies = []config.Network{network("192.0.2.0/24")}
	r := start(t, options(c, API))
	testkit.Within(t, time.Minute, "the region", func() bool {
		regions, err := r.caller(secret).Regions(t.Context())
		return err == nil && len(regions) == 1
	})
	for _, call := range []struct {
		callee string
		family int
		want   string
	}{{"127.0.0.1", 0, "127.0.0.1"}, {"::1", 0, "::1"}, {"127.0.0.1", 6, "::1"}, {"::1", 4, "127.0.0.1"}} {
		if got, _ := r.playAcross(t, secret, call.callee, call.family); got != call.want {
			t.Errorf("%+v: over %s", call, got)
		}
	}
}

func silent(t *testing.T, ip string) uint16 {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// playAcross plays from a player to a host. The player calls an address of the API and names a
// family. It returns the loopback address of the player's family, and the time until the link.
func (r running) playAcross(t *testing.T, token, callee string, family int) (over string, took time.Duration) {
	t.Helper()
	calls := r.caller(token)
	calls.BaseURL = "http://" + net.JoinHostPort(callee, strconv.Itoa(int(r.apiAddr().Port())))
	allocation, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	host := r.session(t, allocation)
	if err := host.Bind(t.Context()); err != nil {
		t.Fatalf("bind the host at %v: %v", allocation.ServerEndpoints, err)
	}
	code, err := calls.JoinCode(t.Context(), allocation.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joined, err := calls.JoinFor(t.Context(), api.JoinRequest{JoinCode: code, Family: family})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	player := r.session(t, joined)
	toHost, err := player.Connect(t.Context())
	if err != nil {
		t.Fatalf("call by %s, family %d: %v", callee, family, err)
	}
	took = time.Since(start)
	if _, err := toHost.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	testkit.Eventually(t, "the host to get the message", func() bool {
		toPlayer, err := host.TryAccept()
		if err != nil || toPlayer == nil {
			return false
		}
		n, err := toPlayer.Read(buf)
		return err == nil && string(buf[:n]) == "hello"
	})
	if player.LocalAddr().Addr().Unmap().Is4() {
		return "127.0.0.1", took
	}
	return "::1", took
}

func (r running) session(t *testing.T, a api.Allocation) *client.Session {
	t.Helper()
	ticket, err := client.TicketFrom(a)
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Run(t.Context()) }()
	t.Cleanup(func() { _ = s.Close() })
	return s
}
