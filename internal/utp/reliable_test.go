package utp

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

func reliableOnly(window int) Config {
	return Config{Pipelines: []Pipeline{{StageReliableSequenced}}, Window: window, DisconnectTimeout: NoTimeout, HeartbeatTimeout: NoTimeout}
}

// TestReliableGolden: what an endpoint sends are the vectors V6, V7 and V8.
func TestReliableGolden(t *testing.T) {
	cfg := NetcodeForEntities()
	cfg.Rand = goldenRand()
	p := newPair(t, cfg)
	p.send(EntitiesReliable, "hi")
	list := p.toServer()
	if want := golden[6]; want.name != "V6" || len(list) != 1 || !bytes.Equal(list[0], unhex(t, want.hex)) {
		t.Fatalf("%s: sent %x", want.name, list)
	}
	p.advance(ms(5))
	list = p.toClient()
	if want := golden[7]; want.name != "V7" || len(list) != 1 || !bytes.Equal(list[0], unhex(t, want.hex)) {
		t.Fatalf("%s: sent %x", want.name, list)
	}
	// The server has sent nothing yet. Its fourth packet leaves when 0 to 7
	// but 5 have come.
	for range 7 {
		p.send(EntitiesReliable, "hi")
	}
	list = sent(p.client)
	for i, pkt := range list {
		if i+1 != 5 {
			feed(p.server, clientAt, pkt)
		}
	}
	for range 4 {
		must(t, p.server.Send(p.down, EntitiesReliable, []byte("hi")))
	}
	list = waiting(p.server)
	if want := golden[8]; want.name != "V8" || len(list) != 4 || !bytes.Equal(list[3], unhex(t, want.hex)) {
		t.Fatalf("%s: sent %x", want.name, list)
	}
}

// TestWindow: a full window refuses, an acknowledgement frees what it frees.
func TestWindow(t *testing.T) {
	for _, window := range []int{1, 5, 32, 33, 64} {
		p := newPair(t, reliableOnly(window))
		for i := range window {
			if n := p.client.freePackets(p.up, 1); n != window-i {
				t.Fatalf("window %d: %d free after %d", window, n, i)
			}
			p.send(1, "x")
		}
		if err := p.client.Send(p.up, 1, nil); err != ErrQueueFull {
			t.Fatalf("window %d: %v", window, err)
		}
		if st, _ := p.client.ConnStats(p.up); st.InFlight != window {
			t.Errorf("window %d: %+v", window, st)
		}
		list := sent(p.client)
		// All but the first arrive: the slots behind it stay taken.
		feed(p.server, clientAt, list[1:]...)
		p.toClient()
		if n, want := p.client.freePackets(p.up, 1), 0; n != want {
			t.Errorf("window %d: %d free without the first", window, n)
		}
		if st, _ := p.client.ConnStats(p.up); st.InFlight != 1 {
			t.Errorf("window %d: %+v", window, st)
		}
		feed(p.server, clientAt, list[0])
		p.toClient()
		if n := p.client.freePackets(p.up, 1); n != window {
			t.Errorf("window %d: %d free in the end", window, n)
		}
		if got := len(events(p.server)); got != window {
			t.Errorf("window %d: %d delivered", window, got)
		}
	}
}

// TestOutOfOrder: the whole window backwards, each twice.
func TestOutOfOrder(t *testing.T) {
	for _, window := range []int{1, 32, 64} {
		p := newPair(t, reliableOnly(window))
		for round := range 5 {
			for i := range window {
				p.send(1, fmt.Sprint(round*window+i))
			}
			list := sent(p.client)
			for i := range list {
				pkt := list[len(list)-1-i]
				if first, second := feed(p.server, clientAt, pkt), feed(p.server, clientAt, pkt); first != taken || second != dropLate {
					t.Fatalf("window %d, packet %d: %v, %v", window, i, first, second)
				}
			}
			for i, ev := range events(p.server) {
				if want := fmt.Sprint(round*window + i); string(ev.Data) != want {
					t.Fatalf("window %d: %q, want %s", window, ev.Data, want)
				}
			}
			p.toClient()
		}
		if st, _ := p.server.ConnStats(p.down); st.Duplicates != uint64(5*window) {
			t.Errorf("window %d: %+v", window, st)
		}
		// One buffer for each that came early, used in every round.
		if n := len(p.server.pool.small); n != window-1 {
			t.Errorf("window %d: %d buffers", window, n)
		}
	}
}

