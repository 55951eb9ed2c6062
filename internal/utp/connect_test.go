package utp

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// TestSchedule is the tick model of the reference on this layer: packets
// flushed in tick k arrive in tick k+1, and Connect comes before tick 1.
func TestSchedule(t *testing.T) {
	c := newEndpoint(t, NetcodeForEntities())
	s := server(t, NetcodeForEntities())
	id := connect(t, c, serverAt)
	var toServer, toClient [][]byte
	for i, want := range []struct{ client, server, up, down string }{
		{"", "", "Q", ""},
		{"", `incoming "hello"`, "", "Ad"}, // accept, and the server's first message behind it
		{`connected, data 2 "version"`, "", "d", ""},
		{"", `data 2 "version"`, "", "d"}, // the pure acknowledgement
		{"", "", "", ""},
		{"", "", "", ""},
	} {
		now := ms(16 * (i + 1))
		c.Advance(now)
		s.Advance(now)
		feed(s, clientAt, toServer...)
		feed(c, serverAt, toClient...)
		c.Update()
		s.Update()
		clientEvents, serverEvents := events(c), events(s)
		if got := describe(clientEvents); got != want.client {
			t.Errorf("tick %d: the client sees %q, want %q", i+1, got, want.client)
		}
		if got := describe(serverEvents); got != want.server {
			t.Errorf("tick %d: the server sees %q, want %q", i+1, got, want.server)
		}
		for _, ev := range serverEvents {
			if ev.Kind == EventIncoming {
				must(t, s.Send(ev.Conn, EntitiesReliable, []byte("version")))
			}
		}
		if len(clientEvents) > 0 && clientEvents[0].Kind == EventConnected {
			must(t, c.Send(id, EntitiesReliable, []byte("version")))
		}
		toServer, toClient = sent(c), sent(s)
		if i == 0 { // This client sends no payload, as others do.
			toServer[0] = withPayload(toServer[0], "hello")
		}
		if up, down := kinds(t, toServer), kinds(t, toClient); up != want.up || down != want.down {
			t.Errorf("tick %d: sent %q and %q, want %q and %q", i+1, up, down, want.up, want.down)
		}
	}
}

