package utp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/ferryrelay/ferry/internal/utpwire"
)

func TestReject(t *testing.T) {
	const token = "0001020304050607"
	for _, v := range []struct {
		name, hex string
		want      error
	}{
		{"empty", "", utpwire.ErrShort},
		{"eight bytes", "03 00010203040506", utpwire.ErrShort},
		{"signature only", "555450", utpwire.ErrShort},
		{"handshake cut to twelve bytes", "55545001 01 00010203040506", utpwire.ErrKind},
		{"kind 0", "00" + token, utpwire.ErrKind},
		{"kind 6", "06" + token, utpwire.ErrKind},
		{"kind 255", "ff" + token, utpwire.ErrKind},
		{"kind of a handshake in a message", "81" + token, utpwire.ErrKind},
		{"wrong signature", "55545101 01" + token, utpwire.ErrKind},
		{"version 0", "55545000 01" + token, utpwire.ErrVersion},
		{"version 2", "55545002 01" + token, utpwire.ErrVersion},
		{"handshake kind 0", "55545001 00" + token, utpwire.ErrKind},
		{"handshake kind 3", "55545001 03" + token, utpwire.ErrKind},
		{"handshake kind 255", "55545001 ff" + token, utpwire.ErrKind},
		{"handshake kind with our mark", "55545001 81" + token, utpwire.ErrKind},
		{"request with half a length", "55545001 01" + token + "01", utpwire.ErrLength},
		{"request with length 0", "55545001 01" + token + "0000", utpwire.ErrLength},
		{"request with length 0 and a byte", "55545001 01" + token + "0000 61", utpwire.ErrLength},
		{"request with a byte too few", "55545001 01" + token + "0300 6162", utpwire.ErrLength},
		{"request with a byte too many", "55545001 01" + token + "0300 61626364", utpwire.ErrLength},
		{"data without pipeline", "01" + token, utpwire.ErrShort},
		{"disconnect with a byte more", "02" + token + "00", utpwire.ErrLength},
		{"heartbeat with a byte more", "03" + token + "00", utpwire.ErrLength},
		{"check without length", "04" + token + "00", utpwire.ErrShort},
		{"check with a byte too few", "04" + token + "0200 00", utpwire.ErrLength},
		{"check with a byte too many", "04" + token + "0200 000000", utpwire.ErrLength},
		{"ack of length 1", "05" + token + "0100 0004", utpwire.ErrLength},
		{"ack cut", "05" + token + "0200 00", utpwire.ErrLength},
		{"ack with a byte more", "05" + token + "0200 0004 00", utpwire.ErrLength},
	} {
		pkt := unhex(t, v.hex)
		if m, err := utpwire.Decode(pkt); err != v.want {
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
		m, err := utpwire.ParseAccept(unhex(t, "55545001 02 0001020304050607"+tail))
		if m.Token != goldenToken || m.Payload != nil || err != nil {
			t.Errorf("%s: %v %v", tail, m, err)
		}
	}
}

// TestWrongKind: a parser refuses every kind but its own.
func TestWrongKind(t *testing.T) {
	parsers := map[utpwire.Kind]func([]byte) error{
		utpwire.KindRequest:    func(b []byte) error { _, err := utpwire.ParseRequest(b); return err },
		utpwire.KindAccept:     func(b []byte) error { _, err := utpwire.ParseAccept(b); return err },
		utpwire.KindData:       func(b []byte) error { _, err := utpwire.ParseData(b); return err },
		utpwire.KindDisconnect: func(b []byte) error { _, err := utpwire.ParseDisconnect(b); return err },
		utpwire.KindHeartbeat:  func(b []byte) error { _, err := utpwire.ParseHeartbeat(b); return err },
		utpwire.KindMTUCheck:   func(b []byte) error { _, err := utpwire.ParseMTUCheck(b); return err },
		utpwire.KindMTUAck:     func(b []byte) error { _, err := utpwire.ParseMTUAck(b); return err },
	}
	for _, m := range messages(rand.New(rand.NewPCG(1, 1))) {
		pkt := m.Append(nil)
		kind, _, err := utpwire.ParseKind(pkt)
		if err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		for k, parse := range parsers {
			want := utpwire.ErrKind
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
func messages(rng *rand.Rand) []utpwire.Message {
	token := func() utpwire.Token { return utpwire.Token(rng.Uint64()) }
	some := func(n int) []byte {
		b := make([]byte, 1+rng.IntN(n))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	return []utpwire.Message{
		utpwire.Request{Token: token()}, utpwire.Request{Token: token(), Payload: some(300)},
		utpwire.Accept{Token: token()}, utpwire.Accept{Token: token(), Payload: some(300)},
		utpwire.Data{Token: token(), Pipeline: uint8(rng.Uint32()), Body: some(300)},
		utpwire.Disconnect{Token: token()}, utpwire.Heartbeat{Token: token()},
		utpwire.MTUCheck{Token: token(), Padding: uint16(rng.IntN(1400))},
		utpwire.MTUAck{Token: token(), Size: uint16(rng.Uint32())},
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
			got, err := utpwire.Decode(pkt)
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
			got, err := utpwire.Decode(pkt[:n])
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
		s := utpwire.SequencedHeader{Sequence: v}
		if got, rest, err := utpwire.ParseSequenced(append(s.Append(nil), 'x')); got != s || string(rest) != "x" || err != nil {
			t.Fatalf("%+v: %+v %q %v", s, got, rest, err)
		}
		f := utpwire.FragmentHeader{First: rng.IntN(2) == 0, Last: rng.IntN(2) == 0, Sequence: v & utpwire.FragmentMask}
		if got, rest, err := utpwire.ParseFragment(append(f.Append(nil), 'x')); got != f || string(rest) != "x" || err != nil {
			t.Fatalf("%+v: %+v %q %v", f, got, rest, err)
		}
		for _, wide := range []bool{false, true} {
			r := utpwire.ReliableHeader{Ack: rng.IntN(2) == 0, Processing: v, Sequence: v + 1, Newest: v + 2, Mask: rng.Uint64()}
			if !wide {
				r.Mask &= 0xFFFFFFFF
			}
			if got, rest, err := utpwire.ParseReliable(append(r.Append(nil, wide), 'x'), wide); got != r || string(rest) != "x" || err != nil {
				t.Fatalf("%+v: %+v %q %v", r, got, rest, err)
			}
		}
	}
}

func TestStageHeadersRefused(t *testing.T) {
	for n := range utpwire.SequencedLen {
		if _, _, err := utpwire.ParseSequenced(make([]byte, n)); err != utpwire.ErrShort {
			t.Errorf("sequenced of %d bytes: %v", n, err)
		}
		if _, _, err := utpwire.ParseFragment(make([]byte, n)); err != utpwire.ErrShort {
			t.Errorf("fragment of %d bytes: %v", n, err)
		}
	}
	for n := range utpwire.ReliableWideLen {
		if _, _, err := utpwire.ParseReliable(make([]byte, n), true); err != utpwire.ErrShort {
			t.Errorf("wide of %d bytes: %v", n, err)
		}
		if _, _, err := utpwire.ParseReliable(make([]byte, n), false); (err == utpwire.ErrShort) != (n < utpwire.ReliableNarrowLen) {
			t.Errorf("narrow of %d bytes: %v", n, err)
		}
	}
	for _, head := range [][]byte{{2, 0}, {255, 0}, {0, 1}, {0, 8}, {1, 16}} {
		b := append(head, make([]byte, 14)...)
		if _, _, err := utpwire.ParseReliable(b, true); err != utpwire.ErrStage {
			t.Errorf("% x: %v", head, err)
		}
	}
	if utpwire.FragmentHeader.Append(utpwire.FragmentHeader{Sequence: 0xFFFF}, nil)[1] != 0x3F {
		t.Error("a sequence of 16 bits reaches the marks of a fragment")
	}
}

func TestNames(t *testing.T) {
	for i := range 256 {
		for _, s := range []string{utpwire.Kind(i).String(), outcome(i).String(), Reason(i).String(), State(i).String(),
			Stage(i).String(), EventKind(i).String()} {
			if s == "" {
				t.Fatalf("value %d of some type has no name", i)
			}
		}
	}
}