// TestSequenceWraps: the 14 and 16 bits of the wire are passed several times.
func TestSequenceWraps(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	next := 0
	for i := 0; i < 5*65536/2; i++ {
		var ends [2][4]byte
		for j := range ends { // Two at a time, the second one first.
			ends[j] = [4]byte(numbered(2*i+j, 4))
			must(t, p.client.Send(p.up, 1, ends[j][:]))
		}
		p.client.Flush()
		_, first, _ := p.client.Next()
		_, second, _ := p.client.Next()
		early := take(p.server, clientAt, second)
		late := take(p.server, clientAt, first)
		p.server.Flush()
		_, ack, _ := p.server.Next()
		if o := take(p.client, serverAt, ack); o != taken || early != taken || late != taken {
			t.Fatalf("packet %d: %v %v %v", i, early, late, o)
		}
		for ev, ok := p.server.NextEvent(); ok; ev, ok = p.server.NextEvent() {
			if !bytes.Equal(ev.Data, numbered(next, 4)) {
				t.Fatalf("%x, want number %d", ev.Data, next)
			}
			next++
		}
		p.server.Advance(0)
	}
	if st, _ := p.client.ConnStats(p.up); next != 5*65536 || st.InFlight != 0 || st.Resent != 0 {
		t.Errorf("%d delivered, %+v", next, st)
	}
}

// TestUnwrap: the nearest sequence is meant.
func TestUnwrap(t *testing.T) {
	for _, v := range []struct {
		wire uint16
		ref  int64
		want int64
	}{
		{0xFFFF, -1, -1}, {0, -1, 0}, {0xFFFF, 0, -1}, {0xFFFE, -1, -2}, {63, 0, 63}, {16384, 16383, 16384}, {0, 65535, 65536},
		{65535, 65536, 65535}, {32767, 0, 32767}, {32768, 0, -32768}, {5, 3*65536 - 1, 3*65536 + 5},
	} {
		if got := unwrap(v.wire, v.ref); got != v.want {
			t.Errorf("%d near %d: %d, want %d", v.wire, v.ref, got, v.want)
		}
	}
}

// TestStray: sequences that no honest peer sends change nothing.
func TestStray(t *testing.T) {
	for _, window := range []int{32, 64} {
		p := newPair(t, reliableOnly(window))
		for range 100 {
			p.send(1, "x")
			p.toServer()
			p.toClient()
		}
		events(p.server)
		for _, v := range []struct {
			distance int // from the next in order
			want     outcome
		}{
			{window, dropLate}, {window + 1, dropLate}, {30000, dropLate}, {-window - 1, dropLate}, {-30000, dropLate},
			{-1, dropLate}, {-window, dropLate}, {window - 1, taken},
		} {
			h := reliableHeader{sequence: uint16(100 + v.distance), newest: none, mask: ^uint64(0)}
			body := append(h.append(nil, window > 32), 'x')
			if o := feed(p.server, clientAt, Packet{Kind: KindData, Token: p.token(), Pipeline: 1, Body: body}.Append(nil)); o != v.want {
				t.Errorf("window %d, distance %d: %v", window, v.distance, o)
			}
		}
		st, _ := p.server.ConnStats(p.down)
		if st.Duplicates != 2 || eventText(p.server) != "" {
			t.Errorf("window %d: %+v", window, st)
		}
	}
}

// TestFalseAcks: what was not sent can not be acknowledged.
func TestFalseAcks(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	for range 10 {
		p.send(1, "x")
	}
	ack := func(newest uint16, mask uint64) int {
		h := reliableHeader{kind: reliableAck, newest: newest, mask: mask}
		feed(p.client, serverAt, Packet{Kind: KindData, Token: p.token(), Pipeline: 1, Body: append(h.append(nil, false), 0)}.Append(nil))
		st, _ := p.client.ConnStats(p.up)
		return st.InFlight
	}
	for _, newest := range []uint16{10, 11, 1000, 32000, 33000, none, none - 1, none - 40} {
		if n := ack(newest, ^uint64(0)); n != 10 {
			t.Fatalf("newest %d frees %d", newest, 10-n)
		}
	}
	if n := ack(9, 0); n != 10 {
		t.Errorf("an empty mask frees %d", 10-n)
	}
	if n := ack(9, 1); n != 9 {
		t.Errorf("the first bit frees %d", 10-n)
	}
	if n := ack(4, 1<<4|1<<31); n != 8 { // 31 before 4 is before the beginning.
		t.Errorf("then %d are in flight", n)
	}
	if n := ack(8, ^uint64(0)); n != 0 {
		t.Errorf("then %d are in flight", n)
	}
}

