package proto

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// TestRoundTrip encodes random messages behind other bytes and decodes them.
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
			if len(pkt) != m.Len() {
				t.Fatalf("%v: Len is %d, Append wrote %d", m, m.Len(), len(pkt))
			}
			if back, err := Decode(pkt); err != nil || !reflect.DeepEqual(back, m) {
				t.Fatalf("%#v\ncame back as %#v, %v", m, back, err)
			}
			if kind != Type(pkt[3]) {
				t.Fatalf("%v: has type %v on the wire", m, Type(pkt[3]))
			}
		}
	}
}

// TestDecodeTypes makes sure that Decode gives each type its own struct:
// ACCEPTED, REJECTED and DISCONNECT have one layout and are easily confused.
func TestDecodeTypes(t *testing.T) {
	rng := newRand(6)
	for _, kind := range allTypes {
		m := randomMessage(rng, kind)
		back, err := Decode(m.Append(nil))
		if err != nil || reflect.TypeOf(back) != reflect.TypeOf(m) {
			t.Errorf("%v: %T came back as %T, %v", kind, m, back, err)
		}
		if !strings.HasPrefix(back.String(), kind.String()) {
			t.Errorf("%v: describes itself as %q", kind, back)
		}
	}
}

// TestStrings pins the descriptions: people search logs for them.
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

// TestStringsKeepSecrets makes sure that a description shows neither
// connection data nor MAC nor payload.
func TestStringsKeepSecrets(t *testing.T) {
	secret := bytes.Repeat([]byte("hunter2!"), 4)
	for _, m := range []Message{
		Bind{ConnectionData: secret, MAC: [MACLen]byte(secret)},
		ConnectRequest{ConnectionData: secret},
		Relay{Payload: secret},
	} {
		if strings.Contains(m.String(), "hunter2!") || strings.Contains(m.String(), "68756e746572") {
			t.Errorf("%s shows what it carries", m)
		}
	}
}
