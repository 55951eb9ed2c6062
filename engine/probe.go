package engine

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

// A probe is a datagram that only this process can create: a magic word, a random nonce,
// and the nonce encrypted under a key that never leaves the process. The reply, the
// magic word and the nonce, is smaller.
const (
	probeMagic    = "FERRYPRB"
	probeNonceLen = aes.BlockSize
	probeReplyLen = len(probeMagic) + probeNonceLen
	probeLen      = probeReplyLen + aes.BlockSize
)

// prober creates and checks probes. It does not change after newProber.
type prober struct{ block cipher.Block }

func newProber() (prober, error) {
	var key [32]byte
	rand.Read(key[:])
	block, err := aes.NewCipher(key[:])
	return prober{block}, err
}

// answerProbe answers a probe of this process, and drops any other datagram.
func (w *worker) answerProbe(from endpoint.Endpoint, pkt []byte) Outcome {
	if len(pkt) != probeLen || string(pkt[:len(probeMagic)]) != probeMagic {
		return DropSignature
	}
	tag := w.crypto.scratch[:aes.BlockSize]
	w.shared.probe.block.Encrypt(tag, pkt[len(probeMagic):probeReplyLen])
	if subtle.ConstantTimeCompare(tag, pkt[probeReplyLen:]) != 1 {
		return DropSignature
	}
	w.out.add(from, append(w.out.reply(), pkt[:probeReplyLen]...))
	return OutProbe
}

// probeTries is how many probes may stay unanswered: one may be lost while the socket's
// queue is full.
const probeTries = 3

// Probe sends probes through the UDP sockets of every listen address and waits
// for the answers, until ctx ends and no longer than 1.5 s for each address. It
// proves that datagrams come in, are handled and go out.
func (s *Server) Probe(ctx context.Context) error {
	for _, addr := range s.Addrs() {
		if err := s.probeAt(ctx, probeAddr(addr)); err != nil {
			return fmt.Errorf("engine: probe %v: %w", addr, err)
		}
	}
	return nil
}

func (s *Server) probeAt(ctx context.Context, addr netip.AddrPort) error {
	conn, done, err := s.probeSockets.take(addr)
	if err != nil {
		return err
	}
	defer done()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()

	probe := make([]byte, probeLen)
	copy(probe, probeMagic)
	rand.Read(probe[len(probeMagic):probeReplyLen])
	s.shared.probe.block.Encrypt(probe[probeReplyLen:], probe[len(probeMagic):probeReplyLen])
	for range probeTries {
		if err = probeOnce(ctx, conn, probe); err == nil {
			return nil
		}
	}
	return err
}

// probeSockets keeps one socket per address, with which Probe goes on while the process has
// no descriptor left. Others are opened for one probe, since the kernel spreads them over
// the workers. The zero value has none yet.
type probeSockets struct {
	use sync.Mutex // held while a kept socket is used

	mu     sync.Mutex // guards what follows
	kept   map[netip.AddrPort]*net.UDPConn
	closed bool
}

// take returns a socket for one probe, and what ends its use.
func (p *probeSockets) take(addr netip.AddrPort) (conn *net.UDPConn, done func(), err error) {
	to := net.UDPAddrFromAddrPort(addr)
	conn, err = net.DialUDP("udp", nil, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.kept[addr]
	switch {
	case sock.IsDescriptorLimit(err) && kept != nil:
		if !p.use.TryLock() {
			return nil, nil, err // Another probe is on its way, and finds the same.
		}
		return kept, p.use.Unlock, nil
	case err != nil:
		return nil, nil, err
	case kept == nil && !p.closed:
		if kept, err := net.DialUDP("udp", nil, to); err == nil {
			if p.kept == nil {
				p.kept = make(map[netip.AddrPort]*net.UDPConn)
			}
			p.kept[addr] = kept
		}
	}
	return conn, func() { _ = conn.Close() }, nil
}

func (p *probeSockets) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.kept {
		_ = conn.Close()
	}
	p.kept, p.closed = nil, true
}

var errProbeAnswer = errors.New("wrong answer")

func probeOnce(ctx context.Context, conn *net.UDPConn, probe []byte) error {
	if _, err := conn.Write(probe); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	var answer [probeLen]byte
	n, err := conn.Read(answer[:])
	if err != nil {
		return err
	}
	if string(answer[:n]) != string(probe[:probeReplyLen]) {
		return errProbeAnswer
	}
	return nil
}

// probeAddr returns an address at which this machine reaches its own listener.
func probeAddr(addr netip.AddrPort) netip.AddrPort {
	if !addr.Addr().IsUnspecified() {
		return addr
	}
	if addr.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port())
}

// qosRate limits the replies to QoS probes of one source prefix. A client sends five
// probes to each region.
var qosRate = table.Rate{IntervalMicros: 50_000, Burst: 40}

// answerQoS answers a QoS probe with a smaller datagram.
func (w *worker) answerQoS(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseQoSRequest(pkt)
	if err != nil {
		return DropSize
	}
	if o, refused := w.shared.sources.refuses(from); refused {
		return o
	}
	switch {
	case !w.shared.budgets.unlimited && !qosRate.Take(&w.shared.budgets.qos[w.shared.budgets.prefixIndex(from)], now):
		return DropRate
	}
	w.out.add(from, m.Response().Append(w.out.reply()))
	return OutQoS
}
