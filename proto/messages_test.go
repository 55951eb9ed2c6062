package proto

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

func TestPrefixes(t *testing.T) {
	for _, pkt := range samplePackets() {
		kind := Type(pkt[3])
		for n := range len(pkt) {
			want := ErrLength
			if n < HeaderLen {
				want = ErrShort
			}
			if m, err := Decode(pkt[:n]); err != want || m != nil {
				t.Errorf("%v cut from %d to %d bytes: %v, %v; want %v", kind, len(pkt), n, m, err, want)
			}
			if m, err := parsers[kind](pkt[:n]); err != want || m != nil {
				t.Errorf("Parse of %v cut from %d to %d bytes: %v, %v; want %v", kind, len(pkt), n, m, err, want)
			}
		}
	}
}

func TestTrailing(t *testing.T) {
	for _, pkt := range samplePackets() {
		kind := Type(pkt[3])
		for _, extra := range [][]byte{{0}, {0xff}, make([]byte, 2), make([]byte, 256), make([]byte, 65536)} {
			long := append(bytes.Clone(pkt), extra...)
			if m, err := Decode(long); err != ErrLength || m != nil {
				t.Errorf("%v with %d bytes more: %v, %v; want ErrLength", kind, len(extra), m, err)
			}
			if m, err := parsers[kind](long); err != ErrLength || m != nil {
				t.Errorf("Parse of %v with %d bytes more: %v, %v; want ErrLength", kind, len(extra), m, err)
			}
		}
	}
}

// TestMutations sets every byte of every short sample to every value, and of every
// long one to a few values. No parser panics, and all agree with the reference.
func TestMutations(t *testing.T) {
	few := []byte{0, 1, 0x7f, 0x80, 0xfe, 0xff}
	var all []byte
	for v := range 256 {
		all = append(all, byte(v))
	}
	for _, pkt := range samplePackets() {
		values := few
		if len(pkt) <= RelayOverhead+1 {
			values = all
		}
		for i, was := range pkt {
			for _, v := range values {
				pkt[i] = v
				compareParsers(t, pkt)
			}
			pkt[i] = was
		}
	}
}

// TestHeaderErrors: every parser reports the first wrong byte of the header.
func TestHeaderErrors(t *testing.T) {
	cases := []struct {
		name   string
		change func(header []byte)
		want   error
	}{
		{"first byte", func(h []byte) { h[0] = 0xDB }, ErrSignature},
		{"second byte", func(h []byte) { h[1] = 0x73 }, ErrSignature},
		{"signature swapped", func(h []byte) { h[0], h[1] = h[1], h[0] }, ErrSignature},
		{"version 1", func(h []byte) { h[2] = 1 }, ErrVersion},
		{"version 255", func(h []byte) { h[2] = 255 }, ErrVersion},
		{"reserved type 4", func(h []byte) { h[3] = 4 }, ErrType},
		{"reserved type 5", func(h []byte) { h[3] = 5 }, ErrType},
		{"reserved type 7", func(h []byte) { h[3] = 7 }, ErrType},
		{"type 13", func(h []byte) { h[3] = 13 }, ErrType},
		{"type 255", func(h []byte) { h[3] = 255 }, ErrType},
		{"signature and version", func(h []byte) { h[1], h[2] = 0, 1 }, ErrSignature},
		{"signature and type", func(h []byte) { h[0], h[3] = 0, 13 }, ErrSignature},
		{"version and type", func(h []byte) { h[2], h[3] = 1, 13 }, ErrVersion},
	}
	for _, c := range cases {
		for _, pkt := range samplePackets() {
			kind := Type(pkt[3])
			c.change(pkt)
			if _, err := parsers[kind](pkt); err != c.want {
				t.Errorf("%s: Parse of %v: %v, want %v", c.name, kind, err, c.want)
			}
			if _, err := Decode(pkt); err != c.want {
				t.Errorf("%s: Decode of %v: %v, want %v", c.name, kind, err, c.want)
			}
			// The header is checked before the size.
			if _, err := parsers[kind](append(pkt, 0)); err != c.want {
				t.Errorf("%s and a byte more: Parse of %v: %v, want %v", c.name, kind, err, c.want)
			}
			if _, err := parsers[kind](pkt[:HeaderLen]); err != c.want {
				t.Errorf("%s and nothing else: Parse of %v: %v, want %v", c.name, kind, err, c.want)
			}
		}
	}
}

