package bench

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

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
	rig   *Rig
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

func newGenerator(cfg *Config, rig *Rig, run uint32) *generator {
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
		size = max(size, len(f.Prefix)+cfg.Payload+rig.overhead(f.From))
	}
	if cfg.Shape == ShapeNetcode {
		size = MaxDatagram
	}
	for _, s := range rig.Sockets {
		g.out = append(g.out, newOutgoing(s, cfg.Batch, size))
	}
	g.dropped = g.drops()
	g.timetable()
	g.loop = newCredits(len(g.flows), cfg.Window)
	g.keep = newKeeper(rig, cfg.Keepalive)
	if cfg.Rate > 0 {
		g.sched = newSchedule(g.start, cfg.Rate, rig.plan.Flows)
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
