package engine

import (
	"context"
	"math"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// Transport is a further way into the relay than plain UDP: sessions, each of
// which carries one message of the relay protocol per unit, such as a WebSocket.
// A session has a serial that no other session of the process ever has.
type Transport interface {
	// Kind says which endpoints are this transport's.
	Kind() endpoint.Kind
	// Send hands a message to a session. It copies pkt, never blocks, and
	// reports false, so that a drop is counted, when the session is gone or its
	// queue is full. No message is larger than MaxMessage. Any goroutine may call
	// it.
	Send(serial uint64, pkt []byte) bool
	// MaxMessage returns the size in bytes of the largest message that is sent to
	// a session, at least 36. It does not change.
	MaxMessage() int
	// Run serves sessions until ctx ends, and leaves no goroutine behind. What
	// comes in goes to in.
	Run(ctx context.Context, in Intake) error
}

// Records carries messages in records over the relay's own UDP sockets, as DTLS
// does: a datagram that is a record is opened before, and one to a session is
// sealed after, the relay's decision. Open and Seal are called by any worker,
// allocate nothing, and take a lock of the session only to reserve sequence numbers,
// at most some ten times a second.
type Records interface {
	// Open looks at a datagram that begins with a byte of 20 to 63, and may
	// change it. If it is a record with a message of an established session it
	// returns the session and the message, which lies within pkt. Else it
	// returns zero: it was for the handshake, which copied what it needs and
	// never blocks, or is dropped.
	Open(from endpoint.Endpoint, pkt []byte) (s Session, msg []byte)
	// Alive reports whether an established session lives at a UDP source, from
	// which no plain message is handled then.
	Alive(from endpoint.Endpoint) bool
	// Seal appends the record with msg for a session to dst, and says where it
	// goes. It reports false when the session is gone.
	Seal(dst []byte, serial uint64, msg []byte) (record []byte, to endpoint.Endpoint, ok bool)
	// MaxMessage returns the size in bytes of the largest message that is sent to
	// a session, at least 36, and SafeMessage that of the largest which every
	// known client takes. A RELAY between both is forwarded, and its match
	// reported. They do not change.
	MaxMessage() int
	SafeMessage() int
	// Run serves handshakes until ctx ends, and leaves no goroutine behind. It
	// sends their datagrams with send, which copies, never blocks and may be
	// called by any goroutine.
	Run(ctx context.Context, send func(to endpoint.Endpoint, pkt []byte)) error
}

// Session is an established session of [Records].
type Session struct {
	Serial uint64
	// ID is the allocation with whose key the session was made: the BIND inside
	// must name it.
	ID proto.AllocationID
}

// RecordOverhead is the most bytes by which a record is longer than its message.
const RecordOverhead = 64

// Intake is where the sessions of a [Transport] deliver what they receive.
type Intake interface {
	// Deliver hands a message of a session to the relay. It copies pkt, never
	// blocks, and reports false when the relay is busy and drops it. Any
	// goroutine may call it.
	Deliver(serial uint64, pkt []byte) bool
}

const (
	// intakeSlots is how many messages of one transport may wait for one of its
	// workers. Beyond that the newest is dropped.
	intakeSlots = 512
	// intakeSlotSize is the room for one message in bytes: the largest that the
	// relay forwards.
	intakeSlotSize = proto.RelayOverhead + proto.MaxContent
)

// intake feeds a worker that has no socket with the messages of sessions. Its
// ring has several producers and one consumer, the worker.
type intake struct {
	worker *worker
	kind   endpoint.Kind
	wake   chan struct{} // wakes the worker

	mu      sync.Mutex // guards what follows, but for the bytes of slots in use
	slots   []intakeSlot
	tail    uint64 // messages ever delivered
	head    uint64 // messages ever handled
	dropped uint64
	closed  bool
}

type intakeSlot struct {
	serial uint64
	size   int
	room   [intakeSlotSize]byte
}

func newIntake(w *worker, kind endpoint.Kind) *intake {
	return &intake{worker: w, kind: kind, wake: make(chan struct{}, 1), slots: make([]intakeSlot, intakeSlots)}
}

// intakes are those of one transport; a session always uses the same.
type intakes []*intake

// Deliver implements [Intake].
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
	} else {
		in.dropped++
	}
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return ok
}

