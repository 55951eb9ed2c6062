package turn

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// Lifetime is how long allocations and channels live: they are not refreshed,
// so all runs on one rig have to be over by then. It is the shortest of the
// servers' limits, that of channels (RFC 8656, 12: 10 minutes).
const Lifetime = 10 * time.Minute

const (
	// channel is the first channel number (RFC 8656, 12). Every allocation
	// has numbers of its own, and one peer.
	channel = 0x4000
	// prefixLen is the header of ChannelData.
	prefixLen = 4
)

// Config names the server.
type Config struct {
	// Server is its UDP address, IPv4.
	Server netip.AddrPort
	// Username and Password are its long-term credentials.
	Username, Password string
}

// Dialect is TURN over UDP, and over DTLS between players and server. It implements
// [benchrig.Connector].
type Dialect struct{ cfg Config }

// New returns a Dialect.
func New(cfg Config) *Dialect { return &Dialect{cfg} }

// Name returns "turn".
func (d *Dialect) Name() string { return "turn" }

// Carries reports whether t is DTLS.
func (d *Dialect) Carries(t benchrig.Transport) bool { return t == benchrig.TransportDTLS }

// Open allocates a relayed address for each player and binds a channel to its
// host.
//
// A player's datagrams have the ChannelData header in front; a host's have
// nothing in front and arrive at the player with that header. A socket of the
// generator has players and hosts on it and expects the payload at one offset,
// so what a player sends carries 4 bytes of padding that reach its host.
func (d *Dialect) Open(ctx context.Context, p benchrig.Plan) (*benchrig.Rig, error) {
	r, err := benchrig.NewRig(p)
	if err != nil {
		return nil, err
	}
	for _, s := range r.Sockets {
		s.Offset = prefixLen
	}
	s := newSetup(d.cfg, &p, r)
	if err := s.run(ctx); err != nil {
		s.leave()
		_ = r.Close()
		return nil, err
	}
	r.Flows = d.flows(&p, s)
	r.Leave = s.leave
	r.Explain = explain
	return r, nil
}

func (d *Dialect) flows(p *benchrig.Plan, s *setup) []benchrig.Flow {
	up := channelHeader(p.Payload + prefixLen)
	up = append(up, make([]byte, prefixLen)...)
	flows := make([]benchrig.Flow, len(p.Flows))
	for i, l := range p.Flows {
		flows[i] = benchrig.Flow{From: l.From, To: l.To, Dst: d.cfg.Server, Prefix: up}
		if l.From == p.Host(l.From) {
			flows[i].Dst, flows[i].Prefix = s.clients[l.To].relayed, nil
		}
	}
	return flows
}

// channelHeader is the header of ChannelData with size bytes. Over UDP it is
// not padded (RFC 8656, 12.5).
func channelHeader(size int) []byte {
	return binary.BigEndian.AppendUint16([]byte{channel >> 8, channel & 0xFF}, uint16(size))
}

// explain names what arrives and is no payload.
func explain(pkt []byte) string {
	r, err := parse(pkt)
	switch {
	case err != nil:
		return "foreign"
	case r.typ&classMask == classError:
		return "turn error"
	}
	return ""
}

// Probe asks the server once with a Binding request, and waits at most wait for
// the answer.
func Probe(server netip.AddrPort, wait time.Duration) error {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	id := newTransaction()
	if _, err := conn.Write(finish(appendHeader(nil, typeBinding, id))); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	if err != nil {
		return err
	}
	r, err := parse(buf[:n])
	if err == nil && (r.id != id || r.typ != typeBinding|classSuccess) {
		err = fmt.Errorf("turn: the answer to a Binding request is %#04x", r.typ)
	}
	return err
}
