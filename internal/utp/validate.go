package utp

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Address validation, after RFC 9000, section 8. The source of a request may be forged, so
// a peer is unvalidated until it has proven that it receives what is sent to its address.
// With Config.ValidateAddresses the proof is a cookie, and no state is kept before. Without,
// it is the acknowledgement of a reliable packet, and the connections that wait for it are
// limited: their number, their lifetime, and the bytes that are sent to their peers.

// amplificationLimit is how many bytes an unvalidated peer gets for each byte of its own.
const amplificationLimit = 3

const (
	cookieLen  = 8                // bytes
	cookieLife = 10 * time.Second // a cookie is valid for one to two of these
)

// cookies makes and verifies the cookies of a server: a keyed hash of what a client cannot
// choose, so that the server need not remember them.
type cookies struct {
	mac hash.Hash
	buf [sha256.Size]byte
}

// cookie returns the cookie of an address and a token in a period of cookieLife.
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

// verify cuts the cookie off the payload of a request and reports whether it is valid.
func (k *cookies) verify(from address.Addr, m Packet, now time.Duration) (payload []byte, valid bool) {
	if len(m.Body) < cookieLen || k.mac == nil {
		return nil, false
	}
	got, period := binary.LittleEndian.Uint64(m.Body), now/cookieLife
	valid = got == k.cookie(from, m.Token, period) || got == k.cookie(from, m.Token, period-1)
	return m.Body[cookieLen:], valid
}

// appendAccept appends an accept to the queue's buffer, with a cookie if Config says so.
func (e *Endpoint) appendAccept(to address.Addr, t Token) []byte {
	m := Packet{Kind: KindAccept, Token: t}
	if e.cfg.ValidateAddresses {
		m.Body = binary.LittleEndian.AppendUint64(make([]byte, 0, cookieLen), e.cookies.cookie(to, t, e.now/cookieLife))
	}
	return m.Append(e.out.open())
}

// mayEmit reports whether n bytes may be sent to a peer.
func (c *conn) mayEmit(n int) bool { return c.validated || c.budget >= n }

// credit counts a datagram of the peer against the anti-amplification limit.
func (c *conn) credit(size int) {
	if !c.validated {
		c.budget += amplificationLimit * size
	}
}

// Admit tells the endpoint that the layer above has a proof of its own that a client
// receives what is sent to its address, or is done with its handshake: the client no longer
// counts in MaxHalfOpen, and the anti-amplification limit ends. A caller whose pipelines are
// all unreliable, or that sets ValidateAddresses, must use it. It does nothing to a
// connection that has ended.
func (e *Endpoint) Admit(id ConnID) {
	c := e.conn(id)
	if c == nil {
		return
	}
	if !e.cfg.ValidateAddresses {
		c.validated = true
	}
	if c.waiting {
		e.leaveHalfOpen(c)
	}
}

func (e *Endpoint) leaveHalfOpen(c *conn) {
	i, last := slices.Index(e.halfOpen, c), len(e.halfOpen)-1
	e.halfOpen[i], e.halfOpen[last] = e.halfOpen[last], nil
	e.halfOpen = e.halfOpen[:last]
	c.waiting = false
}

// makeRoom returns the outcome that refuses a client with this address, or taken if it may
// connect. If no place is left it drops the unvalidated connection that waits longest.
// So a flood of n forged requests per second evicts no client that validates its address
// within MaxHalfOpen/n seconds. To evict a random one instead would give no client
// certainty, and would leave those that it hits with a connection that only they believe in.
func (e *Endpoint) makeRoom(from address.Addr) outcome {
	var oldest *conn
	same := 0
	for _, c := range e.halfOpen {
		if sameSource(c.addr, from) {
			same++
		}
		if !c.validated && (oldest == nil || c.opened < oldest.opened) {
			oldest = c
		}
	}
	full, crowded := len(e.tokens) >= e.cfg.MaxConnections, len(e.halfOpen) >= e.cfg.MaxHalfOpen
	switch {
	case full && oldest == nil:
		return dropFull
	case same >= e.cfg.MaxHalfOpenPerSource:
		return dropSource
	case crowded && oldest == nil:
		return dropHalfOpen
	case full || crowded:
		e.end(oldest, Event{Reason: ReasonTimeout})
		// If its client may have received the accept, it would not repeat its request.
		if !oldest.acceptDue && oldest.mayEmit(messageLen) && e.out.room(1) {
			e.queueMessage(oldest.addr, KindDisconnect, oldest.token)
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
