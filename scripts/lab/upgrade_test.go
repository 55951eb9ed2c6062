//go:build lab && linux

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

var (
	upgradeMatches = flag.Int("upgrade.matches", 100, "matches over UDP, at 20 datagrams a second and direction")
	upgrades       = flag.Int("upgrade.count", 3, "upgrades in a row")
)

// TestUpgrade verifies that a new process takes over under load: no datagram over UDP is lost,
// no player binds again, and sessions of DTLS and WebSockets go on.
func TestUpgrade(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.Flags = append(c.Flags, "--recover-for", "1s") })
	const rate = 20
	f, codes := l.fleet(l.players(*upgradeMatches, rate))
	transports := slices.Repeat([][2]string{{"dtls", "dtls"}, {"udp", "dtls"}, {"ws", "ws"}}, 4)
	others := l.startMatchesOver(transports, GameClientConfig{Rate: rate, KeepsConnection: true})
	before := f.SettleTo(0)
	f.Delays()
	time.Sleep(time.Second)
	calm := Quantile(f.Delays(), 0.99)
	for i := range *upgrades {
		f.Delays()
		began := time.Now()
		answer := l.upgrade()
		took := time.Since(began)
		time.Sleep(max(0, time.Second-time.Since(began)))
		delays := f.Delays()
		c := f.SettleTo(0).Since(before)
		t.Logf("upgrade %d: process %d after %v; %d datagrams over UDP, %d lost; delays in that second p50 %v, p99 %v, at most %v (p99 before: %v)",
			i+1, answer.Process, took.Round(time.Millisecond), c.Sent, c.Lost(), Quantile(delays, 0.5), Quantile(delays, 0.99),
			Quantile(delays, 1), calm)
		if c.Lost() > 0 || *long && c.Binds > 0 || c.Disconnects > 0 { // Players of a stalled machine bind again.
			t.Errorf("the players over UDP: %v", c)
		}
		l.requireMatchTraffic(others, 30*time.Second)
	}
	for pair, c := range settleMatches(others) {
		t.Logf("%s: %+v", pair, c)
		if c.Fatal > 0 {
			t.Errorf("%s: a game was ended", pair)
		}
	}
	for _, v := range others {
		for _, x := range v.clients() {
			if c := x.Counts(); c.Connections != 1 {
				t.Errorf("it connected again: %v", x)
			}
		}
	}
	l.requireNoFailures(f.Counts())
	l.requireJoinCodes(codes[:min(len(codes), 50)])
}

// TestUpgradeForms verifies upgrades over both families, and with the fast path in each form, and
// where the kernel refuses it.
func TestUpgradeForms(t *testing.T) {
	sockets := fastCase{mode: "off"}
	for _, row := range []struct {
		name    string
		form    fastCase
		refused bool // the process has no capability for the fast path
	}{
		{"sockets IPv4", sockets, false}, {"sockets IPv6", fastCase{mode: "off", v6: true}, false},
		{"sockets IPv6 wildcard", fastCase{mode: "off", v6: true, wildcard: true}, false},
		{"auto refused", fastCase{mode: "auto"}, true}, {"auto IPv6", fastCase{mode: "auto", v6: true}, false},
		{"tc IPv4", fastCase{mode: "tc"}, false},
		{"native IPv4", fastCase{mode: "native", wildcard: true}, false},
		{"native IPv6", fastCase{mode: "native", v6: true, wildcard: true}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newFastLab(t, row.form, func(c *RelayConfig) {
				c.Flags = append(c.Flags, "--recover-for", "1s")
				if row.refused {
					c.Prepare = dropFastPathCapabilities
				}
			})
			f, _ := l.fleet(l.fastPlayers(20, row.form))
			fast := row.form.mode != "off" && !row.refused
			if fast {
				l.requireFast(f, "before the upgrades")
			}
			before := f.SettleTo(0)
			for i := range 2 {
				l.upgrade()
				if c := f.SettleTo(0).Since(before); c.Lost() > 0 || c.Binds > 0 || c.Disconnects > 0 {
					t.Errorf("upgrade %d: %v", i+1, c)
				}
				if fast {
					l.requireFast(f, "after an upgrade")
				} else {
					l.requireTraffic(f, 20*time.Second)
				}
			}
			l.requireNoFailures(f.Counts())
		})
	}
}

