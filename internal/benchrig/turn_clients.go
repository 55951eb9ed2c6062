package benchrig

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/pion/stun/v4"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

const (
	// maxTURNRequests bounds those without an answer, so that set-up does not overflow the
	// server's socket buffer.
	maxTURNRequests = 32
	// maxChallenges is how often a server may ask for credentials in a row.
	maxChallenges = 4
	// leaveTimeout is the time without an answer after which leave ends.
	leaveTimeout = time.Second
)

// turnClient is the TURN client of a player. Times are ns of sock.Now.
type turnClient struct {
	method     stun.Method // of the request without an answer; 0: there is none
	id         [stun.TransactionIDSize]byte
	request    []byte
	sent       int64
	challenges int

	nonce   stun.Nonce
	relayed netip.AddrPort
	bound   bool // its channel
	refresh int64
	every   int64 // ns between refreshes
}

// turnClients are those of a rig. The goroutine that uses the rig owns them.
type turnClients struct {
	cfg       TURNConfig
	rig       *Rig
	clients   []turnClient // by endpoint; those of hosts stay unused
	realm     string
	integrity stun.MessageIntegrity
	message   stun.Message // of answer

	next       int   // endpoint to begin with
	connecting int   // over DTLS
	requested  []int // endpoints with a request without an answer
	queue      []int // endpoints in the order of their refreshes
	missing    int   // players whose channel is not bound
	leaving    bool

	begin, answered, repeated int64 // ns of sock.Now; 0: no answer yet
	err                       error // why the server refused
}

func newTURNClients(cfg TURNConfig, r *Rig) *turnClients {
	cfg.RefreshAfter = cmp.Or(cfg.RefreshAfter, 4*time.Minute)
	p := &r.Plan
	return &turnClients{cfg: cfg, rig: r, clients: make([]turnClient, p.Len()), missing: p.Matches * p.Players, begin: sock.Now()}
}

// open ends when all channels are bound, with ctx, or without progress.
func (s *turnClients) open(ctx context.Context) error {
	if err := s.rig.permit(s.cfg.Server); err != nil {
		return err
	}
	return s.rig.Await(ctx, func() bool { return s.missing == 0 }, func(time.Time) error { return s.advance(ctx) }, s.handle)
}

func (s *turnClients) advance(ctx context.Context) error {
	if err := errors.Join(s.err, s.checkProgress()); err != nil {
		return err
	}
	server := Server{Addr: s.cfg.Server, DTLS: anyCertificate()}
	for ; len(s.requested)+s.connecting < maxTURNRequests && s.next < len(s.clients); s.next++ {
		if s.rig.Plan.Host(s.next) == s.next {
			continue
		}
		done, err := s.rig.Dialer.Connect(ctx, s.next, server)
		switch {
		case err != nil:
			return err
		case done:
			s.request(s.next, stun.MethodAllocate)
		default:
			s.connecting++
		}
	}
	var err error
	s.rig.Dialer.Advance(func(ep int, failed error) {
		s.connecting--
		if failed != nil {
			err = failed // others fail for the same reason
			return
		}
		s.answered = sock.Now()
		s.request(ep, stun.MethodAllocate)
	})
	s.repeat()
	return errors.Join(err, s.err)
}

func (s *turnClients) checkProgress() error {
	now, udp := sock.Now(), s.rig.Plan.Transport != TransportDTLS
	switch {
	case udp && s.answered == 0 && now-s.begin > int64(probeAfter):
		if err := checkPort(s.cfg.Server); err != nil || now-s.begin <= int64(StallTimeout) {
			return err
		}
		return fmt.Errorf("bench: %v answered nothing: is it the address of a TURN server, and does a firewall let datagrams pass?", s.cfg.Server)
	case now-max(s.answered, s.begin) > int64(StallTimeout):
		return fmt.Errorf("bench: %v does not answer any more, and %d channels are not bound", s.cfg.Server, s.missing)
	}
	return nil
}

