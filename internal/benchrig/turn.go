package benchrig

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pion/stun/v4"
)

// TURNConfig names a server.
type TURNConfig struct {
	// Server is its address for UDP, or for DTLS. Required.
	Server netip.AddrPort
	// User and Password are long-term credentials. Empty for a server that asks for none.
	User, Password string

	// RefreshAfter is the time after which a client refreshes its permission, channel and
	// allocation. 0 = 4 minutes: a server keeps a permission for 5 (RFC 8656, 9).
	RefreshAfter time.Duration
}

// TURN is the Dialect of TURN servers (RFC 8656). Each player allocates a relayed address and
// binds a channel to its host, which is a plain peer: the server adds or strips the header of
// ChannelData once for each datagram. Over DTLS it is that between players and server; any
// certificate will do.
type TURN struct{ cfg TURNConfig }

var _ Connector = TURN{}

// NewTURN sends nothing.
func NewTURN(cfg TURNConfig) TURN { return TURN{cfg} }

// Name returns "turn".
func (TURN) Name() string { return "turn" }

// Carries reports whether t is DTLS.
func (TURN) Carries(t string) bool { return t == TransportDTLS }

const (
	// turnChannel is the first channel number (RFC 8656, 12). Each allocation has numbers of
	// its own, and one peer.
	turnChannel = 0x4000
	// channelHeaderLen is the header of ChannelData: channel and length of the content, which
	// is not padded over UDP (RFC 8656, 12.5).
	channelHeaderLen = 4
)

// Open allocates, and binds channels.
func (d TURN) Open(ctx context.Context, p Plan) (*Rig, error) {
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	s := newTURNClients(d.cfg, r)
	if err := s.open(ctx); err != nil {
		s.leave()
		return nil, errors.Join(err, r.close())
	}
	header := binary.BigEndian.AppendUint16(nil, turnChannel)
	header = binary.BigEndian.AppendUint16(header, uint16(p.Payload))
	binding, err := stun.Build(stun.TransactionID, stun.BindingRequest)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	for ep := range r.Endpoints {
		if e := &r.Endpoints[ep]; ep != p.Host(ep) {
			e.Offset, e.Relay, e.Keepalive = channelHeaderLen, d.cfg.Server, binding.Raw
		}
	}
	for _, l := range p.Flows {
		f := Flow{From: l.From, To: l.To, Dst: d.cfg.Server, Prefix: header, Header: []byte{}}
		if l.From == p.Host(l.From) {
			f.Dst, f.Prefix, f.Header = s.clients[l.To].relayed, nil, header
		}
		r.Flows = append(r.Flows, f)
	}
	r.Sized, r.Explain, r.Maintain, r.Leave = true, s.answer, s.maintain, s.leave
	return r, nil
}

// turnRefusal is the error for an answer that refuses a request for good.
func turnRefusal(server netip.AddrPort, m *stun.Message, code stun.ErrorCode, user string) error {
	reason := turnErrorName(code)
	switch {
	case code == stun.CodeTryAlternate:
		var a stun.AlternateServer
		if a.GetFrom(m) == nil {
			reason += fmt.Sprintf(": it names %v:%d, which is the one to measure", a.IP, a.Port)
		}
	case code == stun.CodeUnauthorized && user == "":
		reason += ": it asks for credentials"
	case code == stun.CodeForbidden && m.Type.Method == stun.MethodChannelBind:
		reason += ": it permits no such peer; coturn permits none on loopback without --allow-loopback-peers"
	}
	return fmt.Errorf("bench: %v refuses %v: %s", server, m.Type.Method, reason)
}

// turnErrors are names for Result.Errors, by code.
var turnErrors = map[stun.ErrorCode]string{
	stun.CodeTryAlternate: "TURN error 300 try alternate", stun.CodeUnauthorized: "TURN error 401 unauthorized",
	stun.CodeForbidden: "TURN error 403 forbidden", stun.CodeAllocMismatch: "TURN error 437 allocation mismatch",
	stun.CodeStaleNonce: "TURN error 438 stale nonce", stun.CodeAddrFamilyNotSupported: "TURN error 440 address family not supported",
	stun.CodeWrongCredentials: "TURN error 441 wrong credentials", stun.CodeAllocQuotaReached: "TURN error 486 allocation quota reached",
	stun.CodeInsufficientCapacity: "TURN error 508 insufficient capacity",
}

func turnErrorName(code stun.ErrorCode) string {
	if name := turnErrors[code]; name != "" {
		return name
	}
	return fmt.Sprintf("TURN error %d", code)
}
