//go:build lab && linux

package lab

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func (l *lab) stopFor(d time.Duration) {
	l.Helper()
	l.whileStopped(func() { time.Sleep(d) })
}

func (l *lab) whileStopped(do func()) {
	l.Helper()
	if err := l.relay.Signal(syscall.SIGSTOP); err != nil {
		l.Fatal(err)
	}
	defer l.relay.Signal(syscall.SIGCONT)
	do()
}

func TestPause(t *testing.T) {
	l := newLab(t, nil)
	f, codes := l.fleet(l.players(60, 30))
	l.stopFor(*faultDuration)
	l.requireResume(f, codes)
}

func TestLinkDown(t *testing.T) {
	l := newLab(t, nil)
	f, codes := l.fleet(l.players(60, 30))
	links := []string{LinkClients, LinkPeers}
	for _, name := range links {
		if err := l.net.SetLink(name, false); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(*faultDuration)
	for _, name := range links {
		if err := l.net.SetLink(name, true); err != nil {
			t.Fatal(err)
		}
	}
	l.requireResume(f, codes)
}

func (l *lab) requireResume(f *Fleet, codes []string) {
	l.Helper()
	f.Mark()
	testkit.Poll(30*time.Second, func() bool { return f.Resumed(time.Minute) >= len(codes) })
	l.Logf("of %d matches %d went on within 1 s, %d within 5 s, %d at all", len(codes),
		f.Resumed(time.Second), f.Resumed(5*time.Second), f.Resumed(time.Minute))
	if n := f.Resumed(time.Minute); n < len(codes) {
		l.Errorf("%d of %d matches go on", n, len(codes))
	}
	// If the relay sends messages about an expiry, it does so now.
	time.Sleep(time.Second)
	l.Log(f.Counts())
	l.requireNoFailures(f.Counts())
	l.requireJoinCodes(codes[:min(len(codes), 20)])
}

func (l *lab) requireJoinCodes(codes []string) {
	l.Helper()
	c := l.relay.API(l.net.Clients, 0)
	for _, code := range codes {
		if _, err := c.Join(l.Context(), code); err != nil {
			l.Errorf("a join code is lost: %v", err)
			return
		}
	}
}

// TestRoutes verifies that send failures to some players, with and without an
// error from the kernel, cost other players no datagram.
func TestRoutes(t *testing.T) {
	l := newLab(t, nil)
	others, _ := l.fleet(l.players(20, 30))
	cfg := l.players(5, 100)
	cfg.Joiners = SideConfig{Do: l.net.Victim.Do, First: FirstVictim}
	cfg.Hosts.First = netip.MustParseAddr("198.19.200.1")
	cfg.Payload = 1000
	choked, _ := l.fleet(cfg)
	for _, c := range []struct {
		name string
		do   func() error
		undo func() error
	}{
		{"prohibit", l.route("prohibit"), l.unroute},
		{"unreachable", l.route("unreachable"), l.unroute},
		{"blackhole", l.route("blackhole"), l.unroute},
		{"queue full", func() error {
			return l.net.Relay.TC("qdisc add dev " + LinkVictim + " root tbf rate 100kbit burst 4kb limit 4kb")
		}, func() error { return l.net.Relay.TC("qdisc del dev " + LinkVictim + " root") }},
		{"link down", func() error { return l.net.SetLink(LinkVictim, false) }, func() error { return l.net.SetLink(LinkVictim, true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, lost := others.SettleTo(0), choked.Counts().Lost()
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(700 * time.Millisecond)
			testkit.Eventually(t, "the fault hits those concerned", func() bool { return choked.Counts().Lost() > lost+minHits })
			got := others.SettleTo(before.Lost()).Since(before)
			hit := choked.Counts().Lost() - lost
			if err := c.undo(); err != nil {
				t.Fatal(err)
			}
			t.Logf("others: %v; the players concerned lost %d", got, hit)
			if got.Lost() != 0 || got.Sent == 0 {
				t.Errorf("others lost %d of %d", got.Lost(), got.Sent)
			}
		})
	}
	l.requireNoFailures(others.Counts())
	l.requireTraffic(choked, 10*time.Second)
}

// minHits is more than the number of datagrams in flight to the affected
// players.
const minHits = 50

const restrictedRange = victimRange

// route returns a function that replaces the relay's route to restrictedRange
// with one of another type; unroute restores it.
func (l *lab) route(kind string) func() error {
	return func() error {
		return l.net.Relay.IP(fmt.Sprintf("route replace %s %s", kind, restrictedRange))
	}
}

func (l *lab) unroute() error {
	for _, link := range l.net.links() {
		if link.name == LinkVictim {
			// A replaced route of another kind would stay beside the old one.
			err := l.net.Relay.IP("route flush " + restrictedRange)
			if err != nil && !strings.Contains(err.Error(), "No such") {
				return err
			}
			return link.route()
		}
	}
	return nil
}
