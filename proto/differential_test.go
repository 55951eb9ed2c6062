package proto

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// compareParsers compares Decode, ParseType and all parsers with the reference, and
// the accepted messages with the encoders. It returns the message.
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

func compareEncoding(t *testing.T, m Message, pkt []byte) {
	t.Helper()
	if again := m.Append(nil); !bytes.Equal(again, pkt) {
		t.Fatalf("%v: encoded as\n%x, parsed from\n%x", m, again, pkt)
	}
}

// TestDifferential compares the parsers over mutations of valid packets, of which
// every parser must accept some and reject some.
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
			t.Errorf("%v: %d of %d inputs were accepted, want 10 to 90 %%", kind, accepted, rounds)
		}
	}
}

func TestDifferentialNoise(t *testing.T) {
	rng := newRand(3)
	for range 5000 {
		pkt := randomBytes(rng, rng.IntN(320))
		copy(pkt, []byte{0xDA, 0x72, 0, byte(rng.IntN(16))})
		compareParsers(t, pkt)
	}
}

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

func TestRoundTrip(t *testing.T) {
	rng := newRand(5)
	for _, kind := range allTypes {
		for range 1000 {
			m := randomMessage(rng, kind)
			prefix := randomBytes(rng, rng.IntN(8))
			dst := m.Append(bytes.Clone(prefix))
			if !bytes.HasPrefix(dst, prefix) {
				t.Fatalf("%v: Append changed the bytes before it", m)
			}
			pkt := dst[len(prefix):]
			if back, err := Decode(pkt); err != nil || !reflect.DeepEqual(back, m) {
				t.Fatalf("%#v\ncame back as %#v, %v", m, back, err)
			}
			if kind != Type(pkt[3]) {
				t.Fatalf("%v: has type %v on the wire", m, Type(pkt[3]))
			}
		}
	}
}

// TestDecodeTypes: Decode returns the struct of the type, also for ACCEPTED, REJECTED
// and DISCONNECT, which have the same layout.
func TestDecodeTypes(t *testing.T) {
	rng := newRand(6)
	for _, kind := range allTypes {
		m := randomMessage(rng, kind)
		back, err := Decode(m.Append(nil))
		if err != nil || reflect.TypeOf(back) != reflect.TypeOf(m) {
			t.Errorf("%v: %T came back as %T, %v", kind, m, back, err)
		}
		if !strings.HasPrefix(back.String(), kind.String()) {
			t.Errorf("%v: String is %q", kind, back)
		}
	}
}