func withPayload(pkt []byte, payload string) []byte {
	m, _ := parse(pkt)
	m.Body = append(m.Body, payload...)
	return m.Append(nil)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAttempts: a request at 0, 1001, 2002 ms and so on, 60 in all, and the end
// one period after the last.
func TestAttempts(t *testing.T) {
	e := newEndpoint(t, Config{Rand: goldenRand()})
	e.Advance(0)
	id := connect(t, e, serverAt)
	requests := 0
	for now := 0; now <= 60*1001; now++ {
		tick(e, ms(now))
		for _, pkt := range sent(e) {
			if !bytes.Equal(pkt, unhex(t, "55545001 01 0001020304050607")) {
				if now == 60*1001 && kinds(t, [][]byte{pkt}) == "x" {
					continue // It tells a server that may have taken it for half-open.
				}
				t.Fatalf("at %d ms sent %x", now, pkt)
			}
			if now != requests*1001 {
				t.Fatalf("request %d at %d ms", requests, now)
			}
			requests++
		}
		if said := eventText(e); said != "" && (said != "disconnected MaxConnectionAttempts" || now != 60*1001) {
			t.Fatalf("at %d ms: %s", now, said)
		}
	}
	if requests != 60 || e.State(id) != StateNone {
		t.Errorf("%d requests, state %v", requests, e.State(id))
	}
}

// TestAcceptLost: the server answers each request, and has one connection.
func TestAcceptLost(t *testing.T) {
	for _, lost := range []int{1, 5} {
		c, s := newEndpoint(t, Config{}), server(t, Config{})
		id := connect(t, c, serverAt)
		for i := range lost {
			tick(c, ms(i*1001))
			tick(s, ms(i*1001))
			if up := sent(c); feed(s, clientAt, up...) != taken || kinds(t, up) != "Q" {
				t.Fatalf("request %d: %q", i, kinds(t, up))
			}
			if down := sent(s); kinds(t, down) != "A" {
				t.Fatalf("answer %d: %q", i, kinds(t, down))
			}
		}
		tick(c, ms(lost*1001))
		tick(s, ms(lost*1001))
		feed(s, clientAt, sent(c)...)
		feed(c, serverAt, sent(s)...)
		if got := eventText(c); got != "connected" || c.State(id) != StateEstablished {
			t.Errorf("%d lost: client %s, %v", lost, got, c.State(id))
		}
		if got := eventText(s); got != "incoming" || s.Stats().Connections != 1 {
			t.Errorf("%d lost: server %s, %+v", lost, got, s.Stats())
		}
	}
}

// TestDataIsAnAccept: our client takes any message with its token for the
// accept, whose payload it then never sees.
func TestDataIsAnAccept(t *testing.T) {
	for _, m := range []Packet{
		Packet{Kind: KindData, Token: goldenToken, Body: []byte("hi")},
		Packet{Kind: KindHeartbeat, Token: goldenToken},
		Packet{Kind: KindMTUCheck, Token: goldenToken, Body: make([]byte, 7)},
		Packet{Kind: KindMTUAck, Token: goldenToken, Body: le16(7)},
	} {
		c := newEndpoint(t, Config{Rand: goldenRand()})
		id := connect(t, c, serverAt)
		sent(c)
		if o := feed(c, serverAt, m.Append(nil)); o != taken || c.State(id) != StateEstablished {
			t.Errorf("%v: %v, %v", m, o, c.State(id))
		}
		want := "connected"
		if m.Kind == KindData {
			want = `connected, data 0 "hi"`
		}
		if got := eventText(c); got != want {
			t.Errorf("%v: %s", m, got)
		}
		if o := feed(c, serverAt, Packet{Kind: KindAccept, Token: goldenToken, Body: []byte("late")}.Append(nil)); o != dropState ||
			eventText(c) != "" {
			t.Errorf("a late accept: %v", o)
		}
	}
}

// TestAcceptAhead: until the client has sent something, each data packet has an accept in
// front, and nothing else is sent.
func TestAcceptAhead(t *testing.T) {
	s := server(t, Config{Pipelines: []Pipeline{{StageReliableSequenced}}})
	s.Advance(0)
	feed(s, clientAt, Packet{Kind: KindRequest, Token: goldenToken, Body: make([]byte, 100)}.Append(nil))
	ev, _ := s.NextEvent()
	must(t, s.Send(ev.Conn, 0, []byte("one")))
	must(t, s.Send(ev.Conn, 1, []byte("two")))
	list := sent(s)
	if got := kinds(t, list); got != "AdAd" {
		t.Fatalf("sent %q", got)
	}
	for now := 1; now <= 900; now++ { // Resends have it as well; heartbeats are none.
		tick(s, ms(now))
		if got := kinds(t, sent(s)); got != "" && got != "Ad" {
			t.Fatalf("at %d ms: %q", now, got)
		}
	}
	feed(s, clientAt, Packet{Kind: KindHeartbeat, Token: goldenToken}.Append(nil))
	must(t, s.Send(ev.Conn, 0, []byte("three")))
	if got := kinds(t, waiting(s)); got != "d" {
		t.Errorf("after the client sent a datagram: %q", got)
	}
}

// TestUnvalidatedLimit: what forged requests, heartbeats and data can make a server send is
// three times their bytes at most, and an acknowledgement ends that.
func TestUnvalidatedLimit(t *testing.T) {
	s := server(t, NetcodeForEntities())
	s.Advance(0)
	received, answered, datagrams := 0, 0, 0
	take := func(pkt []byte) {
		feed(s, clientAt, pkt)
		received += len(pkt)
	}
	flush := func() string {
		list := sent(s)
		for _, pkt := range list {
			answered += len(pkt)
		}
		datagrams += len(list)
		if answered > 3*received {
			t.Fatalf("%d bytes were answered with %d", received, answered)
		}
		return kinds(t, list)
	}
	take(Packet{Kind: KindRequest, Token: goldenToken}.Append(nil))
	ev, _ := s.NextEvent()
	for range 5 {
		must(t, s.Send(ev.Conn, EntitiesReliable, []byte("version")))
	}
	for now := 10; now < 9000; now += 10 {
		tick(s, ms(now))
		must(t, s.Send(ev.Conn, EntitiesUnreliable, []byte("state")))
		flush()
	}
	if answered > 39 || datagrams > 2 {
		t.Errorf("%d datagrams of %d bytes for one request", datagrams, answered)
	}
	if st, _ := s.ConnStats(ev.Conn); st.Withheld == 0 {
		t.Error("nothing was counted as withheld")
	}
	for now := 9000; now < 20_000; now += 10 { // Blind ones: the client chose the token.
		tick(s, ms(now))
		if now%500 == 0 {
			take(Packet{Kind: KindHeartbeat, Token: goldenToken}.Append(nil))
			take(Packet{Kind: KindData, Token: goldenToken, Pipeline: EntitiesUnreliable, Body: []byte("blind")}.Append(nil))
		}
		must(t, s.Send(ev.Conn, EntitiesUnreliable, []byte("state")))
		flush()
	}
	if s.State(ev.Conn) != StateEstablished || s.Stats().HalfOpen != 1 {
		t.Fatalf("%v, %+v", s.State(ev.Conn), s.Stats())
	}
	ack := reliableHeader{kind: reliableAck, newest: 0, mask: 1}
	take(append(ack.append(Packet{Kind: KindData, Token: goldenToken, Pipeline: EntitiesReliable}.Append(nil), false), 0))
	if s.Stats().HalfOpen != 0 {
		t.Errorf("after an acknowledgement: %+v", s.Stats())
	}
	for range 50 {
		must(t, s.Send(ev.Conn, EntitiesUnreliable, make([]byte, 1000)))
	}
	if got := len(sent(s)); got < 50 {
		t.Errorf("%d datagrams to a client that has acknowledged one", got)
	}
}

func TestRefusedByDisconnect(t *testing.T) {
	c := newEndpoint(t, Config{Rand: goldenRand()})
	id := connect(t, c, serverAt)
	sent(c)
	if o := feed(c, serverAt, Packet{Kind: KindDisconnect, Token: goldenToken}.Append(nil)); o != taken ||
		eventText(c) != "disconnected ClosedByRemote" || c.State(id) != StateNone {
		t.Errorf("%v, %v", o, c.State(id))
	}
	tick(c, time.Minute)
	if got := sent(c); len(got) != 0 {
		t.Errorf("sends %x afterwards", got)
	}
}

// TestCopiesOfRequest: one connection, an accept for each tick with a request,
// and no connection from a copy that comes after the end.
func TestCopiesOfRequest(t *testing.T) {
	s := server(t, Config{})
	request := Packet{Kind: KindRequest, Token: goldenToken}.Append(nil)
	s.Advance(0)
	feed(s, clientAt, request, request)
	if got := kinds(t, sent(s)); got != "A" {
		t.Errorf("two in one tick: %q", got)
	}
	tick(s, ms(10))
	feed(s, clientAt, request)
	if got := kinds(t, sent(s)); got != "A" {
		t.Errorf("in the next tick: %q", got)
	}
	feed(s, clientAt, Packet{Kind: KindHeartbeat, Token: goldenToken}.Append(nil), request)
	if got := kinds(t, sent(s)); got != "A" {
		t.Errorf("once established: %q", got)
	}
	if got := eventText(s); got != "incoming" {
		t.Errorf("events: %s", got)
	}
	feed(s, clientAt, Packet{Kind: KindDisconnect, Token: goldenToken}.Append(nil))
	if o := feed(s, clientAt, request); o != dropClosed || s.Stats().Connections != 0 {
		t.Errorf("after the end: %v, %+v", o, s.Stats())
	}
	// The same when this side ended it.
	feed(s, clientAt, Packet{Kind: KindRequest, Token: 5}.Append(nil))
	for ev, ok := s.NextEvent(); ok; ev, ok = s.NextEvent() {
		s.Disconnect(ev.Conn)
	}
	if o := feed(s, clientAt, Packet{Kind: KindRequest, Token: 5}.Append(nil)); o != dropClosed || s.Stats().Connections != 0 {
		t.Errorf("after a disconnect: %v, %+v", o, s.Stats())
	}
}

func TestAcceptInWrongState(t *testing.T) {
	p := newPair(t, Config{})
	accept := Packet{Kind: KindAccept, Token: p.token(), Body: []byte("x")}.Append(nil)
	if o := feed(p.client, serverAt, accept); o != dropState {
		t.Errorf("established client: %v", o)
	}
	if o := feed(p.server, clientAt, accept); o != dropState {
		t.Errorf("server: %v", o)
	}
	if o := feed(p.client, serverAt, Packet{Kind: KindRequest, Token: p.token()}.Append(nil)); o != dropState {
		t.Errorf("a request to the client itself: %v", o)
	}
	if o := feed(p.client, serverAt, Packet{Kind: KindAccept, Token: 5}.Append(nil)); o != dropToken {
		t.Errorf("unknown token: %v", o)
	}
	if got := eventText(p.client) + eventText(p.server); got != "" {
		t.Errorf("events: %s", got)
	}
}

// TestNotListening: an unknown client sees a connection that is closed at once, and
// no state is kept.
func TestNotListening(t *testing.T) {
	c, s := newEndpoint(t, Config{}), newEndpoint(t, Config{})
	s.refusals = 2 * priceOfARefusal // two answers
	s.Advance(0)
	connect(t, c, serverAt)
	requests := sent(c)
	if o := feed(s, clientAt, requests...); o != dropListening {
		t.Errorf("outcome %v", o)
	}
	feed(c, serverAt, sent(s)...)
	if got := eventText(c); got != "connected, disconnected ClosedByRemote" {
		t.Errorf("the client sees %s", got)
	}
	if st := s.Stats(); st.Connections != 0 || eventText(s) != "" {
		t.Errorf("%+v", st)
	}
	feed(s, clientAt, requests[0], requests[0], requests[0])
	if got := kinds(t, sent(s)); got != "Ax" { // One was used up above.
		t.Errorf("three more at the same time: %q", got)
	}
	tick(s, ms(20))
	feed(s, clientAt, requests[0], requests[0], requests[0])
	if got := kinds(t, sent(s)); got != "AxAx" { // a hundred per second
		t.Errorf("20 ms later: %q", got)
	}
	if st := s.Stats(); st.Refused != 4 {
		t.Errorf("%+v", st)
	}
}

func TestConnectErrors(t *testing.T) {
	e := newEndpoint(t, Config{MaxConnections: 1})
	zero := address.FromUDP(udp("10.0.0.1:0"))
	for _, to := range []address.Addr{{}, zero} {
		if _, err := e.Connect(to); err != ErrAddr {
			t.Errorf("%v: %v", to, err)
		}
	}
	id, err := e.Connect(serverAt)
	must(t, err)
	if err := e.Send(id, 0, nil); err != ErrState {
		t.Error(err)
	}
	if _, err := e.Connect(serverAt); err != ErrFull {
		t.Error(err)
	}
	e = newEndpoint(t, Config{Rand: bytes.NewReader(nil)})
	if _, err := e.Connect(serverAt); err == nil {
		t.Error("a token without randomness")
	}
	e = newEndpoint(t, Config{Rand: zeros{}})
	connect(t, e, serverAt)
	if _, err := e.Connect(serverAt); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
