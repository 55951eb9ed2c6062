package benchrig

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

const (
	// maxQueued bounds the bytes of a connection that wait in the generator since the
	// kernel's buffer is full. Seconds of a game, and far less than what a relay that does
	// not read keeps in kernel buffers.
	maxQueued = 256 << 10
	// streamBuffer is the room for what was received from a connection, in bytes.
	streamBuffer = 16 << 10
	// maxFrameHeader is the header of a frame from a client with at most 64 KiB.
	maxFrameHeader = 8
)

// Connections is that of package bench.
type Connections struct {
	Ended, Opened, Waited uint64
	WindowClosed          time.Duration
	Retransmitted         uint64
	Backlogged            uint64
}

// Minus returns what happened since before.
func (c Connections) Minus(before Connections) Connections {
	return Connections{
		Ended: c.Ended - before.Ended, Opened: c.Opened - before.Opened, Waited: c.Waited - before.Waited,
		WindowClosed: c.WindowClosed - before.WindowClosed, Retransmitted: c.Retransmitted - before.Retransmitted,
		Backlogged: c.Backlogged - before.Backlogged,
	}
}

// errWouldBlock is what a connection without a datagram returns to crypto/tls, which goes on
// after it.
type errWouldBlock struct{}

func (errWouldBlock) Error() string   { return "nothing has arrived" }
func (errWouldBlock) Timeout() bool   { return true }
func (errWouldBlock) Temporary() bool { return true }

var _ net.Error = errWouldBlock{}

// streamConn is a TCP connection that blocks until adopt, for the handshakes of TLS and of
// WebSocket, and does not from then on: what is written is kept in out.
type streamConn struct {
	*net.TCPConn
	stream *sock.Stream
	out    []byte
}

func (c *streamConn) adopt() (err error) {
	c.stream, err = sock.AdoptStream(c.TCPConn)
	return err
}

func (c *streamConn) Read(b []byte) (int, error) {
	if c.stream == nil {
		return c.TCPConn.Read(b)
	}
	n, err := c.stream.TryRead(b)
	if n == 0 && err == nil {
		err = errWouldBlock{}
	}
	return n, err
}

func (c *streamConn) Write(b []byte) (int, error) {
	if c.stream == nil {
		return c.TCPConn.Write(b)
	}
	c.out = append(c.out, b...)
	return len(b), nil
}

func (c *streamConn) flush() (bool, error) {
	n, err := c.stream.TryWrite(c.out)
	c.out = c.out[:copy(c.out, c.out[n:])]
	return len(c.out) == 0, err
}

// stream is the WebSocket of an endpoint. The library of the handshake would need a goroutine
// for each connection that reads, which takes the generator's processor, so that frames are
// read and written here.
type stream struct {
	conn      *streamConn
	tls       *tls.Conn // nil: ws
	websocket *websocket.Conn
	from      endpoint.Endpoint
	local     netip.AddrPort

	number  int32
	mask    uint32
	in      []byte // received; start to end is not read yet
	start   int
	end     int
	round   uint64 // in which it was last read
	unread  bool   // crypto/tls may have more
	waiting bool   // for room in the kernel's buffer
}

// bytewise is read byte by byte, so that net/http reads nothing beyond its header.
type bytewise struct{ net.Conn }

func (c bytewise) Read(b []byte) (int, error) { return c.Conn.Read(b[:min(len(b), 1)]) }

func dialWebSocket(ctx context.Context, local netip.Addr, server Server, secure bool) (*stream, error) {
	s := &stream{mask: rand.Uint32() | 1}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))}
		c, err := d.DialContext(ctx, "tcp", server.Addr.String())
		if err != nil {
			return nil, err
		}
		tcp := c.(*net.TCPConn)
		s.conn = &streamConn{TCPConn: tcp}
		s.local = tcp.LocalAddr().(*net.TCPAddr).AddrPort()
		return s.conn, nil
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return bytewise{c}, err
	}}
	scheme := "ws"
	if secure {
		scheme = "wss"
		transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s.tls = tls.Client(c, server.tlsConfig())
			if err := s.tls.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return bytewise{s.tls}, nil
		}
	}
	var err error
	s.websocket, _, err = websocket.Dial(ctx, scheme+"://"+server.hostPort()+"/",
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return nil, err
	}
	if err := s.conn.adopt(); err != nil {
		return nil, errors.Join(err, s.websocket.CloseNow())
	}
	s.in = make([]byte, streamBuffer)
	return s, nil
}

