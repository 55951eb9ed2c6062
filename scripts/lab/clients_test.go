//go:build lab && linux

package lab

import (
	"slices"
	"testing"
	"time"
)

// TestRecoverClients: the relay is killed and started again, and matches go on by
// what each kind of client does then.
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
		{"2.7 by DTLS handshakes again", FleetConfig{}, GameClientConfig{Way: "dtls"}, 5 * time.Second, false},
		// Before 2.7, Unity's client has one DTLS session for good.
		{"2.x by DTLS never handshakes again", FleetConfig{}, GameClientConfig{Way: "dtls", Stays: true}, time.Second, false},
		{"1.x by DTLS never handshakes again", FleetConfig{}, GameClientConfig{Way: "dtls", Stays: true, UTP1: true}, 5 * time.Second, false},
		// Unity's client does not dial again, and its game ends here.
		{"by WebSocket the connection breaks, a client that dials again goes on", FleetConfig{}, GameClientConfig{Way: "ws"}, 5 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.slow && !*long {
				t.Skip("needs 9 s of silence: run with -long")
			}
			l, n := newLab(t, nil), max(*recoverMatches/5, 1)
			var game survivors
			if c.gameClient.Way == "" {
				cfg := l.players(n, 30)
				cfg.UTP1, cfg.PingEvery = c.fleet.UTP1, c.fleet.PingEvery
				f, _ := l.fleet(cfg)
				game = fleetSurvivors{f}
			} else {
				c.gameClient.Rate = 30
				way := [2]string{c.gameClient.Way, c.gameClient.Way}
				game = &visitSurvivors{all: l.visitBy(slices.Repeat([][2]string{way}, n), c.gameClient)}
			}
			killed := time.Now()
			l.relay.Kill()
			game.Mark() // What was sent before does not count.
			marked := time.Now()
			l.start()
			served, down := time.Since(killed), time.Since(marked)
			for len(game.Resumptions()) < n && time.Since(marked) < down+30*time.Second {
				time.Sleep(10 * time.Millisecond)
			}
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

// survivors are matches under which the relay is killed.
type survivors interface {
	Mark()
	Resumptions() []time.Duration
	check(l *lab, killed time.Time) // of what the players saw
}

type fleetSurvivors struct{ *Fleet }

func (s fleetSurvivors) check(l *lab, _ time.Time) {
	l.Helper()
	l.Log(s.Settle())
	l.unharmed(s.Counts())
}

type visitSurvivors struct {
	all    []visit
	marked time.Time
}

func (s *visitSurvivors) Mark() {
	s.marked = time.Now()
	for _, v := range s.all {
		v.host.Mark()
		v.player.Mark()
	}
}

func (s *visitSurvivors) Resumptions() (all []time.Duration) {
	for _, v := range s.all {
		a, b := v.host.Since(), v.player.Since()
		if !a.IsZero() && !b.IsZero() {
			all = append(all, max(a.Sub(s.marked), b.Sub(s.marked)))
		}
	}
	slices.Sort(all)
	return all
}

func (s *visitSurvivors) check(l *lab, killed time.Time) {
	l.Helper()
	var cut []time.Duration
	for _, v := range s.all {
		for _, x := range v.both() {
			c := x.Counts()
			if c.Fatal > 0 {
				l.Errorf("the game was ended: %v", x)
			}
			if x.cfg.Stays && c.Connections != 1 {
				l.Errorf("it made a second connection: %v", x)
			}
			if x.cfg.Way != "ws" {
				continue
			}
			at := x.Cut()
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
