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

// ErrProxy is wrapped by the errors of NewProxy about its configuration.
var ErrProxy = errors.New("lab: invalid proxy configuration")

// ProxyConfig describes a faulty network between players and a relay.
type ProxyConfig struct {
	// Target is the relay. Required.
	Target netip.AddrPort
	// Listen opens the socket that players send to. Nil: a free port of 127.0.0.1.
	Listen func() (*net.UDPConn, error)
	// Dial opens a socket towards the relay, one per player and mapping. Nil: a
	// free port of 127.0.0.1.
	Dial func() (*net.UDPConn, error)
	// Up are the faults from players to the relay, Down those of the other way.
	Up, Down Faults
	// Seed decides every fault.
	Seed uint64
	// RemapEvery gives a player another port towards the relay after so many of
	// its datagrams, as an address translator does that forgot it. 0: never.
	RemapEvery int
}

// ProxyStats counts what a Proxy did, in datagrams of both directions.
type ProxyStats struct {
	Received, Lost, Duplicated, Sent uint64
	Remaps                           uint64 // ports given to players that had one
	Sessions                         uint64 // players seen
}

// Proxy is a faulty network in user space: an address translator that loses,
// doubles, delays and reorders datagrams as its seed says. What one player's
// datagrams meet does not depend on the other players' if they come in one order.
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

// session is one player of a Proxy, guarded by the lock of it.
type session struct {
	player   netip.AddrPort
	upstream *net.UDPConn // towards the relay; nil makes a new one
	up, down faultGenerator
	mapped   int // datagrams sent through back
}

// NewProxy opens the socket that players send to. The error wraps ErrProxy or
// is that of Listen.
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

// Addr is where players send to.
func (p *Proxy) Addr() netip.AddrPort { return p.listener.LocalAddr().(*net.UDPAddr).AddrPort() }

// Stats returns the counts so far.
func (p *Proxy) Stats() ProxyStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Remap gives every player another port with its next datagram.
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

// Run carries datagrams until ctx ends. No goroutine is left when it returns.
// It can be called once.
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

// players takes what players send.
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

// open gives a player a port. The lock is held.
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

// relay takes what the relay sends to one mapping.
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

// schedule decides a datagram's fate. The lock is held.
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

// deliver sends what is due.
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

// flush sends what is due and returns the time until more is.
func (p *Proxy) flush() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.due.datagrams) > 0 {
		next := p.due.datagrams[0]
		if wait := time.Until(next.at); wait > 0 {
			return wait
		}
		heap.Pop(&p.due)
		// A mapping that has gone meanwhile takes its datagrams with it.
		if _, err := next.conn.WriteToUDPAddrPort(next.pkt, next.to); err == nil {
			p.stats.Sent++
		}
	}
	return time.Hour
}

// parcel is a datagram under way through a Proxy.
type delayedDatagram struct {
	at     time.Time
	number uint64 // in the order of arrival, which decides where times are equal
	conn   *net.UDPConn
	to     netip.AddrPort
	pkt    []byte
}

// queue is a heap of parcels by time; the lock of the Proxy guards it.
type delayQueue struct {
	datagrams []delayedDatagram
	number    uint64
}

// Len is that of heap.Interface.
func (q *delayQueue) Len() int { return len(q.datagrams) }

// Less is that of heap.Interface.
func (q *delayQueue) Less(i, j int) bool {
	a, b := &q.datagrams[i], &q.datagrams[j]
	if a.at.Equal(b.at) {
		return a.number < b.number
	}
	return a.at.Before(b.at)
}

// Swap is that of heap.Interface.
func (q *delayQueue) Swap(i, j int) { q.datagrams[i], q.datagrams[j] = q.datagrams[j], q.datagrams[i] }

// Push is that of heap.Interface.
func (q *delayQueue) Push(x any) { q.datagrams = append(q.datagrams, x.(delayedDatagram)) }

// Pop is that of heap.Interface.
func (q *delayQueue) Pop() any {
	last := q.datagrams[len(q.datagrams)-1]
	q.datagrams[len(q.datagrams)-1] = delayedDatagram{}
	q.datagrams = q.datagrams[:len(q.datagrams)-1]
	return last
}

// Faults describes the faults of a network in one direction. The zero
// value is a perfect network.
type Faults struct {
	Loss      float64       // share of datagrams that vanish, 0 to 1
	Duplicate float64       // share that arrives twice, 0 to 1
	Reorder   float64       // share that is held back by ReorderBy, 0 to 1
	ReorderBy time.Duration // how long; 0: 10 ms
	Delay     time.Duration // of every datagram
	Jitter    time.Duration // added to Delay, uniform from 0 to this
}

const defaultReorderBy = 10 * time.Millisecond

// dice draws the fate of one direction's datagrams in their order. One
// goroutine owns it.
type faultGenerator struct {
	faults Faults
	rng    *rand.Rand
}

// newDice returns the dice of a direction. The fate of its n-th datagram is a
// function of seed, session, direction and n alone.
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

// throw returns after which delays copies of a datagram arrive: none, one or
// two. Each call draws the same number of random values.
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
