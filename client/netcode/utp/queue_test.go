package utp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// TestSendQueue: a full queue refuses, and what is due anyway waits.
func TestSendQueue(t *testing.T) {
	p := newPair(t, Config{SendQueue: minQueue, Pipelines: []Pipeline{{StageFragmentation}}})
	n := 0
	for p.client.Send(p.up, 0, []byte("x")) == nil {
		n++
	}
	if n != minQueue-1 || p.client.Free(p.up, 0) != 0 || p.client.Stats().Unsent != n {
		t.Errorf("%d were taken, %+v", n, p.client.Stats())
	}
	feed(p.client, serverAt, MTUCheck{Token: p.token()}.Append(nil), MTUCheck{Token: p.token()}.Append(nil))
	if got := p.client.Stats().Unsent; got != minQueue {
		t.Errorf("%d wait", got)
	}
	p.client.Disconnect(p.up)
	if list := sent(p.client); len(list) != minQueue {
		t.Errorf("%d were sent", len(list))
	}
	if got := kinds(t, sent(p.client)); got != "x" {
		t.Errorf("then %q", got)
	}
}

// TestSlowReader: a caller that never takes everything does not make the queues grow,
// and loses nothing.
func TestSlowReader(t *testing.T) {
	p := newPair(t, Config{SendQueue: 100, ReceiveQueue: 100})
	out, in := 0, 0
	for i := range 5000 {
		p.client.Advance(0)
		p.server.Advance(0)
		must(t, p.client.Send(p.up, 0, numbered(i, 100)))
		for p.client.Stats().Unsent > 50 {
			d, _ := p.client.Next()
			if !bytes.HasSuffix(d.Data, numbered(out, 100)) || d.To != serverAt {
				t.Fatalf("datagram %d is %x", out, d.Data)
			}
			p.server.Receive(clientAt, d.Data)
			out++
		}
		for len(p.server.events.list)-p.server.events.next > 50 {
			ev, _ := p.server.NextEvent()
			if !bytes.Equal(ev.Data, numbered(in, 100)) {
				t.Fatalf("event %d is %x", in, ev.Data)
			}
			in++
		}
	}
	if out < 4900 || in < 4800 || cap(p.client.out.buf) > 100_000 || cap(p.server.events.buf) > 100_000 {
		t.Errorf("%d and %d taken, buffers of %d and %d", out, in, cap(p.client.out.buf), cap(p.server.events.buf))
	}
}

// TestReceiveQueue: a datagram that does not fit is lost, and reliable payloads are resent.
func TestReceiveQueue(t *testing.T) {
	cfg := reliableOnly(32)
	cfg.ReceiveQueue = 5
	p := newPair(t, cfg)
	for i := range 20 {
		p.send(1, string(numbered(i, 4)))
	}
	p.toServer()
	if n := p.server.Stats().Outcomes[DropQueue]; n != 15 {
		t.Errorf("%d dropped", n)
	}
	if o := feed(p.server, place(50), request(50)); o != DropQueue {
		t.Errorf("a request: %v", o)
	}
	var got []Event
	for range 10 {
		got = append(got, events(p.server)...)
		p.advance(ms(1000))
		p.toServer()
		p.toClient()
	}
	for i, ev := range got {
		if !bytes.Equal(ev.Data, numbered(i, 4)) {
			t.Fatalf("payload %d is %x", i, ev.Data)
		}
	}
	if len(got) != 20 {
		t.Errorf("%d arrived", len(got))
	}
}

// TestFairFlush: when the queue never has room for all, each has its turn.
func TestFairFlush(t *testing.T) {
	s := server(t, Config{SendQueue: minQueue})
	s.Advance(0)
	for i := range 100 {
		feed(s, place(i), request(i), Heartbeat{Token(i)}.Append(nil))
	}
	events(s)
	served := map[address.Addr]int{}
	for i := range 20 {
		tick(s, ms(501*(i+1)))
		s.Flush()
		for d, ok := s.Next(); ok; d, ok = s.Next() {
			served[d.To]++
		}
	}
	for i := range 100 {
		if n := served[place(i)]; n < 2 || n > 5 {
			t.Errorf("connection %d was served %d times", i, n)
		}
	}
}

// TestPool: a buffer is for one packet at a time, and comes back.
func TestPool(t *testing.T) {
	var p pool
	a, b := p.hold([]byte("head"), []byte("body")), p.hold(nil, make([]byte, smallPacket+1))
	if string(a) != "headbody" || cap(a) != smallPacket || cap(b) != MaxDatagram {
		t.Errorf("%q, %d, %d", a, cap(a), cap(b))
	}
	p.release(a)
	p.release(b)
	if c := p.hold(nil, nil); c == nil || len(c) != 0 || &c[:1][0] != &a[0] || len(p.large) != 1 {
		t.Error("the buffer is not used again")
	}
	for range 2 * maxSpare {
		p.release(make([]byte, 0, smallPacket))
	}
	if len(p.small) != maxSpare {
		t.Errorf("%d are kept", len(p.small))
	}
}

func TestBatch(t *testing.T) {
	var stream []byte
	want := []string{"", "a", "hello", string(make([]byte, 300))}
	for _, msg := range want {
		stream = AppendBatched(stream, []byte(msg))
	}
	if got := stream[:9]; !bytes.Equal(got, []byte{0, 0, 0, 0, 1, 0, 0, 0, 'a'}) {
		t.Fatalf("%x", got)
	}
	for step := range 20 { // In pieces of every size, as packets may cut it.
		r := BatchReader{Limit: 300}
		var got []string
		for at := 0; at < len(stream); at += step + 1 {
			r.Add(stream[at:min(at+step+1, len(stream))])
			for msg, ok, err := r.Next(); ok || err != nil; msg, ok, err = r.Next() {
				must(t, err)
				got = append(got, string(msg))
			}
		}
		if len(got) != len(want) || got[2] != want[2] || got[3] != want[3] {
			t.Errorf("pieces of %d: %q", step+1, got)
		}
	}
}

func TestBatchLost(t *testing.T) {
	for _, head := range [][]byte{{255, 255, 255, 255}, {0, 0, 0, 128}, {45, 1, 0, 0}} {
		r := BatchReader{Limit: 300}
		r.Add(head)
		for range 3 {
			if _, ok, err := r.Next(); ok || !errors.Is(err, ErrBatch) {
				t.Errorf("% x: %v", head, err)
			}
			r.Add(make([]byte, 1000))
		}
		if cap(r.buf) > 100 {
			t.Errorf("%d bytes kept of a lost stream", cap(r.buf))
		}
	}
	for n := range 7 {
		if _, _, err := ParseBatched([]byte{3, 0, 0, 0, 1, 2, 3}[:n], 3); err != ErrShort {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestRPCShort(t *testing.T) {
	pkt := RPC{Index: 1, Bits: 9, Payload: []byte{1, 1}}.Append(AppendRPCPacket(nil, 5))
	for n := range RPCPacketLen {
		if _, _, err := ParseRPCPacket(pkt[:n]); err != ErrShort {
			t.Errorf("packet of %d bytes: %v", n, err)
		}
	}
	for n := RPCPacketLen; n < len(pkt); n++ {
		if _, _, err := ParseRPC(pkt[RPCPacketLen:n]); err != ErrShort {
			t.Errorf("RPC of %d bytes: %v", n, err)
		}
	}
	if _, _, err := ParseRPCPacket([]byte{1, 0, 0, 0, 0}); err != ErrKind {
		t.Error(err)
	}
}
