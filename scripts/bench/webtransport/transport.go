package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/webtransport-go"
)

const (
	window = 64 << 10 // flow control of a connection and of a stream in bytes
	// ringBytes and ringMessages bound what waits for one session.
	ringBytes, ringMessages = 64 << 10, 256

	// batchDelay is the time for which packets of "wt-batch" wait for others.
	batchDelay = time.Millisecond

	bareProtocol = "ferry-bare" // ALPN of datagrams without HTTP/3
)

// quicConfig is that of both sides. A client opens its CONNECT request, three streams of HTTP/3,
// and one for each large message under way.
func quicConfig(c *wireCounts) *quic.Config {
	cfg := &quic.Config{
		EnableDatagrams: true, EnableStreamResetPartialDelivery: true, DisablePathMTUDiscovery: true,
		InitialStreamReceiveWindow: 16 << 10, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: window, MaxConnectionReceiveWindow: window,
		MaxIncomingStreams: 2, MaxIncomingUniStreams: 3 + 8,
		MaxIdleTimeout: 2 * time.Minute, KeepAlivePeriod: 20 * time.Second,
	}
	if c != nil {
		cfg.Tracer = c.tracer
	}
	return cfg
}

// datagrams is a session: a *webtransport.Session, or a *quic.Conn without HTTP/3.
type datagrams interface {
	SendDatagram([]byte) error
	ReceiveDatagram(context.Context) ([]byte, error)
}

// transport is the prototype of a transport over QUIC, with or without HTTP/3 and WebTransport
// above it. It implements [engine.Transport].
type transport struct {
	quic     *quic.Transport
	listener *quic.EarlyListener
	feed     *feed                // nil: quic-go reads the socket
	server   *webtransport.Server // nil: bare datagrams
	in       engine.Intake

	serial   atomic.Uint64
	sessions sync.Map // of *session by serial
	counts   sessionCounts
}

// sessionCounts are what happened to messages between quic-go and the engine.
type sessionCounts struct {
	received  atomic.Uint64 // by quic-go, and passed on by it
	busy      atomic.Uint64 // of these, dropped: the queue of the engine's worker was full
	oldest    atomic.Uint64 // dropped by the ring of a session for newer ones
	handed    atomic.Uint64 // given to quic-go to send
	refused   atomic.Uint64 // refused by quic-go with an error
	blocked   atomic.Int64  // ns in SendDatagram for those that took more than a millisecond
	longestNs atomic.Int64  // the longest SendDatagram
}

// newTransport opens the socket. Kinds: "wt", "wt-batch", "wt-udpconn" (quic-go reads the socket by itself) and
// "quic" (without HTTP/3).
func newTransport(kind string, cert tls.Certificate, c *wireCounts) (*transport, error) {
	t := &transport{}
	var conn net.PacketConn
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	if kind == "wt-udpconn" {
		udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(loopback))
		if err != nil {
			return nil, err
		}
		conn = udp
	} else {
		var delay time.Duration
		if kind == "wt-batch" {
			delay = batchDelay
		}
		f, err := newFeed(loopback, delay)
		if err != nil {
			return nil, err
		}
		t.feed, conn = f, f
	}
	tlsConfig := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{bareProtocol}, MinVersion: tls.VersionTLS13}
	cfg := quicConfig(c)
	if kind != "quic" {
		tlsConfig = http3.ConfigureTLSConfig(tlsConfig)
		h3 := &http3.Server{TLSConfig: tlsConfig, QUICConfig: cfg, Handler: http.HandlerFunc(t.serveHTTP), EnableDatagrams: true}
		t.server = &webtransport.Server{H3: h3, CheckOrigin: func(*http.Request) bool { return true }}
		webtransport.ConfigureHTTP3Server(h3)
	}
	t.quic = &quic.Transport{Conn: conn, ConnectionIDLength: 8}
	var err error
	t.listener, err = t.quic.ListenEarly(tlsConfig, cfg)
	return t, err
}

