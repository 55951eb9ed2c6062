package lab

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ErrProxy is wrapped by errors about a ProxyConfig.
var ErrProxy = errors.New("lab: invalid proxy configuration")

// ProxyConfig configures a Proxy.
type ProxyConfig struct {
	// Target is the relay. Required.
	Target netip.AddrPort
	// Listen opens the socket that players send to. Nil: a free port on 127.0.0.1.
	Listen func() (*net.UDPConn, error)
	// Dial opens a socket towards the relay, one per player and mapping. Nil: a
	// free port on 127.0.0.1.
	Dial func() (*net.UDPConn, error)
	// Up are the faults from players to the relay, Down those from the relay.
	Up, Down Faults
	// Seed seeds the faults.
	Seed uint64
	// RemapEvery is the number of a player's datagrams after which it gets
	// another port towards the relay, as after the expiry of a NAT mapping. 0:
	// never.
	RemapEvery int
}

// ProxyStats counts the datagrams of both directions.
type ProxyStats struct {
	Received, Lost, Duplicated, Sent uint64
	Remaps                           uint64 // new ports of players that had one before
	Sessions                         uint64 // players
}

// Proxy is a NAT in user space that drops, duplicates, delays and reorders
// datagrams. The faults of a player's datagrams depend on the seed and on the
// order in which players appear, not on the traffic of other players.
type Proxy struct {
	cfg      ProxyConfig
	listener *net.UDPConn
	closed   chan struct{}
	wake     chan struct{}
	tasks    sync.WaitGroup

	mu       sync.Mutex // guards the following fields
	sessions map[netip.AddrPort]*session
	due      delayQueue
	stats    ProxyStats
	ended    bool
}

// session is one player of a Proxy. The mutex of the Proxy guards it.
type session struct {
	player   netip.AddrPort
	upstream *net.UDPConn // towards the relay; nil makes a new one
	up, down faultGenerator
	mapped   int // datagrams sent through back
}

// NewProxy opens the socket that players send to. Errors about cfg wrap
// ErrProxy.
func NewProxy(cfg ProxyConfig) (*Proxy, error) {
	if !cfg.Target.IsValid() || cfg.RemapEvery < 0 {
		return nil, fmt.Errorf("%w: target %v, remap every %d", ErrProxy, cfg.Target, cfg.RemapEvery)
	}
	local := func() (*net.UDPConn, error) {
		return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	if cfg.Listen == nil {
		cfg.Listen = local
	}
	if cfg.Dial == nil {
		cfg.Dial = local
	}
	front, err := cfg.Listen()
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return &Proxy{
		cfg: cfg, listener: front, closed: make(chan struct{}), wake: make(chan struct{}, 1),
		sessions: make(map[netip.AddrPort]*session),
	}, nil
}

// Addr returns the address that players send to.
func (p *Proxy) Addr() netip.AddrPort { return p.listener.LocalAddr().(*net.UDPAddr).AddrPort() }

// Stats returns the counters.
func (p *Proxy) Stats() ProxyStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Remap gives each player a new port with its next datagram.
func (p *Proxy) Remap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sessions {
		s.closePort(&p.stats)
	}
}

// closePort closes the port towards the relay.
func (s *session) closePort(stats *ProxyStats) {
	if s.upstream != nil {
		s.upstream.Close()
		s.upstream = nil
		stats.Remaps++
	}
	s.mapped = 0
}

// Run forwards datagrams until ctx is done, closes all sockets and waits for
// its goroutines. It can be called once.
func (p *Proxy) Run(ctx context.Context) {
	p.tasks.Go(p.receiveFromPlayers)
	p.tasks.Go(p.deliver)
	<-ctx.Done()
	close(p.closed)
	p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for _, s := range p.sessions {
		if s.upstream != nil {
			s.upstream.Close()
		}
	}
	p.mu.Unlock()
	p.tasks.Wait()
}

// receiveFromPlayers reads the datagrams of all players.
func (p *Proxy) receiveFromPlayers() {
	buf := make([]byte, 2048)
	for {
		n, from, err := p.listener.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.fromPlayer(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buf[:n])
		}
	}
}

func (p *Proxy) fromPlayer(from netip.AddrPort, pkt []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[from]
	if s == nil {
		number := uint32(len(p.sessions))
		s = &session{
			player: from,
			up:     newFaultGenerator(p.cfg.Up, p.cfg.Seed, number, true), down: newFaultGenerator(p.cfg.Down, p.cfg.Seed, number, false),
		}
		p.sessions[from] = s
		p.stats.Sessions++
	}
	if p.cfg.RemapEvery > 0 && s.mapped == p.cfg.RemapEvery {
		s.closePort(&p.stats)
	}
	if s.upstream == nil && !p.open(s) {
		return
	}
	s.mapped++
	p.schedule(s.up, delayedDatagram{conn: s.upstream, to: p.cfg.Target}, pkt)
}

// open opens a port towards the relay for a player. The caller holds the mutex.
func (p *Proxy) open(s *session) bool {
	if p.ended {
		return false
	}
	conn, err := p.cfg.Dial()
	if err != nil {
		return false
	}
	s.upstream = conn
	p.tasks.Go(func() { p.receiveFromRelay(s, conn) })
	return true
}

