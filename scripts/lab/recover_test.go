//go:build lab && linux

package lab

import (
	"testing"
	"time"

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
