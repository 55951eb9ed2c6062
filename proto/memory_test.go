package proto

import (
	"bytes"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// views returns, for each type with a slice, a packet and the slice parsed from it.
func views(t *testing.T) map[Type][2][]byte {
	t.Helper()
	content := []byte("content")
	id := AllocationID{1}
	bind := Bind{ConnectionData: content}.Append(nil)
	request := ConnectRequest{ID: id, ConnectionData: content}.Append(nil)
	relay := Relay{From: id, Payload: content}.Append(nil)
	b, errB := ParseBind(bind)
	c, errC := ParseConnectRequest(request)
	r, errR := ParseRelay(relay)
	if errB != nil || errC != nil || errR != nil {
		t.Fatal(errB, errC, errR)
	}
	return map[Type][2][]byte{
		TypeBind:           {bind, b.ConnectionData},
		TypeConnectRequest: {request, c.ConnectionData},
		TypeRelay:          {relay, r.Payload},
	}
}

func TestAliases(t *testing.T) {
	for kind, v := range views(t) {
		pkt, view := v[0], v[1]
		at := bytes.Index(pkt, []byte("content"))
		pkt[at] = 'C'
		if string(view) != "Content" {
			t.Errorf("%v: after a change of the packet the slice is %q", kind, view)
		}
	}
}

// TestSliceCapacity: appending to a slice of a parsed message does not overwrite the
// bytes behind it, such as the MAC or the next datagram of a batch.
func TestSliceCapacity(t *testing.T) {
	for kind, v := range views(t) {
		pkt, view := v[0], v[1]
		before := bytes.Clone(pkt)
		if cap(view) != len(view) {
			t.Errorf("%v: %d bytes with capacity %d", kind, len(view), cap(view))
		}
		_ = append(view, 0xEE)
		if !bytes.Equal(pkt, before) {
			t.Errorf("%v: appending to the slice wrote into the packet", kind)
		}
	}

	batch := append(Relay{Payload: []byte("first")}.Append(nil), "next datagram"...)
	m, err := ParseRelay(batch[:RelayOverhead+len("first")])
	if err != nil {
		t.Fatal(err)
	}
	_ = append(m.Payload, "overwritten"...)
	if !bytes.HasSuffix(batch, []byte("next datagram")) {
		t.Error("appending to the payload wrote into the next datagram")
	}
}

// TestAppendInPlace: Append uses the capacity of dst, and writes nothing behind the
// message.
func TestAppendInPlace(t *testing.T) {
	rng := newRand(7)
	for _, kind := range allTypes {
		m := randomMessage(rng, kind)
		room := bytes.Repeat([]byte{0xEE}, 4+len(m.Append(nil))+4)
		dst := m.Append(room[:4])
		if &dst[0] != &room[0] {
			t.Errorf("%v: Append moved a buffer that was large enough", kind)
		}
		if !bytes.Equal(room[len(dst):], []byte{0xEE, 0xEE, 0xEE, 0xEE}) {
			t.Errorf("%v: Append wrote behind the message", kind)
		}
	}
}

func TestAppendPanics(t *testing.T) {
	tooMuchData := make([]byte, MaxConnectionData+1)
	for name, encode := range map[string]func(){
		"Bind":           func() { Bind{ConnectionData: tooMuchData}.Append(nil) },
		"Signer":         func() { new(Signer).Append(nil, Bind{ConnectionData: tooMuchData}, new(Key)) },
		"ConnectRequest": func() { ConnectRequest{ConnectionData: tooMuchData}.Append(nil) },
		"Relay":          func() { Relay{Payload: make([]byte, MaxContent+1)}.Append(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			encode()
		}()
	}
}

// The sinks keep the compiler from removing the measured calls.
var (
	sinkBytes []byte
	sinkBool  bool
	sinkError error
	sinkRelay Relay
	sinkBind  Bind
	sinkReq   ConnectRequest
	sinkPair  Accepted
	sinkPing  Ping
	sinkCode  Error
)

func TestAllocations(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	content := make([]byte, MaxConnectionData)
	bind := Bind{ConnectionData: content}
	request := ConnectRequest{ConnectionData: content}
	relay := Relay{Payload: make([]byte, MaxContent)}
	var (
		key       Key
		signer    Signer
		room      = make([]byte, 0, 2048)
		bindPkt   = signer.Append(nil, bind, &key)
		reqPkt    = request.Append(nil)
		relayPkt  = relay.Append(nil)
		pingPkt   = Ping{}.Append(nil)
		errorPkt  = Error{}.Append(nil)
		closePkt  = Close{}.Append(nil)
		acceptPkt = Accepted{}.Append(nil)
		rejectPkt = Rejected{}.Append(nil)
		partPkt   = Disconnect{}.Append(nil)
		boundPkt  = BindReceived{}.Append(nil)
	)
	for name, f := range map[string]func(){
		"ParseType":           func() { _, sinkError = ParseType(relayPkt) },
		"ParseBind":           func() { sinkBind, sinkError = ParseBind(bindPkt) },
		"ParseBindReceived":   func() { _, sinkError = ParseBindReceived(boundPkt) },
		"ParsePing":           func() { sinkPing, sinkError = ParsePing(pingPkt) },
		"ParseConnectRequest": func() { sinkReq, sinkError = ParseConnectRequest(reqPkt) },
		"ParseAccepted":       func() { sinkPair, sinkError = ParseAccepted(acceptPkt) },
		"ParseRejected":       func() { _, sinkError = ParseRejected(rejectPkt) },
		"ParseDisconnect":     func() { _, sinkError = ParseDisconnect(partPkt) },
		"ParseRelay":          func() { sinkRelay, sinkError = ParseRelay(relayPkt) },
		"ParseClose":          func() { _, sinkError = ParseClose(closePkt) },
		"ParseError":          func() { sinkCode, sinkError = ParseError(errorPkt) },
		"failing ParseRelay":  func() { sinkRelay, _ = ParseRelay(bindPkt) },
		"failing ParseBind":   func() { sinkBind, _ = ParseBind(relayPkt) },

		"Bind.Append":           func() { sinkBytes = bind.Append(room) },
		"BindReceived.Append":   func() { sinkBytes = BindReceived{}.Append(room) },
		"Ping.Append":           func() { sinkBytes = sinkPing.Append(room) },
		"ConnectRequest.Append": func() { sinkBytes = request.Append(room) },
		"Accepted.Append":       func() { sinkBytes = sinkPair.Append(room) },
		"Rejected.Append":       func() { sinkBytes = Rejected(sinkPair).Append(room) },
		"Disconnect.Append":     func() { sinkBytes = Disconnect(sinkPair).Append(room) },
		"Relay.Append":          func() { sinkBytes = relay.Append(room) },
		"Close.Append":          func() { sinkBytes = Close{}.Append(room) },
		"Error.Append":          func() { sinkBytes = sinkCode.Append(room) },

		"Signer.Append": func() { sinkBytes = signer.Append(room, bind, &key) },
		"Signer.Verify": func() { sinkBool = signer.Verify(bindPkt, &key) },
	} {
		sinkError = nil
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
		if sinkError != nil {
			t.Errorf("%s: %v", name, sinkError)
		}
	}
	if !sinkBool {
		t.Error("the measured BIND does not verify")
	}
}
