package utp

import (
	"bytes"
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
	if n != minQueue-1 || p.client.freePackets(p.up, 0) != 0 || unsent(p.client) != n {
		t.Errorf("%d were taken, %+v", n, p.client.Stats())
	}
	feed(p.client, serverAt, Packet{Kind: KindMTUCheck, Token: p.token()}.Append(nil),
		Packet{Kind: KindMTUCheck, Token: p.token()}.Append(nil))
	if got := unsent(p.client); got != minQueue {
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
	p := newPair(t, Config{SendQueue: 100})
	p.server.events.limit = 100
	out, in := 0, 0
	for i := range 5000 {
		p.client.Advance(0)
		p.server.Advance(0)
		must(t, p.client.Send(p.up, 0, numbered(i, 100)))
		for unsent(p.client) > 50 {
			to, data, _ := p.client.Next()
			if !bytes.HasSuffix(data, numbered(out, 100)) || to != serverAt {
				t.Fatalf("datagram %d is %x", out, data)
			}
			p.server.Receive(clientAt, data)
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
	p := newPair(t, reliableOnly(32))
	p.server.events.limit = 5
	for i := range 20 {
		p.send(1, string(numbered(i, 4)))
	}
	p.toServer()
	if n := p.server.Stats().Drops[string(dropQueue)]; n != 15 {
		t.Errorf("%d dropped", n)
	}
	if o := feed(p.server, place(50), request(50)); o != dropQueue {
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
		feed(s, place(i), request(i), Packet{Kind: KindHeartbeat, Token: Token(i)}.Append(nil))
	}
	events(s)
	served := map[address.Addr]int{}
	for i := range 20 {
		tick(s, ms(501*(i+1)))
		s.Flush()
		for to, _, ok := s.Next(); ok; to, _, ok = s.Next() {
			served[to]++
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
	if string(a) != "headbody" || cap(a) != smallPacket || cap(b) != maxDatagram {
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

func TestRPCShort(t *testing.T) {
	pkt := RPC{Index: 1, Bits: 9, Payload: []byte{1, 1}}.Append(AppendRPCPacket(nil, 5))
	for n := range RPCPacketLen {
		if _, _, ok := ParseRPCPacket(pkt[:n]); ok {
			t.Errorf("packet of %d bytes", n)
		}
	}
	for n := RPCPacketLen; n < len(pkt); n++ {
		if _, _, ok := ParseRPC(pkt[RPCPacketLen:n]); ok {
			t.Errorf("RPC of %d bytes", n)
		}
	}
	if _, _, ok := ParseRPCPacket([]byte{1, 0, 0, 0, 0}); ok {
		t.Error("another packet is taken for one of RPCs")
	}
}
