package bench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// updateInterval is the time between ticks of all drivers while they connect.
const updateInterval = 10 * time.Millisecond

// netplay is the shape netcode: a driver of package netcode for each endpoint,
// all in the generator's one goroutine, which owns it. A driver processes a
// datagram when it arrives, so that latency does not include the tick.
type netplay struct {
	cfg     *Config
	rig     *benchrig.Rig
	drivers []player
	addrs   []address.Addr // of endpoints
	headers map[string]int32
	send    func(flow int32, b []byte) error // over the generator's sockets
	epoch   time.Time                        // zero of sock.Now

	queued  []int64 // due times of the messages that drivers have and the kernel has not
	dirty   []int32 // endpoints with something to flush or to receive
	payload []byte
	wire    int // largest datagram
	unsent  uint64

	connected    int
	nextUpdate   int     // driver of keepConnected
	connectStart []int64 // when each player began to connect
	connects     *hdrhistogram.Histogram
	ended        uint64
	up, down     messageStream
}

type messageStream struct {
	Stream
	latency *hdrhistogram.Histogram
}

func (s *messageStream) report() Stream {
	s.LossRatio = lossRatio(s.Delivered, s.Sent)
	s.Latency = newLatency(s.latency, missing(s.Delivered, s.Sent), true)
	return s.Stream
}

// player is an endpoint with its driver: a host with a connection for each player.
type player struct {
	*netcode.Driver
	link  *driverLink
	conns []netcode.Conn
	dirty bool
}

// newNetplay makes the drivers and connects all players. The caller sets send afterwards.
func newNetplay(ctx context.Context, cfg *Config, rig *benchrig.Rig) (*netplay, error) {
	p := &netplay{
		cfg: cfg, rig: rig, headers: make(map[string]int32, len(rig.Flows)),
		drivers: make([]player, len(rig.Endpoints)), connectStart: make([]int64, len(rig.Endpoints)),
		payload:  make([]byte, max(cfg.Payload, cfg.Snapshot)),
		connects: newHistogram(3),
		up:       messageStream{Stream{Bytes: cfg.Payload}, newHistogram(3)},
		down:     messageStream{Stream{Bytes: cfg.Snapshot}, newHistogram(3)},
		epoch:    time.Now().Add(-time.Duration(sock.Now())),
	}
	for ep := range rig.Endpoints {
		p.addrs = append(p.addrs, driverAddr(ep))
		p.drivers[ep].link = &driverLink{play: p, ep: ep, flows: map[address.Addr]int32{}}
	}
	for i := range rig.Flows {
		f := &rig.Flows[i]
		name := p.addressPart(f.Prefix)
		if other, twice := p.headers[string(name)]; twice {
			return nil, fmt.Errorf("%w: the header of flow %d is that of flow %d: the header of this dialect does not identify the sender", ErrConfig, i, other)
		}
		p.headers[string(name)] = int32(i)
		p.drivers[f.From].link.flows[p.addrs[f.To]] = int32(i)
	}
	for ep := range p.drivers {
		if err := p.makeDriver(ep); err != nil {
			return nil, err
		}
	}
	return p, p.connectAll(ctx)
}

func (p *netplay) makeDriver(ep int) (err error) {
	d := &p.drivers[ep]
	cfg := netcode.Config{Link: d.link, MaxConnections: p.cfg.Players, Limits: netcode.Limits{MaxHandshaking: p.cfg.Players}}
	cfg.CommandsPerDatagram = 1 // Datagrams have the size that the configuration says.
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

func (p *netplay) addressPart(header []byte) []byte {
	if p.rig.Sized {
		return header[:max(len(header)-benchrig.SizeLen, 0)]
	}
	return header
}

func (p *netplay) connectAll(ctx context.Context) error {
	p.send = func(flow int32, b []byte) error {
		f := &p.rig.Flows[flow]
		pkt := make([]byte, len(f.Prefix)+len(b))
		copy(pkt[p.rig.PutHeader(pkt, f.Prefix, len(b)):], b)
		return p.rig.SendTo(f.From, f.Dst, pkt)
	}
	for ep := range p.drivers {
		host := p.rig.Plan.Host(ep)
		if ep == host {
			continue
		}
		p.connectStart[ep] = sock.Now()
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
			if now.Sub(swept) >= updateInterval {
				swept = now
				for ep := range p.drivers {
					p.markDirty(int32(ep))
				}
			}
			p.updateDirty(sock.Now(), nil)
			return nil
		},
		func(ep int, _ netip.AddrPort, pkt []byte) {
			p.queueReceived(int32(ep), pkt, sock.Now(), nil)
			p.updateDirty(sock.Now(), nil) // The datagram is valid in this call.
		})
}

func (p *netplay) markDirty(ep int32) {
	if d := &p.drivers[ep]; !d.dirty {
		d.dirty = true
		p.dirty = append(p.dirty, ep)
	}
}

// keepConnected marks some drivers, and with a call each millisecond all within 100 ms, so that
// connections stay while no message is due.
func (p *netplay) keepConnected() {
	for range len(p.drivers)/100 + 1 {
		p.markDirty(int32(p.nextUpdate))
		p.nextUpdate = (p.nextUpdate + 1) % len(p.drivers)
	}
}

