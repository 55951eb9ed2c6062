package engine

import (
	"sync"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

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
	some   chan struct{} // wakes the worker

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
	return &intake{worker: w, kind: kind, some: make(chan struct{}, 1), slots: make([]intakeSlot, intakeSlots)}
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
	case in.some <- struct{}{}:
	default:
	}
	return ok
}

// waiting returns the first message that was not handled, and how many wait.
func (in *intake) waiting() (head uint64, n int, closed bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.head, int(in.tail - in.head), in.closed
}

func (in *intake) done(n int) {
	in.mu.Lock()
	in.head += uint64(n)
	in.mu.Unlock()
}

func (in *intake) close() {
	in.mu.Lock()
	in.closed = true
	in.mu.Unlock()
	select {
	case in.some <- struct{}{}:
	default:
	}
}

// drops returns how many messages found no room.
func (in *intake) drops() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.dropped
}

// run handles messages until close is called.
func (in *intake) run() {
	w := in.worker
	for {
		head, n, closed := in.waiting()
		if closed {
			return
		}
		if n == 0 {
			<-in.some
			continue
		}
		n = min(n, w.full)
		w.epoch.enter()
		now := w.shared.clock()
		for w.next = 0; w.next < n; {
			in.steps(now, head, n)
		}
		w.counts.sent(w.out.flush())
		w.epoch.leave()
		in.done(n)
		w.counts.batch(n)
		w.publish()
		if w.shared.grace.waiting.Load() {
			w.wakeControl()
		}
	}
}

// steps is worker.steps for messages of sessions.
func (in *intake) steps(now int64, head uint64, n int) {
	w := in.worker
	defer w.recoverPanic(now)
	for w.next < n {
		s := &in.slots[(head+uint64(w.next))%intakeSlots]
		w.next++
		w.inHand = s.room[:s.size]
		w.count(w.handle(now, endpoint.Serial(in.kind, s.serial), w.inHand), s.size)
	}
}
