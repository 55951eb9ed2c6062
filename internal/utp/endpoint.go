package utp

import (
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utpwire"
)

// Endpoint is one end of any number of connections: it takes datagrams, calls
// and the time, and gives datagrams and events. It does no I/O. One goroutine
// owns it.
type Endpoint struct {
	cfg     Config
	layouts []layout // by pipeline id; 0 is no pipeline
	times   times

	listening   bool
	conns       []*conn // by slot; those without a state are free
	free        []uint32
	tokens      map[utpwire.Token]*conn // looked up only: its order would not be the same twice
	halfOpen    []*conn
	live        int
	resume      int // slot at which the next Flush begins
	disconnects []pendingDisconnect
	closed      tokenRing
	refusals    rateLimiter
	cookies     cookies

	out    outbox
	events eventQueue
	pool   pool
	stats  Stats

	now int64 // ms since New
}

// times are the timeouts of the configuration in ms; 0 is never.
type times struct {
	connect, heartbeat, silence, resend int64
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

	outcomes [outcomes]uint64 // of received datagrams
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
		tokens:   make(map[utpwire.Token]*conn),
		refusals: newRateLimiter(maxRefusals),
		out:      outbox{limit: cfg.SendQueue},
		events:   eventQueue{limit: receiveQueue},
		times: times{
			connect:   cfg.ConnectTimeout.Milliseconds(),
			heartbeat: max(cfg.HeartbeatTimeout, 0).Milliseconds(),
			silence:   max(cfg.DisconnectTimeout, 0).Milliseconds(),
			resend:    cfg.MaxResendTime.Milliseconds(),
		},
	}, nil
}

// Advance begins a tick at this time, counted from New. An earlier time than before counts as
// the same. The data of events that NextEvent has returned are lost; events that it has not
// returned stay.
func (e *Endpoint) Advance(now time.Duration) {
	before := e.now
	e.now = max(before, now.Milliseconds())
	e.refusals.refill(e.now - before)
	e.events.recycle()
}

// Listen begins or ends to take requests. Connections stay. The error is that of
// Config.Rand, which is asked for a key if ValidateAddresses is set.
func (e *Endpoint) Listen(on bool) error {
	if on && e.cfg.ValidateAddresses && e.cookies.mac == nil {
		if err := e.cookies.newKey(e.cfg.Rand); err != nil {
			return err
		}
	}
	e.listening = on
	return nil
}

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
// for a pipeline that does not exist. A caller that coalesces messages fills packets up to it.
func (e *Endpoint) PacketPayload(p PipelineID) int {
	if int(p) >= len(e.layouts) {
		return 0
	}
	return min(e.layouts[p].packet, e.layouts[p].limit)
}

// PendingDisconnects is how many ended connections still have disconnects to send. A
// link may be closed when it is 0 and Next has returned everything.
func (e *Endpoint) PendingDisconnects() int { return len(e.disconnects) }