func TestOtherType(t *testing.T) {
	for _, pkt := range samplePackets() {
		for kind, parse := range parsers {
			_, err := parse(pkt)
			if own := kind == Type(pkt[3]); own && err != nil || !own && err != ErrType {
				t.Errorf("Parse of %v given %v: %v", kind, Type(pkt[3]), err)
			}
		}
	}
}

// TestRelayLimits: ParseRelay accepts payloads of up to MaxContent bytes. The size of
// the datagram always matches the length field.
func TestRelayLimits(t *testing.T) {
	for _, c := range []struct {
		content int
		want    error
	}{
		{0, nil}, {1, nil}, {255, nil}, {256, nil},
		{DefaultMaxContent, nil}, {DefaultMaxContent + 1, nil},
		{MaxContent - 1, nil}, {MaxContent, nil},
		{MaxContent + 1, ErrLength}, {2048, ErrLength}, {65535, ErrLength},
	} {
		pkt := Relay{}.Append(nil)
		pkt[36], pkt[37] = byte(c.content>>8), byte(c.content)
		pkt = append(pkt, make([]byte, c.content)...)
		m, err := ParseRelay(pkt)
		if err != c.want {
			t.Errorf("%d bytes of content: %v, want %v", c.content, err, c.want)
		}
		if err == nil && len(m.Payload) != c.content {
			t.Errorf("%d bytes of content parsed as %d", c.content, len(m.Payload))
		}
	}
}

// TestRelayLengthWraps: a size matches the length field only modulo 65536.
func TestRelayLengthWraps(t *testing.T) {
	pkt := append(Relay{}.Append(nil), make([]byte, 65536)...)
	if _, err := ParseRelay(pkt); err != ErrLength {
		t.Errorf("a length that wraps around: %v, want ErrLength", err)
	}
}

// TestConnectionDataLengths parses BIND and CONNECT_REQUEST with every value of the
// length byte, at the right size and at sizes up to two bytes off.
func TestConnectionDataLengths(t *testing.T) {
	bind := Bind{ConnectionData: make([]byte, MaxConnectionData)}.Append(nil)
	request := ConnectRequest{ConnectionData: make([]byte, MaxConnectionData)}.Append(nil)
	for n := range MaxConnectionData + 1 {
		bind[7], request[20] = byte(n), byte(n)
		for off := -2; off <= 2; off++ {
			var want error
			if off != 0 {
				want = ErrLength
			}
			if size := bindOverhead + n + off; size <= len(bind) {
				if _, err := ParseBind(bind[:size]); err != want {
					t.Errorf("BIND of %d bytes with length byte %d: %v, want %v", size, n, err, want)
				}
			}
			if size := connectRequestOverhead + n + off; size <= len(request) {
				if _, err := ParseConnectRequest(request[:size]); err != want {
					t.Errorf("CONNECT_REQUEST of %d bytes with length byte %d: %v, want %v", size, n, err, want)
				}
			}
		}
	}
}

var allTypes = []Type{
	TypeBind, TypeBindReceived, TypePing, TypeConnectRequest, TypeAccepted,
	TypeRejected, TypeDisconnect, TypeRelay, TypeClose, TypeError,
}

var parsers = map[Type]func([]byte) (Message, error){
	TypeBind:           asDecode(ParseBind),
	TypeBindReceived:   asDecode(ParseBindReceived),
	TypePing:           asDecode(ParsePing),
	TypeConnectRequest: asDecode(ParseConnectRequest),
	TypeAccepted:       asDecode(ParseAccepted),
	TypeRejected:       asDecode(ParseRejected),
	TypeDisconnect:     asDecode(ParseDisconnect),
	TypeRelay:          asDecode(ParseRelay),
	TypeClose:          asDecode(ParseClose),
	TypeError:          asDecode(ParseError),
}

// asDecode converts a parser to one that returns a Message. It panics if the parser
// returns an error and a message other than zero.
func asDecode[M Message](parse func([]byte) (M, error)) func([]byte) (Message, error) {
	return func(pkt []byte) (Message, error) {
		m, err := parse(pkt)
		if err != nil {
			if !reflect.ValueOf(m).IsZero() {
				panic(fmt.Sprintf("%T is not zero beside error %v", m, err))
			}
			return nil, err
		}
		return m, nil
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0xDA72)) }

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func randomID(rng *rand.Rand) AllocationID { return AllocationID(randomBytes(rng, idLen)) }

