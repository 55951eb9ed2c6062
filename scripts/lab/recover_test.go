//go:build lab && linux

package lab

import (
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestRecover: matches resume after the relay was killed under load and
// restarted, no game is ended, and replayed BINDs are rejected.
func TestRecover(t *testing.T) {
	n := *recoverMatches
	l := newLab(t, nil)
	f, codes := l.fleet(l.players(n, 30))
	l.requireTraffic(f, 10*time.Second)
	captured := f.Captured()
	received := l.counter(l.net.Clients, AttackerReplyRange())
	before := f.Counts()

	killed := time.Now()
	l.relay.Kill()
	f.Mark() // Datagrams sent before this do not count.
	l.start()
	t.Logf("serving %v after it was started, %v after the kill", l.relay.Started.Round(time.Millisecond),
		time.Since(killed).Round(time.Millisecond))
	if *long && l.relay.Started > time.Second {
		t.Errorf("serving %v after the start, goal 1 s", l.relay.Started)
	}
	l.replay(captured)
	for f.Resumed(time.Minute) < n && time.Since(killed) < 30*time.Second && f.Counts().Failed < 2*n {
		time.Sleep(10 * time.Millisecond)
	}
	in5, in10, ever := f.Resumed(5*time.Second), f.Resumed(10*time.Second), f.Resumed(time.Minute)
	t.Logf("of %d matches %d carried traffic both ways within 1 s, %d within 5 s, %d within 10 s", n, f.Resumed(time.Second), in5, in10)
	t.Log(f.Settle().Since(before))
	if ever < n {
		t.Errorf("%d of %d matches go on", ever, n)
	}
	if *long && (float64(in5) < 0.99*float64(n) || in10 < n) {
		t.Errorf("within 5 s %d, within 10 s %d of %d matches; goals 99 %% and all", in5, in10, n)
	}
	l.replay(captured)
	l.replay(f.Captured())
	if h := received.Received(); h.Types[int(proto.TypeBindReceived)] != 0 {
		t.Errorf("%d replayed BINDs were accepted", h.Types[int(proto.TypeBindReceived)])
	}
	l.requireNoFailures(f.Counts())
	l.requireJoinCodes(codes[:min(n, 50)])
	l.requireTraffic(f, 10*time.Second)
}

// replay sends captured BINDs from random sources.
func (l *lab) replay(binds [][]byte) {
	l.Helper()
	s := l.spoofer(l.net.Clients)
	defer s.Close()
	for i, b := range binds {
		if err := s.Send(AppendIPv4UDP(nil, RandomSource(l.rng), RelayAddr, b)); err != nil {
			l.Fatal(err)
		}
		if i%64 == 63 {
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(500 * time.Millisecond)
}

// TestRoamStorm verifies that players recover when every client changes its
// port each second.
func TestRoamStorm(t *testing.T) {
	l := newLab(t, nil)
	cfg := l.players(max(*stormClients/2, 1), 30)
	cfg.Ports, cfg.RoamEvery = 16, time.Second
	f, codes := l.fleet(cfg)
	before := f.Counts()
	time.Sleep(*stormDuration)
	c := f.Settle()
	all := f.Roams()
	t.Logf("%v", c.Since(before))
	t.Logf("%d roams were over after p50 %v, p99 %v, at most %v; a client sends every 33 ms", len(all),
		Quantile(all, 0.5), Quantile(all, 0.99), Quantile(all, 1))
	if c.Roams == 0 || len(all) == 0 {
		t.Error("no player roamed")
	}
	if *long && c.RoamsLate > 0 {
		t.Errorf("%d of %d roams were not over when the next one began", c.RoamsLate, c.Roams)
	}
	// The relay learns of a roam by the next datagram, up to 33 ms later on each
	// side; the path itself takes microseconds.
	if worst := Quantile(all, 1); *long && worst > 200*time.Millisecond+2*33*time.Millisecond {
		t.Errorf("a roam took %v, goal a round trip + 200 ms", worst)
	}
	l.requireNoFailures(c)
	l.requireResume(f, codes)
}

func TestRecoverClients(t *testing.T) {
	const ngo = 500 * time.Millisecond // the PING of Netcode for GameObjects
	for _, c := range []struct {
		name       string
		fleet      FleetConfig      // of players over UDP
		gameClient GameClientConfig // of players by another way
		goal       time.Duration    // of the long form: from serving until the last match goes on
		slow       bool             // only the long form has it
	}{
		{"2.x by UDP binds on ERROR 3", FleetConfig{PingEvery: ngo}, GameClientConfig{}, 5 * time.Second, false},
		{"1.x by UDP binds after silence", FleetConfig{PingEvery: ngo, UTP1: true}, GameClientConfig{}, 5 * time.Second, false},
		{"1.x by UDP with its default PING", FleetConfig{UTP1: true}, GameClientConfig{}, 12 * time.Second, true},
		{"2.7 by DTLS handshakes again", FleetConfig{}, GameClientConfig{Transport: "dtls"}, 5 * time.Second, false},
		// Before 2.7, Unity's client has one DTLS session for good.
		{"2.x by DTLS never handshakes again", FleetConfig{}, GameClientConfig{Transport: "dtls", KeepsConnection: true}, time.Second, false},
		{"1.x by DTLS never handshakes again", FleetConfig{}, GameClientConfig{Transport: "dtls", KeepsConnection: true, UTP1: true},
			5 * time.Second, false},
		// Unity's client does not reconnect, and its game ends here.
		{"by WebSocket the connection breaks, a client that reconnects continues", FleetConfig{}, GameClientConfig{Transport: "ws"},
			5 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.slow && !*long {
				t.Skip("needs 9 s of silence: run with -long")
			}
			l, n := newLab(t, nil), max(*recoverMatches/5, 1)
			var game matchSet
			if c.gameClient.Transport == "" {
				cfg := l.players(n, 30)
				cfg.UTP1, cfg.PingEvery = c.fleet.UTP1, c.fleet.PingEvery
				f, _ := l.fleet(cfg)
				game = fleetMatches{f}
			} else {
				c.gameClient.Rate = 30
				pair := [2]string{c.gameClient.Transport, c.gameClient.Transport}
				game = &clientMatches{all: l.startMatchesOver(slices.Repeat([][2]string{pair}, n), c.gameClient)}
			}
			killed := time.Now()
			l.relay.Kill()
			game.Mark() // Datagrams sent before this do not count.
			marked := time.Now()
			l.start()
			served, down := time.Since(killed), time.Since(marked)
			testkit.Poll(30*time.Second, func() bool { return len(game.Resumptions()) >= n })
			after := game.Resumptions()
			for i := range after {
				after[i] = max(after[i]-down, 0).Round(time.Millisecond)
			}
			t.Logf("serving %v after the kill; then %d of %d matches carried traffic both ways after p50 %v, p99 %v, at most %v; %d never did",
				served.Round(time.Millisecond), len(after), n, Quantile(after, 0.5), Quantile(after, 0.99), Quantile(after, 1), n-len(after))
			if len(after) < n {
				t.Errorf("%d of %d matches never carried traffic both ways again", n-len(after), n)
			}
			if last := Quantile(after, 1); *long && last > c.goal {
				t.Errorf("the last match went on %v after serving, goal %v", last, c.goal)
			}
			game.check(l, killed)
		})
	}
}

type matchSet interface {
	Mark()
	Resumptions() []time.Duration
	check(l *lab, killed time.Time) // checks the clients' counters
}

type fleetMatches struct{ *Fleet }

func (s fleetMatches) check(l *lab, _ time.Time) {
	l.Helper()
	l.Log(s.Settle())
	l.requireNoFailures(s.Counts())
}

type clientMatches struct {
	all    []clientMatch
	marked time.Time
}

func (s *clientMatches) Mark() {
	s.marked = time.Now()
	for _, v := range s.all {
		v.host.Mark()
		v.player.Mark()
	}
}

func (s *clientMatches) Resumptions() (all []time.Duration) {
	for _, v := range s.all {
		a, b := v.host.FirstArrival(), v.player.FirstArrival()
		if !a.IsZero() && !b.IsZero() {
			all = append(all, max(a.Sub(s.marked), b.Sub(s.marked)))
		}
	}
	slices.Sort(all)
	return all
}

func (s *clientMatches) check(l *lab, killed time.Time) {
	l.Helper()
	var cut []time.Duration
	for _, v := range s.all {
		for _, x := range v.clients() {
			c := x.Counts()
			if c.Fatal > 0 {
				l.Errorf("the game was ended: %v", x)
			}
			if x.cfg.KeepsConnection && c.Connections != 1 {
				l.Errorf("it made a second connection: %v", x)
			}
			if x.cfg.Transport != "ws" {
				continue
			}
			at := x.ConnectionLost()
			if at.Before(killed) || c.Connections < 2 {
				l.Errorf("its connection was not broken: %v", x)
			}
			cut = append(cut, at.Sub(killed).Round(time.Millisecond))
		}
	}
	if len(cut) == 0 {
		return
	}
	slices.Sort(cut)
	l.Logf("connections broke p50 %v, at most %v after the kill", Quantile(cut, 0.5), Quantile(cut, 1))
	if last := Quantile(cut, 1); *long && last > time.Second {
		l.Errorf("a connection broke %v after the kill, goal 1 s", last)
	}
}
