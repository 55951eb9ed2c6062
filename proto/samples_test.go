package proto

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
)

// allTypes are the types that have a message.
var allTypes = []Type{
	TypeBind, TypeBindReceived, TypePing, TypeConnectRequest, TypeAccepted,
	TypeRejected, TypeDisconnect, TypeRelay, TypeClose, TypeError,
}

// parsers holds every ParseX behind one signature.
var parsers = map[Type]func([]byte) (Message, error){
	TypeBind:           erase(ParseBind),
	TypeBindReceived:   erase(ParseBindReceived),
	TypePing:           erase(ParsePing),
	TypeConnectRequest: erase(ParseConnectRequest),
	TypeAccepted:       erase(ParseAccepted),
	TypeRejected:       erase(ParseRejected),
	TypeDisconnect:     erase(ParseDisconnect),
	TypeRelay:          erase(ParseRelay),
	TypeClose:          erase(ParseClose),
	TypeError:          erase(ParseError),
}

// erase hides the message type of a parser. A failed parse has to return the
// zero message; erase panics when it does not.
func erase[M Message](parse func([]byte) (M, error)) func([]byte) (Message, error) {
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

func randomID(rng *rand.Rand) AllocationID { return AllocationID(randomBytes(rng, IDLen)) }

func randomKey(rng *rand.Rand) *Key {
	key := Key(randomBytes(rng, KeyLen))
	return &key
}

// randomMessage returns any message of type t. Lengths reach their limits far
// more often than chance would have it.
func randomMessage(rng *rand.Rand, t Type) Message {
	switch t {
	case TypeBind:
		return Bind{
			AcceptMode:     uint8(rng.Uint32()),
			Nonce:          uint16(rng.Uint32()),
			ConnectionData: randomBytes(rng, randomLen(rng, MaxConnectionData)),
			MAC:            [MACLen]byte(randomBytes(rng, MACLen)),
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

// samplePackets returns valid datagrams of every type: a few of each, with the
// shortest and the longest among them.
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

// mutate returns a changed copy of pkt: what a broken or a hostile sender
// would make of it.
func mutate(rng *rand.Rand, pkt []byte) []byte {
	pkt = bytes.Clone(pkt)
	switch rng.IntN(8) {
	case 0: // nothing: valid packets belong to the inputs
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
	case 6: // another size and the length field of RELAY to go with it
		pkt = append(pkt, make([]byte, RelayOverhead)...)
		pkt = pkt[:RelayOverhead+rng.IntN(len(pkt)-RelayOverhead+1)]
		pkt[3] = byte(TypeRelay)
		binary.BigEndian.PutUint16(pkt[36:], uint16(len(pkt)-RelayOverhead))
	case 7:
		pkt[rng.IntN(HeaderLen)] = byte(rng.IntN(3))
	}
	return pkt
}
