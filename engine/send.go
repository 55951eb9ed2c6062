package engine

import (
	"sync"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// replySize is the room for one reply: the largest, an echoed DISCONNECT, has
// 36 bytes.
const replySize = 40

// outbox collects the datagrams that one batch sends. They may be slices of the receive
// batch, or replies in the outbox's arena, and must not change until the flush. It
// belongs to the goroutine that fills it.
type outbox struct {
	conns []*sock.Conn
	tx    []*sock.SendBatch // by listener
	queue []sessionDatagram // datagrams to sessions
	arena []byte
	used  int

	// deliver sends queue. A simulation has no listeners: queue holds every datagram,
	// and deliver collects them.
	deliver func(queue []sessionDatagram) sock.SendResult
}

// sessionDatagram is a datagram to a session.
type sessionDatagram struct {
	to  endpoint.Endpoint
	pkt []byte
}

// newOutbox returns an outbox for n datagrams without listeners.
func newOutbox(n int) outbox {
	return outbox{queue: make([]sessionDatagram, 0, n), arena: make([]byte, n*replySize)}
}

// attachOutbox makes an outbox send through one core's socket of each listener, and
// through the transports.
func (s *Server) attachOutbox(o *outbox, core int) {
	n := cap(o.queue)
	for _, group := range s.groups {
		all := group.Conns()
		conn := all[core%len(all)]
		o.conns = append(o.conns, conn)
		o.tx = append(o.tx, conn.NewSendBatch(n))
	}
	sessions := &sessionSender{tx: o.tx, transports: s.cfg.Transports, records: s.cfg.Records}
	if sessions.records != nil {
		sessions.sealed = make([]byte, n*recordRoom)
	}
	o.deliver = sessions.deliver
}

// add appends a datagram. The endpoint determines the listener or transport by which it
// leaves, which may differ from the one by which a RELAY came.
func (o *outbox) add(to endpoint.Endpoint, pkt []byte) {
	if i := int(to.Listener()); i < len(o.tx) && to.Kind() <= endpoint.KindUDP6 {
		o.tx[i].Add(to, pkt)
		return
	}
	o.queue = append(o.queue, sessionDatagram{to, pkt})
}

// reply returns room for a reply of up to replySize bytes.
func (o *outbox) reply() []byte {
	room := o.arena[o.used : o.used : o.used+replySize]
	o.used += replySize
	return room
}

// full reports whether there is no room for another reply.
func (o *outbox) full() bool { return o.used == len(o.arena) }

// flush sends all datagrams, those of one listener in one system call. Afterwards nothing
// refers to the receive batch.
func (o *outbox) flush() (sum sock.SendResult) {
	if len(o.queue) > 0 {
		sum = o.deliver(o.queue)
	}
	for i, tx := range o.tx {
		if tx.Len() > 0 {
			r := o.conns[i].Send(tx)
			sum.Sent += r.Sent
			sum.Bytes += r.Bytes
			sum.Failed += r.Failed
			sum.Down += r.Down
		}
	}
	o.reset()
	return sum
}

func (o *outbox) reset() {
	o.queue = o.queue[:0]
	o.used = 0
}

// sessionSender sends datagrams to sessions. It belongs to its outbox.
type sessionSender struct {
	tx         []*sock.SendBatch // of the outbox, for records in UDP datagrams
	transports []Transport
	records    Records
	sealed     []byte // recordRoom for each datagram of a batch
}

// recordRoom is the room for one sealed record in bytes.
const recordRoom = sock.SlotSize

// deliver sends datagrams through their transports, and adds those of DTLS sessions as
// records to the send batches, which count them.
func (s *sessionSender) deliver(queue []sessionDatagram) (sum sock.SendResult) {
	for i := range queue {
		if out := &queue[i]; !s.send(out, i) {
			sum.Failed++
		} else if out.to.Kind() != endpoint.KindDTLS {
			sum.Sent++
			sum.Bytes += len(out.pkt)
		}
	}
	return sum
}

// send sends datagram i of a batch.
func (s *sessionSender) send(out *sessionDatagram, i int) bool {
	kind, serial := out.to.Kind(), out.to.Serial()
	if kind == endpoint.KindDTLS && s.records != nil {
		room := s.sealed[i*recordRoom : i*recordRoom : (i+1)*recordRoom]
		record, to, ok := s.records.Seal(room, serial, out.pkt)
		return ok && s.tx[to.Listener()].Add(to, record)
	}
	for _, t := range s.transports {
		if t.Kind() == kind {
			return t.Send(serial, out.pkt)
		}
	}
	return false
}

// handshakeSender sends single datagrams for the handshakes of [Records], which
// belong to no batch. Any goroutine may use it.
type handshakeSender struct {
	mu  sync.Mutex // guards out
	out outbox
}

func newHandshakeSender(s *Server) *handshakeSender {
	h := &handshakeSender{out: newOutbox(1)}
	s.attachOutbox(&h.out, 0)
	return h
}

func (h *handshakeSender) send(to endpoint.Endpoint, pkt []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out.add(to, pkt)
	h.out.flush()
}
