package turn

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

const (
	// retryAfter is the first retransmission time-out (RFC 8489, 6.2.1).
	retryAfter = 500 * time.Millisecond
	// sweepEvery is the time between looks for unanswered requests.
	sweepEvery = 100 * time.Millisecond
	// stallTimeout is the time without progress after which set-up fails.
	stallTimeout = 10 * time.Second
	// maxUnderWay bounds requests without an answer, so that set-up does not
	// overflow the server's socket buffer.
	maxUnderWay = 32
	// maxChallenges is how often a server may ask one client for credentials.
	maxChallenges = 4
)

// client is a player during set-up.
type client struct {
	method     uint16 // of the request under way; 0: not begun
	id         transaction
	request    []byte
	lastSent   time.Time
	challenges int
	ready      bool

	nonce   []byte
	relayed netip.AddrPort
}

// setup takes all players from nothing to a bound channel. The goroutine of
// Open owns it, then that which closes the rig.
type setup struct {
	cfg     Config
	plan    *benchrig.Plan
	rig     *benchrig.Rig
	clients []client // by endpoint; those of hosts stay unused
	realm   string
	key     []byte

	next     int // endpoint to begin with
	underWay int
	missing  int // players that are not ready
	progress time.Time
	swept    time.Time
	err      error // the reason of a server's refusal
}

func newSetup(cfg Config, p *benchrig.Plan, r *benchrig.Rig) *setup {
	now := time.Now()
	return &setup{
		cfg: cfg, plan: p, rig: r, clients: make([]client, p.Len()),
		missing: p.Matches * p.Players, progress: now, swept: now,
	}
}

// run ends when all players are ready, with ctx, or without progress.
func (s *setup) run(ctx context.Context) error {
	return s.rig.Await(ctx, func() bool { return s.missing == 0 },
		func(now time.Time) error { return s.idle(ctx, now) }, s.handle)
}

// idle begins what may begin and repeats what was lost.
func (s *setup) idle(ctx context.Context, now time.Time) error {
	if s.err != nil {
		return s.err
	}
	if now.Sub(s.progress) > stallTimeout {
		return fmt.Errorf("turn: no answer from %v for %v, %d clients are not ready", s.cfg.Server, stallTimeout, s.missing)
	}
	for ; s.underWay < maxUnderWay && s.next < len(s.clients); s.next++ {
		if s.plan.Host(s.next) == s.next {
			continue
		}
		server := benchrig.Server{Addr: s.cfg.Server, DTLS: benchrig.AnyCertificate()}
		if err := s.rig.Handshake(ctx, s.next, server, s.handle); err != nil {
			return err
		}
		s.progress = time.Now()
		s.underWay++
		if err := s.ask(s.next, typeAllocate); err != nil {
			return err
		}
	}
	if now.Sub(s.swept) < sweepEvery {
		return nil
	}
	s.swept = now
	return s.repeat(now)
}

// repeat sends requests again that have no answer.
func (s *setup) repeat(now time.Time) error {
	for ep := range s.clients[:s.next] {
		c := &s.clients[ep]
		if c.method == 0 || c.ready || now.Sub(c.lastSent) < retryAfter {
			continue
		}
		c.lastSent = now
		if err := s.rig.SendTo(ep, s.cfg.Server, c.request); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a new request of client ep.
func (s *setup) ask(ep int, method uint16) error {
	c := &s.clients[ep]
	c.method, c.id, c.lastSent = method, newTransaction(), time.Now()
	b := appendHeader(nil, method, c.id)
	switch method {
	case typeAllocate:
		b = appendAttr(b, attrRequestedTransport, []byte{protocolUDP, 0, 0, 0})
		b = appendAttr(b, attrLifetime, seconds(Lifetime))
	case typeChannelBind:
		b = appendAttr(b, attrChannelNumber, []byte{channel >> 8, channel & 0xFF, 0, 0})
		b = appendAddr(b, attrXORPeerAddress, s.rig.Endpoints[s.plan.Host(ep)].Addr)
	case typeRefresh:
		b = appendAttr(b, attrLifetime, seconds(0))
	}
	c.request = s.sign(b, c.nonce)
	return s.rig.SendTo(ep, s.cfg.Server, c.request)
}

// sign adds the credentials once the server has asked for them.
func (s *setup) sign(b, nonce []byte) []byte {
	if nonce == nil {
		return finish(b)
	}
	b = appendAttr(b, attrUsername, []byte(s.cfg.Username))
	b = appendAttr(b, attrNonce, nonce)
	b = appendAttr(b, attrRealm, []byte(s.realm))
	return seal(b, s.key)
}

func seconds(d time.Duration) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(d/time.Second))
}

// newTransaction never fails: rand.Read does not.
func newTransaction() (id transaction) {
	_, _ = rand.Read(id[:])
	return id
}

// handle takes an answer.
func (s *setup) handle(ep int, from netip.AddrPort, pkt []byte) {
	c := &s.clients[ep]
	r, err := parse(pkt)
	if err != nil || from != s.cfg.Server || c.ready || r.id != c.id || r.method() != c.method || s.err != nil {
		return
	}
	s.progress = time.Now()
	switch {
	case r.typ&classMask == classSuccess:
		s.err = s.advance(ep, r)
	case r.code == 401 || r.code == 438:
		s.err = s.challenged(ep, r)
	default:
		s.err = fmt.Errorf("turn: %v refused method %#x with error %d", s.cfg.Server, c.method, r.code)
	}
}

// advance takes the step after a success.
func (s *setup) advance(ep int, r reply) error {
	c := &s.clients[ep]
	if c.method == typeChannelBind {
		c.ready = true
		s.underWay--
		s.missing--
		return nil
	}
	if !r.relayed.IsValid() {
		return fmt.Errorf("turn: %v allocated no IPv4 address", s.cfg.Server)
	}
	c.relayed = r.relayed
	return s.ask(ep, typeChannelBind)
}

// challenged repeats a request with the nonce that the server wants.
func (s *setup) challenged(ep int, r reply) error {
	c := &s.clients[ep]
	if c.challenges++; c.challenges > maxChallenges || r.nonce == nil {
		return fmt.Errorf("turn: %v does not accept the credentials (error %d)", s.cfg.Server, r.code)
	}
	c.nonce = bytes.Clone(r.nonce)
	if s.realm == "" {
		s.realm = r.realm
		s.key = longTermKey(s.cfg.Username, s.realm, s.cfg.Password)
	}
	return s.ask(ep, c.method)
}

// leave gives all allocations back. Answers are not waited for: what is lost
// expires.
func (s *setup) leave() {
	for ep := range s.clients {
		if c := &s.clients[ep]; c.relayed.IsValid() {
			if err := s.ask(ep, typeRefresh); err != nil {
				return
			}
		}
	}
}
