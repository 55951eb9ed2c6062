package utp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type seeded struct{ rng *rand.Rand }

func newSeeded(seed uint64) io.Reader { return seeded{rand.New(rand.NewPCG(seed, 0))} }

func (s seeded) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.rng.Uint32())
	}
	return len(b), nil
}

// goldenRand gives the token of the vectors once, and then others.
func goldenRand() io.Reader {
	return io.MultiReader(bytes.NewReader([]byte{0, 1, 2, 3, 4, 5, 6, 7}), newSeeded(9))
}

func place(n int) address.Addr {
	ip := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return address.FromUDP(netip.AddrPortFrom(ip, 7777))
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func newEndpoint(t testing.TB, cfg Config) *Endpoint {
	t.Helper()
	if cfg.Rand == nil {
		cfg.Rand = newSeeded(1)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func server(t testing.TB, cfg Config) *Endpoint {
	e := newEndpoint(t, cfg)
	e.Listen(true)
	return e
}

func connect(t testing.TB, e *Endpoint, to address.Addr) ConnID {
	t.Helper()
	id, err := e.Connect(to)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func sent(e *Endpoint) [][]byte {
	e.Flush()
	return waiting(e)
}

// waiting returns copies of the datagrams that were queued without a flush.
func waiting(e *Endpoint) (list [][]byte) {
	for _, data, ok := e.Next(); ok; _, data, ok = e.Next() {
		list = append(list, bytes.Clone(data))
	}
	return list
}

// kinds returns the kinds of packets, one letter each: Q request, A accept,
// d data, x disconnect, h heartbeat, m mtu ack.
func kinds(t testing.TB, list [][]byte) string {
	t.Helper()
	said := ""
	for _, pkt := range list {
		m, o := parse(pkt)
		if o != taken {
			t.Fatalf("sent %x: %v", pkt, o)
		}
		said += map[Kind]string{KindRequest: "Q", KindAccept: "A", KindData: "d", KindDisconnect: "x", KindHeartbeat: "h",
			KindMTUAck: "m"}[m.Kind]
	}
	return said
}

func events(e *Endpoint) (list []Event) {
	for ev, ok := e.NextEvent(); ok; ev, ok = e.NextEvent() {
		ev.Data = bytes.Clone(ev.Data)
		list = append(list, ev)
	}
	return list
}

func eventText(e *Endpoint) string { return describe(events(e)) }

func describe(list []Event) string {
	said := ""
	for _, ev := range list {
		if said != "" {
			said += ", "
		}
		said += ev.Kind.String()
		switch {
		case ev.Kind == EventDisconnected:
			said += " " + ev.Reason.String()
		case ev.Kind == EventData:
			said += fmt.Sprintf(" %d %q", ev.Pipeline, ev.Data)
		case ev.Data != nil:
			said += fmt.Sprintf(" %q", ev.Data)
		}
	}
	return said
}

func take(e *Endpoint, from address.Addr, pkt []byte) outcome {
	before := maps.Clone(e.stats.Drops)
	e.Receive(from, pkt)
	for reason, n := range e.stats.Drops {
		if n != before[reason] {
			return outcome(reason)
		}
	}
	return taken
}

func feed(e *Endpoint, from address.Addr, list ...[]byte) (last outcome) {
	for _, pkt := range list {
		last = take(e, from, pkt)
	}
	return last
}

func tick(e *Endpoint, now time.Duration) {
	e.Advance(now)
	e.Update()
}

// pair is a client and a server with an established connection between them,
// at time 0, whose first exchange is over.
type pair struct {
	t              testing.TB
	now            time.Duration
	client, server *Endpoint
	up, down       ConnID // the client's and the server's name of it
}

var clientAt, serverAt = place(1), place(2)

func newPair(t testing.TB, cfg Config) *pair {
	t.Helper()
	p := &pair{t: t, client: newEndpoint(t, cfg), server: server(t, cfg)}
	p.client.Advance(0)
	p.server.Advance(0)
	p.up = connect(t, p.client, serverAt)
	p.toServer()
	ev, ok := p.server.NextEvent()
	if !ok || ev.Kind != EventIncoming {
		t.Fatalf("the server sees %+v", ev)
	}
	p.down = ev.Conn
	p.toClient()
	if said := eventText(p.client); said != "connected" {
		t.Fatalf("the client sees %s", said)
	}
	// A word of the client establishes the server's side.
	if o := take(p.server, clientAt, Packet{Kind: KindHeartbeat, Token: p.token()}.Append(nil)); o != taken ||
		p.server.State(p.down) != StateEstablished {
		t.Fatal(o, p.server.State(p.down))
	}
	p.server.Admit(p.down)
	return p
}

func (p *pair) token() Token {
	c := p.client.conns.find(p.up)
	if c == nil {
		p.t.Fatal("the connection has ended")
	}
	return c.token
}

func (p *pair) advance(d time.Duration) {
	p.now += d
	tick(p.client, p.now)
	tick(p.server, p.now)
}

func (p *pair) toServer() (list [][]byte) {
	list = sent(p.client)
	feed(p.server, clientAt, list...)
	return list
}

func (p *pair) toClient() (list [][]byte) {
	list = sent(p.server)
	feed(p.client, serverAt, list...)
	return list
}

func (p *pair) send(pipeline PipelineID, payload string) {
	p.t.Helper()
	if err := p.client.Send(p.up, pipeline, []byte(payload)); err != nil {
		p.t.Fatal(err)
	}
}

func udp(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// numbered returns a payload that says its number and has n bytes at least.
func numbered(i, n int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(i))
	for len(b) < n {
		b = append(b, byte(i))
	}
	return b
}

const (
	gameObjectsUnreliable PipelineID = 1 // fragmentation
	gameObjectsSequenced  PipelineID = 2 // fragmentation, unreliable sequenced
	gameObjectsReliable   PipelineID = 3 // reliable sequenced
)

// gameObjects returns the configuration whose pipelines, window and
// capacities are those of Netcode for GameObjects 1.5 to 2.13. It resends after
// 500 ms at most; over a relay NGO takes 750 ms.
func gameObjects() Config {
	return Config{
		Pipelines: []Pipeline{
			{StageFragmentation},
			{StageFragmentation, StageUnreliableSequenced},
			{StageReliableSequenced},
		},
		Window:           64,
		FragmentCapacity: 6148,
		MaxResendTime:    500 * time.Millisecond,
	}
}

// freePackets returns how many packets a pipeline of a connection takes now, 0 if it
// does not exist. Only reliable pipelines have a window; for others it is the
// room of the send queue.
func (e *Endpoint) freePackets(id ConnID, p PipelineID) int {
	c := e.conns.find(id)
	if c == nil || c.state == StateConnecting || int(p) >= len(e.layouts) {
		return 0
	}
	n := (e.out.limit - len(e.out.list) + e.out.next) / packetsPerSend
	if r := c.pipelines[p].reliable; r != nil {
		n = min(n, r.sender.free())
	}
	return n
}

func unsent(e *Endpoint) int { return len(e.out.list) - e.out.next }
