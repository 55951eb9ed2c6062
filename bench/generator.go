package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

const (
	// burst bounds the datagrams that a round sends, so that a generator that
	// is behind still listens.
	burst = 256
	// rounds bounds the batches that a round receives from one socket.
	rounds = 4
	// choreEvery is the time between looks at what need not be exact, in ns.
	choreEvery = int64(time.Millisecond)
	// lead is the time between the start of the generator and the first
	// datagram, in ns.
	lead = int64(20 * time.Millisecond)
)

// generator is the one thread that sends and receives. All fields but live and
// cancelled belong to its goroutine while it runs.
type generator struct {
	cfg   *Config
	rig   *benchrig.Rig
	run   uint32 // in each stamp
	flows []flow
	out   []outgoing // by socket
	plain []byte     // a datagram that is being encrypted

	// The run in time, ns of sock.Now: warm-up, measured interval, drain. The
	// control plane has work from split on. An interrupt brings end and stop
	// forward.
	start, measure, split, end, stop int64
	interrupted                      bool

	sched schedule // open loop
	tick  int64    // of the datagram that is due next
	turn  int      // its flow
	loop  credits  // closed loop
	binds binds    // repeated handshakes
	keep  keeper
	play  *netplay // of the shape netcode, else nil

	count   tally
	dropped uint64 // on the generator's own sockets before the measured interval
	errors  map[string]uint64
	// portions are those before and after split.
	portions [2]portion
	seconds  []second
	now      *second // the current one
	nextSec  int64
	chores   int64 // when they are due next

	live      live
	cancelled atomic.Bool
}

// tally counts. Unless said otherwise, datagrams of the measured interval;
// those sent and delivered are in its portions.
type tally struct {
	duplicated, reordered, late                   uint64
	corrupt, misdelivered                         uint64
	sendCalls, sendEntries, recvCalls, recvSlots  uint64
	busy                                          int64 // ns
	allQueued, allFailed, allDelivered            uint64
	bindsSent, bindsAnswered, keepalives, arrived uint64 // whole run
}

// second is what happened in a second by the clock. It is not written any more
// once live.second is above its index.
type second struct {
	sent, delivered uint64
	latency         *hdrhistogram.Histogram
}

// live is what other goroutines may see of a run under way.
type live struct {
	second  atomic.Int64  // index of the current second
	arrived atomic.Uint64 // datagrams of ours, duplicates included
	sent    atomic.Uint64 // datagrams of ours
}

func newGenerator(cfg *Config, rig *benchrig.Rig, run uint32) *generator {
	g := &generator{
		cfg: cfg, rig: rig, run: run, flows: newFlows(rig),
		errors: map[string]uint64{},
	}
	for i := range g.portions {
		g.portions[i].times = newTimes()
	}
	size := 0
	for i := range rig.Flows {
		f := &rig.Flows[i]
		size = max(size, len(f.Prefix)+cfg.Payload+rig.Overhead(f.From))
	}
	if cfg.Shape == ShapeNetcode {
		size = benchrig.MaxDatagram
	}
	for _, s := range rig.Sockets {
		g.out = append(g.out, newOutgoing(s, cfg.Batch, size))
	}
	g.dropped = g.drops()
	g.timetable()
	g.loop = newCredits(len(g.flows), cfg.Window)
	g.keep = newKeeper(rig, cfg.Keepalive)
	if cfg.Rate > 0 {
		g.sched = newSchedule(g.start, cfg.Rate, rig.Plan.Flows)
	}
	from := g.start
	if cfg.Baseline > 0 {
		from = g.split
	}
	g.binds = newBinds(from, g.split, cfg.BindRate, len(rig.Endpoints))
	return g
}

// timetable fixes the times of the run. Seconds are counted so that one begins
// with the measured interval.
func (g *generator) timetable() {
	warm := (int64(g.cfg.Warmup) + 1e9 - 1) / 1e9
	g.start = sock.Now() + lead
	g.measure = g.start + int64(g.cfg.Warmup)
	g.split = g.measure + int64(g.cfg.Baseline)
	g.end = g.measure + int64(g.cfg.Duration)
	g.stop = g.end + int64(g.cfg.Drain)
	first := g.measure - warm*1e9
	g.seconds = make([]second, (g.stop-first)/1e9+2)
	for i := range g.seconds {
		g.seconds[i].latency = newHistogram(2)
	}
	g.now, g.nextSec = &g.seconds[0], first+1e9
}

