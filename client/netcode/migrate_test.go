package netcode_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/relay"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

// until lets the drivers play, and calls turn for each after its Update, until done.
func until(t *testing.T, what string, drivers []*netcode.Driver, turn func(d *netcode.Driver), done func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !done(); time.Sleep(ms) {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		for _, d := range drivers {
			_ = d.Update(time.Now())
			turn(d)
			d.Flush()
		}
	}
}

// connected returns how many connections of these drivers are in StateConnected.
func connected(drivers ...*netcode.Driver) (n int) {
	for _, d := range drivers {
		for c := range d.Conns() {
			if c.State() == netcode.StateConnected {
				n++
			}
		}
	}
	return n
}

// TestMigrateRelay: the host of a match leaves, and then that of the match which goes on; the players play on, in a
// match of one of them, under the same code.
func TestMigrateRelay(t *testing.T) {
	t.Parallel()
	r := relaytest.Start(t, relay.Config{Engine: engine.Config{HostMigration: engine.HostMigration{Window: time.Minute}}})
	rpcs := new(netcode.RPCRegistry)
	chat, err := netcode.RegisterRPC(rpcs, "chat", netcode.Raw())
	if err != nil {
		t.Fatal(err)
	}
	cfg := netcode.Config{RPCs: rpcs}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	host, code, err := netcode.HostRelay(ctx, r.API("player:host"), 4, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var players []*netcode.Driver
	names := map[*netcode.Driver]string{}
	for _, name := range []string{"anna", "ben", "carl"} {
		d, _, err := netcode.JoinRelay(ctx, r.API("player:"+name), code, cfg)
		if err != nil {
			t.Fatal(err)
		}
		players, names[d] = append(players, d), name
	}
	t.Cleanup(func() {
		for _, d := range players {
			_ = d.Close()
		}
	})
	for n := len(players); n > 1; n-- {
		all := append(slices.Clone(players), host)
		until(t, "the players are connected", all, func(*netcode.Driver) {}, func() bool { return connected(all...) == 2*n })
		if err := host.Close(); err != nil {
			t.Fatal(err)
		}
		until(t, "they learn that the host has left", players, func(*netcode.Driver) {}, func() bool { return connected(players...) == 0 })
		host, players = migrate(ctx, t, r, code, players, names, cfg)
		if len(players) != n-1 {
			t.Fatalf("%d players remain of %d", len(players), n)
		}
		all = append(slices.Clone(players), host)
		until(t, "the players are connected to the new host", all, func(*netcode.Driver) {},
			func() bool { return connected(all...) == 2*len(players) })
		// Each says something to the new host, which says it to all.
		sent, heard := map[netcode.Conn]bool{}, 0
		until(t, "all hear all", all, func(d *netcode.Driver) {
			for c := range d.Conns() {
				if d != host && !sent[c] && c.SendRPC(chat.New([]byte("hello"))) == nil {
					sent[c] = true
				}
				for rpc := range c.RPCs() {
					if _, ok := chat.From(rpc); ok && d == host {
						d.Broadcast(rpc)
					} else if ok {
						heard++
					}
				}
			}
		}, func() bool { return heard >= len(players)*len(players) })
	}
	_ = host.Close()
	if _, _, err := netcode.MigrateRelay(ctx, r.API("player:x"), "6789BC", players[0], cfg); !errors.Is(err, client.ErrMatchOver) {
		t.Errorf("another match: %v", err)
	}
	d, err := netcode.NewClient(netcode.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := netcode.MigrateRelay(ctx, r.API("player:x"), code, d, cfg); !errors.Is(err, netcode.ErrConfig) {
		t.Errorf("a driver without a relay: %v", err)
	}
}

// migrate is MigrateRelay by all players at once. It returns the new host and the others.
func migrate(
	ctx context.Context, t *testing.T, r *relaytest.Relay, code string, old []*netcode.Driver, names map[*netcode.Driver]string,
	cfg netcode.Config,
) (host *netcode.Driver, players []*netcode.Driver) {
	t.Helper()
	type result struct {
		name string
		d    *netcode.Driver
		conn netcode.Conn
		err  error
	}
	results := make(chan result, len(old))
	for _, d := range old {
		name := names[d]
		go func() {
			next, conn, err := netcode.MigrateRelay(ctx, r.API("player:"+name), code, d, cfg)
			results <- result{name, next, conn, err}
		}()
	}
	for range old {
		got := <-results
		names[got.d] = got.name
		switch {
		case got.err != nil:
			t.Error(got.err)
		case got.conn == netcode.Conn{} && host == nil:
			host = got.d
		case got.conn == netcode.Conn{}:
			t.Error("two hosts")
		default:
			players = append(players, got.d)
		}
	}
	if host == nil {
		t.Fatal("no player is the host")
	}
	return host, players
}
