package proto

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

type vector struct {
	ID      string `json:"id"`
	Message string `json:"message"`
	Length  int    `json:"length"`
	Hex     string `json:"hex"`
}

func (v vector) packet(t *testing.T) []byte {
	t.Helper()
	pkt, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatalf("%s: %v", v.ID, err)
	}
	if len(pkt) != v.Length {
		t.Fatalf("%s: %d bytes in hex, %d announced", v.ID, len(pkt), v.Length)
	}
	return pkt
}

func loadVectors(t *testing.T) map[string]vector {
	t.Helper()
	text, err := os.ReadFile("../docs/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []vector `json:"vectors"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	vectors := make(map[string]vector)
	for _, v := range file.Vectors {
		vectors[v.ID] = v
	}
	if len(vectors) != len(file.Vectors) || len(vectors) == 0 {
		t.Fatalf("%d vectors with %d ids", len(file.Vectors), len(vectors))
	}
	return vectors
}

// sequence returns n bytes; byte i is step*i + start. All inputs of the vectors follow
// this rule.
func sequence(n, step, start int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(step*i + start)
	}
	return b
}

var (
	goldenHostKey  = Key(sequence(keyLen, 1, 0))
	goldenJoinKey  = Key(sequence(keyLen, 1, 0x80))
	goldenHost     = AllocationID(sequence(idLen, 1, 0x10))
	goldenJoiner   = AllocationID(sequence(idLen, 1, 0xa0))
	goldenHostData = sequence(MaxConnectionData, 7, 3)
	goldenJoinData = sequence(MaxConnectionData, 11, 5)
)

// golden holds the message of each vector. TestGolden copies MACs from the packet;
// TestGoldenMAC computes them.
var golden = map[string]Message{
	"bind-host-nonce0":   Bind{ConnectionData: goldenHostData},
	"bind-host-nonce1":   Bind{Nonce: 1, ConnectionData: goldenHostData},
	"bind-joiner-nonce0": Bind{ConnectionData: goldenJoinData},
	"bind-bad-mac":       Bind{ConnectionData: goldenHostData},
	"bind-received":      BindReceived{},
	"ping":               Ping{ID: goldenHost, Number: 1},
	"connect-request":    ConnectRequest{ID: goldenJoiner, ConnectionData: goldenHostData},
	"accepted":           Accepted{From: goldenHost, To: goldenJoiner},
	"rejected-suggested": Rejected{From: goldenHost, To: goldenJoiner},
	"relay-hello":        Relay{From: goldenJoiner, To: goldenHost, Payload: []byte("hello")},
	"relay-utp2-connreq": Relay{From: goldenJoiner, To: goldenHost, Payload: []byte("UTP\x01\x01\x01\x02\x03\x04\x05\x06\x07\x08")},
	"close-host":         Close{ID: goldenHost},
	"error-3":            Error{ID: goldenHost, Code: ErrorMismatch},
	"error-4":            Error{ID: goldenHost, Code: ErrorNotFound},
}

// refused holds the vectors that Decode rejects, with the error: a REJECTED without a
// body, which clients may accept but Ferry does not send, and QoS probes, which are
// not messages.
var refused = map[string]error{
	"rejected-minimal": ErrLength,
	"qos-request":      ErrSignature,
	"qos-response":     ErrSignature,
}

func TestGolden(t *testing.T) {
	vectors := loadVectors(t)
	for id, want := range golden {
		v, ok := vectors[id]
		if !ok {
			t.Errorf("%s is not in the file", id)
			continue
		}
		pkt := v.packet(t)
		if bind, ok := want.(Bind); ok {
			copy(bind.MAC[:], pkt[len(pkt)-macLen:])
			want = bind
		}
		got, err := Decode(pkt)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: decoded as %#v, %v; want %#v", id, got, err, want)
			continue
		}
		if again := got.Append(nil); !bytes.Equal(again, pkt) {
			t.Errorf("%s: encoded as\n%x, want\n%x", id, again, pkt)
		}
		if name, _, _ := strings.Cut(got.String(), " "); !strings.HasPrefix(v.Message, name) {
			t.Errorf("%s: the name is %s, in the file %s", id, name, v.Message)
		}
	}
}

func TestGoldenComplete(t *testing.T) {
	for id, v := range loadVectors(t) {
		_, taken := golden[id]
		want, out := refused[id]
		if taken == out {
			t.Errorf("%s: expected to decode: %v, to be refused: %v", id, taken, out)
		}
		if !out {
			continue
		}
		if m, err := Decode(v.packet(t)); err != want || m != nil {
			t.Errorf("%s: got %v, %v; want error %v", id, m, err, want)
		}
	}
}

