package turn

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pion/turn/v4"

	"github.com/ferryrelay/ferry/bench"
)

func serve(t *testing.T) (*turn.Server, netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	key := turn.GenerateAuthKey("u", "bench", "p")
	server, err := turn.NewServer(turn.ServerConfig{
		Realm:       "bench",
		AuthHandler: func(name, _ string, _ net.Addr) ([]byte, bool) { return key, name == "u" },
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: conn,
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: net.IPv4(127, 0, 0, 1), Address: "127.0.0.1",
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server, conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestDialect: the datagrams of every shape arrive where they should, and
// nothing is left on the server. Some losses are the machine's.
func TestDialect(t *testing.T) {
	server, addr := serve(t)
	if err := Probe(addr, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]bench.Config{
		"pairs": {Shape: bench.ShapePairs, Matches: 40},
		"star":  {Shape: bench.ShapeStar, Matches: 3, Players: 5},
		"up":    {Shape: bench.ShapeStar, Matches: 2, Players: 3, Direction: bench.DirectionUp},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cfg.Rate, cfg.Duration, cfg.Warmup, cfg.Payload = 1000, 200*time.Millisecond, -1, 64
			cfg.Drain = time.Second
			r, err := bench.Run(ctx, cfg, New(Config{Server: addr, Username: "u", Password: "p"}))
			if err != nil {
				t.Fatal(err)
			}
			if r.Delivered == 0 || 2*r.Lost > r.Sent || r.Misdelivered+r.Corrupt+r.Duplicated > 0 || len(r.Errors) > 0 {
				t.Errorf("delivered %d of %d, misdelivered %d, corrupt %d, twice %d, errors %v",
					r.Delivered, r.Sent, r.Misdelivered, r.Corrupt, r.Duplicated, r.Errors)
			}
			deadline := time.Now().Add(20 * time.Second)
			for server.AllocationCount() > 0 && time.Now().Before(deadline) {
				time.Sleep(5 * time.Millisecond)
			}
			if n := server.AllocationCount(); n > 0 {
				t.Errorf("%d allocations are left", n)
			}
		})
	}
}

func TestWrongPassword(t *testing.T) {
	_, addr := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := bench.Run(ctx, bench.Config{Matches: 1, Rate: 10}, New(Config{Server: addr, Username: "u", Password: "wrong"}))
	if err == nil || ctx.Err() != nil {
		t.Errorf("a server that refuses gives %v", err)
	}
}

func TestNoServer(t *testing.T) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0") // Never answers.
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	addr := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	if Probe(addr, 20*time.Millisecond) == nil {
		t.Error("silence passes for a server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = bench.Run(ctx, bench.Config{Matches: 1, Rate: 10}, New(Config{Server: addr, Username: "u", Password: "p"}))
	if err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("set-up without a server ends with %v", err)
	}
}

func TestExplain(t *testing.T) {
	refreshed := finish(appendHeader(nil, typeRefresh|classSuccess, transaction{}))
	refused := finish(appendHeader(nil, typeRefresh|classError, transaction{}))
	for want, pkt := range map[string][]byte{"": refreshed, "turn error": refused, "foreign": []byte("hello")} {
		if got := explain(pkt); got != want {
			t.Errorf("%x is %q, want %q", pkt, got, want)
		}
	}
}