// Run sends and receives until the end of the run. When ctx ends, nothing more
// becomes due, and what is under way has the time of the drain to arrive.
func (g *generator) Run(ctx context.Context) error {
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

// round sends what is due and takes what has arrived. It never waits: waking up
// would cost more than the precision that is asked of it.
func (g *generator) round() (done bool, err error) {
	now := sock.Now()
	if g.cancelled.Load() {
		g.interrupt(now)
	}
	g.keepTime(now)
	moved := g.send(now)
	got, err := g.receive()
	if err != nil {
		return true, err
	}
	if now >= g.chores {
		g.chores = now + choreEvery
		g.doChores(now)
	}
	if moved+got > 0 && now >= g.measure && now < g.end {
		g.count.busy += sock.Now() - now
	}
	g.live.arrived.Store(g.count.arrived)
	g.live.sent.Store(g.count.allQueued)
	return g.finished(now), nil
}

// keepTime turns to the next second.
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

// finished reports whether nothing is left to send and nothing is missing, or
// time is up.
func (g *generator) finished(now int64) bool {
	if now >= g.stop {
		return true
	}
	return now >= g.end && g.exhausted() && g.binds.waitsFor == 0 &&
		g.count.allDelivered+g.count.allFailed >= g.count.allQueued
}

// exhausted reports whether all that the schedule has is queued.
func (g *generator) exhausted() bool {
	return (g.cfg.Rate == 0 || g.sched.due(g.tick, g.turn) >= g.end) &&
		(g.binds.rate == 0 || g.binds.due() >= g.end)
}

func (g *generator) doChores(now int64) {
	g.keepAlive(now)
	if g.cfg.Window > 0 {
		g.loop.revive(g.flows, now)
	}
	for i := range g.out {
		g.flush(&g.out[i])
	}
}

// send queues what is due at now, hands it to the kernel, and returns how many
// datagrams that were. Nothing is due any more after the measured interval,
// but what is late is still sent in the drain.
func (g *generator) send(now int64) int {
	n := 0
	switch {
	case now < g.start:
		return 0
	case g.play != nil:
		n = g.sendPlay(now)
	case g.cfg.Rate > 0:
		n = g.sendDue(now)
	case g.cfg.Window > 0 && now < g.end:
		n = g.sendCredits(now)
	}
	if g.binds.rate > 0 {
		n += g.sendBinds(now)
	}
	for i := range g.out {
		if g.out[i].batch.Len() > 0 {
			g.flush(&g.out[i])
		}
	}
	if g.play != nil {
		g.spoken()
	}
	return n
}

// sendDue queues the datagrams of the open loop.
func (g *generator) sendDue(now int64) int {
	for n := range burst {
		due := g.sched.due(g.tick, g.turn)
		if due > now || due >= g.end {
			return n
		}
		g.queue(g.turn, due)
		if g.turn++; g.turn == len(g.flows) {
			g.turn = 0
			g.tick++
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
		g.queue(int(i), now)
	}
	return burst
}

// queue puts the next datagram of a flow into the batch of its socket.
func (g *generator) queue(i int, due int64) {
	f := &g.flows[i]
	o := &g.out[f.socket]
	p := g.portionOf(due)
	if o.batch.Len() == len(o.bufs) || o.load > 0 && p != o.portion {
		g.flush(o)
	}
	buf := o.bufs[o.used][:len(f.prefix)+g.cfg.Payload]
	copy(buf, f.prefix)
	s := stamp{run: g.run, flow: uint32(i), seq: f.seq, due: due}
	s.put(buf[len(f.prefix):])
	if f.cipher != nil {
		buf = g.seal(f, o.bufs[o.used], buf)
	}
	o.batch.Add(f.dst, buf)
	if o.load == 0 {
		o.oldest, o.portion = due, p
	}
	o.used++
	o.load++
	f.seq++
	g.keep.spoke(f.from, due)
}

// flush hands a batch to the kernel.
func (g *generator) flush(o *outgoing) {
	n := o.batch.Len()
	if n == 0 {
		return
	}
	res := o.conn.Send(o.batch)
	g.now.sent += uint64(min(res.Sent, o.load))
	failed := uint64(min(res.Failed, o.load))
	g.count.allQueued += uint64(o.load)
	g.count.allFailed += failed
	if p := o.portion; p != nil && o.load > 0 {
		p.queued += uint64(o.load)
		p.failed += failed
		g.count.sendCalls++
		g.count.sendEntries += uint64(n)
		recordMany(p.lag, sock.Now()-o.oldest, int64(o.load))
	}
	if g.play != nil {
		g.carried(n, res.Failed)
	}
	o.used, o.load, o.portion = 0, 0, nil
}

// add queues a datagram that is none of ours: a keep-alive or a handshake.
func (g *generator) add(ep int, pkt []byte) {
	e := &g.rig.Endpoints[ep]
	o := &g.out[e.Socket]
	if o.batch.Len() == len(o.bufs) {
		g.flush(o)
	}
	o.batch.Add(g.keep.relays[ep], g.rig.Encrypt(ep, pkt))
}

// receive takes what has arrived on all sockets and returns how many datagrams
// that were.
func (g *generator) receive() (int, error) {
	total := 0
	for i, s := range g.rig.Sockets {
		for range rounds {
			n, err := s.Conn.TryRecv(s.RecvBatch)
			if err != nil {
				return total, fmt.Errorf("bench: socket %d: %w", i, err)
			}
			if n == 0 {
				break
			}
			g.take(int32(i), s, n, sock.Now())
			total += n
			if n < g.cfg.Batch {
				break
			}
		}
	}
	return total, nil
}

// take accounts for the n datagrams of a batch, all of which arrived at now.
func (g *generator) take(socket int32, s *benchrig.Socket, n int, now int64) {
	if now >= g.measure && now < g.end {
		g.count.recvCalls++
		g.count.recvSlots += uint64(n)
	}
	if g.play != nil {
		g.takePlay(s, n, now)
		return
	}
	for i := range n {
		to, pkt, truncated := s.RecvBatch.At(i)
		pkt = g.rig.Decrypt(s.Owner(to.Local()), pkt)
		st, ok := parseStamp(pkt[min(s.Offset, len(pkt)):])
		if !ok || st.run != g.run || int(st.flow) >= len(g.flows) {
			g.explain(pkt, ok, s.Owner(to.Local()), now)
			continue
		}
		g.count.arrived++
		f := &g.flows[st.flow]
		switch {
		case f.arrives != socket || f.local != to.Local():
			g.count.misdelivered += g.measured(st.due)
		case truncated || len(pkt) != int(f.size):
			g.count.corrupt += g.measured(st.due)
		default:
			g.account(f, &st, now)
		}
	}
}

// measured is 1 for a datagram of the measured interval and 0 for others.
func (g *generator) measured(due int64) uint64 {
	if g.portionOf(due) != nil {
		return 1
	}
	return 0
}

// account notes the arrival of a datagram where it was meant to arrive, and
// reports whether it was the first of its number.
func (g *generator) account(f *flow, st *stamp, now int64) bool {
	p, one := g.portionOf(st.due), g.measured(st.due)
	credit := st.seq + 1 - f.window.next
	switch f.window.arrive(st.seq, f.seq) {
	case arrivedTwice:
		g.count.duplicated += one
		return false
	case arrivedLate:
		g.count.late += one
		return false
	case arrivedForeign:
		g.count.corrupt += one
		return false
	case arrivedReordered:
		g.count.reordered += one
		credit = 0 // given when it was overtaken
	}
	g.count.allDelivered++
	g.now.delivered++
	record(g.now.latency, now-st.due)
	if p != nil {
		p.delivered++
		record(p.latency, now-st.due)
	}
	if g.cfg.Window > 0 {
		g.loop.heard(f, int32(st.flow), credit, now)
	}
	return true
}

// explain notes what is no datagram of this run and came to endpoint ep. What
// has a stamp is a straggler of an earlier one.
func (g *generator) explain(pkt []byte, stamped bool, ep int32, now int64) {
	name := "foreign"
	switch {
	case stamped:
		name = "straggler"
	case g.rig.Explain != nil:
		name = g.rig.Explain(pkt)
	}
	switch name {
	case "":
	case benchrig.Answer:
		g.count.bindsAnswered++
		g.binds.answered(int(ep), now)
	default:
		g.errors[name]++
	}
}

// keeper knows which endpoints were silent. The generator's goroutine owns it.
type keeper struct {
	after  int64   // ns of silence, 0 = no keep-alives
	spoken []int64 // by endpoint
	relays []endpoint.Endpoint
	cursor int
	looked int64
}

func newKeeper(r *benchrig.Rig, after time.Duration) keeper {
	k := keeper{relays: make([]endpoint.Endpoint, len(r.Endpoints)), spoken: make([]int64, len(r.Endpoints))}
	now := sock.Now()
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		k.relays[i] = endpoint.UDP(e.Relay, e.Local, 0)
		// They spoke at different times, so that their keep-alives are spread.
		k.spoken[i] = now - int64(after)*int64(i)/int64(len(r.Endpoints))
		if e.Keepalive != nil && after > 0 {
			k.after = int64(after)
		}
	}
	k.looked = now
	return k
}

func (k *keeper) spoke(ep int32, now int64) { k.spoken[ep] = now }

// due steps through the endpoints, all of them in an eighth of the time of
// silence, and calls say for those that have to speak.
func (k *keeper) due(now int64, say func(ep int)) {
	if k.after == 0 {
		return
	}
	n := len(k.spoken)
	steps := int(float64(n) * float64(now-k.looked) / float64(k.after/8+1))
	if steps == 0 {
		return
	}
	k.looked = now
	for range min(steps, n) {
		ep := k.cursor
		if k.cursor++; k.cursor == n {
			k.cursor = 0
		}
		if now-k.spoken[ep] >= k.after {
			k.spoken[ep] = now
			say(ep)
		}
	}
}

// keepAlive speaks for the endpoints that were silent too long.
func (g *generator) keepAlive(now int64) {
	g.keep.due(now, g.say)
}

func (g *generator) say(ep int) {
	if pkt := g.rig.Endpoints[ep].Keepalive; pkt != nil {
		g.add(ep, pkt)
		g.count.keepalives++
	}
}
