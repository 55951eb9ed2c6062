package client

import (
	"net/netip"
	"sync/atomic"
)

// transport is the way to the relay: the present socket, and when the relay was heard. Every
// goroutine may use it; the session's lock is held when the socket is replaced.
type transport struct {
	cfg          *Config
	servers      []netip.AddrPort            // the relay's endpoints, in the order of their turns
	socket       atomic.Pointer[socket]      // replaced by Roam and by binding.turnServer
	lastReceived atomic.Int64                // when the relay last sent a valid message
	resumed      atomic.Int64                // when it was heard again after a silence
	unsent       atomic.Uint64               // datagrams that the system refused
	failing      atomic.Pointer[readFailure] // of the present socket; nil: its last read was good
}

// socket is a local socket and the endpoint of the relay with which it talks. It does not change.
type socket struct {
	Conn
	server netip.AddrPort
	turn   int // index of server in transport.servers
}

func (t *transport) first() (conn *socket, err error) {
	if t.cfg.Conn != nil {
		t.cfg.tune(t.cfg.Conn)
		return &socket{Conn: t.cfg.Conn, server: t.servers[0]}, nil
	}
	for turn := range t.servers {
		if conn, err = t.open(turn); err == nil {
			break
		}
	}
	return conn, err
}

func (t *transport) open(turn int) (*socket, error) {
	conn, err := t.cfg.listen(t.servers[turn])
	if err != nil {
		return nil, err
	}
	t.cfg.tune(conn)
	return &socket{Conn: conn, server: t.servers[turn], turn: turn}, nil
}

// transmit sends one datagram to the relay. One that the system refuses is a
// lost one: networks come and go, and every request is repeated.
func (t *transport) transmit(pkt []byte) bool {
	conn := t.socket.Load()
	if _, err := conn.WriteToUDPAddrPort(pkt, conn.server); err != nil {
		t.unsent.Add(1)
		return false
	}
	return true
}

// hear notes that the relay was heard now. Two PINGs without an echo are a silence.
func (t *transport) hear(now int64) {
	if now-t.lastReceived.Swap(now) > 2*int64(t.cfg.PingPeriod) {
		t.resumed.Store(now)
	}
}

// Roam moves the session to a new local socket, as when a phone changes
// networks; Bind waits for it. What was waiting in the old socket is lost.
// After an error of the system all is as it was.
func (s *Session) Roam() error {
	conn, err := s.transport.open(s.transport.socket.Load().turn)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		_ = conn.Close()
		return s.err
	}
	old := s.transport.socket.Swap(conn)
	if s.bind.bound.Load() || s.bind.active {
		now := s.now()
		s.bind.again(now, now)
	}
	err = s.err
	s.mu.Unlock()
	_ = old.Close()
	return err
}
