package link

import (
	"encoding/binary"
	"hash"
	"net/netip"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Every signal begins with these bytes. No packet of UTP does: those begin with 1 to 5 or "UTP".
const signalMagic = "\xfedir"

const (
	signalOffer     = 1 // over the relay
	signalChallenge = 2 // over the direct path, as is the response
	signalResponse  = 3

	// offerReply asks the other side for its offer.
	offerReply = 1
	// responseAccepted says that datagrams from the challenge's source are accepted now.
	responseAccepted = 1

	macSize   = 16
	probeSize = signalHead + 8 + 8 + macSize // of a challenge and of a response
	offerHead = signalHead + 8 + 16 + 1
	maxOffer  = offerHead + maxOffered*(1+16+2)

	signalHead = len(signalMagic) + 2 // and kind, flags

	// maxOffered is how many addresses an offer has at most.
	maxOffered = 4
)

// isSignal reports whether b is for this layer rather than for the game.
func isSignal(b []byte) bool {
	return len(b) >= len(signalMagic) && string(b[:len(signalMagic)]) == signalMagic
}

// offer is what a side sends over the relay: where it may be reached, and with which id and
// key the probes that are sent to it must be marked.
//
//	magic 4 | kind 1 | flags 1 | id 8 | key 16 | count 1 | count × (4 or 6: 1 | address 4 or 16 | port 2)
type offer struct {
	flags byte
	id    uint64
	key   [16]byte
	addrs [maxOffered]netip.AddrPort
	count int
}

func (o *offer) appendTo(b []byte) []byte {
	b = append(b, signalMagic...)
	b = append(b, signalOffer, o.flags)
	b = binary.BigEndian.AppendUint64(b, o.id)
	b = append(b, o.key[:]...)
	b = append(b, byte(o.count))
	for _, ap := range o.addrs[:o.count] {
		family := byte(6)
		if ap.Addr().Is4() {
			family = 4
		}
		b, _ = ap.Addr().AppendBinary(append(b, family)) // It returns no error.
		b = binary.BigEndian.AppendUint16(b, ap.Port())
	}
	return b
}

// parse reads an offer. It is false for one that is malformed in any part.
func (o *offer) parse(b []byte) bool {
	*o = offer{}
	if len(b) < offerHead || !isSignal(b) || b[4] != signalOffer || b[5]&^offerReply != 0 {
		return false
	}
	o.flags, o.id = b[5], binary.BigEndian.Uint64(b[6:])
	copy(o.key[:], b[14:])
	o.count = int(b[offerHead-1])
	if o.count > maxOffered {
		return false
	}
	b = b[offerHead:]
	for i := range o.count {
		size := 16
		if len(b) > 0 && b[0] == 4 {
			size = 4
		}
		if len(b) < 1+size+2 || b[0] != 4 && b[0] != 6 {
			return false
		}
		ip, _ := netip.AddrFromSlice(b[1 : 1+size])
		o.addrs[i] = netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[1+size:]))
		b = b[1+size+2:]
	}
	return len(b) == 0
}

// probe is a challenge or a response:
//
//	magic 4 | kind 1 | flags 1 | id of the receiver 8 | nonce 8 | HMAC-SHA256, first 16
//
// The HMAC has the key of the receiver's offer. It is of all before, and of the addresses that
// the relay gives to sender and receiver: a probe that comes back to its sender, or that a peer
// of two others passes from one to the other by offering foreign ids and keys, is not valid.
type probe struct {
	kind, flags byte
	id, nonce   uint64
}

// appendTo appends the probe, marked with the key of mac. sum is scratch memory.
func (p probe) appendTo(b []byte, mac hash.Hash, ends, sum []byte) []byte {
	b = append(b, signalMagic...)
	b = append(b, p.kind, p.flags)
	b = binary.BigEndian.AppendUint64(b, p.id)
	b = binary.BigEndian.AppendUint64(b, p.nonce)
	return append(b, tag(mac, b, ends, sum)...)
}

// probeEnds returns the text of sender and receiver for the HMAC.
func probeEnds(from, to address.Addr) []byte {
	return []byte(from.String() + " " + to.String())
}

// tag returns the HMAC of b and of the ends, in sum.
func tag(mac hash.Hash, b, ends, sum []byte) []byte {
	mac.Reset()
	mac.Write(b)
	mac.Write(ends)
	return mac.Sum(sum[:0])[:macSize]
}

// parse reads a probe. It does not check the HMAC, whose key the id names.
func (p *probe) parse(b []byte) bool {
	if len(b) != probeSize || !isSignal(b) {
		return false
	}
	*p = probe{b[4], b[5], binary.BigEndian.Uint64(b[6:]), binary.BigEndian.Uint64(b[14:])}
	switch p.kind {
	case signalChallenge:
		return p.flags == 0
	case signalResponse:
		return p.flags&^responseAccepted == 0
	}
	return false
}
