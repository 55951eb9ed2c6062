package bench

import (
	"context"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

const (
	// burst bounds the datagrams that a round sends, so that a generator that
	// is late still receives.
	burst = 256
	// maxRecvBatches bounds the batches that a round receives from one socket.
	maxRecvBatches = 4
	// maintenanceInterval is the time between calls of runMaintenance, in ns.
	maintenanceInterval = int64(time.Millisecond)
	// startDelay is the time between the start of the generator and the first
	// datagram, in ns.
	startDelay = int64(20 * time.Millisecond)
)

// generator is the state of the thread that sends and receives. All fields but live and
// cancelled belong to its goroutine while it runs.
type generator struct {
	cfg   *Config
	ctx   context.Context // of Run
	rig   *benchrig.Rig
	run   uint32 // in each stamp
	flows []flow
	out   []outgoing // by socket
	plain []byte     // a datagram that is being encrypted

	// The run in time, ns of sock.Now: warm-up, measured interval, drain. The first of seconds
	// begins at first, and the load on the control plane at split. An interrupt moves end and stop
	// forward.
	first, start, measure, split, end, stop int64
	interrupted                             bool

	schedule    schedule // open loop, else nil
	loop        credits  // closed loop
	binds       binds    // repeated handshakes
	rebind      rebinder // after a restart of the relay
	reconnector reconnector
	keep        keepaliveTimer
	play        *netplay  // of the shape netcode, else nil
	replacer    *replacer // with ReplaceRate, else nil

	count   counters
	gaps    gaps
	dropped uint64 // on the generator's own sockets before the measured interval
	// droppedBefore is that before the run.
	droppedBefore uint64
	errors        map[string]uint64
	senders       map[netip.AddrPort]bool // of the load
	// portions are the parts of the measured interval before and after split.
	portions        [2]portion
	seconds         []second
	now             *second // the current one
	nextSec         int64
	nextMaintenance int64 // when they are due next

	live      live
	cancelled atomic.Bool
}

// counters counts. Unless a field says otherwise, it counts datagrams of the measured
// interval; those sent and delivered are in its portions.
type counters struct {
	duplicated, reordered, late                   uint64
	corrupt, misdelivered                         uint64
	sendCalls, sendEntries, recvCalls, recvSlots  uint64
	busy                                          int64 // ns
	allQueued, allFailed, allDelivered            uint64
	bindsSent, bindsAnswered, keepalives, arrived uint64 // whole run
}

// second has the counters of one second by the clock. They are final once
// live.second is above its index.
type second struct {
	sent, delivered uint64
	latency         *hdrhistogram.Histogram
}

// live has the counters that other goroutines read during the run.
type live struct {
	second  atomic.Int64  // index of the current second
	arrived atomic.Uint64 // datagrams of the load, duplicates included
	sent    atomic.Uint64 // datagrams of the load
}

func newGenerator(cfg *Config, rig *benchrig.Rig, run uint32) *generator {
	g := &generator{
		cfg: cfg, rig: rig, run: run, flows: newFlows(rig),
		errors: map[string]uint64{}, senders: map[netip.AddrPort]bool{},
	}
	for i := range g.portions {
		g.portions[i] = newPortion()
	}
	size := 0
	for i := range rig.Flows {
		f := &rig.Flows[i]
		size = max(size, len(f.Prefix)+cfg.Payload+rig.Overhead(f.From))
		g.senders[f.Dst] = true // A relay sends from where it receives.
	}
	if cfg.Shape == ShapeNetcode {
		size = benchrig.MaxDatagram
	}
	for _, s := range rig.Sockets {
		g.out = append(g.out, newOutgoing(s, cfg.Batch, size))
	}
	g.reconnector = newReconnector(g)
	g.droppedBefore = g.drops()
	g.dropped = g.droppedBefore
	g.setTimes()
	g.loop = newCredits(len(g.flows), cfg.Window)
	g.keep = newKeepaliveTimer(rig, cfg.Keepalive)
	g.schedule = newSchedule(cfg, g.start, &rig.Plan)
	g.gaps.endpoints = make([]gap, len(rig.Endpoints))
	from := g.start
	if cfg.Baseline > 0 {
		from = g.split
	}
	g.binds = newBinds(from, g.split, cfg.BindRate, len(rig.Endpoints))
	return g
}

// setTimes computes the times of the run. One of the seconds begins with the
// measured interval.
func (g *generator) setTimes() {
	g.start = sock.Now() + startDelay
	if !g.cfg.StartAt.IsZero() {
		g.start = sock.Now() + int64(time.Until(g.cfg.StartAt))
	}
	g.measure = g.start + int64(g.cfg.Warmup)
	g.split = g.measure + int64(g.cfg.Baseline)
	g.end = g.measure + int64(g.cfg.Duration)
	g.stop = g.end + int64(g.cfg.Drain)
	g.first = g.measure - (int64(g.cfg.Warmup)+1e9-1)/1e9*1e9
	g.seconds = make([]second, (g.stop-g.first)/1e9+2)
	for i := range g.seconds {
		g.seconds[i].latency = newHistogram(2)
	}
	g.now, g.nextSec = &g.seconds[0], g.first+1e9
}

// Run sends and receives until the end of the run. When ctx ends, it
// sends nothing more, and datagrams in flight have the time of the drain to arrive.
func (g *generator) Run(ctx context.Context) error {
	g.ctx = ctx
	if g.cfg.Pin {
		if err := sock.PinThread(g.cfg.CPU); err != nil {
			return err
		}
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	defer context.AfterFunc(ctx, func() { g.cancelled.Store(true) })()
	for {
		done, err := g.round()
		if err != nil {
			return err
		}
		if done {
			return nil
		}
	}
}

// round sends what is due and receives what has arrived. It never waits: a wake-up
// takes longer than the precision of the schedule.
func (g *generator) round() (done bool, err error) {
	now := sock.Now()
	if g.cancelled.Load() {
		g.interrupt(now)
	}
	g.keepTime(now)
	moved := g.send(now)
	got, err := g.rig.Receive(maxRecvBatches, g.accountBatch)
	if err != nil {
		return true, err
	}
	if now >= g.nextMaintenance {
		g.nextMaintenance = now + maintenanceInterval
		g.runMaintenance(now)
	}
	if moved+got > 0 && now >= g.measure && now < g.end {
		g.count.busy += sock.Now() - now
	}
	g.live.arrived.Store(g.count.arrived)
	g.live.sent.Store(g.count.allQueued)
	return g.finished(now), nil
}

// keepTime starts the next second when it is due.
func (g *generator) keepTime(now int64) {
	for now >= g.nextSec {
		g.nextSec += 1e9
		if i := g.live.second.Load() + 1; i < int64(len(g.seconds)) {
			g.now = &g.seconds[i]
			g.live.second.Store(i)
		}
		if g.nextSec == g.measure+1e9 {
			g.dropped = g.drops()
		}
	}
}

// interrupt ends the measured interval at once.
func (g *generator) interrupt(now int64) {
	if g.interrupted || now >= g.end {
		return
	}
	g.interrupted = true
	g.end = now
	g.stop = now + int64(g.cfg.Drain)
}

// finished reports whether everything was sent and has arrived, or the time of the
// drain is over.
func (g *generator) finished(now int64) bool {
	if now >= g.stop {
		return true
	}
	return now >= g.end && g.exhausted() && g.replacer.settled() && g.binds.pendingCount == 0 &&
		g.count.allDelivered+g.count.allFailed >= g.count.allQueued
}

// exhausted reports whether all datagrams of the schedule are queued.
func (g *generator) exhausted() bool {
	return (g.schedule == nil || g.schedule.next().due >= g.end) &&
		(g.binds.rate == 0 || g.binds.due() >= g.end)
}

func (g *generator) runMaintenance(now int64) {
	g.keep.due(now, g.sendKeepalive)
	g.checkReplacements(now)
	g.reconnect(now)
	if g.play != nil && now < g.start {
		g.play.keepConnected()
	}
	if g.cfg.Window > 0 {
		g.loop.restoreStalled(g.flows, now)
	}
	for i := range g.out {
		g.flush(&g.out[i])
	}
}

// send queues what is due at now, gives it to the kernel, and returns the number of
// datagrams. Nothing is due after the measured interval, but send still sends late
// datagrams during the drain.
func (g *generator) send(now int64) int {
	n := 0
	switch {
	case now < g.start && g.play == nil:
		return 0
	case g.schedule != nil:
		n = g.sendDue(now)
	case g.cfg.Window > 0 && now < g.end:
		n = g.sendCredits(now)
	}
	if g.play != nil {
		g.play.updateDirty(now, g)
	}
	if g.binds.rate > 0 {
		n += g.sendBinds(now)
	}
	if len(g.rebind.due) > 0 {
		n += g.sendRebinds()
	}
	if g.replacer != nil {
		n += g.replaceMatches(now)
	}
	for i := range g.out {
		if g.out[i].batch.Len() > 0 {
			g.flush(&g.out[i])
		}
	}
	if g.play != nil {
		g.countMessages()
	}
	return n
}

// sendDue queues the datagrams of the open loop.
func (g *generator) sendDue(now int64) int {
	for n := range burst {
		next := g.schedule.next()
		if next.due > now || next.due >= g.end {
			return n
		}
		if g.play != nil {
			g.play.queueMessage(g, next.flow, next.due)
		} else {
			g.queue(g.flowAt(next.flow), next.size, next.due)
		}
		if g.schedule.advance() && g.play != nil {
			g.play.updateDirty(now, g) // One Flush sends only the newest message of a flow.
		}
	}
	return burst
}

// sendCredits queues the datagrams that the closed loop permits.
func (g *generator) sendCredits(now int64) int {
	for n := range burst {
		i, ok := g.loop.take()
		if !ok {
			return n
		}
		g.flows[i].inFlight++
		g.queue(int(i), g.cfg.Payload, now)
	}
	return burst
}

// queue puts the next datagram of a flow, with a payload of size bytes, into the batch of its socket.
func (g *generator) queue(i, size int, due int64) {
	f := &g.flows[i]
	o := &g.out[f.socket]
	p := g.portionOf(due)
	if o.batch.Len() == len(o.bufs) || len(o.dues) > 0 && p != o.portion {
		g.flush(o)
	}
	o.batch.Add(f.dst, g.datagram(o.bufs[o.used], i, size, due))
	o.used++
	o.dues, o.portion = append(o.dues, due), p
	g.keep.lastSent[f.from] = due
	g.expectDelivery(f.to, due)
	if g.replacer != nil {
		g.replacer.recordActive(i, due)
	}
}

// datagram writes the next datagram of a flow into buf.
func (g *generator) datagram(buf []byte, i, size int, due int64) []byte {
	f := &g.flows[i]
	pkt := buf[:len(f.prefix)+size]
	s := stamp{run: g.run, flow: uint32(i), seq: f.seq, due: due}
	s.put(pkt[g.rig.PutHeader(pkt, f.prefix, size):])
	f.seq++
	if f.cipher != nil {
		return g.seal(f, buf, pkt)
	}
	return pkt
}

// flush gives a batch to the kernel.
func (g *generator) flush(o *outgoing) {
	n := o.batch.Len()
	if n == 0 {
		return
	}
	res := o.conn.Send(o.batch)
	g.recordSent(o, n, res, sock.Now())
	if g.play != nil {
		g.countDriverBatch(n, res)
	}
}

// recordSent counts a batch of n entries that the kernel was offered until now.
func (g *generator) recordSent(o *outgoing, n int, res benchrig.SendResult, now int64) {
	load := uint64(len(o.dues))
	failed := min(uint64(res.Failed), load)
	blocked := min(uint64(res.Blocked), load-failed)
	g.now.sent += load - failed - blocked
	g.count.allQueued += load
	g.count.allFailed += failed + blocked
	if p := o.portion; p != nil && load > 0 {
		p.queued += load
		p.failed += failed
		p.blocked += blocked
		g.count.sendCalls++
		g.count.sendEntries += uint64(n)
		for _, due := range o.dues {
			record(p.lag, now-due)
		}
	}
	o.used, o.dues, o.portion = 0, o.dues[:0], nil
}

// add queues a datagram that is not of the load: a keep-alive or a handshake.
func (g *generator) add(ep int, pkt []byte) {
	e := &g.rig.Endpoints[ep]
	g.roomFor(e.Socket).batch.Add(endpoint.UDP(e.Relay, e.Local, 0), g.rig.Encrypt(ep, pkt))
}

// roomFor returns the batch of a socket, with room for a datagram.
func (g *generator) roomFor(socket int) *outgoing {
	o := &g.out[socket]
	if o.batch.Len() == len(o.bufs) {
		g.flush(o)
	}
	return o
}

// accountBatch accounts for the n datagrams of a batch, all of which arrived now.
func (g *generator) accountBatch(socket int32, n int) {
	s, now := g.rig.Sockets[socket], sock.Now()
	if now >= g.measure && now < g.end {
		g.count.recvCalls++
		g.count.recvSlots += uint64(n)
	}
	for i := range n {
		from, pkt, truncated := s.Conn.At(i)
		g.accountDatagram(socket, s, from, pkt, truncated, now)
	}
	if g.play != nil {
		g.play.updateDirty(now, g) // The datagrams are valid until the next batch.
	}
}

// accountDatagram accounts for a datagram that arrived at a local address of a socket.
func (g *generator) accountDatagram(socket int32, s *benchrig.Socket, from endpoint.Endpoint, pkt []byte, truncated bool, now int64) {
	local := from.Local()
	owner := s.Owner(local)
	if owner >= 0 && g.rig.Divert(int(owner), pkt) {
		return
	}
	if pkt = g.rig.Decrypt(owner, pkt); pkt != nil {
		g.reconnector.heard(owner, now)
	}
	if g.play != nil {
		g.accountDriverDatagram(owner, from, pkt, truncated, now)
		return
	}
	st, ok := parseStamp(pkt[min(s.Offset, len(pkt)):])
	if !ok || st.run != g.run || int(st.flow) >= len(g.flows) {
		g.countOther(pkt, from, ok, owner, now)
		return
	}
	g.count.arrived++
	f := &g.flows[st.flow]
	switch {
	case f.arrives != socket || f.local != local:
		g.count.misdelivered += g.measured(st.due)
	case truncated || g.cfg.Traffic == nil && len(pkt) != int(f.size): // Traffic has sizes that the check of the stamp covers.
		g.count.corrupt += g.measured(st.due)
	default:
		g.account(f, &st, now)
	}
}

// measured returns 1 for a datagram of the measured interval and 0 for others.
func (g *generator) measured(due int64) uint64 {
	if g.portionOf(due) != nil {
		return 1
	}
	return 0
}

// account records the arrival of a datagram at its destination, and reports whether
// it was the first with its number.
func (g *generator) account(f *flow, st *stamp, now int64) bool {
	p, one := g.portionOf(st.due), g.measured(st.due)
	credit := st.seq + 1 - f.window.next
	switch f.window.arrive(st.seq, f.seq) {
	case arrivedDuplicate:
		g.count.duplicated += one
		return false
	case arrivedLate:
		g.count.late += one
		return false
	case arrivedUnsent:
		g.count.corrupt += one
		return false
	case arrivedReordered:
		g.count.reordered += one
		credit = 0 // given when it was overtaken
	}
	g.count.allDelivered++
	g.now.delivered++
	g.deliverGap(f.to, now)
	record(g.now.latency, now-st.due)
	if p != nil {
		p.delivered++
		record(p.latency, now-st.due)
	}
	if g.cfg.Window > 0 {
		g.loop.creditArrival(f, int32(st.flow), credit, now)
	}
	return true
}

// countOther counts a packet for endpoint ep that is no datagram of this run. A stamped
// one is of an earlier run.
func (g *generator) countOther(pkt []byte, from endpoint.Endpoint, stamped bool, ep int32, now int64) {
	name := benchrig.Foreign
	switch {
	case stamped:
		name = "straggler"
	case g.rig.Explain != nil:
		name = g.rig.Explain(pkt)
	}
	if g.handleReply(name, ep, now) {
		return
	}
	switch name {
	case "", benchrig.Accepted:
		return
	case benchrig.Answer:
		g.count.bindsAnswered++
		g.binds.recordAnswer(int(ep), now)
		g.rebind.answer(ep, now)
		return
	case benchrig.Foreign, benchrig.OtherContent:
		if g.senders[from.AddrPort()] { // a datagram of the load that was changed, or cut off
			if now >= g.measure {
				g.count.corrupt++
			}
			return
		}
	case benchrig.Mismatch:
		g.rebind.mismatch(ep, now)
	}
	g.errors[name]++
}
