package utp

import (
	"encoding/binary"
)

const (
	// handshakeLen is of signature, version, kind and token.
	handshakeLen = len(signature) + 1 + messageLen
	// messageLen is the size of the header of every other packet: kind and token.
	messageLen = 1 + tokenLen
	tokenLen   = 8
	lengthLen  = 2
	dataLen    = messageLen + 1 // kind, token and pipeline id
	mtuAckLen  = messageLen + lengthLen + mtuSizeLen
	mtuSizeLen = 2
	// maxDatagram is the largest packet there is, what a UDP datagram holds on
	// an Ethernet path.
	maxDatagram = 1472

	signature       = "UTP"
	protocolVersion = 1
)

// Token names a connection. The client picks it at random.
type Token uint64

// Kind is as on the wire, but requests and accepts have bit 7 set.
type Kind uint8

const (
	KindData       Kind = 1
	KindDisconnect Kind = 2 // ends a connection or an attempt; it carries no reason
	KindHeartbeat  Kind = 3 // keeps a connection alive, and has no answer
	KindMTUCheck   Kind = 4 // since UTP 2.5.0: asks whether a packet of this size arrives
	KindMTUAck     Kind = 5

	KindRequest Kind = handshakeBit | 1 // repeated until any message with its token comes
	KindAccept  Kind = handshakeBit | 2 // its payload is known to UTP 2.7 and later

	handshakeBit = 0x80
)

// Packet is a packet of the connection layer. All numbers are little-endian.
//
//	kind              0      3         4      5       13         15
//	request, accept  | UTP  | version | kind | token | length L | body: the payload |
//	                  ASCII  u8        u8     u64     u16        L bytes; both only if L > 0
//
//	                  0      1       9
//	MTU check, ack   | kind | token | length L | body: any padding; the size of the checked datagram, u16 |
//	data             | kind | token | pipeline | body: stage headers, of the last stage first, and payload |
//	others           | kind | token |
type Packet struct {
	Kind     Kind
	Token    Token
	Pipeline PipelineID // of data
	Body     []byte     // aliases the packet that was parsed
}

// Append appends the encoded packet to dst.
func (p Packet) Append(dst []byte) []byte {
	if p.Kind&handshakeBit != 0 {
		dst = append(append(dst, signature...), protocolVersion)
	}
	dst = binary.LittleEndian.AppendUint64(append(dst, byte(p.Kind&^handshakeBit)), uint64(p.Token))
	switch {
	case p.Kind == KindData:
		dst = append(dst, byte(p.Pipeline))
	case len(p.Body) > 0 || p.Kind == KindMTUCheck:
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.Body)))
	}
	return append(dst, p.Body...)
}

// parse returns taken, or why a packet is invalid. Kind and Token are set unless the header
// is. A packet of at least 13 bytes that begins with UTP is a request or accept.
func parse(pkt []byte) (p Packet, o outcome) {
	if len(pkt) >= handshakeLen && string(pkt[:len(signature)]) == signature {
		if pkt[3] != protocolVersion {
			return p, dropVersion
		}
		if pkt = pkt[4:]; pkt[0] != 1 && pkt[0] != 2 {
			return p, dropKind
		}
		p.Kind = handshakeBit
	} else if len(pkt) < messageLen {
		return p, dropShort
	} else if Kind(pkt[0]) < KindData || Kind(pkt[0]) > KindMTUAck {
		return p, dropKind
	}
	p.Kind |= Kind(pkt[0])
	p.Token = Token(binary.LittleEndian.Uint64(pkt[1:]))
	o = p.parseBody(pkt[messageLen:len(pkt):len(pkt)])
	return p, o
}

func (p *Packet) parseBody(b []byte) outcome {
	if p.Kind == KindData {
		if len(b) == 0 {
			return dropShort
		}
		p.Pipeline, p.Body = PipelineID(b[0]), b[1:]
		return taken
	}
	fits := len(b) >= lengthLen && int(binary.LittleEndian.Uint16(b)) == len(b)-lengthLen
	if fits && len(b) > lengthLen {
		p.Body = b[lengthLen:]
	}
	switch p.Kind {
	case KindRequest:
		fits = len(b) == 0 || len(p.Body) > 0
	case KindAccept: // One whose payload has a wrong length is an accept without payload.
		fits = true
	case KindMTUCheck:
		if len(b) < lengthLen {
			return dropShort
		}
	case KindMTUAck:
		fits = fits && len(p.Body) == mtuSizeLen
	default: // A bit that flipped in a data packet shall not end the connection.
		fits = len(b) == 0
	}
	if !fits {
		return dropLength
	}
	return taken
}
