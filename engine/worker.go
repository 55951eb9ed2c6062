package engine

import (
	"encoding/hex"
	"log/slog"
	"math/bits"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
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

	next    int    // number of the next datagram of the batch
	current []byte // the datagram before it, for the report of a panic

	mutes         muteTable
	crypto        bindScratch
	batchSize     int // size of a batch that came full
	counts        counters
	lastPublished int64 // when counts were published last
	pacer         pacer

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
			w.handleBatch(now, n)
		}
		w.counts.sent(w.out.flush())
		w.epoch.leave()
		w.finishBatch(now, n)
		if n == w.batchSize {
			w.inbox.noteLoad(now)
		}
		if w.shared.grace.workersMustWake.Load() {
			w.wakeControl()
		}
		if w.pacer.delay > 0 {
			w.waitForMore(n)
		}
	}
	return nil
}

// steps decides about the datagrams of a batch of n from number next on. A panic
// costs the datagram in hand: steps returns early, and is called again for the
// rest.
func (w *worker) handleBatch(now int64, n int) {
	defer w.recoverPanic(now)
	for w.next < n {
		from, pkt, truncated := w.rx.At(w.next)
		w.next++
		w.current = pkt
		w.count(w.handleDatagram(now, from, pkt, truncated), len(pkt))
	}
}

