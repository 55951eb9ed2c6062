package utp

import (
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Endpoint is one end of any number of connections: it takes datagrams, calls
// and the time, and gives datagrams and events. It does no I/O. One goroutine
// owns it.
type Endpoint struct {
	cfg     Config
	layouts []layout // by pipeline id; 0 is no pipeline
	times   times

	listening bool
	conns     []*conn // by slot; those without a state are free
	free      []uint32
	tokens    map[Token]*conn // looked up only: its order would not be the same twice
	halfOpen  []*conn
	live      int
	resume    int // slot at which the next Flush begins
	farewells []farewell
	closed    graveyard
	refusals  brake

	out    outbox
	events eventQueue
	pool   pool
	stats  Stats

	started bool
	last    time.Duration // the caller's clock at the last Advance
	elapsed time.Duration // the endpoint's own
	now     int64         // the same in ms
}

// times are the timeouts of the configuration in ms; 0 is never.
type times struct {
	connect, heartbeat, silence, halfOpen, resend int64
}

// Stats is what an endpoint has counted. Bytes are those of whole datagrams,
// without the link's own.
type Stats struct {
	Sent, SentBytes         uint64 // datagrams queued for Next
	Received, ReceivedBytes uint64
	Outcomes                [outcomes]uint64 // received datagrams, by Outcome

	Incoming  uint64 // connections that clients opened
	Outgoing  uint64 // connections that Connect began
	Refused   uint64 // answers to clients that got no connection
	Unrefused uint64 // answers that MaxRefusals or a full queue withheld
	Backward  uint64 // calls of Advance with an earlier time than before

	Connections int // now
	HalfOpen    int // of these, clients that were not heard yet
	Unsent      int // datagrams that wait for Next
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
		tokens:   make(map[Token]*conn),
		refusals: newBrake(cfg.MaxRefusals),
		out:      outbox{limit: cfg.SendQueue},
		events:   eventQueue{limit: cfg.ReceiveQueue},
		times: times{
			connect:   cfg.ConnectTimeout.Milliseconds(),
			heartbeat: max(cfg.HeartbeatTimeout, 0).Milliseconds(),
			silence:   max(cfg.DisconnectTimeout, 0).Milliseconds(),
			halfOpen:  cfg.HalfOpenTimeout.Milliseconds(),
			resend:    cfg.MaxResendTime.Milliseconds(),
		},
	}, nil
}

// Advance begins a tick at this time, counted from any instant that stays the
// same. The clock of the endpoint moves by the difference to the last call: not
// at all if that is negative, and by MaxStep at most. The data of events that
// NextEvent has returned are lost; events that it has not returned stay.
func (e *Endpoint) Advance(now time.Duration) {
	step := now - e.last
	switch {
	case !e.started:
		e.started, step = true, 0
	case now < e.last:
		e.stats.Backward++
		step = 0
	case step < 0 || step > longStep:
		step = longStep
	}
	if e.cfg.MaxStep > 0 {
		step = min(step, e.cfg.MaxStep)
	}
	e.last = now
	e.elapsed += step
	before := e.now
	e.now = e.elapsed.Milliseconds()
	e.refusals.pass(e.now - before)
	e.events.recycle()
}

// longStep is a step after which every timer has run out. What is longer adds
// nothing, and this many steps do not overflow in a lifetime.
const longStep = 2 * maxDuration

// Listen begins or ends to take requests. Connections stay.
func (e *Endpoint) Listen(on bool) { e.listening = on }

// Listening reports whether requests are taken.
func (e *Endpoint) Listening() bool { return e.listening }

// NextEvent returns the next event, or false if there is none.
func (e *Endpoint) NextEvent() (Event, bool) { return e.events.take() }

// Next returns the next datagram to send, or false if there is none. Its bytes
// are valid until any other method is called.
func (e *Endpoint) Next() (Datagram, bool) { return e.out.take() }

// MaxPayload is the largest payload of Send in bytes, 0 for a pipeline that
// does not exist.
func (e *Endpoint) MaxPayload(p PipelineID) int {
	if int(p) >= len(e.layouts) {
		return 0
	}
	return e.layouts[p].limit
}

// PacketPayload is the largest payload in bytes that leaves as one packet, 0
// for a pipeline that does not exist. Who coalesces messages fills it.
func (e *Endpoint) PacketPayload(p PipelineID) int {
	if int(p) >= len(e.layouts) {
		return 0
	}
	return min(e.layouts[p].packet, e.layouts[p].limit)
}

// Farewells is how many ended connections still have disconnects to send. A
// link may be closed when it is 0 and Next has returned everything.
func (e *Endpoint) Farewells() int { return len(e.farewells) }

// Stats returns the counters of the endpoint.
func (e *Endpoint) Stats() Stats {
	s := e.stats
	s.Connections, s.HalfOpen = e.live, len(e.halfOpen)
	s.Unsent = len(e.out.parcels) - e.out.next
	return s
}

// State returns where a connection stands.
func (e *Endpoint) State(id ConnID) State {
	if c := e.conn(id); c != nil {
		return c.state
	}
	return StateNone
}

// Remote returns where the peer of a live connection is.
func (e *Endpoint) Remote(id ConnID) (address.Addr, bool) {
	if c := e.conn(id); c != nil {
		return c.addr, true
	}
	return address.Addr{}, false
}

// ConnStats returns the counters of a live connection.
func (e *Endpoint) ConnStats(id ConnID) (ConnStats, bool) {
	c := e.conn(id)
	if c == nil {
		return ConnStats{}, false
	}
	s := c.stats
	s.State, s.Remote, s.Token = c.state, c.addr, c.token
	for i := range c.lanes {
		if r := c.lanes[i].reliable; r != nil {
			s.InFlight += r.inFlight()
		}
	}
	return s, true
}
