package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/sock"
)

// sweepDrivers is the time between ticks of all drivers while they connect.
const sweepDrivers = 10 * time.Millisecond

// netplay is the shape netcode: a driver of package netcode for each endpoint,
// all in the generator's one goroutine, which owns it. Hosts are servers; each
// flow up carries a command per tick, each flow down a snapshot.
//
// A driver takes what arrives at once, not with its next tick, so that latency
// is that of the way and not of the tick.
type netplay struct {
	cfg     *Config
	rig     *benchrig.Rig
	drivers []player
	addrs   []address.Addr // of endpoints
	headers map[string]int32
	send    func(flow int32, b []byte) error // over the generator's sockets
	epoch   time.Time                        // zero of sock.Now

	said    []said  // in this round, by drivers that have to flush
	dirty   []int32 // endpoints that have something to flush or to take
	payload []byte
	wire    int // largest datagram
	mute    uint64

	connected int
	begun     []int64 // when each player began to connect
	connects  *hdrhistogram.Histogram
	ended     uint64
	up, down  *hdrhistogram.Histogram
	streams   [2]Stream // up, down
}

// player is an endpoint with its driver. conns are those of a host by the place
// of the player, and the one of a player.
type player struct {
	*netcode.Driver
	link  *carrier
	conns []netcode.Conn
	dirty bool
}

// said is a message that was handed to a driver.
type said struct {
	due     int64
	portion *portion
}

