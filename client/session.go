package client

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Session is one allocation bound to a relay. Run's goroutine sends everything
// that is due, a second one reads; all calls may come from any goroutine.
type Session struct {
	cfg       Config
	own       proto.AllocationID
	host      bool             // the role; a joiner otherwise
	servers   []netip.AddrPort // the relay's endpoints, in the order of their turns
	localAddr net.Addr         // Addr of own, boxed once
	log       *slog.Logger
	start     time.Time // zero of the session's clock

	conn         atomic.Pointer[socket] // replaced by Roam and by turnServer, under mu
	bound        atomic.Bool            // a BIND was confirmed at some time
	lastReceived atomic.Int64           // when the relay last sent a valid message
	lost         atomic.Pointer[Peer]   // the host whose link was lost, until the next Connect
	resumed      atomic.Int64           // when it was heard again after a silence
	counters     counters

	kicked     chan struct{} // something became due before its time
	acceptable chan struct{} // a peer may be waiting for Accept
	readable   chan struct{} // a datagram may be waiting for ReadFrom
	done       chan struct{} // closed when err is set
	stopped    chan struct{} // closed when Run returns
	leaveOnce  sync.Once
	packets    *packetConn

	mu       sync.Mutex // guards everything below
	err      error      // why the session ended
	running  bool
	parting  bool // the session is closing: nothing else is sent or handled
	packeted bool // PacketConn was asked for
	bind     binding
	connect  connecting
	ping     pinger
	peers    map[proto.AllocationID]*Peer
	leaving  int     // peers whose DISCONNECT is not confirmed yet
	accept   []*Peer // learned and not accepted yet, oldest first
	ready    peerList
	spare    []*datagram // empty buffers
	signer   proto.Signer
}

// socket is a local socket and the endpoint of the relay with which it talks. It does not change.
type socket struct {
	Conn
	server netip.AddrPort
	turn   int // index of server in Session.servers
}

// New checks the configuration and opens the local socket. Nothing is sent and
// nothing runs before Run; a session that is never run has to be closed.
// Errors wrap ErrConfig or are the system's.
func New(cfg Config) (*Session, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Session{
		cfg:        cfg,
		own:        cfg.Ticket.ID,
		host:       len(cfg.Ticket.HostConnectionData) == 0,
		servers:    cfg.Ticket.servers(),
		localAddr:  Addr{cfg.Ticket.ID},
		log:        cfg.Logger.With("allocation", cfg.Ticket.ID.String()),
		start:      time.Now(),
		kicked:     make(chan struct{}, 1),
		acceptable: make(chan struct{}, 1),
		readable:   make(chan struct{}, 1),
		done:       make(chan struct{}),
		stopped:    make(chan struct{}),
		bind:       newBinding(cfg.FirstNonce),
		peers:      make(map[proto.AllocationID]*Peer),
	}
	s.packets = newPacketConn(s)
	conn, err := s.firstSocket()
	if err != nil {
		return nil, err
	}
	s.conn.Store(conn)
	return s, nil
}

// firstSocket returns the configured socket, or opens one to the first endpoint for whose
// family there is one.
func (s *Session) firstSocket() (conn *socket, err error) {
	if s.cfg.Conn != nil {
		s.cfg.tune(s.cfg.Conn)
		return &socket{Conn: s.cfg.Conn, server: s.servers[0]}, nil
	}
	for turn := range s.servers {
		if conn, err = s.open(turn); err == nil {
			break
		}
	}
	return conn, err
}

// open opens a socket to an endpoint of the relay.
func (s *Session) open(turn int) (*socket, error) {
	conn, err := s.cfg.listen(s.servers[turn])
	if err != nil {
		return nil, err
	}
	s.cfg.tune(conn)
	return &socket{Conn: conn, server: s.servers[turn], turn: turn}, nil
}

// ID returns the session's own allocation.
func (s *Session) ID() proto.AllocationID { return s.own }

// LocalAddr returns the address of the present UDP socket, and an invalid one if a [Conn] of the
// caller has another kind of address.
func (s *Session) LocalAddr() netip.AddrPort {
	addr, ok := s.conn.Load().LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return addr.AddrPort()
}

// Run does the session's work until ctx ends or the session does, and returns
// when nothing of it runs any more. When ctx ends, it leaves as Close does.
//
// It returns nil after Close, ctx.Err() when ctx ended, and otherwise the
// reason: EndedError, ErrBindTimeout, ErrNonceExhausted or an error of the socket.
func (s *Session) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.running {
		s.mu.Unlock()
		return ErrRunning
	}
	s.running = true
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

// control sends what is due until the session ends, which is false, or ctx
// does, which is true.
func (s *Session) control(ctx context.Context) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	buf := make([]byte, 0, proto.MaxBindLen)
	for {
		timer.Reset(s.flush(buf))
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

// flush sends everything that is due and returns the time until the next.
func (s *Session) flush(buf []byte) time.Duration {
	for {
		pkt, wait := s.due(s.now(), buf)
		if len(pkt) == 0 {
			return wait
		}
		s.transmit(pkt)
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
	for _, step := range dueSteps {
		pkt, at := step(s, now, buf)
		if len(pkt) > 0 || s.err != nil {
			return pkt, 0
		}
		next = min(next, at)
	}
	return nil, time.Duration(next - now)
}

var dueSteps = [...]func(*Session, int64, []byte) ([]byte, int64){
	(*Session).dueBind, (*Session).dueDisconnect, (*Session).dueConnect, (*Session).duePing,
}

// now returns the session's clock in nanoseconds.
func (s *Session) now() int64 { return int64(time.Since(s.start)) }

// transmit sends one datagram to the relay. One that the system refuses is a
// lost one: networks come and go, and every request is repeated.
func (s *Session) transmit(pkt []byte) bool {
	conn := s.conn.Load()
	if _, err := conn.WriteToUDPAddrPort(pkt, conn.server); err != nil {
		s.counters.unsent.Add(1)
		return false
	}
	return true
}

// kick makes Run's goroutine look for what is due.
func (s *Session) kick() { signal(s.kicked) }

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
	_ = s.conn.Load().Close()
	s.packets.deadline.stop()
	for _, p := range s.peers {
		p.deadline.stop()
	}
}

// hasEnded reports whether the session has ended.
func (s *Session) hasEnded() bool { return isClosed(s.done) }
