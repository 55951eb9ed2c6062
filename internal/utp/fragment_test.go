package utp

import (
	"bytes"
	"testing"
)

// TestPayloadSizes is the table of the reference, for UDP and for a relay.
func TestPayloadSizes(t *testing.T) {
	stages := []Pipeline{{StageNull}, {StageUnreliableSequenced}, {StageReliableSequenced}, {StageFragmentation},
		{StageFragmentation, StageReliableSequenced}}
	for _, v := range []struct {
		window, overhead int
		want             [6]int
	}{
		{32, 0, [6]int{1390, 1390, 1388, 1378, 1388, 1376}},
		{64, 0, [6]int{1390, 1390, 1388, 1374, 1388, 1372}},
		{32, 38, [6]int{1352, 1352, 1350, 1340, 1350, 1338}},
		{64, 38, [6]int{1352, 1352, 1350, 1336, 1350, 1334}},
	} {
		p := newPair(t, Config{Pipelines: stages, Window: v.window, Overhead: v.overhead})
		for id, want := range v.want {
			id := PipelineID(id)
			if got := p.client.layouts[id].packet; got != want {
				t.Errorf("window %d, overhead %d, pipeline %d: %d, want %d", v.window, v.overhead, id, got, want)
			}
			must(t, p.client.Send(p.up, id, make([]byte, want)))
			if list := p.toServer(); len(list) != 1 || len(list[0]) != 1400-v.overhead {
				t.Errorf("pipeline %d: %d datagrams, the first of %d bytes", id, len(list), len(list[0]))
			}
			if err := p.client.Send(p.up, id, make([]byte, p.client.MaxPayload(id)+1)); err != ErrTooLarge {
				t.Errorf("pipeline %d: %v", id, err)
			}
			p.toClient()
		}
		if got := len(events(p.server)); got != len(v.want) {
			t.Errorf("%d delivered", got)
		}
	}
}

// TestStageGolden: what an endpoint sends are the vectors V10 and V12.
func TestStageGolden(t *testing.T) {
	for _, v := range []struct {
		cfg      Config
		pipeline PipelineID
		name     string
	}{
		{NetcodeForEntities(), EntitiesFragmented, "V10"},
		{gameObjects(), gameObjectsSequenced, "V12"},
		{gameObjects(), gameObjectsReliable, "V9"},
		{NetcodeForEntities(), 0, "V4"},
	} {
		v.cfg.Rand = goldenRand()
		p := newPair(t, v.cfg)
		p.send(v.pipeline, "hi")
		list := p.toServer()
		for _, g := range golden {
			if g.name == v.name && (len(list) != 1 || !bytes.Equal(list[0], unhex(t, g.hex))) {
				t.Errorf("%s: sent %x, want %s", v.name, list, g.hex)
			}
		}
		if ev, _ := p.server.NextEvent(); string(ev.Data) != "hi" || ev.Pipeline != v.pipeline {
			t.Errorf("%s: %+v", v.name, ev)
		}
	}
}

// TestFragmentSizes: one byte, each side of a whole number of packets, and the
// capacity.
func TestFragmentSizes(t *testing.T) {
	p := newPair(t, NetcodeForEntities())
	size := p.client.layouts[EntitiesFragmented].packet
	most := p.client.MaxPayload(EntitiesFragmented)
	if most != 16384 {
		t.Fatalf("capacity %d", most)
	}
	for _, n := range []int{0, 1, size - 1, size, size + 1, 2*size - 1, 2 * size, 2*size + 1, most - 1, most} {
		msg := numbered(n, n)[:n]
		must(t, p.client.Send(p.up, EntitiesFragmented, msg))
		list := p.toServer()
		if want := max(1, (n+size-1)/size); len(list) != want {
			t.Errorf("%d bytes in %d packets, want %d", n, len(list), want)
		}
		for i, pkt := range list {
			m, _ := parse(pkt)
			h, piece, _ := cutUint16(m.Body)
			if h&fragmentFirst != 0 != (i == 0) || h&fragmentLast != 0 != (i == len(list)-1) || len(piece) == 0 && n > 0 {
				t.Errorf("%d bytes, packet %d: %+v with %d bytes", n, i, h, len(piece))
			}
		}
		if got := events(p.server); len(got) != 1 || !bytes.Equal(got[0].Data, msg) {
			t.Errorf("%d bytes: %d events", n, len(got))
		}
		p.advance(ms(1))
	}
	if err := p.client.Send(p.up, EntitiesFragmented, make([]byte, most+1)); err != ErrTooLarge {
		t.Error(err)
	}
}