func (t *transport) addr() netip.AddrPort { return t.quic.Conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Name implements [engine.Transport].
func (t *transport) Name() string { return "wt" }

// MaxMessage implements [engine.Transport].
func (t *transport) MaxMessage() int { return 1200 }

// IsOpen implements [engine.Transport].
func (t *transport) IsOpen(serial uint64) bool {
	_, ok := t.sessions.Load(serial)
	return ok
}

// Send implements [engine.Transport].
func (t *transport) Send(serial uint64, pkt []byte) bool {
	s, ok := t.sessions.Load(serial)
	if !ok {
		return false
	}
	s.(*session).send(pkt)
	return true
}

// Run implements [engine.Transport].
func (t *transport) Run(ctx context.Context, in engine.Intake) error {
	t.in = in
	var workers sync.WaitGroup
	if t.feed != nil {
		workers.Go(t.feed.run)
		workers.Go(t.feed.runSender)
	}
	for {
		c, err := t.listener.Accept(ctx)
		if err != nil {
			break
		}
		if t.server != nil {
			go func() { _ = t.server.ServeQUICConn(c) }()
		} else {
			go t.serve(c)
		}
	}
	err := errors.Join(t.listener.Close(), t.quic.Close(), t.quic.Conn.Close())
	workers.Wait()
	return err
}

// serveHTTP upgrades a request, and reads the session's datagrams.
func (t *transport) serveHTTP(w http.ResponseWriter, r *http.Request) {
	s, err := t.server.Upgrade(w, r)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	t.serve(s)
}

// serve reads the datagrams of a session until it ends.
func (t *transport) serve(d datagrams) {
	s := &session{t: t, serial: t.serial.Add(1), datagrams: d, wake: make(chan struct{}, 1), done: make(chan struct{})}
	t.sessions.Store(s.serial, s)
	defer t.sessions.Delete(s.serial)
	defer close(s.done)
	go s.write()
	for {
		pkt, err := d.ReceiveDatagram(context.Background())
		if err != nil {
			return
		}
		t.counts.received.Add(1)
		if !t.in.Deliver(s.serial, pkt) {
			t.counts.busy.Add(1)
		}
	}
}

// session is one client. Its ring lies ahead of quic-go, whose SendDatagram blocks.
type session struct {
	t         *transport
	serial    uint64
	datagrams datagrams
	wake      chan struct{}
	done      chan struct{}

	mu   sync.Mutex // guards ring
	ring ring
}

func (s *session) send(pkt []byte) {
	s.mu.Lock()
	dropped := s.ring.push(pkt)
	s.mu.Unlock()
	if dropped > 0 {
		s.t.counts.oldest.Add(uint64(dropped))
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) write() {
	var buf [proto.RelayOverhead + proto.MaxContent]byte
	for {
		s.mu.Lock()
		n := s.ring.pop(buf[:])
		s.mu.Unlock()
		if n == 0 {
			select {
			case <-s.wake:
				continue
			case <-s.done:
				return
			}
		}
		began := time.Now()
		if s.datagrams.SendDatagram(buf[:n]) != nil {
			s.t.counts.refused.Add(1)
			continue
		}
		s.t.counts.handed.Add(1)
		if d := int64(time.Since(began)); d > int64(time.Millisecond) {
			s.t.counts.blocked.Add(d)
			s.t.counts.longestNs.Store(max(d, s.t.counts.longestNs.Load()))
		}
	}
}

// ring holds messages, each after its length in two bytes. It grows up to ringBytes.
type ring struct {
	buf        []byte
	head, used int
	count      int
}

// push appends a message and returns how many of the oldest it dropped for it.
func (r *ring) push(pkt []byte) (dropped int) {
	need := 2 + len(pkt)
	for r.used+need > ringBytes || r.count == ringMessages {
		r.skip()
		dropped++
	}
	if r.used+need > len(r.buf) {
		r.grow(r.used + need)
	}
	r.put([]byte{byte(len(pkt) >> 8), byte(len(pkt))})
	r.put(pkt)
	r.count++
	return dropped
}

// pop moves the oldest message to dst and returns its size, 0 without one.
func (r *ring) pop(dst []byte) int {
	if r.count == 0 {
		return 0
	}
	n := r.size()
	r.take(dst[:n])
	r.count--
	return n
}

func (r *ring) skip() {
	n := r.size()
	r.head, r.used, r.count = (r.head+n)%len(r.buf), r.used-n, r.count-1
}

func (r *ring) size() int {
	var b [2]byte
	r.take(b[:])
	return int(binary.BigEndian.Uint16(b[:]))
}

func (r *ring) put(b []byte) {
	tail := (r.head + r.used) % len(r.buf)
	n := copy(r.buf[tail:], b)
	copy(r.buf, b[n:])
	r.used += len(b)
}

func (r *ring) take(b []byte) {
	n := copy(b, r.buf[r.head:])
	copy(b[n:], r.buf)
	r.head, r.used = (r.head+len(b))%len(r.buf), r.used-len(b)
}

func (r *ring) grow(need int) {
	size := max(len(r.buf), 1<<10)
	for size < need {
		size *= 2
	}
	buf := make([]byte, min(size, ringBytes))
	if r.used > 0 {
		n := copy(buf[:r.used], r.buf[r.head:])
		copy(buf[n:r.used], r.buf)
	}
	r.buf, r.head = buf, 0
}
