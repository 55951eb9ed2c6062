package proto

import "testing"

func BenchmarkParseType(b *testing.B) {
	pkt := Relay{Payload: make([]byte, 100)}.Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if t, err := ParseType(pkt); t != TypeRelay || err != nil {
			b.Fatal(t, err)
		}
	}
}

func BenchmarkParsePing(b *testing.B) {
	pkt := Ping{Number: 1}.Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if m, err := ParsePing(pkt); m.Number != 1 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkParseRelay(b *testing.B) {
	pkt := Relay{Payload: make([]byte, 100)}.Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if m, err := ParseRelay(pkt); len(m.Payload) != 100 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkParseRelayRefused(b *testing.B) {
	pkt := append(Relay{Payload: make([]byte, 100)}.Append(nil), 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRelay(pkt); err != ErrLength {
			b.Fatal(err)
		}
	}
}

func BenchmarkRelayAppend(b *testing.B) {
	m := Relay{Payload: make([]byte, 100)}
	dst := make([]byte, 0, RelayOverhead+100)
	b.ReportAllocs()
	for b.Loop() {
		if len(m.Append(dst)) != RelayOverhead+100 {
			b.Fatal("wrong size")
		}
	}
}

// BenchmarkSignerVerify measures the check of a BIND with another key each time.
func BenchmarkSignerVerify(b *testing.B) {
	var signer Signer
	keys := make([]Key, 2)
	keys[1][0] = 1
	pkt := signer.Append(nil, Bind{ConnectionData: make([]byte, MaxConnectionData)}, &keys[0])
	b.SetBytes(int64(len(pkt)))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if signer.Verify(pkt, &keys[i&1]) != (i&1 == 0) {
			b.Fatal("wrong result")
		}
		i++
	}
}
