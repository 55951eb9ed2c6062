package utp

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Endpoint is one end of any number of connections. One goroutine owns it.
type Endpoint struct {
	cfg     Config
	layouts []layout // by pipeline id; 0 is no pipeline

	listening bool
	conns     connTable
	halfOpen  halfOpen
	closing   closing
	cookies   cookies
	refusals  refusalLimit
	resume    int // slot at which the next Flush begins

	out    output
	events queue[Event]
	pool   pool
	stats  Stats

	now time.Duration // since New, in whole milliseconds
}

// Stats is what an endpoint or one of its connections has counted. Bytes are those of
// whole datagrams, without the link's own.
type Stats struct {
	Sent, SentBytes         uint64 // datagrams queued for Next
	Received, ReceivedBytes uint64 // of a connection: valid messages only

	Resent     uint64 // reliable packets sent again
	Duplicates uint64 // reliable packets received again
	InFlight   int    // reliable packets without an acknowledgement

	// Of a connection. RTT and RTTVariation are the smoothed round trip and its variation,
	// of the reliable pipeline that measured last; 50 ms and 5 ms before.
	RTT, RTTVariation time.Duration

	Lost     uint64 // sequenced packets that were skipped; some may be late
	Late     uint64 // sequenced packets that came after a newer one
	Withheld uint64 // data packets not sent to an unvalidated client

	// Of an endpoint.
	Refused     uint64 // answers to clients that got no connection
	Connections int    // now
	HalfOpen    int    // of these, those that count in Config.MaxHalfOpen

	// Drops has the dropped datagrams by reason. The endpoint goes on counting in it.
	Drops map[string]uint64
}

// New returns an endpoint that does not listen and has no connections.
// Errors wrap ErrConfig.
func New(cfg Config) (*Endpoint, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	plain, _ := cfg.layoutOf(nil)
	layouts := []layout{plain}
	for _, p := range cfg.Pipelines {
		l, err := cfg.layoutOf(p)
		if err != nil {
			return nil, err
		}
		layouts = append(layouts, l)
	}
	return &Endpoint{
		cfg:      cfg,
		layouts:  layouts,
		conns:    connTable{tokens: make(map[Token]*conn)},
		stats:    Stats{Drops: make(map[string]uint64)},
		refusals: allRefusals,
		out:      output{queue: queue[address.Addr]{limit: cfg.SendQueue}},
		events:   queue[Event]{limit: receiveQueue},
	}, nil
}

// Advance begins a tick at this time, counted from New; time never goes back. The data of
// events that NextEvent has returned are lost.
func (e *Endpoint) Advance(now time.Duration) {
	before := e.now
	e.now = max(before, now.Truncate(time.Millisecond))
	e.refusals.refill(e.now - before)
	e.events.compact()
	if len(e.events.buf) == 0 && cap(e.events.buf) > maxKept {
		e.events.buf = nil
	}
}

// Listen begins or ends to take requests. Errors are those of Config.Rand.
func (e *Endpoint) Listen(on bool) error {
	if on && e.cfg.ValidateAddresses && e.cookies.mac == nil {
		var key [32]byte
		if _, err := io.ReadFull(e.cfg.Rand, key[:]); err != nil {
			return fmt.Errorf("utp: no random key: %w", err)
		}
		e.cookies.mac = hmac.New(sha256.New, key[:])
	}
	e.listening = on
	return nil
}

// Listening reports whether requests are taken.
func (e *Endpoint) Listening() bool { return e.listening }

// NextEvent returns the next event, or false if there is none.
func (e *Endpoint) NextEvent() (Event, bool) {
	ev, data, ok := e.events.take()
	if len(data) > 0 {
		ev.Data = data
	}
	return ev, ok
}

// Next returns the next datagram to send, valid until the next call.
func (e *Endpoint) Next() (to address.Addr, data []byte, ok bool) { return e.out.take() }

// MaxPayload is the largest payload of Send in bytes, 0 for a pipeline that
// does not exist.
func (e *Endpoint) MaxPayload(p PipelineID) int {
	if int(p) >= len(e.layouts) {
		return 0
	}
	return e.layouts[p].limit
}

// maxKept is the largest buffer in bytes that is kept for the next tick: what
// 250 full messages of 16 KiB take.
const maxKept = 4 << 20

// Stats returns the counters of the endpoint.
func (e *Endpoint) Stats() Stats {
	s := e.stats
	s.Sent, s.SentBytes = e.out.sent, e.out.sentBytes
	s.Connections, s.HalfOpen = len(e.conns.tokens), len(e.halfOpen.conns)
	for _, c := range e.conns.slots {
		s.InFlight += c.inFlight()
	}
	return s
}

// State returns where a connection stands.
func (e *Endpoint) State(id ConnID) State {
	if c := e.conns.find(id); c != nil {
		return c.state
	}
	return StateNone
}

// Remote returns where the peer of a live connection is.
func (e *Endpoint) Remote(id ConnID) (address.Addr, bool) {
	if c := e.conns.find(id); c != nil {
		return c.path.addr, true
	}
	return address.Addr{}, false
}

// Heard returns when the peer of a live connection was last heard, and when it was heard again
// after the last silence of two heartbeats, 0 if there was none. Times count from New.
func (e *Endpoint) Heard(id ConnID) (last, resumed time.Duration) {
	if c := e.conns.find(id); c != nil {
		return c.lastReceived, c.resumed
	}
	return 0, 0
}

// ConnStats returns the counters of a live connection.
func (e *Endpoint) ConnStats(id ConnID) (Stats, bool) {
	c := e.conns.find(id)
	if c == nil {
		return Stats{}, false
	}
	s := c.stats
	s.InFlight = c.inFlight()
	return s, true
}

// Update ends the connections that timed out. Call it after the Receives of a
// tick. A half-open client gets no disconnect: its address may be forged.
func (e *Endpoint) Update() {
	for _, c := range e.conns.slots {
		r := c.expired()
		if r == 0 {
			continue
		}
		confirmed := c.state != StateHalfOpen
		c.end(Event{Reason: r})
		if confirmed {
			c.queueDisconnect()
		}
	}
}

// Flush queues what is due. Call it after the Sends of a tick; then Next
// returns the datagrams.
func (e *Endpoint) Flush() {
	first := e.resume
	e.resume = 0
	for i := range e.conns.slots {
		slot := (first + i) % len(e.conns.slots)
		c := e.conns.slots[slot]
		if c.state == StateNone {
			continue
		}
		if !e.out.room(packetsPerSend) {
			e.resume = slot // Start here next time, so that a full queue starves no connection.
			break
		}
		c.flush()
	}
	e.closing.flush(&e.out)
}
