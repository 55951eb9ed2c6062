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

// A check is a magic word, a nonce, and the nonce encrypted under a key of this process, which
// alone can create it. The reply is smaller.
const (
	checkMagic    = "FERRYPRB"
	checkNonceLen = aes.BlockSize
	checkReplyLen = len(checkMagic) + checkNonceLen
	checkLen      = checkReplyLen + aes.BlockSize
)

// checker is immutable.
type checker struct{ block cipher.Block }

func newChecker() (checker, error) {
	var key [32]byte
	rand.Read(key[:])
	block, err := aes.NewCipher(key[:])
	return checker{block}, err
}

func (w *worker) answerCheck(from endpoint.Endpoint, pkt []byte) outcome {
	if len(pkt) != checkLen || string(pkt[:len(checkMagic)]) != checkMagic {
		return dropSignature
	}
	tag := w.crypto.scratch[:aes.BlockSize]
	w.shared.checker.block.Encrypt(tag, pkt[len(checkMagic):checkReplyLen])
	if subtle.ConstantTimeCompare(tag, pkt[checkReplyLen:]) != 1 {
		return dropSignature
	}
	w.out.add(from, append(w.out.reply(), pkt[:checkReplyLen]...))
	return outCheck
}

// checkTries is how many checks may stay unanswered: one may be lost while the socket's
// queue is full.
const checkTries = 3

func (s private) Check(ctx context.Context) error {
	for _, addr := range s.Addrs() {
		if err := s.checkAt(ctx, checkAddr(addr)); err != nil {
			return fmt.Errorf("engine: check %v: %w", addr, err)
		}
	}
	return nil
}

func (s *Server) checkAt(ctx context.Context, addr netip.AddrPort) error {
	conn, done, err := s.checkSockets.take(addr)
	if err != nil {
		return err
	}
	defer done()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()

	check := make([]byte, checkLen)
	copy(check, checkMagic)
	rand.Read(check[len(checkMagic):checkReplyLen])
	s.shared.checker.block.Encrypt(check[checkReplyLen:], check[len(checkMagic):checkReplyLen])
	for range checkTries {
		if err = checkOnce(ctx, conn, check); err == nil {
			return nil
		}
	}
	return err
}

// checkSockets keeps one socket per address, for when the process has no descriptor left. Others
// are opened for one check, since the kernel spreads them over the workers.
type checkSockets struct {
	use sync.Mutex // held while a kept socket is used

	mu     sync.Mutex // guards what follows
	kept   map[netip.AddrPort]*net.UDPConn
	closed bool
}

// take returns a socket, and what ends its use.
func (p *checkSockets) take(addr netip.AddrPort) (conn *net.UDPConn, done func(), err error) {
	to := net.UDPAddrFromAddrPort(addr)
	conn, err = net.DialUDP("udp", nil, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.kept[addr]
	switch {
	case sock.IsDescriptorLimit(err) && kept != nil:
		if !p.use.TryLock() {
			return nil, nil, err // Another check is on its way, and finds the same.
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

func (p *checkSockets) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.kept {
		_ = conn.Close()
	}
	p.kept, p.closed = nil, true
}

var errCheckAnswer = errors.New("wrong answer")

func checkOnce(ctx context.Context, conn *net.UDPConn, check []byte) error {
	if _, err := conn.Write(check); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	var answer [checkLen]byte
	n, err := conn.Read(answer[:])
	if err != nil {
		return err
	}
	if string(answer[:n]) != string(check[:checkReplyLen]) {
		return errCheckAnswer
	}
	return nil
}

func checkAddr(addr netip.AddrPort) netip.AddrPort {
	if !addr.Addr().IsUnspecified() {
		return addr
	}
	if addr.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port())
}

// qosRate is for one source prefix: a client sends five probes to each region.
var qosRate = table.Rate{IntervalMicros: 50_000, Burst: 40}

func (w *worker) answerQoS(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParseQoSRequest(pkt)
	if err != nil {
		return dropSize
	}
	if o, refused := w.shared.sources.refuses(from); refused {
		return o
	}
	switch {
	case !w.shared.budgets.unlimited && !qosRate.Take(&w.shared.budgets.qos[w.shared.budgets.prefixIndex(from)], now):
		return dropRate
	}
	w.out.add(from, m.Response().Append(w.out.reply()))
	return outQoS
}