func (s *stream) close() error {
	_ = s.websocket.CloseNow() // It closes the adopted connection once more, which is closed already.
	return s.conn.stream.Close()
}

// The opcodes of frames (RFC 6455, section 5.2).
const (
	opText   = 1
	opBinary = 2
	opClose  = 8
	opPing   = 9
	opPong   = 10

	finalFrame = 0x80
	maskedBit  = 0x80
	length16   = 126
	length64   = 127
)

func (s *stream) appendFrame(dst []byte, opcode byte, msg []byte) []byte {
	dst = append(dst, finalFrame|opcode)
	if n := len(msg); n < length16 {
		dst = append(dst, maskedBit|byte(n))
	} else {
		dst = binary.BigEndian.AppendUint16(append(dst, maskedBit|length16), uint16(n))
	}
	s.mask = s.mask*1664525 + 1013904223
	dst = binary.LittleEndian.AppendUint32(dst, s.mask)
	at := len(dst)
	dst = append(dst, msg...)
	rest, wide := dst[at:], uint64(s.mask)<<32|uint64(s.mask)
	for ; len(rest) >= 8; rest = rest[8:] {
		binary.LittleEndian.PutUint64(rest, binary.LittleEndian.Uint64(rest)^wide)
	}
	for i := range rest {
		rest[i] ^= byte(s.mask >> (8 * (i & 3)))
	}
	return dst
}

var errFrame = errors.New("bench: invalid frame of a WebSocket")

func (s *stream) nextFrame() (opcode byte, msg []byte, ok bool, err error) {
	b := s.in[s.start:s.end]
	if len(b) < 2 {
		return 0, nil, false, nil
	}
	opcode = b[0] &^ finalFrame
	size, header := int(b[1]), 2
	if size == length16 {
		if len(b) < 4 {
			return 0, nil, false, nil
		}
		size, header = int(binary.BigEndian.Uint16(b[2:])), 4
	}
	if b[0]&finalFrame == 0 || b[1] >= length64 || header+size > len(s.in) {
		return 0, nil, false, fmt.Errorf("%w: % x", errFrame, b[:2])
	}
	if len(b) < header+size {
		return 0, nil, false, nil
	}
	s.start += header + size
	return opcode, b[header : header+size], true, nil
}

func (s *stream) fill() (full bool, err error) {
	s.end = copy(s.in, s.in[s.start:s.end])
	s.start = 0
	var from io.Reader = s.conn
	if s.tls != nil {
		from = s.tls
	}
	for s.end < len(s.in) {
		n, err := from.Read(s.in[s.end:])
		s.end += n
		switch {
		case errors.Is(err, errWouldBlock{}):
			return false, nil
		case err != nil:
			return false, err
		case s.tls == nil && s.end < len(s.in):
			return false, nil // There was no more.
		}
	}
	return true, nil
}

type streams struct {
	poller   *sock.Poller
	conns    []*stream // by number; nil: not connected
	received []arrivedMessage
	numbers  []int32 // of connections to read
	unread   []int32 // of those that are read without the kernel's word
	ended    []int32 // since the last call of takeEnded
	round    uint64
	frame    []byte
	counts   *Connections // of the rig: of connections that have ended too, but for what the kernel says of live ones
}

type arrivedMessage struct {
	from endpoint.Endpoint
	msg  []byte
}

type streamBatch struct {
	entries []arrivedMessage // from is where it goes to
}

func (b *streamBatch) Add(to endpoint.Endpoint, pkt []byte) bool {
	b.entries = append(b.entries, arrivedMessage{to, pkt})
	return true
}

func (b *streamBatch) Len() int { return len(b.entries) }

func newStreams(n int, counts *Connections) (*streams, error) {
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("bench: WebSockets: %w", err)
	}
	return &streams{poller: poller, conns: make([]*stream, n), frame: make([]byte, 0, maxFrameHeader+MaxDatagram), counts: counts}, nil
}

