package lab

import (
	"context"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestFleet plays against the built `ferry dev`, with roaming and scheduled
// BINDs. It needs no root, since every address of 127.0.0.0/8 is local.
func TestFleet(t *testing.T) {
	relay, base := dev(t)
	f, err := NewFleet(FleetConfig{
		Hosts: SideConfig{First: netip.MustParseAddr("127.19.0.1")}, Joiners: SideConfig{First: netip.MustParseAddr("127.18.0.1")},
		Relay: relay, Matches: 10, Rate: 50, Ports: 3, RoamEvery: 300 * time.Millisecond, RebindEvery: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer cancel()
	codes, err := AddMatches(ctx, &api.Client{BaseURL: base}, f, 10)
	if err != nil || len(codes) != 10 || codes[9] == "" {
		t.Fatalf("%q, %v", codes, err)
	}
	testkit.Eventually(t, "all players play", func() bool { return f.Counts().Playing == 20 })
	testkit.Eventually(t, "players roam and bind", func() bool { return len(f.Roams()) > 20 && len(f.Rebinds()) > 20 })
	f.Mark()
	testkit.Eventually(t, "all matches go on", func() bool { return f.Resumed(time.Minute) == 10 })
	if len(f.Captured()) != 20 || len(f.Delays()) == 0 {
		t.Error("nothing was captured or measured")
	}
	c := f.Settle()
	t.Log(c)
	if c.Fatal() != 0 || c.Failed != 0 || c.Unexpected != 0 || c.Received == 0 || c.Duplicates != 0 {
		t.Errorf("%+v", c)
	}
}

func dev(t *testing.T) (relay netip.AddrPort, base string) {
	t.Helper()
	path, err := Binary(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := ferrytest.Start(t, exec.Command(path, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"))
	t.Cleanup(p.Stop)
	return p.UDP, p.API
}

func TestFleetConfig(t *testing.T) {
	relay := netip.MustParseAddrPort("127.0.0.1:7777")
	for _, cfg := range []FleetConfig{{}, {Relay: relay}, {Relay: relay, Matches: maxFleet + 1}, {Matches: 1},
		{Relay: relay, Matches: 1, Rate: -1}} {
		if _, err := NewFleet(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}
