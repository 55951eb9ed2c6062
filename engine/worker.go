package engine

import (
	"encoding/hex"
	"math/bits"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

// worker serves one socket. It belongs to the goroutine in run, which is locked to a thread;
// fields that others read are atomic.
//
// What every RELAY needs comes first and is together, see TestLinesOfARelay.
type worker struct {
	shared    *shared
	conn      *sock.Conn
	rx        *sock.RecvBatch
	epoch     *epoch
	records   driver.Records // nil: datagrams are plain messages only
	traffic   *traffic
	tap       *tap   // of the batch's capture; nil: none runs
	next      int    // index of the next datagram of the batch
	current   []byte // the datagram before it, for the report of a panic
	batchSize int    // datagrams in a full batch

	lastPublished int64 // ms; when counts and traffic were last published
	stop          atomic.Bool
	pacer         pacer
	out           outbox
	counts        counters

	// prepare is called by the worker's thread before run.
	prepare   func()
	transport string
	session   driver.Session // of the record being handled; zero for a plain datagram

	inbox *inbox
	wake  chan<- struct{}

	mutes    muteTable
	refusals refusalGates
	crypto   bindScratch

	lastCPU int64        // ms; when cpu was last read
	cpu     atomic.Int64 // ns; processor time of the thread

	thread atomic.Int32 // of a worker with a socket, while it runs
}

// One receive batch becomes one send batch.
func (w *worker) run() error {
	defer w.publish()
	for !w.stop.Load() {
		n, err := w.conn.Recv(w.rx)
		if err != nil {
			return err
		}
		if n == 0 { // Nothing came for a while: publish the counts of the last batch.
			w.publish()
			w.cpu.Store(sock.ThreadTime())
			continue
		}
		w.epoch.enter()
		now := w.shared.clock()
		for w.next = 0; w.next < n; {
			w.handleBatch(now, n)
		}
		sent := w.out.flush()
		w.epoch.leave()
		w.finishBatch(now, n, sent)
		if n == w.batchSize {
			w.inbox.noteLoad(now)
		}
		if w.pacer.bound > 0 {
			w.pace(n)
		}
	}
	return nil
}

func (w *worker) pace(n int) {
	if w.pacer.isPeriodOver() {
		w.pacer.nextPeriod(sock.ThreadTime())
	}
	if d := w.pacer.delayAfter(sock.Now(), int64(n)); d > 0 {
		w.conn.Sleep(time.Duration(d))
	}
}

// A panic drops the current datagram only: handleBatch returns early, and its caller calls it
// again.
func (w *worker) handleBatch(now int64, n int) {
	defer w.recoverPanic(now)
	w.tap = w.shared.tap.Load()
	for w.next < n {
		from, pkt, truncated := w.rx.At(w.next)
		w.next++
		w.current = pkt
		w.count(w.handleDatagram(now, from, pkt, truncated), len(pkt))
	}
}

// handleDatagram does no I/O, takes no lock and allocates nothing: replies go to w.out, changes of
// state to w.inbox. The time is in milliseconds.
func (w *worker) handleDatagram(now int64, from endpoint.Endpoint, pkt []byte, truncated bool) outcome {
	if truncated {
		return dropTruncated
	}
	if from.IsZero() {
		return dropSource
	}
	if w.records != nil {
		if o, ok := w.openRecord(now, from, pkt); ok {
			return o
		}
	}
	return w.handleMessage(now, from, pkt)
}

// The message is from a datagram, a record or a session of a [Transport].
func (w *worker) handleMessage(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	if w.tap != nil {
		return w.handleTapped(w.tap, now, from, pkt)
	}
	t, err := proto.ParseType(pkt)
	if err != nil {
		return w.handleMalformed(now, from, pkt, t, err)
	}
	switch t {
	case proto.TypeRelay:
		return w.relay(now, from, pkt)
	case proto.TypePing:
		return w.ping(now, from, pkt)
	}
	// A RELAY or PING comes from an endpoint that passed this check when it was bound, or
	// refuseMismatch makes it.
	if o, refused := w.shared.sources.refuses(from); refused {
		return w.refuseBind(now, from, pkt, o)
	}
	switch t {
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
		return dropServerType
	}
	return dropUnknownType
}

func (w *worker) relay(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParseRelay(pkt)
	if err != nil {
		return dropSize
	}
	var sender, peer table.Entry
	if !w.shared.table.FindByEndpoint(from, &sender) || sender.ID != m.From {
		return w.refuseMismatch(now, from, proto.TypeRelay, m.From)
	}
	source := w.noteReceived(&sender, now, len(pkt))
	if len(m.Payload) > w.shared.rules.maxContent {
		return w.reportRefusal(now, from, proto.TypeRelay, sender.ID, m.To, dropOversize)
	}
	if !w.shared.table.FindPeer(&sender, &m.To, &peer) {
		return w.refuseUnlinked(now, &sender, m.To)
	}
	if peer.Endpoint.IsZero() {
		return dropPeerUnbound
	}
	if len(pkt) > int(w.shared.rules.messages.safe[peer.Endpoint.Kind()]) && w.reportLarge(now, &sender, &peer, len(pkt)) {
		return dropReceiverSize
	}
	if !source.TakeQuota(w.shared.limits.Load().quotas[sender.Role&3], len(pkt), now) {
		return w.reportRefusal(now, from, proto.TypeRelay, sender.ID, m.To, dropRate)
	}
	t := tick(now)
	if !w.shared.table.HasRelayed(peer.Handle, t) && !w.shared.table.AllowRelay(peer.Handle, len(pkt), t) &&
		!w.takeExcess(now, &peer, len(pkt)) {
		return w.reportStarved(now, &sender, &peer)
	}
	source.RecordRelay(t)
	source.CountRelay(len(pkt))
	w.traffic.add(source.CounterIndex(), len(pkt))
	w.out.add(peer.Endpoint, pkt)
	return outRelayed
}

func (w *worker) ping(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParsePing(pkt)
	if err != nil {
		return dropSize
	}
	var sender table.Entry
	if !w.shared.table.FindByEndpoint(from, &sender) || sender.ID != m.ID {
		return w.refuseMismatch(now, from, proto.TypePing, m.ID)
	}
	w.noteReceived(&sender, now, len(pkt))
	w.shared.table.ChargeReply(sender.Handle, w.shared.budgets.rates.excessPath, len(pkt), now)
	w.out.add(from, pkt)
	return outPong
}

// The path's own quota comes first: what exceeds it uses up nothing of others.
func (w *worker) takeExcess(now int64, peer *table.Entry, size int) bool {
	t, b := w.shared.table, w.shared.budgets
	if !t.TakeExcess(peer.Handle, b.rates.excessPath, size, now) || !b.takeExcess(peer.Endpoint, size, now) {
		return false
	}
	t.RecordExcess(peer.Handle, tick(now))
	return true
}

func (w *worker) noteAlive(now int64, from endpoint.Endpoint) outcome {
	var owner table.Entry
	if !w.shared.table.FindByEndpoint(from, &owner) {
		return dropUnbound
	}
	w.noteReceived(&owner, now, 0)
	w.out.add(from, nil)
	return outAlive
}

func (w *worker) noteReceived(e *table.Entry, now int64, size int) *table.Activity {
	a, t := w.shared.table.Activity(e.Handle), tick(now)
	if !a.HasHeard(t) {
		w.shared.table.RecordMessage(e, t, size*w.shared.limits.Load().unvalidatedRatio)
	}
	return a
}

// finishBatch publishes the counts at most once a millisecond, and wakes control if it waits for
// the workers.
func (w *worker) finishBatch(now int64, n int, sent sock.SendResult) {
	w.counts.countSent(sent)
	w.counts.batch(n)
	if now != w.lastPublished {
		w.lastPublished = now
		w.publish()
		if w.conn != nil && now >= w.lastCPU+1000 {
			w.lastCPU = now
			w.cpu.Store(sock.ThreadTime())
		}
	}
	if w.shared.grace.workersMustWake.Load() {
		w.wakeControl()
	}
}

// wakeControl never blocks.
func (w *worker) wakeControl() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) publish() {
	w.counts.publish()
	w.traffic.publish()
}

