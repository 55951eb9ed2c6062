package client

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Session is one allocation bound to a relay. Run's goroutine sends everything
// that is due, a second one reads; all calls may come from any goroutine.
type Session struct {
	cfg       Config
	own       proto.AllocationID
	host      bool // the role; a joiner otherwise
	log       *slog.Logger
	start     time.Time // zero of the session's clock
	transport transport
	packets   *packetConn
	counters  counters

	kicked    chan struct{} // something became due before its time
	done      chan struct{} // closed when err is set
	started   chan struct{} // closed when Run begins
	stopped   chan struct{} // closed when Run returns
	leaveOnce sync.Once

	mu      sync.Mutex // guards everything below
	err     error      // why the session ended
	parting bool       // the session is closing: nothing else is sent or handled
	bind    binding
	connect connecting
	ping    pinger
	peers   peerTable
}

// New opens the local socket. Nothing runs before Run; a session that is never
// run has to be closed. Errors wrap ErrConfig or are the system's.
func New(cfg Config) (*Session, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Session{
		cfg:     cfg,
		own:     cfg.Ticket.ID,
		host:    len(cfg.Ticket.HostConnectionData) == 0,
		log:     cfg.Logger.With("allocation", cfg.Ticket.ID.String()),
		start:   time.Now(),
		kicked:  make(chan struct{}, 1),
		done:    make(chan struct{}),
		started: make(chan struct{}),
		stopped: make(chan struct{}),
	}
	s.transport.cfg, s.transport.servers = &s.cfg, cfg.Ticket.servers()
	s.packets = newPacketConn(s)
	s.bind = binding{
		s: s, next: cfg.FirstNonce, last: cfg.FirstNonce, sentAt: math.MinInt64 / 2, confirmed: make(chan struct{}),
	}
	s.connect.s, s.ping.s = s, s
	s.peers = peerTable{s: s, byID: make(map[proto.AllocationID]*Peer), acceptable: make(chan struct{}, 1)}
	conn, err := s.transport.first()
	if err != nil {
		return nil, err
	}
	s.transport.socket.Store(conn)
	return s, nil
}

// ID returns the session's own allocation.
func (s *Session) ID() proto.AllocationID { return s.own }

// LocalAddr returns the address of the present UDP socket, and an invalid one if a [Conn] of the
// caller has another kind of address.
func (s *Session) LocalAddr() netip.AddrPort {
	addr, ok := s.transport.socket.Load().LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return addr.AddrPort()
}

// Run does the session's work until ctx ends or the session does, and returns
// when nothing of it runs any more. When ctx ends, it leaves as Close does.
//
// It returns nil after Close, ctx.Err() when ctx ended, and otherwise the
// reason: EndedError, ErrBindTimeout, ErrInUse, or the error of a socket that
// was closed or has received nothing but errors for a minute.
func (s *Session) Run(ctx context.Context) error {
	s.mu.Lock()
	if isClosed(s.started) {
		s.mu.Unlock()
		return errRunning
	}
	close(s.started)
	s.mu.Unlock()
	defer close(s.stopped)

	var reader sync.WaitGroup
	reader.Go(s.read)
	left := s.control(ctx)
	if left {
		s.leave()
		s.end(net.ErrClosed)
	}
	reader.Wait()
	if left {
		return ctx.Err()
	}
	if err := s.Err(); err != net.ErrClosed {
		return err
	}
	return nil
}

// control sends what is due. It returns true when ctx and not the session ends.
func (s *Session) control(ctx context.Context) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	buf := make([]byte, 0, 295)
	for {
		pkt, wait := s.due(s.now(), buf)
		if len(pkt) > 0 {
			s.transport.transmit(pkt)
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return true
		case <-s.done:
			return false
		case <-s.kicked:
		case <-timer.C:
		}
	}
}

// due appends one datagram that has to be sent now to buf, or returns the time
// until there is one, an hour at most. The order is that of need: without a binding the rest is
// in vain, and a new link waits until the old one is gone.
func (s *Session) due(now int64, buf []byte) ([]byte, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.parting {
		return nil, time.Hour
	}
	next := now + int64(time.Hour)
	for _, step := range [...]func(int64, []byte) ([]byte, int64){
		s.bind.dueBind, s.peers.dueDisconnect, s.connect.dueConnect, s.ping.duePing,
	} {
		pkt, at := step(now, buf)
		if len(pkt) > 0 || s.err != nil {
			return pkt, 0
		}
		next = min(next, at)
	}
	return nil, time.Duration(next - now)
}

// now returns the session's clock in nanoseconds.
func (s *Session) now() int64 { return int64(time.Since(s.start)) }

// Err returns why the session ended: net.ErrClosed after Close or the end of
// Run's context, nil while it lives.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end ends the session for a reason; the first reason counts. A session that has
// begun to close ends without an error, whatever the relay answers.
func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
}

func (s *Session) endLocked(err error) {
	if s.err != nil || s.parting && err != net.ErrClosed {
		return
	}
	s.err = err
	close(s.done)
	_ = s.transport.socket.Load().Close()
	s.packets.deadline.stop()
	for _, p := range s.peers.byID {
		p.deadline.stop()
	}
}