// maintain refreshes what is due. It is a Rig's Maintain.
func (s *turnClients) maintain() {
	now := sock.Now()
	for len(s.queue) > 0 && len(s.requested) < maxTURNRequests && s.clients[s.queue[0]].refresh <= now {
		ep := s.queue[0]
		s.queue = s.queue[1:]
		s.request(ep, stun.MethodChannelBind)
	}
	s.repeat()
}

// repeat sends requests again that have no answer.
func (s *turnClients) repeat() {
	now := sock.Now()
	if now-s.repeated < int64(retryInterval) {
		return
	}
	s.repeated = now
	for _, ep := range s.requested {
		if now-s.clients[ep].sent >= int64(retryAfter) {
			s.send(ep)
		}
	}
}

func (s *turnClients) send(ep int) {
	c := &s.clients[ep]
	c.sent = sock.Now()
	_ = s.rig.SendTo(ep, s.cfg.Server, c.request) // as if lost: it is repeated
}

// request sends a new request of client ep.
func (s *turnClients) request(ep int, method stun.Method) {
	c := &s.clients[ep]
	if c.method == 0 {
		s.requested = append(s.requested, ep)
	}
	c.method, c.id = method, stun.NewTransactionID()
	m := new(stun.Message)
	err := m.Build(stun.NewTransactionIDSetter(c.id), stun.NewType(method, stun.ClassRequest))
	switch method {
	case stun.MethodAllocate:
		m.Add(stun.AttrRequestedTransport, []byte{17, 0, 0, 0}) // UDP
		if FamilyOf(s.cfg.Server.Addr()) == FamilyIPv6 {
			m.Add(stun.AttrRequestedAddressFamily, []byte{2, 0, 0, 0})
		}
	case stun.MethodChannelBind:
		peer := net.UDPAddrFromAddrPort(s.rig.Endpoints[s.rig.Plan.Host(ep)].Addr)
		m.Add(stun.AttrChannelNumber, []byte{turnChannel >> 8, turnChannel & 0xFF, 0, 0})
		err = errors.Join(err, stun.XORMappedAddress{IP: peer.IP, Port: peer.Port}.AddToAs(m, stun.AttrXORPeerAddress))
	case stun.MethodRefresh:
		if s.leaving {
			m.Add(stun.AttrLifetime, []byte{0, 0, 0, 0})
		}
	}
	if c.nonce != nil {
		for _, a := range []stun.Setter{stun.NewUsername(s.cfg.User), stun.NewRealm(s.realm), c.nonce, s.integrity} {
			err = errors.Join(err, a.AddTo(m))
		}
	}
	if s.err = errors.Join(s.err, err); err == nil {
		c.request = m.Raw
		s.send(ep)
	}
}

func (s *turnClients) handle(ep int, from netip.AddrPort, pkt []byte) {
	if from == s.cfg.Server {
		s.answer(ep, pkt)
	}
}

// Names that answer returns besides those of errors.
const (
	turnData       = "TURN Data indication" // the server has no channel for its content any more
	turnWrongReply = "TURN answer with a wrong MESSAGE-INTEGRITY"
)

// answer processes a message of the server. It is a Rig's Explain.
func (s *turnClients) answer(ep int, pkt []byte) string {
	m := &s.message
	if ep < 0 || !stun.IsMessage(pkt) || pkt[0]&0xC0 != 0 || stun.Decode(pkt, m) != nil {
		return Foreign
	}
	c := &s.clients[ep]
	awaited := c.method != 0 && m.TransactionID == c.id && m.Type.Method == c.method
	switch {
	case m.Type.Class == stun.ClassIndication:
		return turnData
	case m.Type.Class == stun.ClassErrorResponse:
		return s.refused(ep, m, awaited)
	case m.Type == stun.BindingSuccess:
		return Alive
	case !awaited || m.Type.Class != stun.ClassSuccessResponse:
		return "" // once more
	case c.nonce != nil && s.integrity.Check(m) != nil:
		return turnWrongReply
	}
	s.answered, c.challenges = sock.Now(), 0
	switch c.method {
	case stun.MethodAllocate:
		s.allocated(ep, m)
	case stun.MethodChannelBind:
		if c.bound {
			s.request(ep, stun.MethodRefresh)
			break
		}
		c.bound = true
		s.missing--
		s.done(ep)
	default:
		s.setLifetime(c, m)
		s.done(ep)
	}
	return ""
}

