package utp

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// The vectors are V1 to V15 of the protocol reference: built from the layouts,
// not captured from Unity. The token is 00 01 to 07.

const goldenToken Token = 0x0706050403020100

// pipelines by id in the letters of slowPacket: those of Netcode for Entities,
// those of Netcode for GameObjects, and fragmentation as the third of all.
var (
	entitiesStages    = []string{"", "", "r", "f"}
	gameObjectsStages = []string{"", "f", "fu", "R"}
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const none = 0xFFFF

// golden is every vector that is a packet of the connection layer.
var golden = []struct {
	name   string
	hex    string
	make   func() []byte
	stages []string
	says   string // the reference decoder's words
}{
	{"V1", "55545001 01 0001020304050607",
		func() []byte { return Packet{Kind: KindRequest, Token: goldenToken}.Append(nil) }, nil,
		"request 0001020304050607"},
	{"V2", "55545001 02 0001020304050607",
		func() []byte { return Packet{Kind: KindAccept, Token: goldenToken}.Append(nil) }, nil,
		"accept 0001020304050607"},
	{"V3", "55545001 01 0001020304050607 0300 616263",
		func() []byte { return Packet{Kind: KindRequest, Token: goldenToken, Body: []byte("abc")}.Append(nil) }, nil,
		"request 0001020304050607 payload 616263"},
	{"V4", "01 0001020304050607 00 6869",
		func() []byte { return Packet{Kind: KindData, Token: goldenToken, Body: []byte("hi")}.Append(nil) }, entitiesStages,
		"data 0001020304050607 pipeline 0 payload 6869"},
	{"V5 disconnect", "02 0001020304050607",
		func() []byte { return Packet{Kind: KindDisconnect, Token: goldenToken}.Append(nil) }, nil,
		"disconnect 0001020304050607"},
	{"V5 heartbeat", "03 0001020304050607",
		func() []byte { return Packet{Kind: KindHeartbeat, Token: goldenToken}.Append(nil) }, nil,
		"heartbeat 0001020304050607"},
	{"V6", "01 0001020304050607 02 00000000 0000ffff ffffffff 6869",
		func() []byte {
			return goldenReliable(2, reliableHeader{newest: none, mask: ^uint64(0)}, false, "hi")
		}, entitiesStages,
		"data 0001020304050607 pipeline 2 reliable payload 0 processing 0 newest 65535 missing[] payload 6869"},
	{"V7", "01 0001020304050607 02 01000500 00000000 ffffffff 00",
		func() []byte {
			return goldenReliable(2, reliableHeader{kind: reliableAck, processing: 5, mask: ^uint64(0)}, false, "\x00")
		}, entitiesStages,
		"data 0001020304050607 pipeline 2 reliable ack 0 processing 5 newest 0 missing[] payload 00"},
	{"V8", "01 0001020304050607 02 00000000 03000700 fbffffff 6869",
		func() []byte {
			return goldenReliable(2, reliableHeader{sequence: 3, newest: 7, mask: ^uint64(0) &^ (1 << 2)}, false, "hi")
		}, entitiesStages,
		"data 0001020304050607 pipeline 2 reliable payload 3 processing 0 newest 7 missing[5] payload 6869"},
	{"V9", "01 0001020304050607 03 00000000 0000ffff ffffffffffffffff 6869",
		func() []byte {
			return goldenReliable(3, reliableHeader{newest: none, mask: ^uint64(0)}, true, "hi")
		}, gameObjectsStages,
		"data 0001020304050607 pipeline 3 reliable payload 0 processing 0 newest 65535 missing[] payload 6869"},
	{"V10", "01 0001020304050607 03 00c0 6869",
		func() []byte {
			body := le16(fragmentFirst | fragmentLast)
			return Packet{Kind: KindData, Token: goldenToken, Pipeline: 3, Body: append(body, "hi"...)}.Append(nil)
		}, entitiesStages,
		"data 0001020304050607 pipeline 3 fragment 0 first last payload 6869"},
	{"V12", "01 0001020304050607 02 0000 00c0 6869",
		func() []byte {
			body := append(le16(0), le16(fragmentFirst|fragmentLast)...)
			return Packet{Kind: KindData, Token: goldenToken, Pipeline: 2, Body: append(body, "hi"...)}.Append(nil)
		}, gameObjectsStages,
		"data 0001020304050607 pipeline 2 sequenced 0 fragment 0 first last payload 6869"},
	{"V14", "05 0001020304050607 0200 0004",
		func() []byte { return Packet{Kind: KindMTUAck, Token: goldenToken, Body: le16(1024)}.Append(nil) }, nil,
		"mtu ack 0001020304050607 1024"},
}

func goldenReliable(p PipelineID, h reliableHeader, wide bool, payload string) []byte {
	return Packet{Kind: KindData, Token: goldenToken, Pipeline: p, Body: append(h.append(nil, wide), payload...)}.Append(nil)
}

func TestGolden(t *testing.T) {
	for _, v := range golden {
		pkt := unhex(t, v.hex)
		if got := v.make(); !bytes.Equal(got, pkt) {
			t.Errorf("%s: encoded as\n%x, want\n%x", v.name, got, pkt)
		}
		if got := fastPacket(pkt, v.stages); got != v.says {
			t.Errorf("%s: decoded as\n%s, want\n%s", v.name, got, v.says)
		}
		if got := slowPacket(pkt, v.stages); got != v.says {
			t.Errorf("%s: the reference decoder says\n%s, want\n%s", v.name, got, v.says)
		}
	}
}

// TestGoldenOldMask is V6 as UTP before 2.6 sends it.
func TestGoldenOldMask(t *testing.T) {
	body := unhex(t, "00000000 0000ffff 00000000 6869")
	h, rest, ok := parseReliable(body, false)
	if !ok || h != (reliableHeader{newest: none}) || string(rest) != "hi" {
		t.Fatalf("%+v %q %v", h, rest, ok)
	}
}

func TestGoldenFragments(t *testing.T) {
	for text, want := range map[string]uint16{ // V11
		"0580": fragmentFirst | 5,
		"0600": 6,
		"0740": fragmentLast | 7,
	} {
		b := unhex(t, text)
		if h, rest, ok := cutUint16(b); h != want || len(rest) != 0 || !ok {
			t.Errorf("%s: %x %x %v", text, h, rest, ok)
		}
		if got := le16(want); !bytes.Equal(got, b) {
			t.Errorf("%x: %x, want %s", want, got, text)
		}
	}
}

// TestGoldenRelay is V13: a request over the relay is the request and 38 bytes.
func TestGoldenRelay(t *testing.T) {
	want := unhex(t, "da72000a a0a1a2a3a4a5a6a7a8a9aaabacadaeaf b0b1b2b3b4b5b6b7b8b9babbbcbdbebf 000d 55545001 01 0001020304050607")
	var from, to proto.AllocationID
	for i := range from {
		from[i], to[i] = 0xA0+byte(i), 0xB0+byte(i)
	}
	got := proto.Relay{From: from, To: to, Payload: Packet{Kind: KindRequest, Token: goldenToken}.Append(nil)}.Append(nil)
	if !bytes.Equal(got, want) || len(got) != 51 {
		t.Errorf("%d bytes\n%x, want\n%x", len(got), got, want)
	}
	m, err := proto.ParseRelay(want)
	if err != nil {
		t.Fatal(err)
	}
	if r, o := parse(m.Payload); r.Kind != KindRequest || r.Token != goldenToken || o != taken {
		t.Error(r, o)
	}
}

func TestGoldenRPC(t *testing.T) {
	want := unhex(t, "02 04030201 0700 0c00 ab0c 0800 0000")
	got := AppendRPCPacket(nil, 0x01020304)
	got = RPC{Index: 7, Bits: 12, Payload: []byte{0xab, 0x0c}}.Append(got)
	got = RPC{Index: 8}.Append(got)
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	sent, rest, ok := ParseRPCPacket(want)
	if sent != 0x01020304 || !ok {
		t.Fatal(sent, ok)
	}
	first, rest, ok := ParseRPC(rest)
	if first.Index != 7 || first.Bits != 12 || !bytes.Equal(first.Payload, []byte{0xab, 0x0c}) || !ok {
		t.Errorf("%+v %v", first, ok)
	}
	second, rest, ok := ParseRPC(rest)
	if second.Index != 8 || second.Bits != 0 || len(second.Payload) != 0 || len(rest) != 0 || !ok {
		t.Errorf("%+v %x %v", second, rest, ok)
	}
	r := tape{rest: want}
	if mark, ms, i, bits := r.number(1), r.number(4), r.number(2), r.number(2); mark != 2 || ms != 0x01020304 || i != 7 || bits != 12 {
		t.Error(mark, ms, i, bits)
	}
}