// Stats returns the counters of the endpoint.
func (e *Endpoint) Stats() Stats {
	s := e.stats
	s.Connections, s.HalfOpen = e.live, len(e.halfOpen)
	for _, c := range e.conns {
		s.InFlight += c.inFlight()
	}
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
func (e *Endpoint) ConnStats(id ConnID) (Stats, bool) {
	c := e.conn(id)
	if c == nil {
		return Stats{}, false
	}
	s := c.stats
	s.InFlight = c.inFlight()
	return s, true
}

// Update ends the connections that timed out. Call it after the Receives of a
// tick, so that a datagram that waited in the socket counts. A half-open
// client gets no disconnect: its address may be forged, and a live client
// repeats its request.
func (e *Endpoint) Update() {
	for _, c := range e.conns {
		if c.state == StateNone {
			continue
		}
		r, over := e.expired(c)
		if !over {
			continue
		}
		confirmed := c.state != StateHalfOpen
		e.end(c, r, nil)
		if confirmed {
			e.queueDisconnect(c)
		}
	}
}

func (e *Endpoint) expired(c *conn) (Reason, bool) {
	switch c.state {
	case StateConnecting:
		return ReasonMaxConnectionAttempts,
			c.attempts >= e.cfg.ConnectAttempts && e.now-c.lastRequest > e.times.connect
	case StateHalfOpen:
		return ReasonTimeout, e.now-c.opened > halfOpenMS
	}
	return ReasonTimeout, e.times.silence > 0 && e.now-c.lastReceived > e.times.silence
}

// Flush queues what is due: requests, accepts, reliable packets again,
// acknowledgements that no data took along, heartbeats and disconnects. It
// belongs behind the Sends of a tick; then Next returns the datagrams.
func (e *Endpoint) Flush() {
	first := e.resume
	e.resume = 0
	for i := range e.conns {
		slot := (first + i) % len(e.conns)
		c := e.conns[slot]
		if c.state == StateNone {
			continue
		}
		if !e.out.room(packetsPerSend) {
			e.resume = slot // Start here next time, so that a full queue starves no connection.
			break
		}
		e.flush(c)
	}
	e.flushDisconnects()
}

func (e *Endpoint) flush(c *conn) {
	if c.state == StateConnecting {
		e.sendRequest(c)
		return
	}
	for p := range c.pipelines {
		if r := c.pipelines[p].reliable; r != nil {
			e.resend(c, PipelineID(p), r)
			e.acknowledge(c, PipelineID(p), r)
		}
	}
	switch {
	case !c.incoming:
		e.sendRequest(c)
	case c.acceptDue && c.mayEmit(e.acceptLen()) && e.out.room(1):
		e.sendAccept(c)
	}
	silent := e.times.heartbeat > 0 && e.now-c.sent > e.times.heartbeat
	if silent && c.state == StateEstablished && c.mayEmit(utpwire.MessageLen) && e.out.room(1) {
		e.emit(c, utpwire.Heartbeat{Token: c.token}.Append(e.out.open()))
	}
}

// sendRequest sends a request if it is time for one.
func (e *Endpoint) sendRequest(c *conn) {
	early := c.attempts > 0 && e.now-c.lastRequest <= e.times.connect
	switch {
	case c.state == StateConnecting:
		if c.attempts >= e.cfg.ConnectAttempts || early {
			return
		}
		c.attempts++
	case !c.requestDue && (!c.hasCookie || c.confirmed || early):
		return
	}
	if e.out.room(1) {
		e.emitRequest(c)
	}
}

// emitRequest sends a request with the server's cookie, if there is one yet.
func (e *Endpoint) emitRequest(c *conn) {
	c.requestDue, c.lastRequest = false, e.now
	payload := c.payload
	if e.cfg.ValidateAddresses && !c.hasCookie {
		payload = nil
	}
	e.emit(c, utpwire.Request{Token: c.token, Payload: payload}.Append(e.out.open()))
}

// resend sends again what was not acknowledged in time, oldest first.
func (e *Endpoint) resend(c *conn, p PipelineID, r *reliable) {
	s := &r.sender
	for sequence := s.oldest; sequence < s.next; sequence++ {
		pkt := s.slot(sequence)
		if pkt.body == nil || e.now-pkt.last <= r.rtt.timeout {
			continue
		}
		if !e.out.room(packetsPerSend) {
			return
		}
		pkt.last = e.now
		if e.sendReliable(c, p, sequence) {
			c.stats.Resent++
			e.stats.Resent++
		}
	}
}

// acknowledge sends an acknowledgement that no payload took along. Its
// payload of one byte is required by the format and has no meaning.
func (e *Endpoint) acknowledge(c *conn, p PipelineID, r *reliable) {
	if !r.receiver.due || !e.out.room(packetsPerSend) || !e.maySend(c, utpwire.DataLen+utpwire.ReliableLen(e.layouts[p].wide)+1) {
		return
	}
	h := r.receiver.header(e.now)
	h.Ack = true
	pkt := utpwire.Data{Token: c.token, Pipeline: uint8(p)}.Append(e.out.open())
	e.emit(c, append(h.Append(pkt, e.layouts[p].wide), 0))
}

// rtt estimates the round trip of a reliable pipeline. Smoothing is 1/8, and
// 1/4 for the variation.
type rtt struct {
	smooth  int64 // µs
	vary    int64 // µs
	timeout int64 // ms after which a packet is sent again
}

func newRTT() rtt { return rtt{smooth: 50_000, vary: 5_000, timeout: startResendMS} }

// sample takes a round trip in ms, of which less than one counts as one. The
// new timeout is within minResendMS and limit, in ms.
func (r *rtt) sample(ms, limit int64) {
	delta := max(ms, 1)*1000 - r.smooth
	r.smooth += delta / 8
	r.vary += (max(delta, -delta) - r.vary) / 4
	r.timeout = min(max((r.smooth+4*r.vary)/1000, minResendMS), limit)
}
