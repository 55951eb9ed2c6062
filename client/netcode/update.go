package netcode

import (
	"net"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// maxStep bounds by how much one Update moves the clock; more times out all.
const maxStep = 24 * time.Hour

// Update is the first half of a tick: it takes what arrived, ends what waited
// too long, and publishes what happened. What it handed out before is no longer
// valid. A time before that of the last Update counts as the same.
//
// It returns why the link has ended, after which nothing arrives any more, or,
// once, why Config.Auto could not be done; net.ErrClosed after Close.
func (d *Driver) Update(now time.Time) error {
	if d.closed {
		return net.ErrClosed
	}
	first := !d.started
	d.advance(now)
	d.forget()
	if first {
		d.auto()
	}
	d.serveRequests()
	if d.ep != nil {
		d.link.Advance(now)
		d.ep.Advance(d.elapsed)
		d.receive()
		d.ep.Update()
		d.serveSessions()
		d.takeEvents()
		d.order()
	}
	if d.err != nil {
		return d.err
	}
	return d.autoFailed()
}

func (d *Driver) advance(now time.Time) {
	step := max(now.Sub(d.last), 0)
	if !d.started {
		d.started, step = true, 0
	}
	if bound := d.cfg.Transport.MaxStep; bound > 0 {
		step = min(step, bound)
	}
	d.elapsed += min(step, maxStep)
	d.last = now
}

// forget drops what was handed out for one tick.
func (d *Driver) forget() {
	clear(d.events)
	d.events = d.events[:0]
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		clear(s.rpcs)
		s.rpcs = s.rpcs[:0]
		s.in.fresh, s.in.body = false, nil
		if !s.inGame {
			s.leaveGame()
		}
	}
}

// receive takes what the link has.
func (d *Driver) receive() {
	for range d.cfg.MaxReceive {
		ev := d.link.Receive(d.buf)
		switch ev.Kind {
		case link.Nothing:
			return
		case link.Datagram:
			d.ep.Receive(ev.Addr, d.buf[:ev.N])
		case link.Joined:
			d.joined(ev.Addr)
		case link.Left:
			d.left(ev.Addr)
		case link.NoLink:
			d.counts.NoLink++
		case link.Refused:
			d.log.Warn("the link refused", "error", ev.Err)
			d.goneAll()
		case link.Ended:
			d.err = ev.Err
			d.log.Error("the link ended", "error", ev.Err)
			d.goneAll()
			return
		}
	}
}

// serveSessions does what the game and the time want of each connection.
func (d *Driver) serveSessions() {
	for _, s := range d.sessions {
		switch {
		case s == nil:
		case s.lingers:
			d.linger(s)
		case s.live():
			d.serve(s)
		}
	}
}

func (d *Driver) serve(s *session) {
	if s.unsaid {
		s.unsaid = false
		d.enter(s, StateConnecting)
	}
	switch {
	case s.closing:
		d.shut(s, s.closeReason, s.closeText)
	case d.ep.State(s.conn) == utp.StateNone: // Its last event is in the queue.
	case s.state == StateApproval && s.approved && d.server:
		d.welcome(s)
	default:
		d.expire(s)
	}
}

// expire ends a handshake or an approval that takes too long.
func (d *Driver) expire(s *session) {
	limit, reason := d.cfg.HandshakeApprovalTimeout, ReasonApprovalTimeout
	if s.state == StateHandshake {
		reason = ReasonHandshakeTimeout
		if !d.server {
			limit = d.cfg.ClientHandshakeTimeout
		}
	}
	if s.handshaking() && limit != Never && d.elapsed-s.since >= limit {
		d.shut(s, reason, "")
	}
}

// takeEvents goes through what the transport has to say, in its order.
func (d *Driver) takeEvents() {
	for ev, ok := d.ep.NextEvent(); ok; ev, ok = d.ep.NextEvent() {
		if ev.Kind == utp.EventIncoming {
			d.incoming(ev.Conn)
			continue
		}
		s := d.session(ev.Conn)
		switch {
		case s == nil:
		case s.lingers:
			if ev.Kind == utp.EventDisconnected { // The peer has read the notice.
				d.release(s.at)
				d.parted(s)
			}
		case !s.live():
		case ev.Kind == utp.EventConnected:
			d.begin(s)
		case ev.Kind == utp.EventData:
			d.message(s, ev.Pipeline, ev.Data)
		case ev.Kind == utp.EventDisconnected:
			d.lost(s, ev)
		}
	}
}

// incoming takes a client, unless it has left in the same tick.
func (d *Driver) incoming(id utp.ConnID) {
	if d.ep.State(id) == utp.StateNone {
		d.counts.Stale++
		return
	}
	if d.handshaking >= d.cfg.MaxHandshaking {
		d.counts.Refused++
		d.ep.Disconnect(id)
		return
	}
	d.begin(d.newSession(id, StateUnknown))
}