// receiveFromRelay reads the relay's datagrams to one mapping.
func (p *Proxy) receiveFromRelay(s *session, conn *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) != p.cfg.Target {
			continue
		}
		p.mu.Lock()
		p.schedule(s.down, delayedDatagram{conn: p.listener, to: s.player}, buf[:n])
		p.mu.Unlock()
	}
}

// schedule queues the copies of a datagram that arrive. The caller holds the
// mutex.
func (p *Proxy) schedule(d faultGenerator, to delayedDatagram, pkt []byte) {
	p.stats.Received++
	delays, copies := d.next()
	if copies == 0 {
		p.stats.Lost++
	}
	if copies == 2 {
		p.stats.Duplicated++
	}
	now := time.Now()
	for _, delay := range delays[:copies] {
		to.at, to.pkt = now.Add(delay), append([]byte(nil), pkt...)
		p.due.number++
		to.number = p.due.number
		heap.Push(&p.due, to)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// deliver sends queued datagrams when they are due.
func (p *Proxy) deliver() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(p.flush())
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.closed:
			return
		}
	}
}

// flush sends the datagrams that are due and returns the time until the next
// one is.
func (p *Proxy) flush() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.due.datagrams) > 0 {
		next := p.due.datagrams[0]
		if wait := time.Until(next.at); wait > 0 {
			return wait
		}
		heap.Pop(&p.due)
		// Writing fails if the mapping was closed meanwhile: the datagram is lost.
		if _, err := next.conn.WriteToUDPAddrPort(next.pkt, next.to); err == nil {
			p.stats.Sent++
		}
	}
	return time.Hour
}

// delayedDatagram is a datagram in flight through a Proxy.
type delayedDatagram struct {
	at     time.Time
	number uint64 // in the order of arrival; orders equal times
	conn   *net.UDPConn
	to     netip.AddrPort
	pkt    []byte
}

// delayQueue is a heap of datagrams by time. The mutex of the Proxy guards it.
type delayQueue struct {
	datagrams []delayedDatagram
	number    uint64
}

// Len implements heap.Interface.
func (q *delayQueue) Len() int { return len(q.datagrams) }

// Less implements heap.Interface.
func (q *delayQueue) Less(i, j int) bool {
	a, b := &q.datagrams[i], &q.datagrams[j]
	if a.at.Equal(b.at) {
		return a.number < b.number
	}
	return a.at.Before(b.at)
}

// Swap implements heap.Interface.
func (q *delayQueue) Swap(i, j int) { q.datagrams[i], q.datagrams[j] = q.datagrams[j], q.datagrams[i] }

// Push implements heap.Interface.
func (q *delayQueue) Push(x any) { q.datagrams = append(q.datagrams, x.(delayedDatagram)) }

// Pop implements heap.Interface.
func (q *delayQueue) Pop() any {
	last := q.datagrams[len(q.datagrams)-1]
	q.datagrams[len(q.datagrams)-1] = delayedDatagram{}
	q.datagrams = q.datagrams[:len(q.datagrams)-1]
	return last
}

// Faults describes the faults of a network in one direction. The zero value is
// a perfect network.
type Faults struct {
	Loss      float64       // share of datagrams that are dropped, 0 to 1
	Duplicate float64       // share that arrives twice, 0 to 1
	Reorder   float64       // share that is held back by ReorderBy, 0 to 1
	ReorderBy time.Duration // 0: 10 ms
	Delay     time.Duration // of every datagram
	Jitter    time.Duration // added to Delay, uniform from 0 to this
}

const defaultReorderBy = 10 * time.Millisecond

// faultGenerator decides the faults of one direction's datagrams in their
// order. It is not safe for concurrent use.
type faultGenerator struct {
	faults Faults
	rng    *rand.Rand
}

// newFaultGenerator returns the generator of a direction. The faults of the
// n-th datagram are a function of seed, session, direction and n alone.
func newFaultGenerator(f Faults, seed uint64, session uint32, up bool) faultGenerator {
	stream := uint64(session) << 1
	if up {
		stream |= 1
	}
	if f.ReorderBy == 0 {
		f.ReorderBy = defaultReorderBy
	}
	return faultGenerator{faults: f, rng: rand.New(rand.NewPCG(seed, stream))}
}

// next returns the number of copies of the next datagram that arrive (0 to 2)
// and their delays. Each call draws the same number of random values, so that
// the sequence does not depend on the configured shares.
func (d faultGenerator) next() (delays [2]time.Duration, copies int) {
	lost := d.rng.Float64() < d.faults.Loss
	twice := d.rng.Float64() < d.faults.Duplicate
	held := d.rng.Float64() < d.faults.Reorder
	jitter := time.Duration(d.rng.Float64() * float64(d.faults.Jitter))
	second := time.Duration(d.rng.Float64() * float64(d.faults.Jitter))
	if lost {
		return delays, 0
	}
	delays[0] = d.faults.Delay + jitter
	if held {
		delays[0] += d.faults.ReorderBy
	}
	copies = 1
	if twice {
		delays[1], copies = d.faults.Delay+second, 2
	}
	return delays, copies
}