func randomKey(rng *rand.Rand) *Key {
	key := Key(randomBytes(rng, keyLen))
	return &key
}

// randomMessage returns a random message of type t, whose lengths are often zero or
// at the limit.
func randomMessage(rng *rand.Rand, t Type) Message {
	switch t {
	case TypeBind:
		return Bind{
			AcceptMode:     uint8(rng.Uint32()),
			Nonce:          uint16(rng.Uint32()),
			ConnectionData: randomBytes(rng, randomLen(rng, MaxConnectionData)),
			MAC:            [macLen]byte(randomBytes(rng, macLen)),
		}
	case TypeBindReceived:
		return BindReceived{}
	case TypePing:
		return Ping{ID: randomID(rng), Number: uint16(rng.Uint32())}
	case TypeConnectRequest:
		return ConnectRequest{
			ID:             randomID(rng),
			ConnectionData: randomBytes(rng, randomLen(rng, MaxConnectionData)),
		}
	case TypeAccepted:
		return Accepted{From: randomID(rng), To: randomID(rng)}
	case TypeRejected:
		return Rejected{From: randomID(rng), To: randomID(rng)}
	case TypeDisconnect:
		return Disconnect{From: randomID(rng), To: randomID(rng)}
	case TypeRelay:
		return Relay{
			From:    randomID(rng),
			To:      randomID(rng),
			Payload: randomBytes(rng, randomLen(rng, MaxContent)),
		}
	case TypeClose:
		return Close{ID: randomID(rng)}
	case TypeError:
		return Error{ID: randomID(rng), Code: ErrorCode(rng.Uint32())}
	}
	panic(t)
}

func randomLen(rng *rand.Rand, limit int) int {
	switch rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return limit
	}
	return rng.IntN(limit + 1)
}

// samplePackets returns valid datagrams of every type, among them the shortest and
// the longest.
func samplePackets() [][]byte {
	rng := newRand(1)
	id, peer := randomID(rng), randomID(rng)
	packets := [][]byte{
		Bind{}.Append(nil),
		Bind{Nonce: 0x1234, ConnectionData: randomBytes(rng, MaxConnectionData)}.Append(nil),
		ConnectRequest{ID: id}.Append(nil),
		ConnectRequest{ID: id, ConnectionData: randomBytes(rng, MaxConnectionData)}.Append(nil),
		Relay{From: id, To: peer}.Append(nil),
		Relay{From: id, To: peer, Payload: randomBytes(rng, 1)}.Append(nil),
		Relay{From: id, To: peer, Payload: randomBytes(rng, DefaultMaxContent)}.Append(nil),
		Relay{From: id, To: peer, Payload: randomBytes(rng, MaxContent)}.Append(nil),
	}
	for _, t := range allTypes {
		packets = append(packets, randomMessage(rng, t).Append(nil))
	}
	return packets
}

func mutate(rng *rand.Rand, pkt []byte) []byte {
	pkt = bytes.Clone(pkt)
	switch rng.IntN(8) {
	case 0: // no change: valid packets are inputs too
	case 1:
		pkt[rng.IntN(len(pkt))] ^= 1 << rng.IntN(8)
	case 2:
		pkt[rng.IntN(len(pkt))] = byte(rng.Uint32())
	case 3:
		pkt = pkt[:rng.IntN(len(pkt))]
	case 4:
		pkt = append(pkt, randomBytes(rng, 1+rng.IntN(3))...)
	case 5:
		pkt[3] = byte(rng.IntN(14))
	case 6: // another size, with a matching length field of RELAY
		pkt = append(pkt, make([]byte, RelayOverhead)...)
		pkt = pkt[:RelayOverhead+rng.IntN(len(pkt)-RelayOverhead+1)]
		pkt[3] = byte(TypeRelay)
		binary.BigEndian.PutUint16(pkt[36:], uint16(len(pkt)-RelayOverhead))
	case 7:
		pkt[rng.IntN(HeaderLen)] = byte(rng.IntN(3))
	}
	return pkt
}
