package proto

import (
	"bytes"
	"testing"
)

// TestPrefixes cuts every sample short at every length.
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

// TestTrailing adds bytes to every sample.
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

// TestMutations sets every byte of every short sample to every value, and of
// every long one to a few: no parser may panic, all must agree with the
// reference.
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

// TestHeaderErrors gives every parser a datagram of the right size with a
// header in which one or more things are wrong: the first one counts.
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
			// A wrong header outweighs a wrong size.
			if _, err := parsers[kind](append(pkt, 0)); err != c.want {
				t.Errorf("%s and a byte more: Parse of %v: %v, want %v", c.name, kind, err, c.want)
			}
			if _, err := parsers[kind](pkt[:HeaderLen]); err != c.want {
				t.Errorf("%s and nothing else: Parse of %v: %v, want %v", c.name, kind, err, c.want)
			}
		}
	}
}

// TestOtherType gives every parser the messages of all other types.
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

// TestRelayLimits walks the length field of RELAY over its limits. The size
// always matches the field, so only the limit can refuse.
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

// TestRelayLengthWraps takes a size that matches the length field only modulo
// 65536.
func TestRelayLengthWraps(t *testing.T) {
	pkt := append(Relay{}.Append(nil), make([]byte, 65536)...)
	if _, err := ParseRelay(pkt); err != ErrLength {
		t.Errorf("a length that wraps around: %v, want ErrLength", err)
	}
}

// TestConnectionDataLengths walks the length byte of BIND and CONNECT_REQUEST
// over all values against the sizes around the right one.
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
			if size := BindOverhead + n + off; size <= len(bind) {
				if _, err := ParseBind(bind[:size]); err != want {
					t.Errorf("BIND of %d bytes with length byte %d: %v, want %v", size, n, err, want)
				}
			}
			if size := ConnectRequestOverhead + n + off; size <= len(request) {
				if _, err := ParseConnectRequest(request[:size]); err != want {
					t.Errorf("CONNECT_REQUEST of %d bytes with length byte %d: %v, want %v", size, n, err, want)
				}
			}
		}
	}
}
