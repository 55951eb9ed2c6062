package engine

import (
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// replySize is the room for one reply: the largest, an echoed DISCONNECT, has
// 36 bytes.
const replySize = 40

// outgoing is one datagram on its way out. The endpoint names the egress, so a
// datagram may leave another way than it came in.
type outgoing struct {
	to  endpoint.Endpoint
	pkt []byte
}

// outbox collects what one batch sends: borrowed slices of the receive batch,
// and replies in an arena of its own. Both are free again after the flush. It
// belongs to the goroutine that fills it.
type outbox struct {
	queue []outgoing
	arena []byte
	used  int
}

func newOutbox(n int) outbox {
	return outbox{queue: make([]outgoing, 0, n), arena: make([]byte, n*replySize)}
}

// forward queues a datagram that stays where it is until the flush.
func (o *outbox) forward(to endpoint.Endpoint, pkt []byte) {
	o.queue = append(o.queue, outgoing{to, pkt})
}

// reply returns room for a reply of up to replySize bytes.
func (o *outbox) reply() []byte {
	room := o.arena[o.used : o.used : o.used+replySize]
	o.used += replySize
	return room
}

func (o *outbox) full() bool { return len(o.queue) == cap(o.queue) }

func (o *outbox) reset() {
	o.queue = o.queue[:0]
	o.used = 0
}

// egress sends what an outbox holds: one socket and one send batch per
// listener, and the transports. It belongs to the goroutine that owns the
// outbox.
type egress struct {
	conns      []*sock.Conn
	tx         []*sock.SendBatch
	transports []Transport
	records    Records
	sealed     []byte // room for what records seals, as many as a batch
}

// recordRoom is the room for one sealed record in bytes.
const recordRoom = sock.SlotSize

// send offers every datagram to the kernel, all destinations of a listener in
// one go.
func (e *egress) send(o *outbox) (sum sock.SendResult) {
	for i := range o.queue {
		if out := &o.queue[i]; out.to.Kind() <= endpoint.KindUDP6 {
			e.tx[out.to.Listener()].Add(out.to, out.pkt)
		} else if !e.session(out, i) {
			sum.Failed++
		} else if out.to.Kind() != endpoint.KindDTLS {
			sum.Sent++
			sum.Bytes += len(out.pkt)
		}
	}
	for i, tx := range e.tx {
		if tx.Len() > 0 {
			r := e.conns[i].Send(tx)
			sum.Sent += r.Sent
			sum.Bytes += r.Bytes
			sum.Failed += r.Failed
			sum.Down += r.Down
		}
	}
	return sum
}

// session sends to a session, or adds its record to the batch of its listener.
func (e *egress) session(out *outgoing, i int) bool {
	kind, serial := out.to.Kind(), out.to.Serial()
	if kind == endpoint.KindDTLS && e.records != nil {
		room := e.sealed[i*recordRoom : i*recordRoom : (i+1)*recordRoom]
		record, to, ok := e.records.Seal(room, serial, out.pkt)
		return ok && e.tx[to.Listener()].Add(to, record)
	}
	for _, t := range e.transports {
		if t.Kind() == kind {
			return t.Send(serial, out.pkt)
		}
	}
	return false
}
