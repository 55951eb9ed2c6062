package utp

import (
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// clientGroup is a server with established clients, all in this process. A tick takes
// them through a round of sending and receiving on one pipeline.
type clientGroup struct {
	t       testing.TB
	now     time.Duration
	server  *Endpoint
	clients []*Endpoint
	at      map[address.Addr]*Endpoint
	up      []ConnID
	down    []ConnID
	got     int
}

func newClientGroup(t testing.TB, cfg Config, n int) *clientGroup {
	t.Helper()
	cfg.MaxHalfOpenPerSource, cfg.MaxHalfOpen = n, n
	c := &clientGroup{t: t, server: server(t, cfg), at: map[address.Addr]*Endpoint{}}
	for i := range n {
		cfg.Rand = newSeeded(uint64(i))
		e := newEndpoint(t, cfg)
		c.clients = append(c.clients, e)
		c.at[place(i)] = e
		c.up = append(c.up, connect(t, e, serverAt))
	}
	for range 3 {
		c.tick(0, nil, false)
	}
	for i, e := range c.clients {
		must(t, e.Send(c.up[i], 0, nil))
	}
	c.tick(0, nil, false)
	for _, id := range c.down {
		c.server.Admit(id)
	}
	if st := c.server.Stats(); st.Connections != n || st.HalfOpen != 0 || len(c.down) != n {
		t.Fatalf("%+v", st)
	}
	return c
}

// tick moves everything on by 33 ms: both ends take what the other sent in the
// tick before, and answer.
func (c *clientGroup) tick(p PipelineID, payload []byte, send bool) {
	c.now += 33 * time.Millisecond
	c.server.Advance(c.now)
	for i, e := range c.clients {
		from := place(i)
		for _, data, ok := e.Next(); ok; _, data, ok = e.Next() {
			c.server.Receive(from, data)
		}
		e.Advance(c.now)
	}
	for to, data, ok := c.server.Next(); ok; to, data, ok = c.server.Next() {
		c.at[to].Receive(serverAt, data)
	}
	c.finish(c.server, c.down, p, payload, send)
	for i, e := range c.clients {
		c.finish(e, c.up[i:i+1], p, payload, send)
	}
}

func (c *clientGroup) finish(e *Endpoint, conns []ConnID, p PipelineID, payload []byte, send bool) {
	e.Update()
	for ev, ok := e.NextEvent(); ok; ev, ok = e.NextEvent() {
		switch ev.Kind {
		case EventIncoming:
			c.down = append(c.down, ev.Conn)
		case EventData:
			c.got++
		case EventDisconnected:
			c.t.Fatalf("%+v", ev)
		}
	}
	if send {
		for _, id := range conns {
			if err := e.Send(id, p, payload); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	e.Flush()
}

// TestNoAllocs: a server and a hundred clients in one process, each sending and
// receiving on a pipeline every tick, allocate nothing.
func TestNoAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	cfg := Config{
		Pipelines: []Pipeline{{StageNull}, {StageUnreliableSequenced}, {StageReliableSequenced}, {StageFragmentation},
			{StageFragmentation, StageUnreliableSequenced}, {StageFragmentation, StageReliableSequenced}},
		Window: 64,
	}
	small, large := make([]byte, 100), make([]byte, 4000)
	for _, v := range []struct {
		name    string
		p       PipelineID
		payload []byte
	}{
		{"no pipeline", 0, small}, {"null", 1, small}, {"sequenced", 2, small}, {"reliable", 3, small}, {"reliable, large", 3, large[:1300]},
		{"fragmented", 4, large}, {"fragmented and sequenced", 5, large}, {"fragmented and reliable", 6, large},
	} {
		c := newClientGroup(t, cfg, 100)
		for range 50 { // Buffers grow to what they need.
			c.tick(v.p, v.payload, true)
		}
		c.got = 0
		if n := testing.AllocsPerRun(100, func() { c.tick(v.p, v.payload, true) }); n != 0 {
			t.Errorf("%s: %v allocations per tick", v.name, n)
		}
		if want := 101 * 200; c.got != want { // AllocsPerRun runs once to warm up.
			t.Errorf("%s: %d payloads arrived, want %d", v.name, c.got, want)
		}
	}
}

// TestNoAllocsIdle: nor do acknowledgements, heartbeats and what is dropped.
func TestNoAllocsIdle(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	c := newClientGroup(t, NetcodeForEntities(), 100)
	junk := [][]byte{nil, []byte("UTP"), request(5)[:12], Packet{Kind: KindHeartbeat, Token: 99}.Append(nil),
		Packet{Kind: KindData, Token: 99}.Append(nil), make([]byte, 2000)}
	for range 50 {
		c.tick(0, nil, false)
	}
	n := testing.AllocsPerRun(100, func() {
		for _, pkt := range junk {
			c.server.Receive(place(5), pkt)
		}
		c.tick(0, nil, false)
		c.server.Stats()
		c.server.ConnStats(c.down[0])
	})
	if n != 0 {
		t.Errorf("%v allocations per tick", n)
	}
}

// TestMemory: an idle connection is small, and a busy one gives its buffers
// back to the endpoint.
func TestMemory(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector needs memory of its own")
	}
	const n = 1000
	var before, after runtime.MemStats
	cfg := gameObjects()
	cfg.MaxHalfOpen = n
	s := server(t, cfg)
	requests := make([][]byte, n)
	for i := range requests {
		requests[i] = request(i + 1)
	}
	s.Receive(place(0), requests[0])
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i, pkt := range requests {
		s.Receive(place(i), pkt)
		s.Receive(place(i), Packet{Kind: KindHeartbeat, Token: Token(i + 1)}.Append(nil))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	if s.Stats().Connections != n || each > 8<<10 {
		t.Errorf("%d connections, %d bytes each", s.Stats().Connections, each)
	}
	runtime.KeepAlive(s)
}

// BenchmarkTick is one tick of a server and a hundred clients, each of which
// sends and receives 100 bytes on the unreliable and on the reliable pipeline.
func BenchmarkTick(b *testing.B) {
	c := newClientGroup(b, NetcodeForEntities(), 100)
	payload := make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		c.tick(EntitiesUnreliable, payload, true)
		c.tick(EntitiesReliable, payload, true)
	}
}