func TestGoldenMAC(t *testing.T) {
	vectors := loadVectors(t)
	cases := []struct {
		id   string
		key  *Key
		good bool
	}{
		{"bind-host-nonce0", &goldenHostKey, true},
		{"bind-host-nonce1", &goldenHostKey, true},
		{"bind-joiner-nonce0", &goldenJoinKey, true},
		{"bind-bad-mac", &goldenHostKey, false},
		{"bind-host-nonce0", &goldenJoinKey, false},
		{"bind-joiner-nonce0", &goldenHostKey, false},
	}
	var signer Signer
	for _, c := range cases {
		pkt := vectors[c.id].packet(t)
		if got := signer.Verify(pkt, c.key); got != c.good {
			t.Errorf("%s: Verify is %v, want %v", c.id, got, c.good)
		}
		bind, err := ParseBind(pkt)
		if err != nil {
			t.Fatalf("%s: %v", c.id, err)
		}
		if same := bytes.Equal(signer.Append(nil, bind, c.key), pkt); same != c.good {
			t.Errorf("%s: signed again it is the same: %v, want %v", c.id, same, c.good)
		}
	}
}

// TestLayout compares a message of each type with bytes written by hand. All bytes of
// its fields differ, so that swapped fields and byte orders fail.
func TestLayout(t *testing.T) {
	const (
		a = "000102030405060708090a0b0c0d0e0f"
		b = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
	)
	from, to := AllocationID(sequence(idLen, 1, 0)), AllocationID(sequence(idLen, 1, 0xf0))
	mac := [macLen]byte(sequence(macLen, 1, 0x40))
	cases := []struct {
		message Message
		hex     string
	}{
		{Bind{AcceptMode: 7, Nonce: 0x0102, ConnectionData: []byte{9, 8, 7}, MAC: mac},
			"da720000" + "07" + "0201" + "03" + "090807" + hex.EncodeToString(mac[:])},
		{Bind{MAC: mac}, "da720000" + "00" + "0000" + "00" + hex.EncodeToString(mac[:])},
		{BindReceived{}, "da720001"},
		{Ping{ID: from, Number: 0x0102}, "da720002" + a + "0201"},
		{ConnectRequest{ID: from, ConnectionData: []byte{9, 8}}, "da720003" + a + "02" + "0908"},
		{ConnectRequest{ID: from}, "da720003" + a + "00"},
		{Accepted{From: from, To: to}, "da720006" + a + b},
		{Rejected{From: from, To: to}, "da720008" + a + b},
		{Disconnect{From: from, To: to}, "da720009" + a + b},
		{Relay{From: from, To: to, Payload: make([]byte, 258)},
			"da72000a" + a + b + "0102" + strings.Repeat("00", 258)},
		{Relay{From: from, To: to}, "da72000a" + a + b + "0000"},
		{Close{ID: to}, "da72000b" + b},
		{Error{ID: to, Code: 6}, "da72000c" + b + "06"},
	}
	for _, c := range cases {
		if got := hex.EncodeToString(c.message.Append(nil)); got != c.hex {
			t.Errorf("%v:\n got %s\nwant %s", c.message, got, c.hex)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"HeaderLen", HeaderLen, 4},
		{"idLen", idLen, 16},
		{"keyLen", keyLen, 64},
		{"macLen", macLen, 32},
		{"MaxConnectionData", MaxConnectionData, 255},
		{"bindOverhead", bindOverhead, 40},
		{"maxBindLen", maxBindLen, 295},
		{"bindReceivedLen", bindReceivedLen, 4},
		{"pingLen", pingLen, 22},
		{"connectRequestOverhead", connectRequestOverhead, 21},
		{"maxConnectRequestLen", maxConnectRequestLen, 276},
		{"acceptedLen", acceptedLen, 36},
		{"rejectedLen", rejectedLen, 36},
		{"disconnectLen", disconnectLen, 36},
		{"RelayOverhead", RelayOverhead, 38},
		{"DefaultMaxContent", DefaultMaxContent, 1400},
		{"MaxContent", MaxContent, 1434},
		{"closeLen", closeLen, 20},
		{"errorLen", errorLen, 21},
		{"Version", Version, 0},
	} {
		if c.got != c.want {
			t.Errorf("%s is %d, want %d", c.name, c.got, c.want)
		}
	}
}
