package utp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// The reference decoder: written to be read next to the tables of the protocol
// reference and from them alone. It shares not one line with the package.

type tape struct {
	rest  []byte
	short bool // a field reached beyond the end
}

func (r *tape) take(n int) []byte {
	if n > len(r.rest) {
		r.short = true
		r.rest = nil
		return make([]byte, n)
	}
	field := r.rest[:n]
	r.rest = r.rest[n:]
	return field
}

// number reads a number whose first byte counts ones, the second 256s, and so on.
func (r *tape) number(bytes int) uint64 {
	sum, worth := uint64(0), uint64(1)
	for _, digit := range r.take(bytes) {
		sum += uint64(digit) * worth
		worth *= 256
	}
	return sum
}

func (r *tape) text() string { return fmt.Sprintf("%x", r.rest) }

const invalid = "invalid"

// slowPacket describes a packet of the connection layer whose pipelines are
// written as one letter per stage in the order of sending: f fragmentation,
// u unreliable sequenced, r reliable with 4 bytes of mask, R with 8. The first
// entry is pipeline 0.
func slowPacket(pkt []byte, pipelines []string) string {
	if len(pkt) >= 13 && strings.HasPrefix(string(pkt), "UTP") {
		return slowHandshake(pkt)
	}
	r := tape{rest: pkt}
	kind, token := r.number(1), r.take(8)
	if r.short {
		return invalid
	}
	switch kind {
	case 1:
		id := r.number(1)
		if r.short {
			return invalid
		}
		if id >= uint64(len(pipelines)) {
			return fmt.Sprintf("data %x pipeline %d unknown", token, id)
		}
		return fmt.Sprintf("data %x pipeline %d%s", token, id, slowStages(&r, pipelines[id]))
	case 2, 3:
		if len(r.rest) != 0 {
			return invalid
		}
		return fmt.Sprintf("%s %x", map[uint64]string{2: "disconnect", 3: "heartbeat"}[kind], token)
	case 4:
		length := r.number(2)
		if r.short || uint64(len(r.rest)) != length {
			return invalid
		}
		return fmt.Sprintf("mtu check %x %d", token, length)
	case 5:
		length, size := r.number(2), r.number(2)
		if r.short || length != 2 || len(r.rest) != 0 {
			return invalid
		}
		return fmt.Sprintf("mtu ack %x %d", token, size)
	}
	return invalid
}

func slowHandshake(pkt []byte) string {
	r := tape{rest: pkt}
	r.take(3)
	version, kind, token := r.number(1), r.number(1), r.take(8)
	name := map[uint64]string{1: "request", 2: "accept"}[kind]
	if version != 1 || name == "" {
		return invalid
	}
	plain := fmt.Sprintf("%s %x", name, token)
	if len(r.rest) == 0 {
		return plain
	}
	length := r.number(2)
	if r.short || length == 0 || length != uint64(len(r.rest)) {
		if name == "request" {
			return invalid
		}
		return plain
	}
	return plain + " payload " + r.text()
}

// slowStages reads the headers of a pipeline, that of the last stage first.
func slowStages(r *tape, stages string) string {
	said := ""
	for i := len(stages) - 1; i >= 0; i-- {
		said += slowStage(r, stages[i])
		if r.short || strings.HasSuffix(said, invalid) {
			return " " + invalid
		}
	}
	return said + " payload " + r.text()
}

func slowStage(r *tape, stage byte) string {
	switch stage {
	case 'f':
		low, high := r.number(1), r.number(1)
		said := fmt.Sprintf(" fragment %d", low+256*(high%64))
		if high >= 128 {
			said += " first"
		}
		if high/64%2 == 1 {
			said += " last"
		}
		return said
	case 'u':
		return fmt.Sprintf(" sequenced %d", r.number(2))
	}
	kind, zero := r.number(1), r.number(1)
	processing, sequence, newest := r.number(2), r.number(2), r.number(2)
	missing := slowMask(r, map[byte]int{'r': 4, 'R': 8}[stage], newest)
	if kind > 1 || zero != 0 {
		return invalid
	}
	return fmt.Sprintf(" reliable %s %d processing %d newest %d missing%v",
		[]string{"payload", "ack"}[kind], sequence, processing, newest, missing)
}

// slowMask lists the sequences of the last 8 times bytes that were not received.
func slowMask(r *tape, bytes int, newest uint64) (missing []uint16) {
	at := uint16(newest)
	for _, eight := range r.take(bytes) {
		for range 8 {
			if eight%2 == 0 {
				missing = append(missing, at)
			}
			eight /= 2
			at--
		}
	}
	return missing
}

// fastPacket describes a packet in the same words, with the package's codecs.
func fastPacket(pkt []byte, pipelines []string) string {
	m, o := parse(pkt)
	if o != taken {
		return invalid
	}
	token := tokenText(m.Token)
	switch m.Kind {
	case KindRequest:
		return "request " + token + payloadText(m.Body)
	case KindAccept:
		return "accept " + token + payloadText(m.Body)
	case KindDisconnect:
		return "disconnect " + token
	case KindHeartbeat:
		return "heartbeat " + token
	case KindMTUCheck:
		return fmt.Sprintf("mtu check %s %d", token, len(m.Body))
	case KindMTUAck:
		return fmt.Sprintf("mtu ack %s %d", token, binary.LittleEndian.Uint16(m.Body))
	}
	if int(m.Pipeline) >= len(pipelines) {
		return fmt.Sprintf("data %s pipeline %d unknown", token, m.Pipeline)
	}
	return fmt.Sprintf("data %s pipeline %d%s", token, m.Pipeline, fastStages(m.Body, pipelines[m.Pipeline]))
}

// tokenText returns the hex digits of a token as they stand on the wire.
func tokenText(t Token) string {
	return fmt.Sprintf("%x", binary.LittleEndian.AppendUint64(nil, uint64(t)))
}

func payloadText(b []byte) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf(" payload %x", b)
}

func fastStages(b []byte, stages string) string {
	said := ""
	for i := len(stages) - 1; i >= 0; i-- {
		var part string
		var ok bool
		switch stages[i] {
		case 'f':
			var h uint16
			h, b, ok = cutUint16(b)
			part = fmt.Sprintf(" fragment %d", h&fragmentMask)
			if h&fragmentFirst != 0 {
				part += " first"
			}
			if h&fragmentLast != 0 {
				part += " last"
			}
		case 'u':
			var h uint16
			h, b, ok = cutUint16(b)
			part = fmt.Sprintf(" sequenced %d", h)
		default:
			var h reliableHeader
			h, b, ok = parseReliable(b, stages[i] == 'R')
			part = reliableText(h, stages[i] == 'R')
		}
		if !ok {
			return " " + invalid
		}
		said += part
	}
	return fmt.Sprintf("%s payload %x", said, b)
}

func reliableText(h reliableHeader, wide bool) string {
	name, bits := "payload", 32
	if h.kind == reliableAck {
		name = "ack"
	}
	if wide {
		bits = 64
	}
	var missing []uint16
	for i := range bits {
		if h.mask&(1<<i) == 0 {
			missing = append(missing, h.newest-uint16(i))
		}
	}
	return fmt.Sprintf(" reliable %s %d processing %d newest %d missing%v", name, h.sequence, h.processing, h.newest, missing)
}