// Control counts the outcome of such a datagram.
const outcomePending = numOutcomes

// The size is in bytes.
func (w *worker) count(o outcome, size int) {
	w.counts.received++
	w.counts.receivedBytes += uint64(size)
	if o != outcomePending {
		w.counts.add(o)
	}
}

func tick(now int64) table.Tick { return table.Tick(now / table.TickMillis) }

// replySize fits the largest reply, an echoed DISCONNECT of 36 bytes.
const replySize = 40

// outbox collects the datagrams of one batch, slices of the receive batch or of the arena, which
// must not change until the flush. It belongs to the goroutine that fills it.
type outbox struct {
	conns []*sock.Conn
	tx    []*sock.SendBatch // by listener
	queue []sessionDatagram // datagrams to sessions
	arena []byte
	used  int

	// A simulation has no listeners: queue holds every datagram, and deliver collects them.
	deliver func(queue []sessionDatagram) sock.SendResult
}

// The endpoint determines the listener or transport, which may differ from the one by which a
// RELAY came.
func (o *outbox) add(to endpoint.Endpoint, pkt []byte) {
	if i := int(to.Listener()); i < len(o.tx) && to.Kind() <= endpoint.KindUDP6 {
		o.tx[i].Add(to, pkt)
		return
	}
	o.queue = append(o.queue, sessionDatagram{to, pkt})
}

// reply returns replySize bytes.
func (o *outbox) reply() []byte {
	room := o.arena[o.used : o.used : o.used+replySize]
	o.used += replySize
	return room
}

