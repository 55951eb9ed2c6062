package bench

import (
	"context"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

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
)

// generator is the loop of the thread that sends and receives. All of it but cancelled, and but what
// its recorder says, belongs to its goroutine while it runs.
type generator struct {
	cfg      *Config
	rig      *benchrig.Rig
	times    phases
	recorder *recorder
	sender   sender
	run      uint32 // in each stamp
	flows    []flow
	relays   map[netip.AddrPort]bool // from which datagrams of the load come

	schedule    schedule     // open loop, else nil
	loop        credits      // closed loop
	binds       binds        // repeated handshakes
	rebind      rebinder     // after a restart of the relay
	reconnector *reconnector // nil over UDP
	keep        keepaliveTimer
	replacer    *replacer // with ReplaceRate, else nil

	nextMaintenance int64
	lastMoved       int64 // the last round that sent or received
	cancelled       atomic.Bool
}

func newGenerator(cfg *Config, rig *benchrig.Rig, run uint32) *generator {
	g := &generator{
		cfg: cfg, rig: rig, run: run, flows: newFlows(rig), relays: map[netip.AddrPort]bool{},
		keep: newKeepaliveTimer(rig, cfg.Keepalive),
	}
	size := 0
	for i := range rig.Flows {
		f := &rig.Flows[i]
		size = max(size, len(f.Prefix)+cfg.Payload+rig.Overhead(f.From))
		g.relays[f.Dst] = true // A relay sends from where it receives.
	}
	g.sender = sender{rig: rig, run: run, flows: g.flows, keep: &g.keep}
	for _, s := range rig.Sockets {
		g.sender.out = append(g.sender.out, newOutgoing(s, rig.Plan.Batch, size))
	}
	g.loop = newCredits(len(g.flows), cfg.Window)
	g.times = newPhases(cfg) // From here on little time may pass.
	from := g.times.start
	if cfg.Shape == shapeIdle {
		from = g.times.measure
	}
	g.schedule = newSchedule(cfg, from, &rig.Plan)
	g.recorder = newRecorder(&g.times, g.schedule, rig)
	g.sender.recorder = g.recorder
	g.reconnector = newReconnector(g)
	g.binds = newBinds(g.times.start, g.times.measure, cfg.BindRate, len(rig.Endpoints))
	return g
}