// recoverPanic ends a panic of step, if there is one, counts the datagram in
// hand, and writes about it. It is to be deferred.
func (w *worker) recoverPanic(now int64) {
	fault := recover()
	if fault == nil {
		return
	}
	pkt := w.current
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
func (w *worker) waitForMore(n int) {
	if d := w.pacer.delayAfter(sock.Now(), n); d > 0 {
		w.conn.Nap(d)
	}
}

// step decides about one datagram. It does no I/O, takes no lock and allocates
// nothing: what is to be sent goes to the outbox, what changes state to the
// ring. The time is in milliseconds.
func (w *worker) handleDatagram(now int64, from endpoint.Endpoint, pkt []byte, truncated bool) Outcome {
	if truncated {
		return DropTruncated
	}
	if from.IsZero() {
		return DropSource
	}
	if w.path.records != nil {
		if o, ok := w.openRecord(now, from, pkt); ok {
			return o
		}
	}
	return w.handleMessage(now, from, pkt)
}

// handle decides about one message, however it came.
func (w *worker) handleMessage(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	t, err := proto.ParseType(pkt)
	if err != nil {
		return w.handleMalformed(now, from, pkt, t, err)
	}
	if w.shared.sources.isRefused(from) {
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
func (w *worker) finishBatch(now int64, n int) {
	w.counts.batch(n)
	if now != w.lastPublished {
		w.lastPublished = now
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
	if o != outcomePending {
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
const outcomePending = NumOutcomes

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

// shared is what all workers and control share. The table, the budgets, the
// spoof guard, the grace and what is live of the limits change, each by rules of
// its own; the rest is fixed before Run.
type shared struct {
	rules       rules
	limits      atomic.Pointer[limitRates]
	table       *table.Table
	sealer      *alloc.Sealer
	budgets     *budgets
	spoofGuard  spoofGuard
	faults      faults
	qosGates    qosGates
	grace       *grace
	previousRun *previousRun // what was, before a restart
	tenantNames tenantNames  // of tenants that come back
	probe       prober
	sources     *sources
	clock       func() int64 // milliseconds since some time before the start
}

// recovering reports whether now is within the recovery window, in which
// allocations of an earlier run of the process may come back.
func (r *shared) recovering(now int64) bool { return now < r.rules.recoverUntil }

// relay forwards a RELAY: the endpoint must be bound to From, and From be
// linked to To. The datagram leaves as it came.
func (w *worker) relay(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseRelay(pkt)
	if err != nil {
		return DropSize
	}
	if len(m.Payload) > w.shared.rules.maxContent {
		return DropOversize
	}
	var sender, peer table.Entry
	if !w.shared.table.Find(from, &sender) || sender.ID != m.From {
		return w.refuseMismatch(now, from, m.From)
	}
	own := w.noteReceived(&sender, now)
	if !w.shared.table.FindPeer(&sender, &m.To, &peer) {
		return w.refuseUnlinked(now, &sender, m.To)
	}
	if peer.Endpoint.IsZero() {
		return DropPeerUnbound
	}
	if len(pkt) > w.shared.rules.messages.safe[peer.Endpoint.Kind()] && w.reportLarge(now, &sender, &peer, len(pkt)) {
		return DropReceiverSize
	}
	theirs := w.shared.table.Activity(peer.Handle)
	if !own.Meter(w.shared.limits.Load().quota(sender.Role), len(pkt), now) {
		return DropRate
	}
	if !theirs.Spend(len(pkt)) {
		return DropUnvalidated
	}
	t := tick(now)
	table.Relayed(sender.Role, own, theirs, t)
	theirs.Active(t)
	w.traffic.add(own.Tally(), len(pkt))
	w.out.add(peer.Endpoint, pkt)
	return OutRelayed
}

// noteHeard notes that the owner of e sent a message that only it should send.
func (w *worker) noteReceived(e *table.Entry, now int64) *table.Activity {
	a := w.shared.table.Activity(e.Handle)
	a.Heard(tick(now))
	a.Prove()
	return a
}

// ping echoes a PING to the endpoint that is bound to its id.
func (w *worker) ping(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParsePing(pkt)
	if err != nil {
		return DropSize
	}
	var sender table.Entry
	if !w.shared.table.Find(from, &sender) || sender.ID != m.ID {
		return w.refuseMismatch(now, from, m.ID)
	}
	w.noteReceived(&sender, now)
	w.out.add(from, pkt)
	return OutPong
}

// live are the limits that may change while the relay runs. They are replaced
// as a whole; a worker loads them for each RELAY.
type limitRates struct {
	joiner, host table.Quota
	unproven     uint32 // bytes
}

func (l Limits) compile(unlimited bool) *limitRates {
	l = l.withDefaults(unlimited)
	return &limitRates{
		joiner:   table.NewQuota(l.JoinerDatagrams, l.JoinerBytes),
		host:     table.NewQuota(l.HostDatagrams, l.HostBytes),
		unproven: uint32(l.UnvalidatedBytes),
	}
}

// quota is what an allocation of that role may relay.
func (l *limitRates) quota(role table.Role) table.Quota {
	if role == table.RoleHost {
		return l.host
	}
	return l.joiner
}

// SetLimits changes [Config].Limits for all allocations from the next datagram
// on. What may go to an unproven endpoint counts from its next BIND. It may be
// called at any time.
func (s *Server) SetLimits(l Limits) { s.shared.limits.Store(l.compile(s.cfg.Unlimited)) }

// pacer decides whether a worker rests before it receives again. Between idle
// and saturation a datagram costs less than waking up for it, so a short rest
// lets several come together. It belongs to its worker.
//
// It does not rest when the queue is deep, and not after a datagram that came
// alone: an idle relay answers at once. So of a burst, such as that of a tick,
// the first datagram is not delayed and the others come together.
type pacer struct {
	delay int64 // nanoseconds; 0: never rest
	deep  int   // datagrams in a batch from which on the queue is deep
	last  int64 // when the last batch was done, in nanoseconds
}

// gatherAtLeast is how many datagrams a rest must be expected to gather, at the
// pace of the last batch. With fewer it costs as much as the wake-up it saves.
const gatherAtLeast = 2

// rest returns for how long to rest after a batch of n datagrams that was done
// at now, in nanoseconds.
func (p *pacer) delayAfter(now int64, n int) time.Duration {
	gap := (now - p.last) / int64(n)
	p.last = now
	if n >= p.deep || gap*gatherAtLeast > p.delay {
		return 0
	}
	return time.Duration(p.delay)
}

// batchBuckets is the number of buckets of batch sizes: 1, 2, 3-4, 5-8, up to
// 129-256.
const batchBuckets = 9

// counters count what one goroutine did. It counts in plain words and
// publishes now and then: an atomic store costs as much as a look-up.
type counters struct {
	received, receivedBytes  uint64
	sentDatagrams, sentBytes uint64
	sendFailed, sendDown     uint64
	outcomes                 [NumOutcomes]uint64
	batches                  [batchBuckets]uint64
	dirty                    uint64 // outcomes that changed since they were published, one bit each
	pub                      published
}

// published is what others read.
type published struct {
	received, receivedBytes  atomic.Uint64
	sentDatagrams, sentBytes atomic.Uint64
	sendFailed, sendDown     atomic.Uint64
	outcomes                 [NumOutcomes]atomic.Uint64
	batches                  [batchBuckets]atomic.Uint64
}

func (c *counters) add(o Outcome) {
	c.outcomes[o]++
	c.dirty |= 1 << o
}

func (c *counters) sent(r sock.SendResult) {
	c.sentDatagrams += uint64(r.Sent)
	c.sentBytes += uint64(r.Bytes)
	c.sendFailed += uint64(r.Failed)
	c.sendDown += uint64(r.Down)
}

// batch counts a batch of n datagrams, at least one.
func (c *counters) batch(n int) { c.batches[bits.Len(uint(n-1))]++ }

// publish makes the counts visible to others.
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
