package bench

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/engine/sock"
)

// observer reads the counters of processes and machine at both ends of the
// measured interval, and tells of progress. It runs in a goroutine of its own,
// so that the generator does not have to open files while it is being timed.
// Its fields belong to that goroutine until it has ended.
type observer struct {
	g                       *generator
	server, self            [2]processSample
	system                  [2]systemSample
	arrived                 [2]uint64
	before                  systemSample // the run
	told                    int64        // seconds
	measured                bool         // both readings were made
	err                     error
	serverPID, generatorPID int
}

// Run works until done is closed, which has to be after the generator ended, or
// ctx ends.
func (o *observer) Run(ctx context.Context, done <-chan struct{}) {
	if !o.wait(ctx, done, o.g.measure) {
		return
	}
	o.read(0)
	if !o.wait(ctx, done, o.g.end) {
		return
	}
	o.read(1)
	o.measured = true
	o.wait(ctx, done, o.g.stop+int64(time.Second))
}

// wait returns true at the time, which is one of sock.Now, and tells of
// progress meanwhile. It returns false when the run is over before that time:
// a generator that misses nothing ends right after the measured interval.
func (o *observer) wait(ctx context.Context, done <-chan struct{}, until int64) bool {
	const step = int64(100 * time.Millisecond)
	for {
		now := sock.Now()
		if now >= until {
			return true
		}
		pause := until - now
		if o.g.cfg.Progress != nil {
			pause = min(pause, step)
		}
		select {
		case <-ctx.Done():
			return false
		case <-done:
			return sock.Now() >= until
		case <-time.After(time.Duration(pause)):
		}
		o.tell()
	}
}

// tell hands the seconds that are over to Config.Progress.
func (o *observer) tell() {
	if o.g.cfg.Progress == nil {
		return
	}
	for ; o.told < o.g.live.second.Load(); o.told++ {
		o.g.cfg.Progress(o.g.secondAt(int(o.told)))
	}
}

func (o *observer) read(i int) {
	o.arrived[i] = o.g.live.arrived.Load()
	o.system[i] = readSystem()
	// A platform without /proc has nothing to say about this process.
	o.self[i], _ = readProcess(o.generatorPID)
	if o.serverPID == 0 || o.err != nil {
		return
	}
	o.server[i], o.err = readProcess(o.serverPID)
}

// drops counts the datagrams that the kernel has dropped on the sockets of the rig.
func (g *generator) drops() (n uint64) {
	for _, s := range g.rig.Sockets {
		n += s.Conn.Stats().KernelDrops
	}
	return n
}

// secondAt reports on second i, which must be over.
func (g *generator) secondAt(i int) Second {
	s := &g.seconds[i]
	first := g.seconds0()
	from := first + int64(i)*1e9
	sec := Second{
		At:   i - int((g.measure-first)/1e9),
		Sent: s.sent, Delivered: s.delivered, Offered: s.sent,
		P50: quantile(s.latency, 50), P99: quantile(s.latency, 99), Max: quantile(s.latency, 100),
	}
	if g.cfg.Rate > 0 {
		sec.Offered = g.sched.before(min(from+1e9, g.end)) - g.sched.before(min(from, g.end))
	}
	return sec
}

// seconds0 is when the first second began, in ns of sock.Now.
func (g *generator) seconds0() int64 {
	warm := (int64(g.cfg.Warmup) + 1e9 - 1) / 1e9
	return g.measure - warm*1e9
}
