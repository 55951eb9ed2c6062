package utp

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

func addGolden(f *testing.F) {
	for _, v := range golden {
		pkt := unhex(f, v.hex)
		f.Add(pkt)
		f.Add(pkt[:len(pkt)-1])
		f.Add(append(pkt, 0))
	}
	f.Add([]byte("UTP"))
	f.Add([]byte{})
}

// FuzzPacket: the package and the reference decoder say the same of any bytes,
// and what is parsed is appended as it was.
func FuzzPacket(f *testing.F) {
	addGolden(f)
	f.Fuzz(func(t *testing.T, pkt []byte) {
		for _, stages := range [][]string{entitiesStages, gameObjectsStages, {"fr", "fR", "u"}} {
			if slow, fast := slowPacket(pkt, stages), fastPacket(pkt, stages); slow != fast {
				t.Fatalf("%x\nreference %s\npackage   %s", pkt, slow, fast)
			}
		}
		m, o := parse(pkt)
		if o != taken {
			return
		}
		again := m.Append(nil)
		if m.Kind == KindAccept && m.Body == nil { // It may have had a payload that does not count.
			pkt = pkt[:handshakeLen]
		}
		if !bytes.Equal(again, pkt) {
			t.Fatalf("%x came back as %x", pkt, again)
		}
	})
}

func FuzzReliableHeader(f *testing.F) {
	for _, v := range golden {
		if b := unhex(f, v.hex); len(b) > dataLen {
			f.Add(b[dataLen:], true)
			f.Add(b[dataLen:], false)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, wide bool) {
		h, rest, ok := parseReliable(b, wide)
		if ok && !bytes.Equal(append(h.append(nil, wide), rest...), b) {
			t.Fatalf("%x came back as %+v %x", b, h, rest)
		}
	})
}

// FuzzFragment: pieces in any order neither fail nor make more than there is.
func FuzzFragment(f *testing.F) {
	f.Add([]byte{0x05, 0x80, 'a', 0x06, 0x00, 'b', 0x07, 0x40, 'c'})
	f.Add([]byte{0x00, 0xc0, 'a'})
	f.Add([]byte{0xff, 0xbf, 'a', 0x00, 0x40, 'b'})
	f.Fuzz(func(t *testing.T, b []byte) {
		const capacity = 20
		var a assembly
		fed := 0
		for len(b) >= fragmentLen+1 {
			h, rest, ok := cutUint16(b)
			if !ok || !bytes.Equal(le16(h), b[:fragmentLen]) {
				t.Fatalf("%x: %x %v", b[:fragmentLen], h, ok)
			}
			msg, o, whole := a.add(h, rest[:1], capacity)
			fed++
			if len(msg) > min(fed, capacity) || whole != (msg != nil) || whole && o != taken || whole && a.open {
				t.Fatalf("%x: %d bytes of %d, %v, %v", h, len(msg), fed, o, whole)
			}
			b = rest[1:]
		}
	})
}

func FuzzRPC(f *testing.F) {
	f.Add(unhex(f, "02 04030201 0700 0c00 ab0c 0800 0000"))
	f.Add([]byte{2, 0, 0, 0, 0, 1, 0, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		sent, rest, ok := ParseRPCPacket(b)
		if !ok {
			return
		}
		again := AppendRPCPacket(nil, sent)
		for len(rest) > 0 {
			m, more, ok := ParseRPC(rest)
			if !ok {
				return
			}
			again, rest = m.Append(again), more
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x came back as %x", b, again)
		}
	})
}

// FuzzEndpoint: two endpoints that are driven by random bytes, and given random
// datagrams with the right token, keep what they promise. A byte picks what to
// do and the next ones are its arguments.
func FuzzEndpoint(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add(bytes.Repeat([]byte{3, 200, 4, 4, 0, 10, 5, 5}, 20))
	f.Add(append(bytes.Repeat([]byte{3, 100}, 40), bytes.Repeat([]byte{4, 0, 60, 5}, 10)...))
	// Connect; then rounds of sending on a pipeline both ways, with some loss.
	session := []byte{0, 0, 1, 0, 4, 5, 0, 0x12, 0x14, 0x15, 0, 2}
	for i := range byte(30) {
		session = append(session, 0, 1, 3, 0, i%5, i*9, 0x13, 0, i%5, i*7, 4, 5, i&1<<2, 0x12, 0x14, 0x15, i&2, 2)
	}
	f.Add(session)
	f.Add(append([]byte{1}, session...))
	for _, v := range golden {
		pkt := unhex(f, v.hex)
		script := append([]byte{1, 1, 5, 6, byte(len(pkt) - 9)}, pkt[9:]...)
		f.Add(append(script, 4, 4, 7, byte(len(pkt)), pkt[0]))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		p := newPlay(t, script)
		for range 300 {
			if !p.act() {
				break
			}
		}
		p.invariants()
	})
}

type play struct {
	t      *testing.T
	script []byte
	ends   [2]*Endpoint
	conns  [2][]ConnID
	now    time.Duration
	taken  [2]uint64 // datagrams
}

func (p *play) receive(side int, from address.Addr, pkt []byte) {
	if take(p.ends[side], from, pkt) == taken {
		p.taken[side]++
	}
}