// TestMaskEdge: distances 0, 31, 32 and 63 from the newest.
func TestMaskEdge(t *testing.T) {
	for _, v := range []struct{ window, missing int }{{32, 31}, {64, 31}, {64, 32}, {64, 63}} {
		p := newPair(t, reliableOnly(v.window))
		for range v.window {
			p.send(1, "x")
		}
		list := sent(p.client)
		gap := v.window - 1 - v.missing // the sequence that is missing
		for i, pkt := range list {
			if i != gap {
				feed(p.server, clientAt, pkt)
			}
		}
		p.toClient()
		if st, _ := p.client.ConnStats(p.up); st.InFlight != 1 {
			t.Errorf("window %d, %d behind the newest: %d in flight", v.window, v.missing, st.InFlight)
		}
		if slot := p.client.conns.slots[0].pipelines[1].reliable.sender.slot(int64(gap)); slot.body == nil {
			t.Errorf("window %d: packet %d is taken as acknowledged", v.window, gap)
		}
	}
}

// TestInitialMask: zeros before sequence 0, as UTP before 2.6 sends them, mean
// the same as ones.
func TestInitialMask(t *testing.T) {
	for _, mask := range []uint64{0, ^uint64(0)} {
		p := newPair(t, reliableOnly(32))
		h := reliableHeader{newest: none, mask: mask}
		o := feed(p.server, clientAt, Packet{Kind: KindData, Token: p.token(), Pipeline: 1,
			Body: append(h.append(nil, false), "hi"...)}.Append(nil))
		if got := eventText(p.server); o != taken || got != `data 1 "hi"` {
			t.Errorf("mask %x: %v, %s", mask, o, got)
		}
	}
}

// TestCopiesBeforeAck: when the last acknowledgement is lost, the third copy is
// acknowledged again.
func TestCopiesBeforeAck(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	p.send(1, "x")
	list := p.toServer()
	if ack := sent(p.server); kinds(t, ack) != "d" || len(ack[0]) != dataLen+reliableNarrowLen+1 {
		t.Fatalf("%x", ack)
	}
	for i, want := range []string{"", "", "d", "", "", "d"} {
		feed(p.server, clientAt, list...)
		if got := kinds(t, sent(p.server)); got != want {
			t.Errorf("copy %d: %q", i+1, got)
		}
	}
	if st, _ := p.server.ConnStats(p.down); st.Duplicates != 6 {
		t.Errorf("%+v", st)
	}
}

// TestPayloadAcknowledges: a payload in the same tick spares the pure one.
func TestPayloadAcknowledges(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	p.send(1, "ping")
	p.toServer()
	must(t, p.server.Send(p.down, 1, []byte("pong")))
	if list := p.toClient(); kinds(t, list) != "d" {
		t.Errorf("sent %q", kinds(t, list))
	}
	if st, _ := p.client.ConnStats(p.up); st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
}

// TestResend: after 50 ms at first, as long as nothing is received, oldest first.
func TestResend(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	p.send(1, "a")
	p.send(1, "b")
	first := sent(p.client)
	var at []int
	for now := 1; now <= 160; now++ {
		p.advance(ms(1))
		if list := sent(p.client); len(list) > 0 {
			at = append(at, now)
			for i := range list {
				if !bytes.Equal(list[i], first[i]) {
					t.Fatalf("sent again %x, first %x", list[i], first[i])
				}
			}
		}
	}
	if got := fmt.Sprint(at); got != "[51 102 153]" {
		t.Errorf("sent again at %s ms", got)
	}
	if st, _ := p.client.ConnStats(p.up); st.Resent != 6 {
		t.Errorf("%+v", st)
	}
}

// TestRTT: what the peer took to answer does not count.
func TestRTT(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	for range 200 {
		p.send(1, "x")
		list := sent(p.client)
		p.advance(ms(15))
		feed(p.server, clientAt, list...)
		p.advance(ms(40)) // The server thinks, and says so.
		list = sent(p.server)
		p.advance(ms(15))
		feed(p.client, serverAt, list...)
	}
	if st, _ := p.client.ConnStats(p.up); st.RTT < ms(30) || st.RTT > ms(31) || st.RTTVariation > ms(1) ||
		p.client.conns.find(p.up).pipelines[1].reliable.rtt.timeout != minResend {
		t.Errorf("%+v", st)
	}
}

func TestRTTClamps(t *testing.T) {
	r := newRTT()
	if r.timeout != ms(50) || r.smooth != 50_000 || r.vary != 5_000 {
		t.Errorf("%+v", r)
	}
	r.sample(ms(90), ms(200)) // 40 above: smooth 55, vary 13.75
	if r.smooth != 55_000 || r.vary != 13_750 || r.timeout != ms(110) {
		t.Errorf("%+v", r)
	}
	for range 100 {
		r.sample(ms(-5), ms(200)) // counts as 1 ms
	}
	if r.timeout != minResend || r.smooth < 900 || r.smooth > 1100 {
		t.Errorf("%+v", r)
	}
	for _, limit := range []time.Duration{ms(200), ms(500), ms(750)} {
		for range 100 {
			r.sample(ms(5000), limit)
		}
		if r.timeout != limit {
			t.Errorf("limit %v: %+v", limit, r)
		}
	}
}