func (c *streams) attach(number uint16, s *stream, server netip.AddrPort) error {
	s.number, s.from = int32(number), endpoint.UDP(server, number, 0)
	if err := c.poller.AddStream(s.conn.stream, s.number); err != nil {
		return errors.Join(err, s.close())
	}
	c.conns[number] = s
	if s.tls != nil { // The handshake may have read more.
		s.unread, c.unread = true, append(c.unread, s.number)
	}
	return nil
}

func (c *streams) end(s *stream) {
	c.counts.addInfo(s)
	c.counts.Ended++
	_ = s.close()
	c.conns[s.number] = nil
	c.ended = append(c.ended, s.number)
}

func (c *Connections) addInfo(s *stream) {
	i := s.conn.stream.Info()
	c.WindowClosed += i.WindowClosed
	c.Retransmitted += i.Retransmitted
}

func (c *streams) NewBatch(n int) Batch { return &streamBatch{entries: make([]arrivedMessage, 0, n)} }

// Send writes each datagram as a message of its own, as games do. What the kernel has no room
// for waits, up to maxQueued.
func (c *streams) Send(batch Batch) (r SendResult) {
	b := batch.(*streamBatch)
	for _, e := range b.entries {
		s := c.conns[e.from.Local()]
		if s == nil || len(s.conn.out) > maxQueued || !c.write(s, opBinary, e.msg) {
			r.Blocked++
		}
	}
	b.entries = b.entries[:0]
	return r
}

func (c *streams) write(s *stream, opcode byte, msg []byte) bool {
	c.frame = s.appendFrame(c.frame[:0], opcode, msg)
	var err error
	if s.tls != nil {
		_, err = s.tls.Write(c.frame)
	} else {
		_, err = s.conn.Write(c.frame)
	}
	if s.waiting && err == nil {
		c.counts.Waited++
		return true
	}
	if err == nil {
		err = c.flush(s)
		if s.waiting {
			c.counts.Waited++
		}
	}
	if err != nil {
		c.end(s)
	}
	return err == nil
}

func (c *streams) flush(s *stream) error {
	all, err := s.conn.flush()
	if err == nil && s.waiting == all {
		s.waiting = !all
		err = c.poller.AwaitWritable(s.conn.stream, s.number, s.waiting)
	}
	return err
}

func (c *streams) TryRecv() (int, error) {
	c.round++
	c.received = c.received[:0]
	c.numbers = append(c.numbers[:0], c.unread...)
	c.unread = c.unread[:0]
	var err error
	if c.numbers, err = c.poller.Ready(c.numbers); err != nil {
		return 0, err
	}
	for _, n := range c.numbers {
		if s := c.conns[n]; s != nil && s.round != c.round {
			s.round, s.unread = c.round, false
			c.read(s)
		}
	}
	return len(c.received), nil
}

func (c *streams) read(s *stream) {
	var failed error
	if s.waiting {
		failed = c.flush(s)
	}
	full, err := s.fill()
	failed = errors.Join(failed, err)
	if full {
		s.unread, c.unread = true, append(c.unread, s.number)
		if isBacklogged(s.conn.stream) {
			c.counts.Backlogged++
		}
	}
	for {
		opcode, msg, ok, err := s.nextFrame()
		failed = errors.Join(failed, err)
		if !ok {
			break
		}
		switch opcode {
		case opBinary, opText:
			c.received = append(c.received, arrivedMessage{s.from, msg})
		case opPing:
			if failed == nil && !c.write(s, opPong, msg) {
				return
			}
		case opClose:
			failed = io.EOF
		}
	}
	if failed != nil {
		c.end(s)
	}
}

// isBacklogged reports whether the peer has room for little more than nothing, since what has
// arrived was not read. The kernel uses half of the buffer, or more, for its own structures.
func isBacklogged(s *sock.Stream) bool {
	return s.Unread() >= s.ReadBuffer()/4 && s.Info().ReceiveWindow < streamBuffer
}

func (c *streams) At(i int) (endpoint.Endpoint, []byte, bool) {
	return c.received[i].from, c.received[i].msg, false
}

// Drops returns 0: TCP drops nothing.
func (c *streams) Drops() uint64 { return 0 }

func (c *streams) Close() error {
	var errs []error
	for _, s := range c.conns {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	return errors.Join(append(errs, c.poller.Close())...)
}