func newPlay(t *testing.T, script []byte) *play {
	p := &play{t: t, script: script}
	cfg := gameObjects()
	if len(script) > 0 && script[0]&1 == 1 {
		cfg = NetcodeForEntities()
	}
	cfg.Pipelines = append(cfg.Pipelines, Pipeline{StageFragmentation, StageReliableSequenced})
	cfg.ValidateAddresses = len(script) > 0 && script[0]&2 == 2
	cfg.MaxConnections, cfg.MaxHalfOpen, cfg.SendQueue = 6, 4, 64
	for i := range p.ends {
		cfg.Rand = newSeeded(uint64(i))
		p.ends[i] = server(t, cfg)
		p.ends[i].events.limit = 32
	}
	return p
}

func (p *play) byte() int {
	if len(p.script) == 0 {
		return 0
	}
	b := p.script[0]
	p.script = p.script[1:]
	return int(b)
}

func (p *play) bytes(n int) []byte {
	n = min(n, len(p.script))
	b := p.script[:n]
	p.script = p.script[n:]
	return b
}

// act does one thing of the script. It is false at the end.
func (p *play) act() bool {
	if len(p.script) == 0 {
		return false
	}
	op := p.byte()
	side := op >> 4 & 1
	e := p.ends[side]
	switch op & 7 {
	case 0:
		p.now += time.Duration(int8(p.byte())) * 100 * time.Millisecond
		for _, e := range p.ends {
			e.Advance(p.now)
		}
	case 1:
		if id, err := e.Connect(place(1 - side)); err == nil {
			p.conns[side] = append(p.conns[side], id)
		}
	case 2:
		e.Update()
		p.read(side)
	case 3:
		e.Send(p.pick(side), PipelineID(p.byte()&7), make([]byte, p.byte()*30))
	case 4:
		e.Flush()
	case 5:
		p.carry(side, p.byte())
	case 6: // A message with the token of a connection, and anything behind it.
		if c := e.conns.find(p.pick(side)); c != nil {
			head := binary.LittleEndian.AppendUint64([]byte{byte(1 + p.byte()%5)}, uint64(c.token))
			p.receive(side, c.path.addr, append(head, p.bytes(p.byte())...))
		}
	case 7:
		p.odd(side)
	}
	return true
}

func (p *play) odd(side int) {
	e := p.ends[side]
	switch b := p.byte(); b & 3 {
	case 0:
		e.Disconnect(p.pick(side))
	case 1:
		p.receive(side, place(b), p.bytes(p.byte()))
	case 2:
		p.receive(side, place(b>>2), request(b))
	case 3:
		e.DropPeer(place(b>>2), nil)
	}
}

func (p *play) pick(side int) ConnID {
	if len(p.conns[side]) == 0 {
		return ConnID{}
	}
	return p.conns[side][p.byte()%len(p.conns[side])]
}

// carry takes datagrams to the other side; the bits of mask say which are lost.
func (p *play) carry(side, mask int) {
	for i := 0; ; i++ {
		to, data, ok := p.ends[side].Next()
		if !ok {
			return
		}
		if len(data) > 1400 {
			p.t.Fatalf("sent %d bytes", len(data))
		}
		if _, o := parse(data); o != taken {
			p.t.Fatalf("sent %x: %v", data, o)
		}
		if mask>>(i&7)&1 == 0 && to == place(1-side) {
			p.receive(1-side, place(side), data)
		}
	}
}

func (p *play) read(side int) {
	e := p.ends[side]
	for ev, ok := e.NextEvent(); ok; ev, ok = e.NextEvent() {
		if ev.Kind == EventIncoming {
			p.conns[side] = append(p.conns[side], ev.Conn)
		}
		if ev.Kind == EventDisconnected && e.State(ev.Conn) != StateNone {
			p.t.Fatalf("%v ended and is %v", ev.Conn, e.State(ev.Conn))
		}
	}
}

func (p *play) invariants() {
	for side, e := range p.ends {
		st := e.Stats()
		live, halfOpen := 0, 0
		for _, c := range e.conns.slots {
			if c.state != StateNone {
				live++
				if e.conns.tokens[c.token] != c {
					p.t.Fatalf("side %d: token %v leads elsewhere", side, c.token)
				}
			}
			if c.path.budget < 0 {
				p.t.Fatalf("side %d: %d bytes above the anti-amplification limit", side, -c.path.budget)
			}
			if c.waiting {
				halfOpen++
				if !slices.Contains(e.halfOpen.conns, c) {
					p.t.Fatalf("side %d: half-open list is wrong", side)
				}
			}
			for i := range c.pipelines {
				if r := c.pipelines[i].reliable; r != nil && (r.sender.free() < 0 || c.inFlight() > e.cfg.Window ||
					r.receiver.newest >= r.receiver.deliver+int64(e.cfg.Window)) {
					p.t.Fatalf("side %d: %+v", side, r)
				}
			}
		}
		sum := p.taken[side]
		for _, n := range st.Drops {
			sum += n
		}
		if live != st.Connections || halfOpen != st.HalfOpen || len(e.conns.tokens) != live || len(e.halfOpen.conns) != halfOpen ||
			len(e.conns.free)+live != len(e.conns.slots) ||
			live > e.cfg.MaxConnections || halfOpen > e.cfg.MaxHalfOpen || unsent(e) > e.cfg.SendQueue || sum != st.Received {
			p.t.Fatalf("side %d: %+v, %d live, %d tokens, %d free", side, st, live, len(e.conns.tokens), len(e.conns.free))
		}
	}
}
