package netcode

import (
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// lingerTime is how long an ended connection waits for its notice to arrive.
const lingerTime = 250 * time.Millisecond

// partingFlushes is in how many flushes the transport repeats its disconnect.
// Only then may a relay be told that the link is over.
const partingFlushes = 3

// parting is a peer that the link will be told to forget.
type parting struct {
	at   address.Addr
	left int
}

// over publishes the end of a connection. What of it was not read is gone.
func (d *Driver) over(s *session, ev ConnectionEvent) {
	d.enter(s, StateDisconnected)
	ev.Conn, ev.NetworkID, ev.State = Conn{d, s.conn}, s.id, StateDisconnected
	d.publish(ev)
	if d.server && s.id != 0 {
		d.ids.free(s.id)
	}
	clear(s.rpcs)
	s.rpcs, s.inGame, s.userData = s.rpcs[:0], false, nil
	s.leaveGame()
}

// shut ends a connection from this side, and tells the peer why if it may.
func (d *Driver) shut(s *session, r DisconnectReason, text string) {
	d.over(s, ConnectionEvent{Reason: r})
	s.at, _ = d.ep.Remote(s.conn)
	if d.cfg.NoCloseNotice || d.ep.State(s.conn) != utp.StateEstablished {
		d.part(s)
		return
	}
	appendSystem(&s.queue, indexClose, appendClose(nil, r, text))
	s.lingers, s.until = true, d.elapsed+lingerTime
}

// linger ends the transport's connection when the notice has arrived, or will
// not any more.
func (d *Driver) linger(s *session) {
	st, ok := d.ep.ConnStats(s.conn)
	if ok && d.elapsed < s.until && st.InFlight+s.queue.len() > 0 {
		return
	}
	d.part(s)
}

// part ends the transport's connection.
func (d *Driver) part(s *session) {
	if d.ep.State(s.conn) != utp.StateNone {
		d.ep.Disconnect(s.conn)
		d.release(s.at)
	}
	d.parted(s)
}

// parted forgets a connection that the transport does not have any more.
func (d *Driver) parted(s *session) {
	s.lingers = false
	s.queue.reset()
}

// release makes the link forget a peer, a little later.
func (d *Driver) release(at address.Addr) {
	for i := range d.partings {
		if d.partings[i].at == at {
			d.partings[i].left = partingFlushes
			return
		}
	}
	d.partings = append(d.partings, parting{at, partingFlushes})
}

// flushPartings belongs behind the datagrams of a flush.
func (d *Driver) flushPartings() {
	kept := d.partings[:0]
	for _, p := range d.partings {
		p.left--
		switch {
		case p.left > 0:
			kept = append(kept, p)
		case !d.peers(p.at):
			d.link.Disconnect(p.at)
		}
	}
	d.partings = kept
}

// peers reports whether there is a connection with a place.
func (d *Driver) peers(at address.Addr) bool {
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		if remote, ok := d.ep.Remote(s.conn); ok && remote == at {
			return true
		}
	}
	return false
}

// lost ends a connection that the transport does not have any more.
func (d *Driver) lost(s *session, ev utp.Event) {
	d.over(s, ConnectionEvent{Reason: DisconnectReason(ev.Reason), Cause: d.cause(ev)})
	d.parted(s)
}

func (d *Driver) cause(ev utp.Event) error {
	if ev.Cause != nil && d.err != nil {
		return d.err
	}
	return ev.Cause
}

// closedBy takes the peer's word, and its reason.
func (d *Driver) closedBy(s *session, body []byte) {
	info, ok := parseClose(body)
	if !ok {
		d.invalid(s, "a close notice has a wrong length")
		return
	}
	d.over(s, ConnectionEvent{Reason: ReasonClosedByRemote, Remote: &info})
	d.ep.Disconnect(s.conn)
	d.parted(s)
}

// Close ends every connection, says so once without waiting for an answer, and
// closes the link. It may be called again. Errors are those of the link.
func (d *Driver) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	d.forget()
	if d.link == nil {
		return nil
	}
	for _, s := range d.sessions {
		if s != nil && s.live() {
			d.shut(s, ReasonConnectionClose, "")
		}
	}
	d.flush()
	for _, s := range d.sessions {
		if s != nil && s.lingers {
			d.part(s)
		}
	}
	d.ep.Listen(false)
	for range partingFlushes {
		d.flush()
	}
	return d.link.Close()
}