func (o *outbox) full() bool { return o.used == len(o.arena) }

// flush sends the datagrams of one listener in one system call. Afterwards nothing refers to the
// receive batch.
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

// epoch is odd while the worker handles a batch, even from the end of the flush to the next one.
// The worker writes it, control reads it. It fills a cache line.
type epoch struct {
	count atomic.Uint64
	_     [56]byte
}

// enter begins a batch, before the first look at the table.
func (e *epoch) enter() { e.count.Add(1) }

// leave ends a batch, after the last datagram was sent.
func (e *epoch) leave() { e.count.Add(1) }

const (
	// faultLogMillis: a client that finds a way to cause panics cannot fill a disk.
	faultLogMillis = 60_000
	faultHead      = 64
)

// recoverPanic counts the current datagram as dropped. It must be deferred.
func (w *worker) recoverPanic(now int64) {
	fault := recover()
	if fault == nil {
		return
	}
	pkt := w.current
	w.count(dropPanic, len(pkt))
	head := pkt[:min(len(pkt), faultHead)]
	w.shared.logFault(now, fault, "in", "worker", "size", len(pkt), "head", hex.EncodeToString(head))
}

func (s *shared) logFault(now int64, fault any, attrs ...any) {
	last := s.lastFault.Load()
	if last != 0 && now-last < faultLogMillis || !s.lastFault.CompareAndSwap(last, now) {
		return
	}
	s.log.Error("a fault in the relay, please report it", append(attrs, "fault", fault, "stack", string(debug.Stack()))...)
}

const batchBuckets = 9

// counters count in plain words and publish them from time to time, since an atomic store costs as
// much as a look-up.
type counters struct {
	received, receivedBytes  uint64
	sentDatagrams, sentBytes uint64
	sendFailed, sendDown     uint64
	dirty                    uint64 // outcomes that changed since they were published, one bit each
	batches                  [batchBuckets]uint64
	outcomes                 [numOutcomes]uint64
	pub                      published
}

// Any goroutine may read published.
type published struct {
	received, receivedBytes  atomic.Uint64
	sentDatagrams, sentBytes atomic.Uint64
	sendFailed, sendDown     atomic.Uint64
	outcomes                 [numOutcomes]atomic.Uint64
	batches                  [batchBuckets]atomic.Uint64
}

func (c *counters) add(o outcome) {
	c.outcomes[o]++
	c.dirty |= 1 << o
}

func (c *counters) countSent(r sock.SendResult) {
	c.sentDatagrams += uint64(r.Sent)
	c.sentBytes += uint64(r.Bytes)
	c.sendFailed += uint64(r.Failed)
	c.sendDown += uint64(r.Down)
}

// A batch has at least one datagram.
func (c *counters) batch(n int) { c.batches[bits.Len(uint(n-1))]++ }

func (c *counters) publish() {
	for b := range c.batches {
		c.pub.batches[b].Store(c.batches[b])
	}
	c.pub.received.Store(c.received)
	c.pub.receivedBytes.Store(c.receivedBytes)
	c.pub.sentDatagrams.Store(c.sentDatagrams)
	c.pub.sentBytes.Store(c.sentBytes)
	c.pub.sendFailed.Store(c.sendFailed)
	c.pub.sendDown.Store(c.sendDown)
	for t := c.dirty; t != 0; t &= t - 1 {
		o := bits.TrailingZeros64(t)
		c.pub.outcomes[o].Store(c.outcomes[o])
	}
	c.dirty = 0
}

// traffic counts what was relayed for each row in plain words, and publishes the rows that
// changed. It belongs to its worker, except pub.
type traffic struct {
	rows  [maxUsageRows]trafficRow
	dirty []uint32
	pub   [maxUsageRows]struct{ datagrams, bytes atomic.Uint64 }
}

type trafficRow struct {
	datagrams, bytes uint64
	dirty            bool
}

func newTraffic() *traffic { return &traffic{dirty: make([]uint32, 0, maxUsageRows)} }

func (t *traffic) add(row uint32, size int) {
	r := &t.rows[row%maxUsageRows]
	r.datagrams++
	r.bytes += uint64(size)
	if !r.dirty {
		t.markDirty(r, row)
	}
}

//go:noinline
func (t *traffic) markDirty(r *trafficRow, row uint32) {
	r.dirty = true
	t.dirty = append(t.dirty, row%maxUsageRows)
}

func (t *traffic) publish() {
	for _, i := range t.dirty {
		r, p := &t.rows[i], &t.pub[i]
		r.dirty = false
		p.datagrams.Store(r.datagrams)
		p.bytes.Store(r.bytes)
	}
	t.dirty = t.dirty[:0]
}

func (t *traffic) read(row uint32) (datagrams, bytes uint64) {
	p := &t.pub[row%maxUsageRows]
	return p.datagrams.Load(), p.bytes.Load()
}