// Run sends and receives until the end of the run, or of the drain after ctx.
func (g *generator) Run(ctx context.Context) error {
	if g.cfg.Pinned {
		if err := sock.PinThread(g.cfg.CPU); err != nil {
			return err
		}
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	defer context.AfterFunc(ctx, func() { g.cancelled.Store(true) })()
	for {
		done, err := g.round(ctx)
		if err != nil {
			return err
		}
		if done {
			return nil
		}
	}
}

// drainCalm is how long nothing was sent or received in a drain in which rounds wait.
const drainCalm = 100 * time.Millisecond

// round sends what is due and receives what has arrived. It does not wait, as a wake-up
// takes longer than the precision of the schedule, except in a drain where what arrives is late.
func (g *generator) round(ctx context.Context) (done bool, err error) {
	now := sock.Now()
	if g.cancelled.Load() {
		g.times.interrupt(now)
	}
	g.recorder.keepTime(now)
	moved := g.send(now)
	got, err := g.rig.Receive(maxRecvBatches, g.accountBatch)
	if err != nil {
		return true, err
	}
	if now >= g.nextMaintenance {
		g.nextMaintenance = now + maintenanceInterval
		g.runMaintenance(ctx, now)
	}
	g.recorder.endRound(now, moved+got > 0)
	if moved+got > 0 {
		g.lastMoved = now
	} else if now-max(g.lastMoved, g.times.end) > int64(drainCalm) {
		time.Sleep(time.Millisecond)
	}
	return now >= g.times.stop, nil
}

func (g *generator) runMaintenance(ctx context.Context, now int64) {
	g.keep.due(now, g.sendKeepalive)
	if g.rig.Maintain != nil {
		g.rig.Maintain()
	}
	if g.replacer != nil {
		g.replacer.check(now)
	}
	if g.reconnector != nil {
		g.reconnector.reconnect(ctx, now)
	}
	if g.cfg.Window > 0 {
		g.loop.restoreStalled(g.flows, now)
	}
	g.sender.flushAll()
}

func (g *generator) sendKeepalive(ep int) {
	if g.sender.sendKeepalive(ep, sock.Now() < g.times.end) && g.replacer != nil {
		g.replacer.lastActive[ep] = sock.Now()
	}
}

// send queues what is due at now and gives it to the kernel. Nothing is due after
// the measured interval, but late datagrams are sent in the drain.
func (g *generator) send(now int64) int {
	n := 0
	switch {
	case now < g.times.start:
		return 0
	case g.schedule != nil:
		n = g.sendDue(now)
	case g.cfg.Window > 0 && now < g.times.end:
		n = g.sendCredits(now)
	}
	n += g.binds.send(&g.sender, now, g.times.end)
	n += g.rebind.send(&g.sender)
	if g.replacer != nil {
		n += g.replacer.startMatches(now)
	}
	g.sender.flushAll()
	return n
}

func (g *generator) sendDue(now int64) int {
	for n := range burst {
		next := g.schedule.next()
		if next.due > now || next.due >= g.times.end {
			return n
		}
		flow := next.flow
		if g.replacer != nil {
			flow = g.replacer.flowAt(next.flow)
			g.replacer.recordActive(flow, next.due)
		}
		g.sender.queue(flow, next.size, next.due)
		g.schedule.advance()
	}
	return burst
}

func (g *generator) sendCredits(now int64) int {
	for n := range burst {
		i, ok := g.loop.take()
		if !ok {
			return n
		}
		g.flows[i].inFlight++
		g.sender.queue(int(i), g.cfg.Payload, now)
	}
	return burst
}

func (g *generator) accountBatch(socket int32, n int) {
	s, now := g.rig.Sockets[socket], sock.Now()
	for i := range n {
		from, pkt, truncated := s.Conn.At(i)
		g.accountDatagram(socket, s, from, pkt, truncated, now)
	}
}

func (g *generator) accountDatagram(socket int32, s *benchrig.Socket, from endpoint.Endpoint, pkt []byte, truncated bool, now int64) {
	local := from.Local()
	owner := s.Owner(local)
	if owner >= 0 && g.rig.Dialer.Divert(int(owner), pkt) {
		return
	}
	if pkt = g.rig.Decrypt(owner, pkt); pkt != nil {
		g.reconnector.heard(owner, now)
	}
	st, ok := parseStamp(pkt[min(g.rig.Endpoints[max(owner, 0)].Offset, len(pkt)):])
	if !ok || st.run != g.run || int(st.flow) >= len(g.flows) {
		g.countOther(pkt, from, ok, owner, now)
		return
	}
	g.recorder.count.arrived++
	f := &g.flows[st.flow]
	switch {
	case f.arrives != socket || f.local != local:
		g.recorder.count.misdelivered += g.recorder.measured(st.due)
	case truncated || g.cfg.Traffic == "" && len(pkt) != int(f.size), // Traffic has sizes that the check of the stamp covers.
		!g.rig.HasHeader(pkt, f.header):
		g.recorder.count.corrupt += g.recorder.measured(st.due)
	default:
		g.account(f, &st, now)
	}
}

func (g *generator) account(f *flow, st *stamp, now int64) {
	credit := st.seq + 1 - f.window.next
	switch g.recorder.recordArrival(f, st, now) {
	case arrivedInOrder:
	case arrivedReordered:
		credit = 0 // given when it was overtaken
	default:
		return
	}
	if g.cfg.Window > 0 {
		g.loop.creditArrival(f, int32(st.flow), credit, now)
	}
}

// countOther counts a packet that is no datagram of this run.
func (g *generator) countOther(pkt []byte, from endpoint.Endpoint, stamped bool, ep int32, now int64) {
	name := benchrig.Foreign
	switch {
	case stamped:
		name = "straggler"
	case g.rig.Explain != nil:
		name = g.rig.Explain(int(ep), pkt)
	}
	if g.replacer.handleReply(name, ep, now) {
		return
	}
	switch name {
	case "", benchrig.Accepted:
		return
	case benchrig.Alive:
		g.keep.recordAnswer(ep, now)
		return
	case benchrig.Answer:
		g.binds.recordAnswer(int(ep), now)
		g.rebind.answer(ep, now)
		return
	case benchrig.Foreign, benchrig.OtherContent:
		if g.relays[from.AddrPort()] { // a datagram of the load that was changed, or cut off
			if now >= g.times.measure {
				g.recorder.count.corrupt++
			}
			return
		}
	case benchrig.Mismatch:
		g.rebind.mismatch(ep, now)
	}
	g.recorder.errors[name]++
}
