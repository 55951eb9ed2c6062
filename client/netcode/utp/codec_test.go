package utp

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestReject(t *testing.T) {
	const token = "0001020304050607"
	for _, v := range []struct {
		name, hex string
		want      error
	}{
		{"empty", "", ErrShort},
		{"eight bytes", "03 00010203040506", ErrShort},
		{"signature only", "555450", ErrShort},
		{"handshake cut to twelve bytes", "55545001 01 00010203040506", ErrKind},
		{"kind 0", "00" + token, ErrKind},
		{"kind 6", "06" + token, ErrKind},
		{"kind 255", "ff" + token, ErrKind},
		{"kind of a handshake in a message", "81" + token, ErrKind},
		{"wrong signature", "55545101 01" + token, ErrKind},
		{"version 0", "55545000 01" + token, ErrVersion},
		{"version 2", "55545002 01" + token, ErrVersion},
		{"handshake kind 0", "55545001 00" + token, ErrKind},
		{"handshake kind 3", "55545001 03" + token, ErrKind},
		{"handshake kind 255", "55545001 ff" + token, ErrKind},
		{"handshake kind with our mark", "55545001 81" + token, ErrKind},
		{"request with half a length", "55545001 01" + token + "01", ErrLength},
		{"request with length 0", "55545001 01" + token + "0000", ErrLength},
		{"request with length 0 and a byte", "55545001 01" + token + "0000 61", ErrLength},
		{"request with a byte too few", "55545001 01" + token + "0300 6162", ErrLength},
		{"request with a byte too many", "55545001 01" + token + "0300 61626364", ErrLength},
		{"data without pipeline", "01" + token, ErrShort},
		{"disconnect with a byte more", "02" + token + "00", ErrLength},
		{"heartbeat with a byte more", "03" + token + "00", ErrLength},
		{"check without length", "04" + token + "00", ErrShort},
		{"check with a byte too few", "04" + token + "0200 00", ErrLength},
		{"check with a byte too many", "04" + token + "0200 000000", ErrLength},
		{"ack of length 1", "05" + token + "0100 0004", ErrLength},
		{"ack cut", "05" + token + "0200 00", ErrLength},
		{"ack with a byte more", "05" + token + "0200 0004 00", ErrLength},
	} {
		pkt := unhex(t, v.hex)
		if m, err := Decode(pkt); err != v.want {
			t.Errorf("%s: %v, error %v, want %v", v.name, m, err, v.want)
		}
		if said := slowPacket(pkt, nil); said != invalid {
			t.Errorf("%s: the reference decoder says %s", v.name, said)
		}
	}
}

// TestAcceptKeepsFaith: an accept whose payload is damaged is still an accept.
func TestAcceptKeepsFaith(t *testing.T) {
	for _, tail := range []string{"01", "0000", "0300 6162", "0300 61626364"} {
		m, err := ParseAccept(unhex(t, "55545001 02 0001020304050607"+tail))
		if m.Token != goldenToken || m.Payload != nil || err != nil {
			t.Errorf("%s: %v %v", tail, m, err)
		}
	}
}

// TestWrongKind: a parser refuses every kind but its own.
func TestWrongKind(t *testing.T) {
	parsers := map[Kind]func([]byte) error{
		KindRequest:    func(b []byte) error { _, err := ParseRequest(b); return err },
		KindAccept:     func(b []byte) error { _, err := ParseAccept(b); return err },
		KindData:       func(b []byte) error { _, err := ParseData(b); return err },
		KindDisconnect: func(b []byte) error { _, err := ParseDisconnect(b); return err },
		KindHeartbeat:  func(b []byte) error { _, err := ParseHeartbeat(b); return err },
		KindMTUCheck:   func(b []byte) error { _, err := ParseMTUCheck(b); return err },
		KindMTUAck:     func(b []byte) error { _, err := ParseMTUAck(b); return err },
	}
	for _, m := range messages(rand.New(rand.NewPCG(1, 1))) {
		pkt := m.Append(nil)
		kind, _, err := ParseKind(pkt)
		if err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		for k, parse := range parsers {
			want := ErrKind
			if k == kind {
				want = nil
			}
			if err := parse(pkt); err != want {
				t.Errorf("%v parsed as %v: %v", m, k, err)
			}
		}
	}
}

