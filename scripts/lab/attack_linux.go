package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// floodInterval is the time between two bursts of a flood.
	floodInterval = time.Millisecond
	// maxBacklog bounds how far behind its schedule a flood catches up; it skips
	// older packets.
	maxBacklog = 50 * time.Millisecond
)

// Spoofer sends datagrams with forged sources from a namespace. It is not safe
// for concurrent use.
type Spoofer struct {
	fd int
}

// NewSpoofer opens a raw socket in a namespace and connects it to one address.
func NewSpoofer(ns Namespace, to netip.Addr) (*Spoofer, error) {
	s := &Spoofer{fd: -1}
	err := ns.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		return unix.Connect(s.fd, &unix.SockaddrInet4{Addr: to.As4()})
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("lab: raw socket: %w", err)
	}
	return s, nil
}

// Send sends one packet of AppendIPv4UDP.
func (s *Spoofer) Send(packet []byte) error {
	_, err := unix.Write(s.fd, packet)
	return err
}

// Close closes the socket. It may be called more than once.
func (s *Spoofer) Close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// FloodResult is the result of Spoofer.Flood.
type FloodResult struct {
	Rate         int // wanted, packets per second
	Sent, Failed uint64
	Elapsed      time.Duration
}

// PerSecond returns the packets sent per second.
func (o FloodResult) PerSecond() float64 { return float64(o.Sent) / o.Elapsed.Seconds() }

// Slow reports whether the generator stayed 5 % or more below the wanted rate: without
// damage the run decides nothing.
func (o FloodResult) Slow() bool { return o.PerSecond() < 0.95*float64(o.Rate) }

// Flood sends rate packets per second until ctx is done. next returns the n-th
// packet and may reuse the buffer of the previous one.
func (s *Spoofer) Flood(ctx context.Context, rate int, next func(n uint64) []byte) (o FloodResult) {
	o.Rate = rate
	begin := time.Now()
	due := begin
	gap := time.Second / time.Duration(rate)
	for ctx.Err() == nil {
		now := time.Now()
		if late := now.Sub(due); late > maxBacklog {
			due = now.Add(-maxBacklog)
		}
		for ; due.Before(now); due = due.Add(gap) {
			if s.Send(next(o.Sent+o.Failed)) != nil {
				o.Failed++
			} else {
				o.Sent++
			}
		}
		time.Sleep(floodInterval)
	}
	o.Elapsed = time.Since(begin)
	return o
}

// Received is what a Counter has received.
type Received struct {
	Datagrams int
	Bytes     int         // of UDP payload
	Largest   int         // payload in bytes
	Types     map[int]int // datagrams by message type; -1: not a message
	Foreign   int         // datagrams whose source is not RelayAddr
}

// Counter receives every UDP datagram that arrives in a namespace for an
// address of a prefix, whether or not a socket is bound there. Its methods may
// be called concurrently.
type Counter struct {
	fd   int
	done sync.WaitGroup

	mu       sync.Mutex // guards the following fields
	received Received
	stop     bool
}

// NewCounter opens a raw socket in a namespace and counts until Close. An
// invalid prefix means every address.
func NewCounter(ns Namespace, to netip.Prefix) (*Counter, error) {
	c := &Counter{fd: -1, received: Received{Types: map[int]int{}}}
	err := ns.Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		return c.prepare(to)
	})
	if err != nil {
		if c.fd >= 0 {
			unix.Close(c.fd)
		}
		return nil, fmt.Errorf("lab: counter: %w", err)
	}
	c.done.Go(c.run)
	return c, nil
}

// prepare installs a filter by destination, so that the kernel does not copy
// the players' traffic to this socket, and sets the receive timeout.
func (c *Counter) prepare(to netip.Prefix) error {
	if to.IsValid() {
		want, mask := to.Masked().Addr().As4(), ^uint32(0)<<(32-to.Bits())
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
			{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(want[:]), Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: 1<<16 - 1},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
			return err
		}
		// What arrived before the filter was there is not counted.
		for buf := make([]byte, 2048); ; {
			if _, _, err := unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT); err == unix.EAGAIN {
				break
			} else if err != nil && err != unix.EINTR {
				return err
			}
		}
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		return err
	}
	return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
}