func (p *netplay) updateDirty(now int64, g *generator) {
	for _, ep := range p.dirty {
		p.update(ep, now, g)
		p.drivers[ep].dirty = false
		p.drivers[ep].Flush()
	}
	p.dirty = p.dirty[:0]
}

// queueReceived returns false for a datagram of no flow to that endpoint.
func (p *netplay) queueReceived(ep int32, pkt []byte, now int64, g *generator) bool {
	offset := p.rig.Sockets[p.rig.Endpoints[ep].Socket].Offset
	i, ok := p.headers[string(p.addressPart(pkt[:min(offset, len(pkt))]))]
	if !ok || p.rig.Flows[i].To != int(ep) {
		return false
	}
	l, from := p.drivers[ep].link, int32(p.rig.Flows[i].From)
	if slices.ContainsFunc(l.in, func(d inbound) bool { return d.from == from }) {
		p.update(ep, now, g) // one Update returns only the newest message
	}
	l.in = append(l.in, inbound{from, pkt[offset:]})
	p.markDirty(ep)
	return true
}

// update is half a tick of a driver. g is nil while the players connect.
func (p *netplay) update(ep int32, now int64, g *generator) {
	d := &p.drivers[ep]
	_ = d.Update(p.epoch.Add(time.Duration(now))) // a driverLink does not fail
	for _, ev := range d.Events() {
		switch ev.State {
		case netcode.StateConnected:
			p.recordConnected(ep, ev, now)
		case netcode.StateDisconnected:
			p.ended++
			if g != nil {
				g.recorder.errors["connection ended: "+ev.Reason.String()]++
			}
		}
	}
	if g == nil {
		return
	}
	for _, c := range d.conns {
		for command := range c.Commands() {
			p.accountMessage(g, ep, command.Data, now)
		}
		if _, body, ok := c.Snapshot(); ok {
			p.accountMessage(g, ep, body, now)
		}
	}
}

func (p *netplay) recordConnected(ep int32, ev netcode.Event, now int64) {
	p.connected++
	ev.Conn.SetInGame(true)
	host := p.rig.Plan.Host(int(ep))
	if int(ep) != host {
		record(p.connects, now-p.connectStart[ep])
		return
	}
	at, _ := ev.Conn.Remote()
	flow := p.rig.Flows[p.drivers[ep].link.flows[at]]
	p.drivers[ep].conns[flow.To-host] = ev.Conn
}

func (p *netplay) stream(link *benchrig.Flow) *messageStream {
	if p.rig.Plan.Host(link.From) == link.From {
		return &p.down
	}
	return &p.up
}

func (p *netplay) queueMessage(g *generator, i int, due int64) {
	f, link := &g.flows[i], &p.rig.Flows[i]
	stream, conns := p.stream(link), p.drivers[link.From].conns
	body := p.payload[:stream.Bytes]
	s := stamp{run: g.run, flow: uint32(i), seq: f.seq, due: due}
	s.put(body)
	var err error
	if stream == &p.down {
		err = conns[link.To-link.From].SendSnapshot(f.seq+1, body)
	} else {
		err = conns[0].SendCommand(f.seq+1, body)
	}
	if err != nil { // its connection has ended, which update counts
		p.unsent++
		return
	}
	f.seq++
	g.recorder.expectDelivery(f.to, due)
	stream.Sent += g.recorder.measured(due)
	p.markDirty(int32(link.From))
	p.queued = append(p.queued, due)
}

func (p *netplay) accountMessage(g *generator, ep int32, body []byte, now int64) {
	st, ok := parseStamp(body)
	if !ok || st.run != g.run || int(st.flow) >= len(g.flows) {
		g.recorder.errors["message of nobody"]++
		return
	}
	f, link := &g.flows[st.flow], &p.rig.Flows[st.flow]
	stream := p.stream(link)
	switch {
	case link.To != int(ep):
		g.recorder.count.misdelivered += g.recorder.measured(st.due)
	case len(body) != stream.Bytes:
		g.recorder.count.corrupt += g.recorder.measured(st.due)
	case g.account(f, &st, now) && g.recorder.measured(st.due) == 1:
		stream.Delivered++
		record(stream.latency, now-st.due)
	}
}

// countQueued counts the messages of this round, once the kernel has them.
func (p *netplay) countQueued(r *recorder) {
	now := sock.Now()
	for _, due := range p.queued {
		r.recordMessage(due, now)
	}
	p.queued = p.queued[:0]
}

func (p *netplay) report() *Netcode {
	n := &Netcode{
		Players: p.cfg.Matches * p.cfg.Players, Connect: newLatency(p.connects, 0, true), Ended: p.ended, Unsaid: p.unsent,
		TickRate: p.cfg.Rate / float64(len(p.rig.Flows)), Commands: p.up.report(), Snapshots: p.down.report(),
	}
	for ep := range p.drivers {
		st := p.drivers[ep].link.stats
		n.Datagrams += st.Sent
		n.DatagramBytes += st.SentBytes
		for c := range p.drivers[ep].Conns() {
			st, _ := c.Stats()
			n.Late += st.Dropped // too old
			if p.rig.Plan.Host(ep) != ep {
				n.Late += st.Late // after a newer snapshot
			}
			n.Resent += st.Resent
		}
	}
	return n
}
