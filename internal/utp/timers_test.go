package utp

import (
	"math"
	"testing"
	"time"
)

// TestHeartbeat: after 501 ms without sending, whatever was received.
func TestHeartbeat(t *testing.T) {
	p := newPair(t, Config{})
	last := 0
	for now := 1; now <= 3000; now++ {
		p.now = ms(now)
		tick(p.client, p.now)
		feed(p.client, serverAt, Packet{Kind: KindHeartbeat, Token: p.token()}.Append(nil))
		list := sent(p.client)
		if len(list) == 0 {
			continue
		}
		if got := kinds(t, list); got != "h" || now-last != 501 {
			t.Fatalf("at %d ms, %d ms after the last: %q", now, now-last, got)
		}
		last = now
	}
	if last != 5*501 {
		t.Errorf("the last heartbeat was at %d ms", last)
	}
	for now := 3001; now <= 6000; now++ { // None while something is sent.
		tick(p.client, ms(now))
		if now%500 == 0 {
			must(t, p.client.Send(p.up, 0, []byte("x")))
		}
		if got := kinds(t, sent(p.client)); got != "" && got != "d" && now > 3100 {
			t.Fatalf("at %d ms: %q", now, got)
		}
	}
}

func TestTimersOff(t *testing.T) {
	p := newPair(t, Config{HeartbeatTimeout: NoTimeout, DisconnectTimeout: NoTimeout})
	for range 100 {
		p.advance(time.Hour)
		if a, b := sent(p.client), sent(p.server); len(a)+len(b) != 0 {
			t.Fatalf("sent %q and %q", kinds(t, a), kinds(t, b))
		}
	}
	if got := eventText(p.client) + eventText(p.server); got != "" {
		t.Error(got)
	}
}

// TestTimeout: at 30001 ms, not at 30000, on both sides.
func TestTimeout(t *testing.T) {
	p := newPair(t, Config{})
	p.advance(ms(30000))
	if got := eventText(p.client) + eventText(p.server); got != "" {
		t.Fatalf("at 30000 ms: %s", got)
	}
	p.advance(ms(1))
	for name, e := range map[string]*Endpoint{"client": p.client, "server": p.server} {
		if got := eventText(e); got != "disconnected Timeout" || e.Stats().Connections != 0 {
			t.Errorf("%s: %s", name, got)
		}
		if got := kinds(t, sent(e)); got != "x" {
			t.Errorf("%s sends %q", name, got)
		}
	}
}

// TestWaitingDatagramCounts: what waited in the socket while the process stood
// still saves the connection.
func TestWaitingDatagramCounts(t *testing.T) {
	p := newPair(t, Config{})
	p.client.Advance(time.Minute)
	feed(p.client, serverAt, Packet{Kind: KindHeartbeat, Token: p.token()}.Append(nil))
	p.client.Update()
	if got := eventText(p.client); got != "" {
		t.Error(got)
	}
}

// TestTimeBackwards: it stands still until the time has returned.
func TestTimeBackwards(t *testing.T) {
	p := newPair(t, Config{})
	p.advance(ms(20000))
	p.advance(-ms(15000))
	p.advance(ms(25000))
	if got := eventText(p.client); got != "" {
		t.Error(got)
	}
	p.advance(ms(1))
	if got := eventText(p.client); got != "disconnected Timeout" {
		t.Error(got)
	}
}

// TestWildTime: no order of times does harm.
func TestWildTime(t *testing.T) {
	p := newPair(t, Config{})
	times := []time.Duration{math.MaxInt64, math.MinInt64, 0, math.MaxInt64, -1, 1, math.MinInt64, math.MinInt64 + 1}
	for _, now := range times {
		before := p.client.now
		tick(p.client, now)
		sent(p.client)
		if p.client.now < before {
			t.Fatalf("at %d the clock goes back from %d to %d", now, before, p.client.now)
		}
	}
	if got := eventText(p.client); got != "disconnected Timeout" {
		t.Error(got)
	}
}

func TestDisconnect(t *testing.T) {
	p := newPair(t, Config{})
	p.send(0, "last words")
	p.client.Disconnect(p.up)
	p.client.Disconnect(p.up) // Once is enough.
	var copies [][]byte
	for i, want := range []string{"dx", "x", "x", ""} {
		if n := len(p.client.closing.disconnects); (n > 0) != (want != "") {
			t.Errorf("flush %d: %d departures", i, n)
		}
		list := sent(p.client)
		if got := kinds(t, list); got != want {
			t.Errorf("flush %d: %q, want %q", i, got, want)
		}
		copies = append(copies, list...)
	}
	feed(p.server, clientAt, copies...)
	if got := eventText(p.server); got != `data 0 "last words", disconnected ClosedByRemote` {
		t.Errorf("the server sees %s", got)
	}
	if got := eventText(p.client); got != "" || p.client.State(p.up) != StateNone {
		t.Errorf("the client sees %s", got)
	}
	if _, ok := p.client.Remote(p.up); ok {
		t.Error("an ended connection has a place")
	}
	if _, ok := p.client.ConnStats(p.up); ok {
		t.Error("an ended connection has counters")
	}
	for _, id := range []ConnID{{}, p.up, {slot: 7, generation: 1}, {slot: math.MaxUint32, generation: 1}} {
		if err := p.client.Send(id, 0, nil); err != ErrConn {
			t.Errorf("%v: %v", id, err)
		}
	}
}

// TestDisconnectUnasked: an attempt that sent no request needs no disconnect.
func TestDisconnectUnasked(t *testing.T) {
	e := newEndpoint(t, Config{})
	e.Disconnect(connect(t, e, serverAt))
	if got := sent(e); len(got) != 0 {
		t.Errorf("sent %x", got)
	}
}

func TestGone(t *testing.T) {
	s := server(t, Config{})
	s.Advance(0)
	feed(s, clientAt, request(1))
	feed(s, clientAt, request(2))
	feed(s, place(9), request(3))
	eventText(s)
	if s.DropPeer(clientAt, nil); s.Stats().Connections != 1 {
		t.Errorf("%+v", s.Stats())
	}
	for range 2 {
		if ev, _ := s.NextEvent(); ev.Kind != EventDisconnected || ev.Reason != ReasonProtocolError || ev.Cause != ErrPeerGone {
			t.Errorf("%+v", ev)
		}
	}
	if s.DropPeer(clientAt, nil); s.Stats().Connections != 1 || eventText(s) != "" {
		t.Errorf("a second time: %+v", s.Stats())
	}
	if got := kinds(t, sent(s)); got != "A" {
		t.Errorf("sent %q", got)
	}
}