func (c *Counter) run() {
	buf := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		c.mu.Lock()
		stop := c.stop
		if err == nil && n >= rawOverhead {
			c.received.add(buf[:n])
		}
		c.mu.Unlock()
		if stop {
			unix.Close(c.fd)
			return
		}
	}
}

// add counts one IPv4 packet.
func (h *Received) add(packet []byte) {
	header := int(packet[0]&15) * 4
	if len(packet) < header+udpHeaderLen {
		return
	}
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[12:16])), binary.BigEndian.Uint16(packet[header:]))
	if from != RelayAddr {
		h.Foreign++
		return
	}
	payload := packet[header+udpHeaderLen:]
	h.Datagrams++
	h.Bytes += len(payload)
	h.Largest = max(h.Largest, len(payload))
	kind := -1
	if len(payload) >= 4 && payload[0] == 0xDA && payload[1] == 0x72 {
		kind = int(payload[3])
	}
	h.Types[kind]++
}

// Received returns a copy of the counts.
func (c *Counter) Received() Received {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.received
	h.Types = make(map[int]int, len(c.received.Types))
	for k, n := range c.received.Types {
		h.Types[k] = n
	}
	return h
}

// Close stops the counter and closes its socket. It must be called once.
func (c *Counter) Close() {
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	c.done.Wait()
}

// slowHeader is the start of a slow request; its header never ends.
const slowHeader = "POST /v1/allocate HTTP/1.1\r\nHost: relay.example.org\r\nX-Slow: "

// SlowClients hold connections to an HTTP server and send one byte per second
// over each. A client reconnects when the server closes its connection. The Run
// goroutine owns the connections; Open and Closed may be called concurrently.
type SlowClients struct {
	from  Namespace
	to    netip.AddrPort
	conns []*slowConn

	open   atomic.Int64 // connections open now
	closed atomic.Int64 // connections closed by the server
}

// slowConn is one slow client.
type slowConn struct {
	addr net.TCPAddr
	conn net.Conn // nil: not connected
	sent int      // bytes of the request
}

// NewSlowClients returns n clients. Each source address, counted up from first,
// has perAddress of them. Run opens the connections.
func NewSlowClients(from Namespace, to netip.AddrPort, first netip.Addr, n, perAddress int) *SlowClients {
	s := &SlowClients{from: from, to: to}
	for i := range n {
		if i > 0 && i%perAddress == 0 {
			first = first.Next()
		}
		s.conns = append(s.conns, &slowConn{addr: net.TCPAddr{IP: first.AsSlice()}})
	}
	return s
}

// Open returns the number of open connections.
func (s *SlowClients) Open() int { return int(s.open.Load()) }

// Closed returns how many connections the server has closed so far.
func (s *SlowClients) Closed() int { return int(s.closed.Load()) }

// Run sends bytes until ctx is done and then closes all connections.
func (s *SlowClients) Run(ctx context.Context) {
	defer s.closeAll()
	for ctx.Err() == nil {
		begin := time.Now()
		// One thread in the namespace serves all connections of this round.
		_ = s.from.Do(func() error { s.sendBytes(ctx); return nil })
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(begin.Add(time.Second))):
		}
	}
}

// sendBytes sends one byte over each connection and redials closed ones.
func (s *SlowClients) sendBytes(ctx context.Context) {
	for _, c := range s.conns {
		if ctx.Err() != nil {
			return
		}
		if c.conn == nil {
			c.dial(ctx, s.to)
			if c.conn != nil {
				s.open.Add(1)
			}
			continue
		}
		if c.sendByte() != nil {
			s.close(c)
			s.closed.Add(1)
		}
	}
}

// dial leaves conn nil on failure; the next round tries again.
func (c *slowConn) dial(ctx context.Context, to netip.AddrPort) {
	d := net.Dialer{LocalAddr: &c.addr, Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err == nil {
		c.conn, c.sent = conn, 0
	}
}

func (c *slowConn) sendByte() error {
	b := byte('x')
	if c.sent < len(slowHeader) {
		b = slowHeader[c.sent]
	}
	c.sent++
	_, err := c.conn.Write([]byte{b})
	return err
}

func (s *SlowClients) close(c *slowConn) {
	_ = c.conn.Close()
	c.conn = nil
	s.open.Add(-1)
}

func (s *SlowClients) closeAll() {
	for _, c := range s.conns {
		if c.conn != nil {
			s.close(c)
		}
	}
}