// TestUpgradeMigration: a player holds the reservation for its host's place when a new process takes
// over. It is the host, with the same join code, and another player, which waited, joins it.
func TestUpgradeMigration(t *testing.T) {
	for _, transport := range []string{"udp", "dtls", "ws"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			row := make(worldRow, len(dimensions))
			row[dimTransport] = slices.Index(dimensions[dimTransport].values, transport)
			row[dimEvent] = slices.Index(dimensions[dimEvent].values, "host leaves")
			g := newWorldGame(t, row)
			in := func() bool { return len(g.missing()) == 0 }
			if !g.allocate() || !g.wait(worldIn, in) || !g.leave() {
				t.Fatal(g.verdict(), g.missing())
			}
			ctx, cancel := context.WithTimeout(t.Context(), worldBack)
			defer cancel()
			migrate := func(p *worldClient) (api.Allocation, error) {
				a, err := p.api()
				if err != nil {
					t.Fatal(err)
				}
				return a.Migrate(ctx, api.MigrateRequest{JoinCode: g.code, HostConnectionData: p.alloc.HostConnectionData})
			}
			place, err := migrate(g.players[0])
			if err != nil {
				t.Fatal(err)
			}
			var problem *api.Problem
			if _, err := migrate(g.players[1]); !errors.As(err, &problem) || problem.Status != http.StatusConflict {
				t.Fatalf("another player before the upgrade: %v", err)
			}
			g.upgrade()
			if bound, err := g.players[0].tryHost(ctx, place); err != nil || !bound {
				t.Fatalf("the BIND of %s after the upgrade: %v, %v", g.players[0].name, bound, err)
			}
			if err := g.players[1].takePlace(ctx, g.code); err != nil {
				t.Fatal(err)
			}
			if !g.playOn() {
				t.Fatal(g.verdict())
			}
			g.mark()
			if !g.wait(worldBack, in) {
				t.Errorf("they do not play: %v", g.missing())
			}
			a, err := g.host.api()
			if err != nil {
				t.Fatal(err)
			}
			if code, err := a.JoinCode(ctx, g.host.alloc.AllocationID); err != nil || code != g.code {
				t.Errorf("the code of the new host is %q, %v; want %q", code, err, g.code)
			}
		})
	}
}

// TestUpgradeMemory: an upgrade for which the control group has no memory is refused before it begins,
// and says so.
func TestUpgradeMemory(t *testing.T) {
	limit, err := NewMemoryCap(300 << 20)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	l := newFastLab(t, fastCase{mode: "auto"}, func(c *RelayConfig) {
		c.Flags = append(c.Flags, "--recover-for", "1s", "--max-allocations", "1000000")
		c.Cap = &limit
	})
	t.Cleanup(func() { // before the relay's
		if kills, err := limit.Kills(); err != nil || kills > 0 {
			t.Errorf("the kernel has killed %d processes, %v", kills, err)
		}
	})
	f, _ := l.fleet(l.fastPlayers(20, fastCase{mode: "auto"}))
	l.requireFast(f, "before the upgrade")
	if out, err := l.tryCtl("upgrade"); err == nil || !strings.Contains(out, "MiB of memory, and the limit (cgroup) leaves") {
		t.Errorf("%v: %s", err, out)
	}
	l.requireFast(f, "after it")
	l.requireNoFailures(f.Counts())
}

func (l *lab) upgrade() (answer operator.UpgradeResult) {
	l.Helper()
	if err := json.Unmarshal([]byte(l.ctl("upgrade", "-o", "json")), &answer); err != nil {
		l.Fatal(err)
	}
	l.relay.TakenOver(answer.Process)
	return answer
}

// dropFastPathCapabilities takes what the fast path needs from the programs that this thread starts.
func dropFastPathCapabilities() error {
	for _, capability := range []uintptr{unix.CAP_BPF, unix.CAP_SYS_ADMIN} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	return nil
}
