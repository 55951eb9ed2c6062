package proto

import (
	"bytes"
	"reflect"
	"testing"
)

// compareParsers holds Decode, ParseType and all ParseX against the reference,
// and what they accepted against the encoders. It returns the message.
func compareParsers(t *testing.T, pkt []byte) Message {
	t.Helper()
	got, err := Decode(pkt)
	want, wantErr := slowDecode(pkt)
	if err != wantErr || !reflect.DeepEqual(got, want) {
		t.Fatalf("Decode of %x:\n got %#v, %v\nwant %#v, %v", pkt, got, err, want, wantErr)
	}
	kind, err := ParseType(pkt)
	wantKind, wantErr := slowHeader(pkt)
	if err != wantErr || kind != wantKind {
		t.Fatalf("ParseType of %x: %v, %v; want %v, %v", pkt, kind, err, wantKind, wantErr)
	}
	for kind, parse := range parsers {
		m, err := parse(pkt)
		want, wantErr := slowParse(pkt, kind)
		if err != wantErr || err == nil && !reflect.DeepEqual(m, want) {
			t.Fatalf("Parse of %v from %x:\n got %#v, %v\nwant %#v, %v", kind, pkt, m, err, want, wantErr)
		}
	}
	if got != nil {
		compareEncoding(t, got, pkt)
	}
	return got
}

// compareEncoding checks that m, parsed from pkt, encodes into pkt.
func compareEncoding(t *testing.T, m Message, pkt []byte) {
	t.Helper()
	if m.Len() != len(pkt) {
		t.Fatalf("%v: Len is %d, the packet has %d bytes", m, m.Len(), len(pkt))
	}
	if again := m.Append(nil); !bytes.Equal(again, pkt) {
		t.Fatalf("%v: encoded as\n%x, parsed from\n%x", m, again, pkt)
	}
}

// TestDifferential compares over many mutations of valid packets. The shares
// show that the inputs reach both sides of every parser.
func TestDifferential(t *testing.T) {
	const rounds = 3000
	rng := newRand(2)
	for _, kind := range allTypes {
		accepted := 0
		for range rounds {
			pkt := mutate(rng, randomMessage(rng, kind).Append(nil))
			if m := compareParsers(t, pkt); m != nil {
				accepted++
			}
		}
		if accepted < rounds/10 || accepted > rounds*9/10 {
			t.Errorf("%v: %d of %d inputs were accepted, which tests one side only", kind, accepted, rounds)
		}
	}
}

// TestDifferentialNoise compares over random bytes behind a valid header.
func TestDifferentialNoise(t *testing.T) {
	rng := newRand(3)
	for range 5000 {
		pkt := randomBytes(rng, rng.IntN(320))
		copy(pkt, []byte{0xDA, 0x72, 0, byte(rng.IntN(16))})
		compareParsers(t, pkt)
	}
}

// FuzzDecode compares every parser with the reference decoder.
func FuzzDecode(f *testing.F) {
	rng := newRand(4)
	for _, pkt := range samplePackets() {
		f.Add(pkt)
		f.Add(mutate(rng, pkt))
	}
	f.Add([]byte(nil))
	f.Add([]byte{0xDA, 0x72, 0, 4})
	f.Add([]byte{0xDA, 0x72, 1, 10})
	f.Fuzz(func(t *testing.T, pkt []byte) {
		before := bytes.Clone(pkt)
		if m := compareParsers(t, pkt); m != nil && m.String() == "" {
			t.Error("a message without a description")
		}
		if !bytes.Equal(pkt, before) {
			t.Error("parsing changed the packet")
		}
	})
}
