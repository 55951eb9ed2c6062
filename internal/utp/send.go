package utp

import (
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utpwire"
)

// Send queues a payload on a pipeline; 0 is none. The bytes are the caller's
// again when it returns. A message on a pipeline with fragmentation leaves
// whole or not at all.
//
// Errors: ErrConn, ErrState, ErrPipeline, ErrTooLarge, ErrQueueFull.
func (e *Endpoint) Send(id ConnID, p PipelineID, payload []byte) error {
	c := e.conn(id)
	if c == nil {
		return ErrConn
	}
	if c.state == StateConnecting {
		return ErrState
	}
	if int(p) >= len(e.layouts) {
		return ErrPipeline
	}
	l := &e.layouts[p]
	if len(payload) > l.limit {
		return ErrTooLarge
	}
	n := l.fragments(len(payload))
	if !e.out.room(n * packetsPerSend) {
		return ErrQueueFull
	}
	if r := c.pipelines[p].reliable; r != nil && r.sender.free() < n {
		return ErrQueueFull
	}
	if !l.fragment {
		e.sendPacket(c, p, nil, payload)
		return nil
	}
	e.sendFragments(c, p, payload, n)
	return nil
}

func (e *Endpoint) sendFragments(c *conn, p PipelineID, payload []byte, n int) {
	size := e.layouts[p].packet
	for i := range n {
		h := utpwire.FragmentHeader{First: i == 0, Last: i == n-1, Sequence: c.pipelines[p].fragment}
		c.pipelines[p].fragment++ // Only its lower 14 bits leave.
		piece := payload[i*size : min((i+1)*size, len(payload))]
		var head [utpwire.FragmentLen]byte
		e.sendPacket(c, p, h.Append(head[:0]), piece)
	}
}

// sendPacket sends the header of the fragmentation stage, if there is one, and
// a payload through the other stage. The caller has seen that there is room.
func (e *Endpoint) sendPacket(c *conn, p PipelineID, head, payload []byte) {
	ln := &c.pipelines[p]
	if r := ln.reliable; r != nil {
		sequence := r.sender.add(e.now, e.pool.hold(head, payload))
		e.sendReliable(c, p, sequence)
		return
	}
	sequence := ln.sequence
	if e.layouts[p].order == StageUnreliableSequenced {
		ln.sequence++
	}
	size := utpwire.DataLen + len(head) + len(payload)
	if e.layouts[p].order == StageUnreliableSequenced {
		size += utpwire.SequencedLen
	}
	if !e.maySend(c, size) {
		return
	}
	pkt := utpwire.Data{Token: c.token, Pipeline: uint8(p)}.Append(e.out.open())
	if e.layouts[p].order == StageUnreliableSequenced {
		pkt = utpwire.SequencedHeader{Sequence: sequence}.Append(pkt)
	}
	pkt = append(pkt, head...)
	e.emit(c, append(pkt, payload...))
}

// sendReliable sends a packet of the window, the first time or again. It is
// false if the packet has to wait.
func (e *Endpoint) sendReliable(c *conn, p PipelineID, sequence int64) bool {
	r := c.pipelines[p].reliable
	if !e.maySend(c, utpwire.DataLen+utpwire.ReliableLen(e.layouts[p].wide)+len(r.sender.slot(sequence).body)) {
		return false
	}
	h := r.receiver.header(e.now)
	h.Sequence = uint16(sequence)
	pkt := utpwire.Data{Token: c.token, Pipeline: uint8(p)}.Append(e.out.open())
	pkt = h.Append(pkt, e.layouts[p].wide)
	e.emit(c, append(pkt, r.sender.slot(sequence).body...))
	return true
}

// maySend prepares for a data packet of this size, and returns false if the limit for an
// unvalidated peer is reached.
//
// For a client that has sent nothing yet it puts the accept ahead: one that receives data
// first takes them for the accept, and some versions of UTP then close the connection. For
// one that has moved the accept has a new cookie. For a server that may not have the cookie
// yet it puts that ahead, in a request.
func (e *Endpoint) maySend(c *conn, size int) bool {
	accept := c.state == StateHalfOpen || c.acceptDue && !c.validated
	if accept {
		size += e.acceptLen()
	}
	if !c.mayEmit(size) {
		c.stats.Withheld++
		return false
	}
	switch {
	case accept:
		e.sendAccept(c)
	case c.hasCookie && !c.confirmed:
		e.emitRequest(c)
	}
	return true
}

