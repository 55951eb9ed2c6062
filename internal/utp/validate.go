package utp

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Address validation, after RFC 9000, section 8: see the package documentation.

// amplificationLimit is how many bytes an unvalidated peer gets for each byte of its own.
const amplificationLimit = 3

const (
	cookieLen  = 8                // bytes
	cookieLife = 10 * time.Second // a cookie is valid for one to two of these
)

// cookies are a keyed hash, so that the server need not remember them.
type cookies struct {
	mac hash.Hash
	buf [sha256.Size]byte
}

func (k *cookies) cookie(from address.Addr, t Token, period time.Duration) uint64 {
	b := k.buf[:0]
	if id, ok := from.Allocation(); ok {
		b = append(append(b, id[:]...), 0xFF, 0xFF) // no UDP address has as many bytes
	} else {
		ap, _ := from.UDP()
		b = binary.LittleEndian.AppendUint16(append(b, ap.Addr().AsSlice()...), ap.Port())
		b = append(b, 0)
	}
	k.mac.Reset()
	k.mac.Write(b)
	b = binary.LittleEndian.AppendUint64(k.buf[:0], uint64(t))
	k.mac.Write(binary.LittleEndian.AppendUint64(b, uint64(period)))
	return binary.LittleEndian.Uint64(k.mac.Sum(k.buf[:0]))
}

func (k *cookies) verify(from address.Addr, m Packet, now time.Duration) (payload []byte, valid bool) {
	if len(m.Body) < cookieLen || k.mac == nil {
		return nil, false
	}
	got, period := binary.LittleEndian.Uint64(m.Body), now/cookieLife
	valid = got == k.cookie(from, m.Token, period) || got == k.cookie(from, m.Token, period-1)
	return m.Body[cookieLen:], valid
}

// accept returns an accept whose body is valid until the next call.
func (k *cookies) accept(to address.Addr, t Token, now time.Duration) Packet {
	m := Packet{Kind: KindAccept, Token: t}
	if k.mac != nil {
		m.Body = binary.LittleEndian.AppendUint64(k.buf[:0], k.cookie(to, t, now/cookieLife))
	}
	return m
}

func (c *Config) acceptLen() int {
	if c.ValidateAddresses {
		return handshakeLen + lengthLen + cookieLen
	}
	return handshakeLen
}

// path is where the peer of a connection is, and how much may be sent there.
type path struct {
	addr      address.Addr
	validated bool // the peer has proven the address, or this side chose it
	budget    int  // bytes that may still be sent to an unvalidated peer
}

func (p *path) permits(n int) bool { return p.validated || p.budget >= n }

// credit counts a datagram of the peer against the anti-amplification limit.
func (p *path) credit(size int) {
	if !p.validated {
		p.budget += amplificationLimit * size
	}
}

func (p *path) charge(size int) {
	if !p.validated {
		p.budget -= size
	}
}

// Admit ends the anti-amplification limit and the place in MaxHalfOpen of a client, for a
// layer above that has a proof of its own. A caller whose pipelines are all unreliable, or
// that sets ValidateAddresses, must use it.
func (e *Endpoint) Admit(id ConnID) {
	c := e.conns.find(id)
	if c == nil {
		return
	}
	if !e.cfg.ValidateAddresses {
		c.path.validated = true
	}
	e.halfOpen.remove(c)
}

// halfOpen has the connections of clients that are not admitted, in no order.
type halfOpen struct{ conns []*conn }

func (h *halfOpen) add(c *conn) {
	h.conns = append(h.conns, c)
	c.waiting = true
}

func (h *halfOpen) remove(c *conn) {
	if !c.waiting {
		return
	}
	i, last := slices.Index(h.conns, c), len(h.conns)-1
	h.conns[i], h.conns[last] = h.conns[last], nil
	h.conns = h.conns[:last]
	c.waiting = false
}

// search returns the unvalidated connection that waits longest, if any, and how many come
// from the same source.
func (h *halfOpen) search(from address.Addr) (oldest *conn, same int) {
	for _, c := range h.conns {
		if sameSource(c.path.addr, from) {
			same++
		}
		if !c.path.validated && (oldest == nil || c.opened < oldest.opened) {
			oldest = c
		}
	}
	return oldest, same
}

// makeRoom drops the unvalidated connection that waits longest if no place is left: a flood
// of n forged requests per second evicts no client that validates its address within
// MaxHalfOpen/n seconds. Evicting a random one would give no client certainty.
func (e *Endpoint) makeRoom(from address.Addr) outcome {
	oldest, same := e.halfOpen.search(from)
	full, crowded := len(e.conns.tokens) >= e.cfg.MaxConnections, len(e.halfOpen.conns) >= e.cfg.MaxHalfOpen
	switch {
	case full && oldest == nil:
		return dropFull
	case same >= e.cfg.MaxHalfOpenPerSource:
		return dropSource
	case crowded && oldest == nil:
		return dropHalfOpen
	case full || crowded:
		oldest.end(Event{Reason: ReasonTimeout})
		// If its client may have received the accept, it would not repeat its request.
		if !oldest.acceptDue && oldest.path.permits(messageLen) && e.out.room(1) {
			e.out.sendPacket(oldest.path.addr, Packet{Kind: KindDisconnect, Token: oldest.token})
		}
	}
	return taken
}

// sameSource reports whether a and b may belong to one sender: it ignores the port, and the
// lower 64 bits of an IPv6 address, since one network has a /64.
func sameSource(a, b address.Addr) bool {
	left, leftUDP := a.UDP()
	right, rightUDP := b.UDP()
	if !leftUDP || !rightUDP {
		return a == b
	}
	if left.Addr().Is4() || right.Addr().Is4() {
		return left.Addr() == right.Addr()
	}
	l, r := left.Addr().As16(), right.Addr().As16()
	return [8]byte(l[:8]) == [8]byte(r[:8])
}
