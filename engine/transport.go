package engine

import (
	"context"
	"math"
	"net/netip"
	"sync"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

const maxTransports = int(endpoint.Kinds - endpoint.KindSession)

// Transport carries messages of the relay protocol in sessions, such as WebSockets, one message
// per unit. No serial of a session is ever used again.
type Transport interface {
	// Name returns the name in listings, events, logs and statistics: 1 to 16 lower-case letters,
	// digits and hyphens, such as "ws", and none of "udp", "udp4", "udp6", "dtls" and those of the
	// relay's other transports. It does not change.
	Name() string
	// Send hands a message of at most MaxMessage bytes to a session; an empty one is for the
	// transport itself, see [Intake]. It copies pkt, never blocks, and reports false when the
	// session is gone or its queue is full. Any goroutine may call it.
	Send(serial uint64, pkt []byte) bool
	// IsOpen reports whether there is such a session. Any goroutine may call it.
	IsOpen(serial uint64) bool
	// MaxMessage returns the largest message in bytes, at least 36. It does not change.
	MaxMessage() int
	// Run serves sessions until ctx ends, passes their messages to in, and leaves no goroutine.
	Run(ctx context.Context, in Intake) error
}

// clientAddresses is a Transport that may know the address of the client of a session, for operators.
// Any goroutine may call it.
type clientAddresses interface {
	ClientAddress(serial uint64) netip.Addr
}

// clientOf returns the address of the client at an endpoint; invalid: not known.
func (c *control) clientOf(e endpoint.Endpoint) netip.AddrPort {
	kind := e.Kind()
	switch i := int(kind) - int(endpoint.KindSession); {
	case kind == endpoint.KindDTLS && c.records != nil:
		e, _ = c.records.Source(e.Serial())
	case i >= 0 && i < len(c.transports):
		if t, ok := c.transports[i].(clientAddresses); ok {
			return netip.AddrPortFrom(t.ClientAddress(e.Serial()), 0)
		}
	}
	return e.AddrPort()
}

// Records is DTLS over the relay's own UDP sockets. Package dtls makes it.
type Records interface {
	Driver() driver.Records
}

// Intake receives the messages of the sessions of a [Transport].
type Intake interface {
	// Deliver passes a message of a session to the relay. It copies pkt, never blocks, and reports
	// false if the relay is busy and drops it. Any goroutine may call it.
	//
	// An empty message is a sign of life: the client answered the transport itself. It counts as a
	// message of the allocation that is bound to the session, if there is one, and the relay then
	// sends an empty message back.
	Deliver(serial uint64, pkt []byte) bool
}

const (
	// intakeSlots messages of one transport may wait for a worker. Beyond that the newest is
	// dropped.
	intakeSlots = 512
	// intakeSlotSize fits the largest message that is forwarded.
	intakeSlotSize = proto.RelayOverhead + proto.MaxContent
)

// intake passes messages of sessions to a worker without a socket, its one consumer. There are
// several producers.
type intake struct {
	worker *worker
	kind   endpoint.Kind
	wake   chan struct{} // wakes the worker

	mu     sync.Mutex // guards the fields below; the consumer reads slots without it
	slots  []intakeSlot
	tail   uint64 // messages ever delivered
	head   uint64 // messages ever handled
	closed bool
}

type intakeSlot struct {
	serial uint64
	size   int
	room   [intakeSlotSize]byte
}

func newIntake(w *worker, kind endpoint.Kind) *intake {
	return &intake{worker: w, kind: kind, wake: make(chan struct{}, 1), slots: make([]intakeSlot, intakeSlots)}
}

// intakes are those of one transport. A session always uses the same one.
type intakes []*intake

func (all intakes) Deliver(serial uint64, pkt []byte) bool {
	return all[serial%uint64(len(all))].deliver(serial, pkt)
}

func (in *intake) deliver(serial uint64, pkt []byte) bool {
	if len(pkt) > intakeSlotSize {
		return false
	}
	in.mu.Lock()
	ok := !in.closed && in.tail-in.head < intakeSlots
	if ok {
		s := &in.slots[in.tail%intakeSlots]
		s.serial, s.size = serial, copy(s.room[:], pkt)
		in.tail++
	}
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return ok
}

func (in *intake) peek() (head uint64, n int, closed bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.head, int(in.tail - in.head), in.closed
}

func (in *intake) release(n int) {
	in.mu.Lock()
	in.head += uint64(n)
	in.mu.Unlock()
}

func (in *intake) close() {
	in.mu.Lock()
	in.closed = true
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// run handles messages until close is called, and those that were delivered before.
func (in *intake) run() {
	w := in.worker
	for {
		head, n, closed := in.peek()
		switch {
		case n > 0:
		case closed:
			return
		default:
			<-in.wake
			continue
		}
		n = min(n, w.batchSize)
		w.epoch.enter()
		now := w.shared.clock()
		for w.next = 0; w.next < n; {
			in.handleBatch(now, head, n)
		}
		sent := w.out.flush()
		w.epoch.leave()
		in.release(n)
		w.finishBatch(now, n, sent)
		w.publish() // The next message may be long in coming.
	}
}

func (in *intake) handleBatch(now int64, head uint64, n int) {
	w := in.worker
	defer w.recoverPanic(now)
	w.tap = w.shared.tap.Load()
	for w.next < n {
		s := &in.slots[(head+uint64(w.next))%intakeSlots]
		w.next++
		w.current = s.room[:s.size]
		from := endpoint.Serial(in.kind, s.serial)
		if s.size == 0 {
			w.count(w.noteAlive(now, from), 0)
			continue
		}
		w.count(w.handleMessage(now, from, w.current), s.size)
	}
}

// Records of DTLS begin with a byte from 20 to 63 (RFC 7983).
const (
	firstRecord = 20
	recordSpan  = 44
)

// openRecord reports false for what is neither a record nor from the address of a session.
func (w *worker) openRecord(now int64, from endpoint.Endpoint, pkt []byte) (outcome, bool) {
	if len(pkt) == 0 {
		return 0, false
	}
	if pkt[0]-firstRecord >= recordSpan {
		if !w.records.Alive(from) {
			return 0, false
		}
		return w.refuseBind(now, from, pkt, dropPlain), true
	}
	if o, refused := w.shared.sources.refuses(from); refused {
		return o, true
	}
	s, msg := w.records.Open(from, pkt)
	if s.Serial == 0 {
		return outRecord, true
	}
	w.session = s
	o := w.handleMessage(now, endpoint.Serial(endpoint.KindDTLS, s.Serial), msg)
	w.session = driver.Session{}
	return o, true
}

func (w *worker) bindsOtherAllocation(c *seal.Claims) bool {
	return w.session.Serial != 0 && w.session.ID != c.ID
}

// messageSizes are of RELAYs in bytes by the kind of the receiver's endpoint: up to safe every
// client accepts them, above most they are dropped.
type messageSizes struct{ safe, most [endpoint.Kinds]uint16 }

func (c *Config) messageSizes() (m messageSizes) {
	for kind := range m.most {
		m.safe[kind], m.most[kind] = math.MaxUint16, math.MaxUint16
	}
	if r := c.records(); r != nil {
		m.most[endpoint.KindDTLS] = messageSize(r.MaxMessage())
		m.safe[endpoint.KindDTLS] = messageSize(min(r.SafeMessage(), r.MaxMessage()))
	}
	for i, t := range c.Transports {
		kind := transportKind(i)
		m.safe[kind], m.most[kind] = messageSize(t.MaxMessage()), messageSize(t.MaxMessage())
	}
	return m
}

func messageSize(n int) uint16 { return uint16(min(n, math.MaxUint16)) }

// Size 0: the command reports no large message.
type largeMessage struct {
	to          endpoint.Kind
	size, limit uint16
	dropped     bool
}

// reportLarge counts a message that not every client behind the peer's transport accepts,
// and reports whether it is dropped. It reports the first one of a match to control, or
// the next one if the ring is full.
//
//go:noinline
func (w *worker) reportLarge(now int64, sender, peer *table.Entry, size int) (dropped bool) {
	kind, host := peer.Endpoint.Kind(), sender
	if sender.Role != table.RoleHost {
		host = peer
	}
	limit, counts := int(w.shared.rules.messages.safe[kind]), w.shared.table.LargeMessages(peer.Handle)
	if most := int(w.shared.rules.messages.most[kind]); size > most {
		dropped, limit = true, most
		counts.AddDrop()
	} else {
		counts.AddForwarded()
	}
	match := w.shared.table.LargeMessages(host.Handle)
	if !match.TakeReport() {
		return dropped
	}
	_, outcome := w.enqueue(known, &command{
		kind: proto.TypeRelay, from: sender.Endpoint, sender: *sender, peer: peer.ID, now: now,
		claims: claims{match: host.ID},
		large:  largeMessage{to: kind, size: uint16(size), limit: uint16(limit), dropped: dropped},
	})
	if outcome != outcomePending {
		match.ReturnReport()
	}
	return dropped
}

func (c *control) reportLargeMessage(cmd *command) {
	if c.hooks.Private.OnLargeMessage != nil {
		c.hooks.Private.OnLargeMessage(privateapi.LargeMessageEvent{
			Match: cmd.claims.match, From: cmd.sender.ID, To: cmd.peer,
			FromTransport: c.shared.rules.transports[cmd.from.Kind()], ToTransport: c.shared.rules.transports[cmd.large.to],
			Size: int(cmd.large.size), Limit: int(cmd.large.limit), Dropped: cmd.large.dropped,
		})
	}
}

type sessionDatagram struct {
	to  endpoint.Endpoint
	pkt []byte
}

func newOutbox(n int) outbox {
	return outbox{queue: make([]sessionDatagram, 0, n), arena: make([]byte, n*replySize)}
}

// The outbox sends through one core's socket of each listener.
func (s *Server) attachOutbox(o *outbox, core int) {
	n := cap(o.queue)
	for _, group := range s.groups {
		all := group.Conns()
		conn := all[core%len(all)]
		o.conns = append(o.conns, conn)
		o.tx = append(o.tx, conn.NewSendBatch(n))
	}
	sessions := &sessionSender{tx: o.tx, transports: s.cfg.Transports, records: s.cfg.records()}
	if sessions.records != nil {
		sessions.sealed = make([]byte, n*recordRoom)
	}
	o.deliver = sessions.deliver
}

// sessionSender belongs to its outbox.
type sessionSender struct {
	tx         []*sock.SendBatch // of the outbox, for records in UDP datagrams
	transports []Transport
	records    driver.Records // nil: none
	sealed     []byte         // recordRoom for each datagram of a batch
}

// recordRoom is for one sealed record.
const recordRoom = sock.SlotSize

// Records of DTLS sessions go into the send batches, which count them.
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

func (s *sessionSender) send(out *sessionDatagram, i int) bool {
	switch kind, serial := out.to.Kind(), out.to.Serial(); {
	case kind == endpoint.KindDTLS && s.records != nil:
		room := s.sealed[i*recordRoom : i*recordRoom : (i+1)*recordRoom]
		record, to, ok := s.records.Seal(room, serial, out.pkt)
		return ok && s.tx[to.Listener()].Add(to, record)
	case kind >= endpoint.KindSession && int(kind-endpoint.KindSession) < len(s.transports):
		return s.transports[kind-endpoint.KindSession].Send(serial, out.pkt)
	}
	return false
}

func transportKind(i int) endpoint.Kind { return endpoint.KindSession + endpoint.Kind(i) }

func (c *Config) transportNames() (names [endpoint.Kinds]string) {
	for _, kind := range []endpoint.Kind{endpoint.KindUDP4, endpoint.KindUDP6, endpoint.KindDTLS} {
		names[kind] = kind.String()
	}
	for i, t := range c.Transports {
		names[transportKind(i)] = t.Name()
	}
	return names
}

func (c *Config) records() driver.Records {
	if c.Records == nil {
		return nil
	}
	return c.Records.Driver()
}

func (c *Config) fastPath() driver.FastPath {
	if c.FastPath == nil {
		return nil
	}
	return c.FastPath.Driver()
}

func (s *Server) isOpen(ep endpoint.Endpoint) bool {
	switch kind := ep.Kind(); {
	case kind == endpoint.KindDTLS && s.cfg.Records != nil:
		_, open := s.cfg.records().Source(ep.Serial())
		return open
	case kind >= endpoint.KindSession && int(kind-endpoint.KindSession) < len(s.cfg.Transports):
		return s.cfg.Transports[kind-endpoint.KindSession].IsOpen(ep.Serial())
	}
	return true
}

// handshakeRoom: datagrams of DTLS have 86 bytes at most.
const handshakeRoom = driver.HandshakeBatch * 128

type recordsRelay struct {
	shared  *shared
	control *control

	mu   sync.Mutex // guards what follows
	out  outbox
	n    int    // datagrams in out
	room []byte // their bytes
}

func newRecordsRelay(s *Server) *recordsRelay {
	r := &recordsRelay{shared: s.shared, control: s.control, out: newOutbox(driver.HandshakeBatch), room: make([]byte, 0, handshakeRoom)}
	s.attachOutbox(&r.out, 0)
	return r
}

func (r *recordsRelay) Send(to endpoint.Endpoint, pkt []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == driver.HandshakeBatch || len(r.room)+len(pkt) > cap(r.room) {
		r.flush()
	}
	if len(pkt) > cap(r.room) {
		return
	}
	at := len(r.room)
	r.room = append(r.room, pkt...)
	r.out.add(to, r.room[at:])
	r.n++
}

func (r *recordsRelay) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush()
}

func (r *recordsRelay) flush() {
	if r.n > 0 {
		r.out.flush()
		r.n, r.room = 0, r.room[:0]
	}
}

func (r *recordsRelay) MayBind(id proto.AllocationID) bool {
	if _, ok := r.shared.table.ByID(id); ok {
		return true
	}
	return r.shared.recovering(r.shared.clock()) && r.shared.previousRun.mayHold(id)
}

func (r *recordsRelay) IsBound(serial uint64) bool {
	var e table.Entry
	return r.shared.table.FindByEndpoint(endpoint.Serial(endpoint.KindDTLS, serial), &e)
}

func (r *recordsRelay) OwnerOf(id proto.AllocationID) (driver.Owner, bool) {
	t := r.shared.table
	e, ok := t.ByID(id)
	if !ok {
		return driver.Owner{}, false
	}
	o := ownerOf(t.Tenant(e.Handle), t.Player(e.Handle), e.Is(table.Individual), id)
	_, ok = t.At(e.Handle) // The slot may be another allocation's meanwhile.
	return o, ok
}

func (r *recordsRelay) KeyOf(id proto.AllocationID) (key proto.Key) {
	d := r.shared.sealer.Derivers.Get().(*seal.Deriver)
	defer r.shared.sealer.Derivers.Put(d)
	d.Key(id, &key)
	return key
}

func (r *recordsRelay) SessionBegan(from endpoint.Endpoint) {
	if r.control.nextHops != nil {
		r.control.nextHops.sessionBegan(from)
		r.control.wakeUp()
	}
}