// newNetplay makes the drivers. The send function is set afterwards.
func newNetplay(cfg *Config, rig *benchrig.Rig) (*netplay, error) {
	p := &netplay{
		cfg: cfg, rig: rig, headers: make(map[string]int32, len(rig.Flows)),
		drivers: make([]player, len(rig.Endpoints)), begun: make([]int64, len(rig.Endpoints)),
		payload:  make([]byte, max(cfg.Payload, cfg.Snapshot)),
		connects: newHistogram(3), up: newHistogram(3), down: newHistogram(3),
		epoch: time.Now().Add(-time.Duration(sock.Now())),
	}
	for ep := range rig.Endpoints {
		p.addrs = append(p.addrs, addrOf(ep))
		p.drivers[ep].link = &carrier{play: p, ep: ep, flows: map[address.Addr]int32{}}
	}
	for i := range rig.Flows {
		f := &rig.Flows[i]
		name := p.name(f.Prefix)
		if other, twice := p.headers[string(name)]; twice {
			return nil, fmt.Errorf("%w: the header of flow %d is that of flow %d: this dialect does not say who sent a datagram", ErrConfig, i, other)
		}
		p.headers[string(name)] = int32(i)
		p.drivers[f.From].link.flows[p.addrs[f.To]] = int32(i)
	}
	for ep := range p.drivers {
		if err := p.makeDriver(ep); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// newPlay gathers the players of the shape netcode; nil for all others. When ctx
// ends meanwhile, the run has been stopped before anything was measured.
func (b *bed) newPlay(ctx context.Context, cfg *Config) (*netplay, error) {
	if cfg.Shape != ShapeNetcode {
		return nil, nil
	}
	p, err := newNetplay(cfg, b.rig)
	if err != nil {
		return nil, err
	}
	return p, p.gather(ctx)
}

// join gives the generator the players of the shape netcode.
func (g *generator) join(p *netplay) {
	if g.play = p; p != nil {
		p.send = g.carry
	}
}

func (p *netplay) makeDriver(ep int) (err error) {
	d := &p.drivers[ep]
	cfg := netcode.Config{Link: d.link, MaxConnections: p.cfg.Players, MaxHandshaking: p.cfg.Players}
	if p.rig.Plan.Host(ep) != ep {
		d.conns = make([]netcode.Conn, 1)
		d.Driver, err = netcode.NewClient(cfg)
		return err
	}
	d.conns = make([]netcode.Conn, 1+p.cfg.Players)
	if d.Driver, err = netcode.NewServer(cfg); err != nil {
		return err
	}
	return d.Listen(address.Addr{})
}

// name is the part of a header that says who sends to whom.
func (p *netplay) name(header []byte) []byte {
	if p.rig.Sized {
		return header[:max(len(header)-benchrig.SizeLen, 0)]
	}
	return header
}

// gather connects all players with their hosts.
func (p *netplay) gather(ctx context.Context) error {
	p.send = func(flow int32, b []byte) error {
		f := &p.rig.Flows[flow]
		pkt := make([]byte, len(f.Prefix)+len(b))
		p.rig.Wrap(pkt, f.Prefix, b)
		return p.rig.SendTo(f.From, f.Dst, pkt)
	}
	for ep := range p.drivers {
		host := p.rig.Plan.Host(ep)
		if ep == host {
			continue
		}
		p.begun[ep] = sock.Now()
		conn, err := p.drivers[ep].Connect(p.addrs[host])
		if err != nil {
			return err
		}
		p.drivers[ep].conns[0] = conn
	}
	players := p.rig.Plan.Matches * p.rig.Plan.Players
	var swept, moved time.Time
	before := -1
	return p.rig.Await(ctx,
		func() bool { return p.connected == 2*players },
		func(now time.Time) error {
			if p.connected != before {
				before, moved = p.connected, now
			}
			if now.Sub(moved) > benchrig.StallTimeout || p.ended > 0 {
				return fmt.Errorf("bench: %d of %d sides are connected, %d connections have ended", p.connected, 2*players, p.ended)
			}
			if now.Sub(swept) >= sweepDrivers {
				swept = now
				for ep := range p.drivers {
					p.markDirty(int32(ep))
				}
			}
			p.settle(sock.Now(), nil)
			return nil
		},
		func(ep int, _ netip.AddrPort, pkt []byte) {
			p.arrived(int32(ep), pkt, sock.Now(), nil)
			p.settle(sock.Now(), nil) // The datagram is valid in this call.
		})
}

// markDirty notes that a driver has to be seen to in this round.
func (p *netplay) markDirty(ep int32) {
	if d := &p.drivers[ep]; !d.dirty {
		d.dirty = true
		p.dirty = append(p.dirty, ep)
	}
}

// settle lets the drivers that are due take what arrived and send what they have.
func (p *netplay) settle(now int64, g *generator) {
	for _, ep := range p.dirty {
		p.update(ep, now, g)
		p.drivers[ep].dirty = false
		p.drivers[ep].Flush()
	}
	p.dirty = p.dirty[:0]
}

// arrived gives a datagram to its endpoint's driver. It is false for one that is
// none of a flow to that endpoint.
func (p *netplay) arrived(ep int32, pkt []byte, now int64, g *generator) bool {
	offset := p.rig.Sockets[p.rig.Endpoints[ep].Socket].Offset
	i, ok := p.headers[string(p.name(pkt[:min(offset, len(pkt))]))]
	if !ok || p.rig.Flows[i].To != int(ep) {
		return false
	}
	l, from := p.drivers[ep].link, int32(p.rig.Flows[i].From)
	if l.waits(from) {
		p.update(ep, now, g) // Of two messages in one Update the older would not be seen.
	}
	l.in = append(l.in, inbound{from, pkt[offset:]})
	p.markDirty(ep)
	return true
}

// update makes the first half of a tick of one driver. g is nil while the
// players gather.
func (p *netplay) update(ep int32, now int64, g *generator) {
	d := &p.drivers[ep]
	_ = d.Update(p.epoch.Add(time.Duration(now))) // A carrier does not end.
	for _, ev := range d.ConnectionEventsForTick() {
		switch ev.State {
		case netcode.StateConnected:
			p.enter(ep, ev, now)
		case netcode.StateDisconnected:
			p.ended++
			if g != nil {
				g.errors["connection ended: "+ev.Reason.String()]++
			}
		}
	}
	if g == nil {
		return
	}
	for _, c := range d.conns {
		_, body, ok := c.Command()
		if !ok {
			_, body, ok = c.Snapshot()
		}
		if ok {
			p.heard(g, ep, body, now)
		}
	}
}

// enter takes a side that is connected.
func (p *netplay) enter(ep int32, ev netcode.ConnectionEvent, now int64) {
	p.connected++
	ev.Conn.SetInGame(true)
	host := p.rig.Plan.Host(int(ep))
	if int(ep) != host {
		record(p.connects, now-p.begun[ep])
		return
	}
	at, _ := ev.Conn.Remote()
	flow := p.rig.Flows[p.drivers[ep].link.flows[at]]
	p.drivers[ep].conns[flow.To-host] = ev.Conn
}

// say hands the next message of a flow to its driver.
func (p *netplay) say(g *generator, i int, due int64) {
	f, link := &g.flows[i], &p.rig.Flows[i]
	host := p.rig.Plan.Host(link.From)
	down := link.From == host
	size, conn := p.cfg.Payload, p.drivers[link.From].conns[0]
	if down {
		size, conn = p.cfg.Snapshot, p.drivers[link.From].conns[link.To-host]
	}
	body := p.payload[:size]
	s := stamp{run: g.run, flow: uint32(i), seq: f.seq, due: due}
	s.put(body)
	var err error
	if down {
		err = conn.SendSnapshot(f.seq+1, body)
	} else {
		err = conn.SendCommand(f.seq+1, body)
	}
	if err != nil { // Its connection has ended, which is told by then.
		p.mute++
		return
	}
	f.seq++
	stream := &p.streams[0]
	if down {
		stream = &p.streams[1]
	}
	stream.Sent += g.measured(due)
	p.markDirty(int32(link.From))
	p.said = append(p.said, said{due, g.portionOf(due)})
}

// heard takes a message that a driver has let through.
func (p *netplay) heard(g *generator, ep int32, body []byte, now int64) {
	st, ok := parseStamp(body)
	if !ok || st.run != g.run || int(st.flow) >= len(g.flows) {
		g.errors["message of nobody"]++
		return
	}
	f, link := &g.flows[st.flow], &p.rig.Flows[st.flow]
	host := link.From == p.rig.Plan.Host(link.From)
	size, stream, latency := p.cfg.Payload, &p.streams[0], p.up
	if host {
		size, stream, latency = p.cfg.Snapshot, &p.streams[1], p.down
	}
	switch {
	case link.To != int(ep):
		g.count.misdelivered += g.measured(st.due)
	case len(body) != size:
		g.count.corrupt += g.measured(st.due)
	case g.account(f, &st, now) && g.measured(st.due) == 1:
		stream.Delivered++
		record(latency, now-st.due)
	}
}

// sendPlay hands the messages that are due to their drivers, and what those make
// of them to the batches.
func (g *generator) sendPlay(now int64) int {
	p := g.play
	n := 0
	for ; n < burst; n++ {
		due := g.sched.due(g.tick, g.turn)
		if due > now || due >= g.end {
			break
		}
		p.say(g, g.turn, due)
		if g.turn++; g.turn == len(g.flows) {
			g.turn = 0
			g.tick++
			p.settle(now, g) // Of two messages of a flow in one Flush only the newer leaves.
		}
	}
	p.settle(now, g)
	return n
}

// spoken counts the messages of this round, once they are with the kernel.
func (g *generator) spoken() {
	p := g.play
	now := sock.Now()
	for _, s := range p.said {
		g.count.allQueued++
		g.now.sent++
		if s.portion != nil {
			s.portion.queued++
			record(s.portion.lag, now-s.due)
		}
	}
	p.said = p.said[:0]
}

// carry puts a datagram of a driver into the batch of its socket.
func (g *generator) carry(i int32, b []byte) error {
	f := &g.flows[i]
	o := &g.out[f.socket]
	if o.batch.Len() == len(o.bufs) {
		g.flush(o)
	}
	buf := o.bufs[o.used][:len(f.prefix)+len(b)]
	g.rig.Wrap(buf, f.prefix, b)
	o.batch.Add(f.dst, buf)
	o.used++
	g.keep.spoke(f.from, sock.Now())
	return nil
}

// carried counts a batch of what drivers sent, keep-alives among it.
func (g *generator) carried(n, failed int) {
	if g.measured(sock.Now()) == 1 {
		g.count.sendCalls++
		g.count.sendEntries += uint64(n)
	}
	if failed > 0 {
		g.errors["datagram refused by the generator's kernel"] += uint64(failed)
	}
}

// takePlay accounts for the n datagrams of a batch, all of which arrived at now.
func (g *generator) takePlay(s *benchrig.Socket, n int, now int64) {
	for i := range n {
		to, pkt, truncated := s.RecvBatch.At(i)
		ep := s.Owner(to.Local())
		switch {
		case truncated:
			g.errors["datagram that was cut off"]++
		case ep < 0 || !g.play.arrived(ep, pkt, now, g):
			g.explain(pkt, false, ep, now)
		default:
			g.count.arrived++
		}
	}
	g.play.settle(now, g)
}

// latecomers counts messages that came after a newer one, which games do not see.
func (p *netplay) latecomers() (late, resent uint64) {
	for ep := range p.drivers {
		for c := range p.drivers[ep].Conns() {
			st, _ := c.Stats()
			late += st.Late + st.Replaced
			resent += st.Transport.Resent
		}
	}
	return late, resent
}

// report is what became of the shape.
func (p *netplay) report(g *generator) *Netcode {
	n := &Netcode{Players: p.cfg.Matches * p.cfg.Players, Connect: summarise(p.connects, true), Ended: p.ended, Unsaid: p.mute}
	n.TickRate = p.cfg.Rate / float64(len(g.flows))
	n.Commands, n.Snapshots = p.streams[0], p.streams[1]
	n.Commands.Bytes, n.Snapshots.Bytes = p.cfg.Payload, p.cfg.Snapshot
	for _, s := range []*Stream{&n.Commands, &n.Snapshots} {
		s.LossRatio = ratio(s.Sent-min(s.Delivered, s.Sent), s.Sent)
	}
	n.Commands.Latency, n.Snapshots.Latency = summarise(p.up, true), summarise(p.down, true)
	for ep := range p.drivers {
		st := p.drivers[ep].link.stats
		n.Datagrams += st.Sent
		n.DatagramBytes += st.SentBytes
	}
	n.Late, n.Resent = p.latecomers()
	return n
}
