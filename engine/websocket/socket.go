package websocket

import (
	"net"
	"sync"
	"time"
)

const (
	// holdSize is how many bytes of frames go into one write.
	holdSize = 16 << 10
	// recordSize is how many bytes of frames go into one write, and so into one
	// record, of TLS, if there is more than one frame. Unity's native client
	// decrypts into a buffer of 2,944 bytes. It drops ciphertext when that is
	// full, and then fails the MAC of the next record.
	recordSize = 1400
	// frameRoom is the room for one frame: a header of four bytes and a message.
	frameRoom = 4 + MaxMessage
)

// socket is a connection whose writes have a time-out each, and can be held
// back so that several frames leave in one system call. The WebSocket library
// writes whole frames to it, from the writer and, for pongs, from the reader.
type socket struct {
	net.Conn
	timeout time.Duration
	limit   int        // bytes of several frames in one write, at most holdSize
	holds   *sync.Pool // of *[holdSize]byte

	mu   sync.Mutex // guards held, and orders writes
	hold *[holdSize]byte
	held int // bytes

	deadlines sync.Mutex // guards until
	until     time.Time  // nothing lasts longer; zero: no limit
}

// Write writes p, or keeps it until release.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold == nil {
		return s.write(p)
	}
	if s.held+len(p) > s.limit {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > s.limit {
		return s.write(p)
	}
	s.held += copy(s.hold[s.held:], p)
	return len(p), nil
}

// holdBack keeps what is written until release is called.
func (s *socket) holdBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = s.holds.Get().(*[holdSize]byte)
}

// release writes what was held back.
func (s *socket) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.flush()
	s.holds.Put(s.hold)
	s.hold = nil
	return err
}

func (s *socket) flush() error {
	if s.held == 0 {
		return nil
	}
	_, err := s.write(s.hold[:s.held])
	s.held = 0
	return err
}

func (s *socket) write(p []byte) (int, error) {
	if err := s.allow(); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// Close closes the connection. What is held back is written before, such as the
// answer to a client's goodbye, unless a write is under way or it is too late.
func (s *socket) Close() error {
	if s.late() {
		s.abort()
		return nil
	}
	if s.mu.TryLock() {
		_ = s.flush() // It was too late then.
		s.mu.Unlock()
	}
	return s.Conn.Close()
}

// allow gives a write its time.
func (s *socket) allow() error {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	end := time.Now().Add(s.timeout)
	if !s.until.IsZero() && s.until.Before(end) {
		end = s.until
	}
	return s.Conn.SetWriteDeadline(end)
}

// finish lets no read or write last longer than until, those under way
// included. It does not block.
func (s *socket) finish(until time.Time) {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	s.until = until
	_ = s.Conn.SetDeadline(until) // A connection that takes no deadline is closed already.
}

// late reports whether finish allows nothing more.
func (s *socket) late() bool {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	return !s.until.IsZero() && !time.Now().Before(s.until)
}

// abort closes the connection with a reset where that is possible, so that the
// kernel keeps nothing of it, and without a last word of TLS, which could block.
func (s *socket) abort() {
	for conn := s.Conn; conn != nil; conn = below(conn) {
		if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
			_ = tcp.SetLinger(0)
		}
	}
	if inner := below(s.Conn); inner != nil {
		_ = inner.Close()
	}
	_ = s.Conn.Close()
}

// setSendBuffer sets the size of the kernel's buffer where that is possible.
func (s *socket) setSendBuffer(bytes int) {
	for conn := s.Conn; conn != nil && bytes > 0; conn = below(conn) {
		if tcp, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
			_ = tcp.SetWriteBuffer(bytes) // The kernel's choice will do as well.
		}
	}
}

// below returns what a connection, of TLS for example, was made of, or nil.
func below(conn net.Conn) net.Conn {
	if outer, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return outer.NetConn()
	}
	return nil
}
