package websocket

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// corkSize is the most bytes of frames in one write.
	corkSize = 16 << 10
	// recordSize is the most bytes of frames in one TLS record of several frames for a client that
	// may not be a browser. Unity's native client decrypts into a buffer of 2,944 bytes. When that is full it
	// drops ciphertext, and the MAC of the next record is then wrong.
	recordSize = 1400
	maxFrame   = 4 + maxMessage
)

// errFlood is returned by a read of a client that sends too much besides messages.
var errFlood = errors.New("websocket: too much besides messages")

// socket has a timeout for each write and a limit of what it reads. While it is corked it
// buffers writes, so that several frames leave in one system call. The WebSocket library
// writes whole frames to it, from the conn's writer and, for pongs, from its reader.
type socket struct {
	net.Conn
	timeout time.Duration
	limit   int        // bytes of several frames in one write, at most corkSize
	buffers *sync.Pool // of *[corkSize]byte

	overhead atomic.Int64 // bytes that may be read; the reader of messages adds those of messages

	mu       sync.Mutex      // guards what follows, and orders writes
	corked   *[corkSize]byte // nil while the socket is not corked
	buffered int             // bytes

	deadlines     sync.Mutex // guards finalDeadline
	finalDeadline time.Time  // of all reads and writes; zero: none
}

// Read reads, at most maxOverhead bytes ahead of the messages. The WebSocket library handles
// frames without content in a loop of its own, which only an error ends.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.overhead.Add(-int64(n)) < 0 {
		return 0, errFlood
	}
	return n, err
}

// takeControl charges a ping or a pong, and reports whether a ping may be answered.
func (s *socket) takeControl() bool { return s.overhead.Add(-controlOverhead) >= 0 }

func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.corked == nil {
		return s.write(p)
	}
	if s.buffered+len(p) > s.limit {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > s.limit {
		return s.write(p)
	}
	s.buffered += copy(s.corked[s.buffered:], p)
	return len(p), nil
}

func (s *socket) cork() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.corked = s.buffers.Get().(*[corkSize]byte)
}

func (s *socket) uncork() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.flush()
	s.buffers.Put(s.corked)
	s.corked = nil
	return err
}

func (s *socket) flush() error {
	if s.buffered == 0 {
		return nil
	}
	_, err := s.write(s.corked[:s.buffered])
	s.buffered = 0
	return err
}

func (s *socket) write(p []byte) (int, error) {
	if err := s.setWriteDeadline(); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// Close first writes what is buffered, such as the answer to a client's close frame, unless
// another write is in progress or the final deadline has passed.
func (s *socket) Close() error {
	if s.isPastDeadline() {
		s.abort()
		return nil
	}
	if s.mu.TryLock() {
		_ = s.flush() // The connection is closed in any case.
		s.mu.Unlock()
	}
	return s.Conn.Close()
}

func (s *socket) setWriteDeadline() error {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	end := time.Now().Add(s.timeout)
	if !s.finalDeadline.IsZero() && s.finalDeadline.Before(end) {
		end = s.finalDeadline
	}
	return s.Conn.SetWriteDeadline(end)
}

// setFinalDeadline also affects reads and writes in progress. It does not block.
func (s *socket) setFinalDeadline(deadline time.Time) {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	s.finalDeadline = deadline
	_ = s.Conn.SetDeadline(deadline) // It fails only on a closed connection.
}

func (s *socket) isPastDeadline() bool {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	return !s.finalDeadline.IsZero() && !time.Now().Before(s.finalDeadline)
}

// abort resets the connection, so that the kernel frees its buffers, without the close_notify
// of TLS, which could block.
func (s *socket) abort() {
	for conn := s.Conn; conn != nil; conn = innerConn(conn) {
		if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
			_ = tcp.SetLinger(0)
		}
	}
	if inner := innerConn(s.Conn); inner != nil {
		_ = inner.Close()
	}
	_ = s.Conn.Close()
}

func (s *socket) setSendBuffer(bytes int) {
	for conn := s.Conn; conn != nil; conn = innerConn(conn) {
		if tcp, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
			_ = tcp.SetWriteBuffer(bytes) // The kernel's default works as well.
		}
	}
}

func innerConn(conn net.Conn) net.Conn {
	if outer, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return outer.NetConn()
	}
	return nil
}
