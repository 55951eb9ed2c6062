package probe

import (
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// maxReceive bounds the datagrams of one tick.
const maxReceive = 4096

// bare is an endpoint of the transport alone, without netcode. It belongs to one
// goroutine.
type bare struct {
	*utp.Endpoint
	o     Options
	out   *printer
	link  link.Link
	start time.Time
	conns []utp.ConnID // in the order in which they came
	buf   []byte
	body  []byte
	ended error // why the link did
}

var _ side = (*bare)(nil)

// newBare listens or begins to connect. The link remains the caller's if that
// fails.
func newBare(o Options, w way, out *printer) (*bare, error) {
	cfg := utp.NetcodeForEntities()
	if o.Speak == GameObjects {
		cfg = gameObjects()
		if o.Host != 0 || o.Join != "" {
			cfg.MaxResendTime = 750 * time.Millisecond // as NGO has it over a relay
		}
	}
	cfg.Overhead = w.sim.Overhead()
	ep, err := utp.New(cfg)
	if err != nil {
		return nil, err
	}
	if limit := ep.MaxPayload(utp.PipelineID(o.Pipeline)); o.Send > limit {
		return nil, fmt.Errorf("%w: --send: pipeline %d takes %d bytes", ErrOptions, o.Pipeline, limit)
	}
	b := &bare{
		Endpoint: ep, o: o, out: out, link: w.sim, start: time.Now(),
		buf: make([]byte, link.MaxDatagram), body: make([]byte, o.Send),
	}
	if o.serves() {
		return b, ep.Listen(true)
	}
	if err := w.sim.Dial(); err != nil {
		return nil, err
	}
	id, err := ep.Connect(w.to)
	b.conns = append(b.conns, id)
	return b, err
}

// gameObjects returns the configuration whose pipelines, window and
// capacities are those of Netcode for GameObjects 1.5 to 2.13. It resends after
// 500 ms at most; over a relay NGO takes 750 ms.
func gameObjects() utp.Config {
	return utp.Config{
		Pipelines: []utp.Pipeline{
			{utp.StageFragmentation},
			{utp.StageFragmentation, utp.StageUnreliableSequenced},
			{utp.StageReliableSequenced},
		},
		Window:           64,
		FragmentCapacity: 6148,
		MaxResendTime:    500 * time.Millisecond,
	}
}

func (b *bare) turn(now time.Time) error {
	b.link.Advance(now)
	b.Advance(now.Sub(b.start))
	b.receive()
	b.Update()
	for ev, ok := b.NextEvent(); ok; ev, ok = b.NextEvent() {
		b.printEvent(ev)
	}
	if b.ended != nil {
		return b.ended
	}
	for _, id := range b.conns {
		if b.o.Send > 0 && b.State(id) == utp.StateEstablished {
			_ = b.Send(id, utp.PipelineID(b.o.Pipeline), b.body) // A full window shows as in flight.
		}
	}
	b.flush()
	return nil
}

func (b *bare) receive() {
	for range maxReceive {
		switch ev := b.link.Receive(b.buf); ev.Kind {
		case link.Nothing:
			return
		case link.Datagram:
			b.Receive(ev.Addr, b.buf[:ev.N])
		case link.Left:
			b.DropPeer(ev.Addr, ev.Err)
		case link.Ended, link.Refused:
			b.ended = ev.Err
			return
		}
	}
}

func (b *bare) flush() {
	b.Flush()
	for to, data, ok := b.Next(); ok; to, data, ok = b.Next() {
		_ = b.link.Send(to, data) // As if the network had lost it.
	}
	b.link.Flush()
}

// printEvent prints an event.
func (b *bare) printEvent(ev utp.Event) {
	l := Line{Event: "state", Connection: fmt.Sprint("#", ev.Conn), State: ev.Kind.String()}
	if at, ok := b.Remote(ev.Conn); ok {
		l.Address = at.String()
	}
	switch ev.Kind {
	case utp.EventIncoming:
		b.Admit(ev.Conn) // The limit for unvalidated peers would show as loss.
		b.conns = append(b.conns, ev.Conn)
		b.payload(&l, ev.Data)
	case utp.EventConnected:
		b.payload(&l, ev.Data)
	case utp.EventData:
		l.Event, l.State, l.Data, l.Address = "data", "", "message", ""
		l.Bytes, l.Head, l.Pipeline = len(ev.Data), head(ev.Data), int(ev.Pipeline)
	case utp.EventDisconnected:
		l.Reason = ev.Reason.String()
		if ev.Cause != nil {
			l.Error = ev.Cause.Error()
		}
	}
	b.out.print(l)
}

// payload adds the payload of a connection request or accept to a line.
func (b *bare) payload(l *Line, data []byte) {
	if len(data) > 0 {
		l.Data, l.Bytes, l.Head = "payload", len(data), head(data)
	}
}

func (b *bare) peers() (connecting, connected int) {
	kept := b.conns[:0]
	for _, id := range b.conns {
		switch b.State(id) {
		case utp.StateNone:
			continue
		case utp.StateEstablished:
			connected++
		default:
			connecting++
		}
		kept = append(kept, id)
	}
	b.conns = kept
	return connecting, connected
}

func (b *bare) stats() (lines []Line) {
	for _, id := range b.conns {
		t, ok := b.ConnStats(id)
		if !ok {
			continue
		}
		lines = append(lines, Line{Connection: fmt.Sprint("#", id), State: b.State(id).String(), Stats: &Stats{
			RTT: milliseconds(t.RTT), Variation: milliseconds(t.RTTVariation),
			Sent: t.Sent, SentBytes: t.SentBytes, Received: t.Received, RecvBytes: t.ReceivedBytes,
			Resent: t.Resent, Duplicates: t.Duplicates, InFlight: t.InFlight, StreamLost: t.Lost, StreamLate: t.Late,
		}})
	}
	return lines
}

func (b *bare) total() Stats {
	t := b.Endpoint.Stats()
	return Stats{
		Sent: t.Sent, SentBytes: t.SentBytes, Received: t.Received, RecvBytes: t.ReceivedBytes, Drops: t.Drops,
	}
}

// close disconnects all connections, with the repetitions of the transport.
func (b *bare) close() error {
	for _, id := range b.conns {
		b.Disconnect(id)
	}
	for range maxDepartures {
		if b.PendingDisconnects() == 0 {
			break
		}
		b.flush()
	}
	return b.link.Close()
}

// maxDepartures is above the repetitions of a disconnect message.
const maxDepartures = 10