// TestFragmentLost: a message of which any piece is missing, late or doubled is
// dropped, and the next one is whole.
func TestFragmentLost(t *testing.T) {
	for name, order := range map[string][]int{
		"first":           {1, 2, 3, 4, 5},
		"middle":          {0, 2, 3, 4, 5},
		"last":            {0, 1, 3, 4, 5},
		"middle doubled":  {0, 1, 1, 2, 3, 4, 5},
		"middle late":     {0, 2, 1, 3, 4, 5},
		"interleaved":     {0, 3, 1, 2, 3, 4, 5},
		"last of another": {0, 5, 3, 4, 5},
	} {
		p := newPair(t, NetcodeForEntities())
		size := 2*p.client.layouts[EntitiesFragmented].packet + 1
		lost, whole := numbered(1, size), numbered(2, size)
		must(t, p.client.Send(p.up, EntitiesFragmented, lost))
		must(t, p.client.Send(p.up, EntitiesFragmented, whole))
		list := sent(p.client)
		for _, i := range order {
			feed(p.server, clientAt, list[i])
		}
		if got := events(p.server); len(got) != 1 || !bytes.Equal(got[0].Data, whole) {
			t.Errorf("%s: %d messages", name, len(got))
		}
		if st := p.server.Stats(); st.Drops[string(dropFragment)] == 0 && name != "last" {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

// TestFragmentWrap: the 14 bits of the sequence run over in the middle of a
// message.
func TestFragmentWrap(t *testing.T) {
	p := newPair(t, NetcodeForEntities())
	msg := make([]byte, 3*p.client.layouts[EntitiesFragmented].packet)
	for i := range 16384*2/3 + 2 {
		copy(msg, numbered(i, 4))
		must(t, p.client.Send(p.up, EntitiesFragmented, msg))
		for _, data, ok := p.client.Next(); ok; _, data, ok = p.client.Next() {
			p.server.Receive(clientAt, data)
		}
		ev, ok := p.server.NextEvent()
		if !ok || !bytes.Equal(ev.Data, msg) {
			t.Fatalf("message %d is lost", i)
		}
		p.server.Advance(0)
	}
}

// TestFragmentCapacity: a peer can not make this side keep more than that.
func TestFragmentCapacity(t *testing.T) {
	cfg := NetcodeForEntities()
	p := newPair(t, cfg)
	for i := range 100 {
		marks := uint16(0)
		if i == 0 {
			marks = fragmentFirst
		}
		body := append(le16(marks|uint16(i)), make([]byte, 1000)...)
		want := taken
		if i >= 16 {
			want = dropFragment
		}
		if o := feed(p.server, clientAt, Packet{Kind: KindData, Token: p.token(), Pipeline: EntitiesFragmented,
			Body: body}.Append(nil)); o != want {
			t.Fatalf("piece %d: %v", i, o)
		}
	}
	if n := cap(p.server.conns.slots[0].pipelines[EntitiesFragmented].assembly.buf); n > 2*cfg.FragmentCapacity {
		t.Errorf("%d bytes are kept", n)
	}
}

// TestFragmentedReliable: all or nothing when the window is short of slots.
func TestFragmentedReliable(t *testing.T) {
	p := newPair(t, Config{Pipelines: []Pipeline{{StageFragmentation, StageReliableSequenced}}, Window: 4, FragmentCapacity: 1 << 20})
	size := p.client.layouts[1].packet
	if got := p.client.MaxPayload(1); got != 4*size {
		t.Fatalf("%d bytes, packets of %d", got, size)
	}
	big := numbered(1, 3*size)
	must(t, p.client.Send(p.up, 1, big))
	if err := p.client.Send(p.up, 1, big); err != ErrQueueFull {
		t.Fatal(err)
	}
	p.send(1, "fits")
	list := sent(p.client)
	for i := range list { // Backwards: the reliable stage puts them in order.
		feed(p.server, clientAt, list[len(list)-1-i])
	}
	got := events(p.server)
	if len(list) != 4 || len(got) != 2 || !bytes.Equal(got[0].Data, big) || string(got[1].Data) != "fits" {
		t.Errorf("%d packets, %d messages", len(list), len(got))
	}
	// The reliable header comes before that of the fragment.
	want := "data " + tokenText(p.token()) + " pipeline 1 reliable payload 3 processing 0 newest 65535 missing[] fragment 3 first last payload 66697473"
	if said := slowPacket(list[3], []string{"", "fr"}); said != want {
		t.Errorf("said %s", said)
	}
}

func TestSequenced(t *testing.T) {
	p := newPair(t, Config{Pipelines: []Pipeline{{StageUnreliableSequenced}}})
	for i := range 6 {
		p.send(1, string(rune('a'+i)))
	}
	list := sent(p.client)
	for _, v := range []struct {
		i    int
		want outcome
	}{{0, taken}, {0, dropLate}, {3, taken}, {1, dropLate}, {2, dropLate}, {3, dropLate}, {4, taken}} {
		if o := feed(p.server, clientAt, list[v.i]); o != v.want {
			t.Errorf("packet %d: %v", v.i, o)
		}
	}
	if got := eventText(p.server); got != `data 1 "a", data 1 "d", data 1 "e"` {
		t.Error(got)
	}
	if st, _ := p.server.ConnStats(p.down); st.Lost != 2 || st.Late != 4 {
		t.Errorf("%+v", st)
	}
}

// TestSequencedWrap: newer is what is less than half the circle ahead.
func TestSequencedWrap(t *testing.T) {
	p := newPair(t, Config{Pipelines: []Pipeline{{StageUnreliableSequenced}}})
	for _, v := range []struct {
		sequence uint16
		want     outcome
	}{
		{65535, dropLate}, {32767, dropLate}, {32766, taken}, {65533, taken}, {65535, taken}, {0, taken}, {65535, dropLate},
		{32768, dropLate}, {32767, taken}, {32767, dropLate}, {0, dropLate}, {32768, taken},
	} {
		pkt := Packet{Kind: KindData, Token: p.token(), Pipeline: 1, Body: le16(v.sequence)}.Append(nil)
		if o := feed(p.server, clientAt, pkt); o != v.want {
			t.Errorf("sequence %d: %v, want %v", v.sequence, o, v.want)
		}
	}
}