func TestStrings(t *testing.T) {
	const (
		a = "10111213-1415-1617-1819-1a1b1c1d1e1f"
		b = "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
	)
	for _, c := range []struct {
		message Message
		want    string
	}{
		{Bind{AcceptMode: 1, Nonce: 300, ConnectionData: make([]byte, 255)}, "BIND mode=1 nonce=300 data=255B"},
		{BindReceived{}, "BIND_RECEIVED"},
		{Ping{ID: goldenHost, Number: 258}, "PING " + a + " number=258"},
		{ConnectRequest{ID: goldenJoiner, ConnectionData: make([]byte, 3)}, "CONNECT_REQUEST " + b + " data=3B"},
		{Accepted{From: goldenHost, To: goldenJoiner}, "ACCEPTED " + a + " -> " + b},
		{Rejected{From: goldenHost, To: goldenJoiner}, "REJECTED " + a + " -> " + b},
		{Disconnect{From: goldenJoiner, To: goldenHost}, "DISCONNECT " + b + " -> " + a},
		{Relay{From: goldenJoiner, To: goldenHost, Payload: []byte("hello")}, "RELAY " + b + " -> " + a + " payload=5B"},
		{Close{ID: goldenHost}, "CLOSE " + a},
		{Error{ID: goldenHost, Code: ErrorNotFound}, "ERROR " + a + " 4 (allocation not found)"},
		{Error{Code: 9}, "ERROR 00000000-0000-0000-0000-000000000000 9 (code 9)"},
	} {
		if got := c.message.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestStringsKeepSecrets(t *testing.T) {
	secret := bytes.Repeat([]byte("hunter2!"), 4)
	for _, m := range []Message{
		Bind{ConnectionData: secret, MAC: [macLen]byte(secret)},
		ConnectRequest{ConnectionData: secret},
		Relay{Payload: secret},
	} {
		if strings.Contains(m.String(), "hunter2!") || strings.Contains(m.String(), "68756e746572") {
			t.Errorf("%s shows its contents", m)
		}
	}
}

// The reference decoder is written from the diagrams in doc.go alone. It shares
// message types and errors with the package, and no code: it consumes fields from the
// front and knows only the sizes of single fields. A size is wrong if a field is
// missing or bytes are left over.

type slowReader struct {
	rest    []byte
	missing bool // a field reached beyond the end
}

func (r *slowReader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.missing = true
		r.rest = r.rest[:0]
		return make([]byte, n)
	}
	field := r.rest[:n]
	r.rest = r.rest[n:]
	return field
}

func (r *slowReader) u8() uint8 { return r.bytes(1)[0] }

// u16LittleEndian consumes a number whose first byte is the low one.
func (r *slowReader) u16LittleEndian() uint16 {
	ones := uint16(r.u8())
	return ones + 256*uint16(r.u8())
}

// u16BigEndian consumes a number whose second byte is the low one.
func (r *slowReader) u16BigEndian() uint16 {
	high := uint16(r.u8())
	return 256*high + uint16(r.u8())
}

func (r *slowReader) id() (id AllocationID) {
	copy(id[:], r.bytes(16))
	return id
}

// whole reports whether the fields read so far are exactly the datagram.
func (r *slowReader) whole() bool { return !r.missing && len(r.rest) == 0 }

func slowHeader(pkt []byte) (Type, error) {
	r := slowReader{rest: pkt}
	first, second, version, kind := r.u8(), r.u8(), r.u8(), r.u8()
	if r.missing {
		return 0, ErrShort
	}
	if first != 0xDA || second != 0x72 {
		return 0, ErrSignature
	}
	if version != 0 {
		return Type(kind), ErrVersion
	}
	return Type(kind), nil
}

func slowDecode(pkt []byte) (Message, error) {
	kind, err := slowHeader(pkt)
	if err != nil {
		return nil, err
	}
	return slowBody(pkt, kind)
}

func slowParse(pkt []byte, want Type) (Message, error) {
	kind, err := slowHeader(pkt)
	if err != nil {
		return nil, err
	}
	if kind != want {
		return nil, ErrType
	}
	return slowBody(pkt, kind)
}

func slowBody(pkt []byte, kind Type) (Message, error) {
	r := slowReader{rest: pkt}
	r.bytes(4)
	m := slowFields(&r, kind)
	if m == nil {
		return nil, ErrType
	}
	if !r.whole() {
		return nil, ErrLength
	}
	if relay, ok := m.(Relay); ok && len(relay.Payload) > 1434 {
		return nil, ErrLength
	}
	return m, nil
}

// slowFields parses the fields of one type in the order of the diagrams, one statement
// for each field, so that their order is explicit.
func slowFields(r *slowReader, kind Type) Message {
	switch kind {
	case 0:
		return slowBind(r)
	case 1:
		return BindReceived{}
	case 2:
		id := r.id()
		number := r.u16LittleEndian()
		return Ping{ID: id, Number: number}
	case 3:
		id := r.id()
		n := r.u8()
		data := r.bytes(int(n))
		return ConnectRequest{ID: id, ConnectionData: data}
	case 6:
		from := r.id()
		to := r.id()
		return Accepted{From: from, To: to}
	case 8:
		from := r.id()
		to := r.id()
		return Rejected{From: from, To: to}
	case 9:
		from := r.id()
		to := r.id()
		return Disconnect{From: from, To: to}
	case 10:
		from := r.id()
		to := r.id()
		n := r.u16BigEndian()
		payload := r.bytes(int(n))
		return Relay{From: from, To: to, Payload: payload}
	case 11:
		return Close{ID: r.id()}
	case 12:
		id := r.id()
		code := r.u8()
		return Error{ID: id, Code: ErrorCode(code)}
	}
	return nil
}

func slowBind(r *slowReader) Bind {
	var m Bind
	m.AcceptMode = r.u8()
	m.Nonce = r.u16LittleEndian()
	n := r.u8()
	m.ConnectionData = r.bytes(int(n))
	copy(m.MAC[:], r.bytes(32))
	return m
}