func (s *turnClients) allocated(ep int, m *stun.Message) {
	var a stun.XORMappedAddress
	err := a.GetFromAs(m, stun.AttrXORRelayedAddress)
	addr, _ := netip.AddrFromSlice(a.IP)
	c := &s.clients[ep]
	c.relayed = netip.AddrPortFrom(addr.Unmap(), uint16(a.Port))
	if err == nil {
		err = s.rig.permit(c.relayed)
	}
	if err != nil {
		s.err = fmt.Errorf("bench: the relayed address of %v: %w", s.cfg.Server, err)
		return
	}
	s.setLifetime(c, m)
	s.request(ep, stun.MethodChannelBind)
}

// setLifetime makes the refresh come before the end of the allocation.
func (s *turnClients) setLifetime(c *turnClient, m *stun.Message) {
	c.every = int64(s.cfg.RefreshAfter)
	if v, err := m.Get(stun.AttrLifetime); err == nil && len(v) == 4 {
		c.every = min(c.every, int64(binary.BigEndian.Uint32(v))*int64(time.Second)/5*4)
	}
}

// done ends a request. The channel is refreshed later.
func (s *turnClients) done(ep int) {
	c := &s.clients[ep]
	c.method = 0
	s.requested = slices.DeleteFunc(s.requested, func(other int) bool { return other == ep })
	c.refresh = sock.Now() + c.every
	s.queue = append(s.queue, ep)
}

// refused repeats a request with the nonce that the server wants, or ends it. It returns the
// name of the error.
func (s *turnClients) refused(ep int, m *stun.Message, awaited bool) string {
	var code stun.ErrorCodeAttribute
	if code.GetFrom(m) != nil {
		return Foreign
	}
	name := turnErrorName(code.Code)
	if !awaited {
		return name
	}
	s.answered = sock.Now()
	c := &s.clients[ep]
	if code.Code == stun.CodeStaleNonce || code.Code == stun.CodeUnauthorized && (c.nonce == nil && s.cfg.User != "") {
		if c.challenges++; c.challenges <= maxChallenges && s.takeNonce(c, m) {
			s.request(ep, c.method)
			return ""
		}
	}
	if s.err == nil {
		s.err = turnRefusal(s.cfg.Server, m, code.Code, s.cfg.User)
	}
	s.done(ep)
	return name
}

func (s *turnClients) takeNonce(c *turnClient, m *stun.Message) bool {
	var realm stun.Realm
	if m.Parse(&realm, &c.nonce) != nil {
		return false
	}
	c.nonce = slices.Clone(c.nonce)
	s.realm = realm.String()
	s.integrity = stun.NewLongTermIntegrity(s.cfg.User, s.realm, s.cfg.Password)
	return true
}

// leave gives all allocations back. It is a Rig's Leave.
func (s *turnClients) leave() {
	s.leaving, s.next, s.answered = true, 0, sock.Now()
	for _, ep := range s.requested {
		s.clients[ep].method = 0
	}
	s.requested = nil
	_ = s.rig.Await(context.Background(), func() bool { return s.next == len(s.clients) && len(s.requested) == 0 }, func(time.Time) error {
		for ; len(s.requested) < maxTURNRequests && s.next < len(s.clients); s.next++ {
			if s.clients[s.next].relayed.IsValid() {
				s.request(s.next, stun.MethodRefresh)
			}
		}
		s.repeat()
		if sock.Now()-s.answered > int64(leaveTimeout) {
			return context.DeadlineExceeded
		}
		return nil
	}, s.handle)
}
