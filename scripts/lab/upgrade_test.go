//go:build lab && linux

package lab

import (
	"encoding/json"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/admin"
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
	ways := slices.Repeat([][2]string{{"dtls", "dtls"}, {"udp", "dtls"}, {"ws", "ws"}}, 4)
	others := l.startMatchesOver(ways, GameClientConfig{Rate: rate, KeepsConnection: true})
	before := f.SettleTo(0)
	f.Delays()
	time.Sleep(time.Second)
	calm := Quantile(f.Delays(), 0.99)
	for i := range *upgrades {
		f.Delays()
		began := time.Now()
		var answer admin.UpgradeResult
		if err := json.Unmarshal([]byte(l.ctl("upgrade", "-o", "json")), &answer); err != nil {
			t.Fatal(err)
		}
		l.relay.TakenOver(answer.Process)
		took := time.Since(began)
		time.Sleep(max(0, time.Second-time.Since(began)))
		delays := f.Delays()
		c := f.SettleTo(0).Since(before)
		t.Logf("upgrade %d: process %d after %v; %d datagrams over UDP, %d lost; delays in that second p50 %v, p99 %v, at most %v (p99 before: %v)",
			i+1, answer.Process, took.Round(time.Millisecond), c.Sent, c.Lost(), Quantile(delays, 0.5), Quantile(delays, 0.99), Quantile(delays, 1), calm)
		if c.Lost() > 0 || *long && c.Binds > 0 || c.Disconnects > 0 { // Players of a stalled machine bind again.
			t.Errorf("the players over UDP: %v", c)
		}
		l.requireMatchTraffic(others, 30*time.Second)
	}
	for way, c := range settleMatches(others) {
		t.Logf("%s: %+v", way, c)
		if c.Fatal > 0 {
			t.Errorf("%s: a game was ended", way)
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