// waiting returns the first message that was not handled, and how many wait.
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

// drops returns how many messages found no room.
func (in *intake) dropCount() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.dropped
}

// run handles messages until close is called.
func (in *intake) run() {
	w := in.worker
	for {
		head, n, closed := in.peek()
		if closed {
			return
		}
		if n == 0 {
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

// steps is worker.steps for messages of sessions.
func (in *intake) handleBatch(now int64, head uint64, n int) {
	w := in.worker
	defer w.recoverPanic(now)
	for w.next < n {
		s := &in.slots[(head+uint64(w.next))%intakeSlots]
		w.next++
		w.current = s.room[:s.size]
		w.count(w.handleMessage(now, endpoint.Serial(in.kind, s.serial), w.current), s.size)
	}
}

// Records of DTLS begin with a byte from 20 to 63 (RFC 7983).
const (
	firstRecord = 20
	recordSpan  = 44
)

// record handles a datagram that a stranger to [Records] must not send: a
// record, or a plain message from where a session lives. It reports false for
// any other.
func (w *worker) openRecord(now int64, from endpoint.Endpoint, pkt []byte) (Outcome, bool) {
	if len(pkt) == 0 {
		return 0, false
	}
	if pkt[0]-firstRecord >= recordSpan {
		return DropPlain, w.records.Alive(from)
	}
	if w.shared.sources.isRefused(from) {
		return DropForbidden, true
	}
	s, msg := w.records.Open(from, pkt)
	if s.Serial == 0 {
		return OutRecord, true
	}
	w.session = s
	o := w.handleMessage(now, endpoint.Serial(endpoint.KindDTLS, s.Serial), msg)
	w.session = Session{}
	return o, true
}

// otherIdentity reports whether a BIND came in the session of another
// allocation.
func (w *worker) bindsOtherAllocation(c *alloc.Claims) bool {
	return w.session.Serial != 0 && w.session.ID != c.ID
}

// messageSizes are the sizes in bytes of RELAYs by the receiver's way: up to safe
// every client takes them, above most they are dropped.
type messageSizes struct{ safe, most [endpoint.KindWS + 1]int }

// messageSizes returns what the transports say; plain UDP has no limit but
// MaxContent.
func (c *Config) messageSizes() (m messageSizes) {
	for kind := range m.most {
		m.safe[kind], m.most[kind] = math.MaxInt, math.MaxInt
	}
	if c.Records != nil {
		m.most[endpoint.KindDTLS] = c.Records.MaxMessage()
		m.safe[endpoint.KindDTLS] = min(c.Records.SafeMessage(), m.most[endpoint.KindDTLS])
	}
	for _, t := range c.Transports {
		m.safe[t.Kind()], m.most[t.Kind()] = t.MaxMessage(), t.MaxMessage()
	}
	return m
}

// largeMessage is the part of a command that reports a message; size 0: the
// command is none.
type largeMessage struct {
	to          endpoint.Kind
	size, limit uint16
	dropped     bool
}

// reportLarge handles a message that not every client behind the peer's way
// takes, and reports whether it is dropped. The first of a match is reported to
// control; if the ring is full, the next one is.
//
//go:noinline
func (w *worker) reportLarge(now int64, sender, peer *table.Entry, size int) (dropped bool) {
	kind, host := peer.Endpoint.Kind(), sender
	if sender.Role != table.RoleHost {
		host = peer
	}
	limit := w.shared.rules.messages.safe[kind]
	if most := w.shared.rules.messages.most[kind]; size > most {
		dropped, limit = true, most
		w.shared.table.LargeMessages(peer.Handle).AddDrop()
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

// tellLarge tells of the first message of a match that was too large.
func (c *control) reportLargeMessage(cmd *command) {
	if c.hooks.OnLargeMessage != nil {
		c.hooks.OnLargeMessage(LargeMessageEvent{
			Match: cmd.claims.match, From: cmd.sender.ID, To: cmd.peer,
			FromKind: cmd.from.Kind(), ToKind: cmd.large.to,
			Size: int(cmd.large.size), Limit: int(cmd.large.limit), Dropped: cmd.large.dropped,
		})
	}
}
