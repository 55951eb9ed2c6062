package engine

import (
	"encoding/hex"
	"log/slog"
	"runtime/debug"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// worker serves one socket. It belongs to the goroutine in run, on a thread of
// its own; what others read of it is atomic.
type worker struct {
	shared *shared
	conn   *sock.Conn
	rx     *sock.RecvBatch
	out    outbox
	path   recordPath

	inbox *inbox
	wake  chan<- struct{}
	epoch *epoch

	next   int    // number of the next datagram of the batch
	inHand []byte // the datagram before it, for the report of a panic

	mute   muteTable
	seal   admission
	full   int // size of a batch that came full
	counts counters
	told   int64 // when counts were published last
	pace   pacer

	traffic *traffic

	stop atomic.Bool
}

// run forwards datagrams until the socket is closed. One receive batch is one
// send batch.
func (w *worker) run() error {
	defer w.publish()
	for !w.stop.Load() {
		n, err := w.conn.Recv(w.rx)
		if err != nil {
			return err
		}
		if n == 0 {
			w.publish()
			continue
		}
		w.epoch.enter()
		now := w.shared.clock()
		for w.next = 0; w.next < n; {
			w.steps(now, n)
		}
		w.counts.sent(w.out.flush())
		w.epoch.leave()
		w.tell(now, n)
		if n == w.full {
			w.inbox.strained(now)
		}
		if w.shared.grace.waiting.Load() {
			w.wakeControl()
		}
		if w.pace.delay > 0 {
			w.rest(n)
		}
	}
	return nil
}

// steps decides about the datagrams of a batch of n from number next on. A panic
// costs the datagram in hand: steps returns early, and is called again for the
// rest.
func (w *worker) steps(now int64, n int) {
	defer w.recoverPanic(now)
	for w.next < n {
		from, pkt, truncated := w.rx.At(w.next)
		w.next++
		w.inHand = pkt
		w.count(w.step(now, from, pkt, truncated), len(pkt))
	}
}

// recoverPanic ends a panic of step, if there is one, counts the datagram in
// hand, and writes about it. It is to be deferred.
func (w *worker) recoverPanic(now int64) {
	fault := recover()
	if fault == nil {
		return
	}
	pkt := w.inHand
	w.count(DropPanic, len(pkt))
	last := w.shared.faults.last.Load()
	if last != 0 && now-last < faultLogMillis || !w.shared.faults.last.CompareAndSwap(last, now) {
		return
	}
	head := pkt[:min(len(pkt), faultHead)]
	w.shared.faults.log.Error("a datagram was dropped because of a fault in the relay, please report it",
		"fault", fault, "size", len(pkt), "head", hex.EncodeToString(head), "stack", string(debug.Stack()))
}

// rest waits for company, see pacer.
func (w *worker) rest(n int) {
	if d := w.pace.rest(sock.Now(), n); d > 0 {
		w.conn.Nap(d)
	}
}

// step decides about one datagram. It does no I/O, takes no lock and allocates
// nothing: what is to be sent goes to the outbox, what changes state to the
// ring. The time is in milliseconds.
func (w *worker) step(now int64, from endpoint.Endpoint, pkt []byte, truncated bool) Outcome {
	if truncated {
		return DropTruncated
	}
	if from.IsZero() {
		return DropSource
	}
	if w.path.records != nil {
		if o, ok := w.record(now, from, pkt); ok {
			return o
		}
	}
	return w.handle(now, from, pkt)
}

// handle decides about one message, however it came.
func (w *worker) handle(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	t, err := proto.ParseType(pkt)
	if err != nil {
		return w.refuse(now, from, pkt, t, err)
	}
	if w.shared.sources.refused(from) {
		return DropForbidden
	}
	switch t {
	case proto.TypeRelay:
		return w.relay(now, from, pkt)
	case proto.TypePing:
		return w.ping(now, from, pkt)
	case proto.TypeBind:
		return w.bind(now, from, pkt)
	case proto.TypeConnectRequest:
		return w.connect(now, from, pkt)
	case proto.TypeDisconnect:
		return w.disconnect(now, from, pkt)
	case proto.TypeClose:
		return w.close(now, from, pkt)
	}
	if t.FromServer() {
		return DropServerType
	}
	return DropUnknownType
}

// tell counts a batch of n datagrams, and publishes the counts at most once a
// millisecond. What the last batch leaves unpublished is told when nothing came
// for a while.
func (w *worker) tell(now int64, n int) {
	w.counts.batch(n)
	if now != w.told {
		w.told = now
		w.publish()
	}
}

// publish makes the counts visible to others.
func (w *worker) publish() {
	w.counts.publish()
	w.traffic.publish()
}

func (w *worker) count(o Outcome, size int) {
	w.counts.received++
	w.counts.receivedBytes += uint64(size)
	if o != handedOver {
		w.counts.add(o)
	}
}

// wakeControl tells control that there is something to do, and never waits.
func (w *worker) wakeControl() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// handedOver is what a step returns for a datagram that now waits for control,
// which counts its outcome.
const handedOver = NumOutcomes

// tick returns the tick of a time in milliseconds.
func tick(now int64) table.Tick { return table.Tick(now / table.TickMillis) }

// faultLogMillis is the shortest time between two log lines about faults of
// ours, so that a client that finds a way to cause them cannot fill a disk.
const faultLogMillis = 60_000

// faultHead is how much of the datagram the line shows, in bytes.
const faultHead = 64

// faults is where workers report panics. Any goroutine may use it.
type faults struct {
	log  *slog.Logger
	last atomic.Int64 // ms; of the last line
}
