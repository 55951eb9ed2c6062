package sock

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

type RetryConfig struct {
	// OnError is called with each error of accept(2) that passes, up to some 4 a second,
	// and OnRecover with the first connection after one. The goroutine that calls Accept
	// calls them; they must not block. Nil: not called.
	OnError   func(error)
	OnRecover func()
	// Reserve keeps a descriptor for one connection at a time while the process has no
	// other: see [RetryListener].
	Reserve bool
}

// RetryListener accepts connections of a listener, and goes on after errors such as EMFILE,
// which net/http would take for the end of the listener, or log for each attempt. It waits
// between two attempts.
//
// With RetryConfig.Reserve a connection that arrives when the process has no descriptor gets
// the reserved one. [IsReserved] reports that; the connection should be closed after one
// answer, and is after reservedTimeout.
type RetryListener struct {
	*net.TCPListener
	conf   RetryConfig
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex // guards what follows
	spare *os.File   // nil: in use, or none
}

const (
	// The wait after an error is doubled up to the longest.
	retryFirst, retryLongest = 5 * time.Millisecond, 250 * time.Millisecond
	reservedTimeout          = 10 * time.Second
)

// NewRetryListener returns a listener that owns l.
func NewRetryListener(l *net.TCPListener, c RetryConfig) *RetryListener {
	r := &RetryListener{TCPListener: l, conf: c, closed: make(chan struct{})}
	r.refill()
	return r
}

// Accept returns the next connection. Its error is that of a closed listener.
func (r *RetryListener) Accept() (net.Conn, error) {
	return r.accept(func() (net.Conn, error) { return r.TCPListener.Accept() }, r.acceptReserved)
}

func (r *RetryListener) accept(next func() (net.Conn, error), reserved func() net.Conn) (net.Conn, error) {
	for wait := retryFirst; ; wait = min(2*wait, retryLongest) {
		conn, err := next()
		if err == nil {
			r.refill()
			if wait > retryFirst && r.conf.OnRecover != nil {
				r.conf.OnRecover()
			}
			return conn, nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if r.conf.OnError != nil {
			r.conf.OnError(err)
		}
		if IsDescriptorLimit(err) {
			if conn := reserved(); conn != nil {
				return conn, nil
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-r.closed:
			timer.Stop()
			return nil, net.ErrClosed
		case <-timer.C:
		}
	}
}

// IsDescriptorLimit reports whether the process or the machine has no descriptor left.
func IsDescriptorLimit(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// acceptReserved accepts a connection that waits with the reserved descriptor. It returns
// nil if none waits, or the descriptor is in use.
func (r *RetryListener) acceptReserved() net.Conn {
	r.refill() // Another goroutine may have taken the descriptor at the last attempt.
	if !hasPending(r.TCPListener) || !r.release() {
		return nil
	}
	// It returns at once, unless the client has gone.
	_ = r.SetDeadline(time.Now().Add(retryFirst))
	conn, err := r.TCPListener.Accept()
	_ = r.SetDeadline(time.Time{})
	if err != nil {
		r.refill()
		return nil
	}
	c := &reservedConn{Conn: conn, listener: r}
	c.timer = time.AfterFunc(reservedTimeout, func() { _ = c.Close() })
	return c
}

func (r *RetryListener) release() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spare == nil {
		return false
	}
	_ = r.spare.Close()
	r.spare = nil
	return true
}

func (r *RetryListener) refill() {
	if !r.conf.Reserve {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.closed:
		return
	default:
	}
	if r.spare == nil {
		r.spare, _ = os.Open(os.DevNull) // The next connection tries again.
	}
}

// Close closes the listener. Accept returns.
func (r *RetryListener) Close() error {
	r.once.Do(func() {
		r.mu.Lock()
		close(r.closed)
		r.mu.Unlock()
	})
	r.release()
	return r.TCPListener.Close()
}

type reservedConn struct {
	net.Conn
	listener *RetryListener
	timer    *time.Timer
	once     sync.Once
}

func (c *reservedConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		c.timer.Stop()
		err = c.Conn.Close()
		c.listener.refill()
	})
	return err
}

// IsReserved reports whether a connection has the reserved descriptor of its listener.
func IsReserved(conn net.Conn) bool {
	for {
		switch c := conn.(type) {
		case *reservedConn:
			return true
		case interface{ NetConn() net.Conn }: // TLS
			conn = c.NetConn()
		default:
			return false
		}
	}
}