// TestWindowMismatch: a pure acknowledgement gives it away, and both windows
// above and below 32 notice.
func TestWindowMismatch(t *testing.T) {
	for _, v := range []struct{ client, server int }{{32, 64}, {64, 32}, {1, 33}} {
		c, s := newEndpoint(t, reliableOnly(v.client)), server(t, reliableOnly(v.server))
		id := connect(t, c, serverAt)
		feed(s, clientAt, sent(c)...)
		feed(c, serverAt, sent(s)...)
		eventText(c)
		must(t, c.Send(id, 1, []byte("enough for any header there is")))
		feed(s, clientAt, sent(c)...)
		if o := feed(c, serverAt, sent(s)...); o != dropMismatch {
			t.Fatalf("windows %d and %d: %v", v.client, v.server, o)
		}
		ev, _ := c.NextEvent()
		if ev.Kind != EventDisconnected || ev.Reason != ReasonProtocolError || ev.Cause != ErrWindowMismatch || ev.Conn != id {
			t.Errorf("%+v", ev)
		}
		if got := kinds(t, sent(c)); got != "x" {
			t.Errorf("sent %q", got)
		}
	}
}

// TestWindowProven: after a right one, a wrong one is only damage.
func TestWindowProven(t *testing.T) {
	p := newPair(t, reliableOnly(32))
	p.send(1, "x")
	p.toServer()
	p.toClient()
	h := reliableHeader{kind: reliableAck, mask: ^uint64(0)}
	wrong := Packet{Kind: KindData, Token: p.token(), Pipeline: 1, Body: append(h.append(nil, true), 0)}.Append(nil)
	feed(p.client, serverAt, wrong)
	if got := eventText(p.client); got != "" || p.client.State(p.up) != StateEstablished {
		t.Error(got)
	}
}

// TestStageCut: headers cut at every length, on every pipeline.
func TestStageCut(t *testing.T) {
	for name, cfg := range map[string]Config{"entities": NetcodeForEntities(), "game objects": gameObjects()} {
		p := newPair(t, cfg)
		for id := range cfg.Pipelines {
			l := p.server.layouts[id+1]
			header := p.server.cfg.room() - dataLen - l.packet
			for n := range header {
				pkt := Packet{Kind: KindData, Token: p.token(), Pipeline: PipelineID(id + 1), Body: make([]byte, n)}.Append(nil)
				o := feed(p.server, clientAt, pkt)
				// A whole sequenced header counts, whatever is wrong behind it.
				if o != dropStage && !(n > sequencedLen && l.order == StageUnreliableSequenced && o == dropLate) {
					t.Errorf("%s, pipeline %d, %d bytes of header: %v", name, id+1, n, o)
				}
			}
		}
		for _, id := range []PipelineID{4, 5, 255} {
			if o := feed(p.server, clientAt, Packet{Kind: KindData, Token: p.token(), Pipeline: id,
				Body: []byte("x")}.Append(nil)); o != dropPipeline {
				t.Errorf("%s: pipeline %d: %v", name, id, o)
			}
			if err := p.client.Send(p.up, id, nil); err != ErrPipeline || p.client.MaxPayload(id) != 0 || p.client.freePackets(p.up, id) != 0 {
				t.Errorf("%s: pipeline %d: %v", name, id, err)
			}
		}
		if got := eventText(p.server); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestResendWaitsForRoom(t *testing.T) {
	cfg := reliableOnly(32)
	cfg.SendQueue = minQueue
	p := newPair(t, cfg)
	for range 2 {
		for p.client.Send(p.up, 1, []byte("x")) == nil {
		}
		waiting(p.client)
	}
	before, _ := p.client.ConnStats(p.up)
	p.advance(time.Second)
	list := p.toServer()
	if len(list) > minQueue || len(list) == 0 {
		t.Errorf("%d datagrams", len(list))
	}
	if st, _ := p.client.ConnStats(p.up); st.Resent == before.Resent || st.Resent > uint64(minQueue) {
		t.Errorf("%+v", st)
	}
	for range 3 { // What had to wait follows.
		p.client.Flush()
		feed(p.server, clientAt, waiting(p.client)...)
		p.toClient()
	}
	if st, _ := p.client.ConnStats(p.up); st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
}