// acceptLen is the size of an accept in bytes.
func (e *Endpoint) acceptLen() int {
	if e.cfg.ValidateAddresses {
		return utpwire.HandshakeLen + utpwire.LengthLen + cookieLen
	}
	return utpwire.HandshakeLen
}

func (e *Endpoint) sendAccept(c *conn) {
	c.acceptDue = false
	if e.cfg.ValidateAddresses {
		e.emit(c, e.acceptWithCookie(c.addr, c.token))
		return
	}
	e.emit(c, utpwire.Accept{Token: c.token}.Append(e.out.open()))
}

func (e *Endpoint) emitDisconnect(to address.Addr, token utpwire.Token) {
	e.queue(to, utpwire.Disconnect{Token: token}.Append(e.out.open()))
}

// emit queues a datagram of a connection.
func (e *Endpoint) emit(c *conn, pkt []byte) {
	c.sent = e.now
	size := e.queue(c.addr, pkt)
	c.stats.Sent++
	c.stats.SentBytes += uint64(size)
	if !c.validated {
		c.budget -= size
	}
}

func (e *Endpoint) queue(to address.Addr, pkt []byte) int {
	size := e.out.close(to, pkt)
	e.stats.Sent++
	e.stats.SentBytes += uint64(size)
	return size
}

// Datagram is one that the caller has to send.
type Datagram struct {
	To   address.Addr
	Data []byte
}

// outbox holds the datagrams that wait to be sent, in order, in one buffer that
// is used again.
type outbox struct {
	limit  int // datagrams
	queued []queuedDatagram
	next   int // the first that has not been taken
	buf    []byte
	from   int // where the first that has not been taken begins in buf
}

// queuedDatagram is a queued datagram and its end in the buffer.
type queuedDatagram struct {
	to  address.Addr
	end int
}

// room reports whether n more datagrams fit.
func (o *outbox) room(n int) bool { return len(o.queued)-o.next+n <= o.limit }

// open returns the buffer to append a datagram to, for close. The caller has
// seen that there is room.
func (o *outbox) open() []byte {
	if o.next == len(o.queued) || o.next >= o.limit {
		o.compact()
	}
	return o.buf
}

// compact removes the data that were taken, so that the buffer does not grow for a caller
// that never takes all of them.
func (o *outbox) compact() {
	rest := copy(o.queued, o.queued[o.next:])
	o.queued = o.queued[:rest]
	for i := range o.queued {
		o.queued[i].end -= o.from
	}
	o.buf = o.buf[:copy(o.buf, o.buf[o.from:])]
	o.next, o.from = 0, 0
}

// close queues what was appended since open and returns its size.
func (o *outbox) close(to address.Addr, buf []byte) int {
	size := len(buf) - len(o.buf)
	o.buf = buf
	o.queued = append(o.queued, queuedDatagram{to: to, end: len(buf)})
	return size
}

// take returns the first datagram, which keeps its bytes until the next open.
func (o *outbox) take() (Datagram, bool) {
	if o.next == len(o.queued) {
		return Datagram{}, false
	}
	p := o.queued[o.next]
	data := o.buf[o.from:p.end:p.end]
	o.next++
	o.from = p.end
	return Datagram{To: p.to, Data: data}, true
}

// pool keeps the buffers of packets that wait for an acknowledgement or for a
// packet before them. Two sizes, because most such packets are small and a
// window of large ones would cost a hundred kilobytes per connection.
type pool struct {
	small, large [][]byte
}

const (
	smallPacket = 256  // bytes
	maxSpare    = 4096 // buffers of each size that are kept after a burst; 6 MB
)

// hold returns a copy of the bytes in a buffer of the pool. There are at most
// MaxDatagram bytes.
func (p *pool) hold(head, rest []byte) []byte {
	list, size := &p.small, smallPacket
	if len(head)+len(rest) > smallPacket {
		list, size = &p.large, utpwire.MaxDatagram
	}
	var buf []byte
	if n := len(*list); n > 0 {
		buf = (*list)[n-1]
		*list = (*list)[:n-1]
	} else {
		buf = make([]byte, 0, size)
	}
	return append(append(buf, head...), rest...)
}

// release takes a buffer of hold back.
func (p *pool) release(buf []byte) {
	list := &p.small
	if cap(buf) > smallPacket {
		list = &p.large
	}
	if len(*list) < maxSpare {
		*list = append(*list, buf[:0])
	}
}