// messages returns one of each kind with fields from a generator.
func messages(rng *rand.Rand) []Message {
	token := func() Token { return Token(rng.Uint64()) }
	some := func(n int) []byte {
		b := make([]byte, 1+rng.IntN(n))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	return []Message{
		Request{Token: token()}, Request{Token: token(), Payload: some(300)},
		Accept{Token: token()}, Accept{Token: token(), Payload: some(300)},
		Data{Token: token(), Pipeline: PipelineID(rng.Uint32()), Body: some(300)},
		Disconnect{token()}, Heartbeat{token()},
		MTUCheck{Token: token(), Padding: uint16(rng.IntN(1400))},
		MTUAck{Token: token(), Size: uint16(rng.Uint32())},
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
			got, err := Decode(pkt)
			if err != nil || got.String() != m.String() || !bytes.Equal(got.Append(nil), pkt) {
				t.Fatalf("%v came back as %v, %v", m, got, err)
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
			got, err := Decode(pkt[:n])
			if slow, fast := slowPacket(pkt[:n], nil), fastPacket(pkt[:n], nil); slow != fast {
				t.Fatalf("%x\nreference %s\npackage   %s", pkt[:n], slow, fast)
			}
			if err == nil && bytes.Equal(got.Append(nil), pkt) {
				t.Errorf("%d of %d bytes of %v are the whole", n, len(pkt), m)
			}
		}
	}
}

func TestStageHeaders(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 1000 {
		v := uint16(rng.Uint32())
		s := SequencedHeader{v}
		if got, rest, err := ParseSequenced(append(s.Append(nil), 'x')); got != s || string(rest) != "x" || err != nil {
			t.Fatalf("%+v: %+v %q %v", s, got, rest, err)
		}
		f := FragmentHeader{First: rng.IntN(2) == 0, Last: rng.IntN(2) == 0, Sequence: v & fragmentMask}
		if got, rest, err := ParseFragment(append(f.Append(nil), 'x')); got != f || string(rest) != "x" || err != nil {
			t.Fatalf("%+v: %+v %q %v", f, got, rest, err)
		}
		for _, wide := range []bool{false, true} {
			r := ReliableHeader{Ack: rng.IntN(2) == 0, Processing: v, Sequence: v + 1, Newest: v + 2, Mask: rng.Uint64()}
			if !wide {
				r.Mask &= 0xFFFFFFFF
			}
			if got, rest, err := ParseReliable(append(r.Append(nil, wide), 'x'), wide); got != r || string(rest) != "x" || err != nil {
				t.Fatalf("%+v: %+v %q %v", r, got, rest, err)
			}
		}
	}
}

func TestStageHeadersRefused(t *testing.T) {
	for n := range SequencedLen {
		if _, _, err := ParseSequenced(make([]byte, n)); err != ErrShort {
			t.Errorf("sequenced of %d bytes: %v", n, err)
		}
		if _, _, err := ParseFragment(make([]byte, n)); err != ErrShort {
			t.Errorf("fragment of %d bytes: %v", n, err)
		}
	}
	for n := range ReliableWideLen {
		if _, _, err := ParseReliable(make([]byte, n), true); err != ErrShort {
			t.Errorf("wide of %d bytes: %v", n, err)
		}
		if _, _, err := ParseReliable(make([]byte, n), false); (err == ErrShort) != (n < ReliableNarrowLen) {
			t.Errorf("narrow of %d bytes: %v", n, err)
		}
	}
	for _, head := range [][]byte{{2, 0}, {255, 0}, {0, 1}, {0, 8}, {1, 16}} {
		b := append(head, make([]byte, 14)...)
		if _, _, err := ParseReliable(b, true); err != ErrStage {
			t.Errorf("% x: %v", head, err)
		}
	}
	if FragmentHeader.Append(FragmentHeader{Sequence: 0xFFFF}, nil)[1] != 0x3F {
		t.Error("a sequence of 16 bits reaches the marks of a fragment")
	}
}

func TestNames(t *testing.T) {
	for i := range 256 {
		for _, s := range []string{Kind(i).String(), Outcome(i).String(), Reason(i).String(), State(i).String(),
			Stage(i).String(), EventKind(i).String()} {
			if s == "" {
				t.Fatalf("value %d of some type has no name", i)
			}
		}
	}
}
