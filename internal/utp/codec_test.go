package utp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestReject(t *testing.T) {
	const token = "0001020304050607"
	for _, v := range []struct {
		name, hex string
		want      outcome
	}{
		{"empty", "", dropShort},
		{"eight bytes", "03 00010203040506", dropShort},
		{"signature only", "555450", dropShort},
		{"handshake cut to twelve bytes", "55545001 01 00010203040506", dropKind},
		{"kind 0", "00" + token, dropKind},
		{"kind 6", "06" + token, dropKind},
		{"kind 255", "ff" + token, dropKind},
		{"kind of a handshake in a message", "81" + token, dropKind},
		{"wrong signature", "55545101 01" + token, dropKind},
		{"version 0", "55545000 01" + token, dropVersion},
		{"version 2", "55545002 01" + token, dropVersion},
		{"handshake kind 0", "55545001 00" + token, dropKind},
		{"handshake kind 3", "55545001 03" + token, dropKind},
		{"handshake kind 255", "55545001 ff" + token, dropKind},
		{"handshake kind with our mark", "55545001 81" + token, dropKind},
		{"request with half a length", "55545001 01" + token + "01", dropLength},
		{"request with length 0", "55545001 01" + token + "0000", dropLength},
		{"request with length 0 and a byte", "55545001 01" + token + "0000 61", dropLength},
		{"request with a byte too few", "55545001 01" + token + "0300 6162", dropLength},
		{"request with a byte too many", "55545001 01" + token + "0300 61626364", dropLength},
		{"data without pipeline", "01" + token, dropShort},
		{"disconnect with a byte more", "02" + token + "00", dropLength},
		{"heartbeat with a byte more", "03" + token + "00", dropLength},
		{"check without length", "04" + token + "00", dropShort},
		{"check with a byte too few", "04" + token + "0200 00", dropLength},
		{"check with a byte too many", "04" + token + "0200 000000", dropLength},
		{"ack of length 1", "05" + token + "0100 0004", dropLength},
		{"ack cut", "05" + token + "0200 00", dropLength},
		{"ack with a byte more", "05" + token + "0200 0004 00", dropLength},
	} {
		pkt := unhex(t, v.hex)
		if m, o := parse(pkt); o != v.want {
			t.Errorf("%s: %v, %v, want %v", v.name, m, o, v.want)
		}
		if said := slowPacket(pkt, nil); said != invalid {
			t.Errorf("%s: the reference decoder says %s", v.name, said)
		}
	}
}

// TestAcceptKeepsFaith: an accept whose payload is damaged is still an accept.
func TestAcceptKeepsFaith(t *testing.T) {
	for _, tail := range []string{"01", "0000", "0300 6162", "0300 61626364"} {
		m, o := parse(unhex(t, "55545001 02 0001020304050607"+tail))
		if m.Kind != KindAccept || m.Token != goldenToken || m.Body != nil || o != taken {
			t.Errorf("%s: %v %v", tail, m, o)
		}
	}
}

func messages(rng *rand.Rand) []Packet {
	token := func() Token { return Token(rng.Uint64()) }
	some := func(n int) []byte {
		b := make([]byte, 1+rng.IntN(n))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	return []Packet{
		Packet{Kind: KindRequest, Token: token()}, Packet{Kind: KindRequest, Token: token(), Body: some(300)},
		Packet{Kind: KindAccept, Token: token()}, Packet{Kind: KindAccept, Token: token(), Body: some(300)},
		Packet{Kind: KindData, Token: token(), Pipeline: PipelineID(rng.Uint32()), Body: some(300)},
		Packet{Kind: KindDisconnect, Token: token()}, Packet{Kind: KindHeartbeat, Token: token()},
		Packet{Kind: KindMTUCheck, Token: token(), Body: make([]byte, uint16(rng.IntN(1400)))},
		Packet{Kind: KindMTUAck, Token: token(), Body: le16(uint16(rng.Uint32()))},
	}
}

// TestRoundTrip: what is appended, behind something else, is what is parsed.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 200 {
		for _, m := range messages(rng) {
			pkt := m.Append([]byte("front"))
			if !bytes.HasPrefix(pkt, []byte("front")) {
				t.Fatalf("%v overwrites what it is appended to", m)
			}
			pkt = pkt[len("front"):]
			got, o := parse(pkt)
			if o != taken || fmt.Sprint(got) != fmt.Sprint(m) || !bytes.Equal(got.Append(nil), pkt) {
				t.Fatalf("%v came back as %v, %v", m, got, o)
			}
			if slow, fast := slowPacket(pkt, nil), fastPacket(pkt, nil); slow != fast {
				t.Fatalf("%x\nreference %s\npackage   %s", pkt, slow, fast)
			}
		}
	}
}

// TestCutShort: no strict prefix of a packet is that packet. A request, an
// accept and data may be shorter ones of their kind.
func TestCutShort(t *testing.T) {
	for _, m := range messages(rand.New(rand.NewPCG(3, 3))) {
		pkt := m.Append(nil)
		for n := range pkt {
			got, o := parse(pkt[:n])
			if slow, fast := slowPacket(pkt[:n], nil), fastPacket(pkt[:n], nil); slow != fast {
				t.Fatalf("%x\nreference %s\npackage   %s", pkt[:n], slow, fast)
			}
			if o == taken && bytes.Equal(got.Append(nil), pkt) {
				t.Errorf("%d of %d bytes of %v are the whole", n, len(pkt), m)
			}
		}
	}
}

func le16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }

func TestStageHeadersRefused(t *testing.T) {
	for n := range sequencedLen {
		if _, _, ok := cutUint16(make([]byte, n)); ok {
			t.Errorf("a number of %d bytes", n)
		}
	}
	for n := range reliableWideLen {
		if _, _, ok := parseReliable(make([]byte, n), true); ok {
			t.Errorf("wide of %d bytes", n)
		}
		if _, _, ok := parseReliable(make([]byte, n), false); ok != (n >= reliableNarrowLen) {
			t.Errorf("narrow of %d bytes: %v", n, ok)
		}
	}
	for _, head := range [][]byte{{2, 0}, {255, 0}, {0, 1}, {0, 8}, {1, 16}} {
		b := append(head, make([]byte, 14)...)
		if _, _, ok := parseReliable(b, true); ok {
			t.Errorf("% x is taken", head)
		}
	}
}
