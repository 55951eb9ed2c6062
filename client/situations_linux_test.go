package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// world is a relay, a host and a joiner in simulated time: sessions that are never run, a relay that
// the test drives, and a network of 20 ms. The host answers each datagram.
type world struct {
	t       testing.TB
	relay   *fakeRelay
	now     int64
	players []*player
	flying  []flight
	random  *rand.Rand

	loss     float64 // of the network
	oneWay   time.Duration
	stopped  bool  // the relay reads nothing, as after SIGSTOP
	killed   bool  // what is sent to the relay is lost
	linkIdle int64 // after which a link that carries nothing is dropped; 0: never
	used     int64 // when the link carried the last RELAY
	heard    map[proto.AllocationID]int64
}

type player struct {
	*Session
	nat    netip.AddrPort // where the relay sees it, if that is not its own address
	killed bool
	host   *Peer
	stop   bool // it writes nothing

	received int
	events   []gameEvent
}

// gameEvent is an error that a game gets, and when.
type gameEvent struct {
	what error
	at   int64
}

// flight is a datagram on its way.
type flight struct {
	at   int64
	from netip.AddrPort // to the relay, if it is valid
	to   netip.AddrPort
	pkt  []byte
}

const relayIdle = int64(10 * time.Second)

// newWorld returns a world in which the joiner has its link and has said nothing.
func newWorld(t testing.TB) *world {
	t.Helper()
	f := newFakeRelay(t)
	t.Cleanup(func() { _ = f.conn.Close() })
	w := &world{t: t, relay: f, oneWay: 20 * time.Millisecond, random: rand.New(rand.NewPCG(1, 2)), heard: map[proto.AllocationID]int64{}}
	f.write = func(to netip.AddrPort, pkt []byte) {
		w.flying = append(w.flying, flight{at: w.now + int64(w.oneWay), to: to, pkt: slices.Clone(pkt)})
	}
	for _, ticket := range []Ticket{hostTicket(f.addr), joinerTicket(f.addr, joinerID)} {
		w.players = append(w.players, &player{Session: idle(t, Config{Ticket: ticket})})
		beginBind(w.players[len(w.players)-1].Session, 0)
	}
	w.joiner().stop = true
	w.until(5*time.Second, func() bool { return w.host().bind.bound.Load() && w.joiner().bind.bound.Load() })
	w.connect()
	return w
}

func (w *world) host() *player   { return w.players[0] }
func (w *world) joiner() *player { return w.players[1] }

func (w *world) connect() (err error) {
	w.t.Helper()
	j := w.joiner()
	p, verdicts, err := j.connect.begin()
	for limit := w.now + int64(2*time.Minute); p == nil && err == nil; {
		if w.step(); w.now > limit {
			w.t.Fatal("Connect waits for ever")
		}
		select {
		case v := <-verdicts:
			p, err = v.peer, v.err
		default:
			err = j.Err()
		}
	}
	j.host = p
	return err
}

func (w *world) step() {
	w.now += ms(10)
	for _, p := range w.players {
		for !p.killed {
			pkt, _ := p.due(w.now, nil)
			if len(pkt) == 0 {
				break
			}
			p.transport.transmit(pkt)
		}
	}
	w.collect()
	w.deliver()
	w.expire()
	w.play()
}

// collect takes what the sessions have sent out of the relay's socket, where it is at once.
func (w *world) collect() {
	raw, err := w.relay.conn.SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for {
		var n int
		var from syscall.Sockaddr
		_ = raw.Read(func(fd uintptr) bool {
			n, from, err = syscall.Recvfrom(int(fd), buf, syscall.MSG_DONTWAIT)
			return true
		})
		if err != nil {
			return
		}
		at := from.(*syscall.SockaddrInet4)
		seen := netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
		for _, p := range w.players {
			if p.nat.IsValid() && loopback(p.Session) == seen {
				seen = p.nat
			}
		}
		w.flying = append(w.flying, flight{at: w.now + int64(w.oneWay), from: seen, pkt: slices.Clone(buf[:n])})
	}
}

// deliver brings to its end what has travelled long enough.
func (w *world) deliver() {
	flying := w.flying
	w.flying = nil
	for _, f := range flying {
		switch atRelay := f.from.IsValid(); {
		case f.at > w.now || atRelay && w.stopped:
			w.flying = append(w.flying, f)
		case w.random.Float64() < w.loss || atRelay && w.killed:
		case atRelay:
			w.arrive(f)
		default:
			w.hand(f)
		}
	}
}

func (w *world) arrive(f flight) {
	m, err := proto.Decode(f.pkt)
	if err != nil {
		w.t.Fatal(err)
	}
	for id, p := range w.relay.places {
		if p.endpoint == f.from {
			w.heard[id] = w.now
		}
	}
	if _, ok := m.(proto.Relay); ok {
		w.used = w.now
	}
	if _, ok := m.(proto.ConnectRequest); ok {
		w.used = w.now
	}
	w.relay.step(f.from, f.pkt, m)
}

func (w *world) hand(f flight) {
	for _, p := range w.players {
		at := p.nat
		if !at.IsValid() {
			at = loopback(p.Session)
		}
		if at == f.to && !p.killed && !isClosed(p.done) {
			d := new(datagram)
			d.n, d.at = copy(d.buf[:], f.pkt), p.transport.socket.Load()
			p.handle(w.now, d)
		}
	}
}

// expire is the relay's timer.
func (w *world) expire() {
	if w.stopped || w.killed {
		return
	}
	for id, p := range w.relay.places {
		if !p.endpoint.IsValid() || p.closed || w.now-w.heard[id] < relayIdle {
			continue
		}
		w.relay.send(p.endpoint, proto.Error{ID: id, Code: proto.ErrorTimeout})
		p.closed, p.endpoint = true, netip.AddrPort{}
		for other := range p.links {
			delete(w.relay.places[other].links, id)
		}
		clear(p.links)
	}
	if w.linkIdle > 0 && w.now-w.used >= w.linkIdle {
		for _, p := range w.relay.places {
			clear(p.links)
		}
	}
}

// play is what the two games do in each step of 50 ms: the joiner says something, the host answers.
func (w *world) play() {
	if w.now%ms(50) != 0 {
		return
	}
	buf := make([]byte, proto.MaxContent)
	if h := w.host(); !h.killed && h.Err() == nil {
		for p, err := h.TryAccept(); p != nil && err == nil; p, err = h.TryAccept() {
			h.host = p
		}
		for p := h.host; p != nil; {
			n, ok, err := p.TryRead(buf)
			if !ok || err != nil {
				break
			}
			_, _ = p.Write(buf[:n])
		}
	}
	j := w.joiner()
	if j.host == nil {
		return
	}
	for {
		_, ok, err := j.host.TryRead(buf)
		if err != nil {
			j.events = append(j.events, gameEvent{err, w.now})
			j.host = nil
			return
		}
		if !ok {
			break
		}
		j.received++
	}
	if !j.stop {
		_, _ = j.host.Write([]byte("hello"))
	}
}

func (w *world) pass(d time.Duration) {
	for end := w.now + int64(d); w.now < end; {
		w.step()
	}
}

// until passes time until a condition holds, and returns how long that took, or limit.
func (w *world) until(limit time.Duration, cond func() bool) time.Duration {
	begin := w.now
	for !cond() && w.now-begin < int64(limit) {
		w.step()
	}
	return time.Duration(w.now - begin)
}

// TestSituations is which error a game over client.Session gets in each situation, and after how long.
// A situation that ends well tells nothing; heard is how long the joiner then waits for an answer.
func TestSituations(t *testing.T) {
	t.Parallel()
	refused := RefusedError{proto.ErrorNotFound}
	for _, c := range []struct {
		name  string
		do    func(w *world)
		heard time.Duration // at most, until the next answer; 0: none comes
		want  error
		after time.Duration // at most, and not less than half of it

		silent bool // nothing is said before
	}{
		{"idle 12 s", func(w *world) { w.joiner().stop = true; w.pass(12 * time.Second); w.joiner().stop = false },
			150 * time.Millisecond, nil, 0, false},
		{"idle 12 s before the first datagram, at a relay that drops such links", func(w *world) {
			w.linkIdle = relayIdle
			w.joiner().stop = true
			w.pass(12 * time.Second)
			w.joiner().stop = false
		}, 300 * time.Millisecond, nil, 0, true},
		{"new address", func(w *world) {
			w.joiner().nat = netip.MustParseAddrPort("192.0.2.1:4000")
		}, 300 * time.Millisecond, nil, 0, false},
		{"new address of the host", func(w *world) {
			w.host().nat = netip.MustParseAddrPort("192.0.2.1:4000")
		}, 1200 * time.Millisecond, nil, 0, false}, // Only its own PING finds that out.
		{"new network", func(w *world) {
			if err := w.joiner().Roam(); err != nil {
				w.t.Fatal(err)
			}
		}, 300 * time.Millisecond, nil, 0, false},
		{"host killed", func(w *world) { w.host().killed = true }, 0, refused, 10500 * time.Millisecond, false},
		{"host leaves", func(w *world) { w.leave(w.host()) }, 0, io.EOF, 200 * time.Millisecond, false},
		{"relay stopped 3 s", func(w *world) { w.stopped = true; w.pass(3 * time.Second); w.stopped = false },
			300 * time.Millisecond, nil, 0, false},
		{"relay stopped 15 s", func(w *world) { w.stopped = true; w.pass(15 * time.Second); w.stopped = false },
			300 * time.Millisecond, nil, 0, false},
		{"relay killed", func(w *world) { w.killed = true }, 0, ErrBindTimeout, 64 * time.Second, false},
		{"flood", func(w *world) {
			for range 100_000 {
				feedBytes(w.joiner().Session, w.now, proto.Relay{From: hostID, To: joinerID, Payload: []byte("flood")}.Append(nil))
			}
			if st := w.joiner().Stats(); st.QueueDropped < 99_000 {
				w.t.Errorf("%+v", st)
			}
		}, 150 * time.Millisecond, nil, 0, false},
		{"loss 20 %", func(w *world) { w.loss = 0.2; w.pass(time.Minute) }, time.Second, nil, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			j := w.joiner()
			if !c.silent {
				j.stop = false
				w.pass(2 * time.Second)
				if j.received < 30 {
					t.Fatalf("%d answers in 2 s", j.received)
				}
			}
			begin := w.now
			c.do(w)
			before := j.received
			if c.want == nil {
				if took := w.until(time.Minute, func() bool { return j.received > before }); took > c.heard {
					t.Errorf("an answer comes after %v", took)
				}
				w.pass(5 * time.Second)
				want := 90 // of 100
				if w.loss > 0 {
					want = 25 // A datagram and its answer pass the network four times.
				}
				if len(j.events) != 0 || j.Err() != nil || j.received < before+want {
					t.Errorf("the game gets %v; %d answers", j.events, j.received-before)
				}
				return
			}
			w.until(3*time.Minute, func() bool { return len(j.events) > 0 })
			if len(j.events) == 0 {
				t.Fatal("the game gets nothing")
			}
			took := time.Duration(j.events[0].at - begin)
			if !errors.Is(j.events[0].what, c.want) || took > c.after || took < c.after/2 && c.after > time.Second {
				t.Errorf("the game gets %v after %v", j.events[0].what, took)
			}
			t.Logf("%v after %v", j.events[0].what, took)
		})
	}
}

// leave is Close of a session in simulated time.
func (w *world) leave(p *player) {
	peers, _ := p.peers.beginLeaving()
	for _, id := range peers {
		p.transport.transmit(proto.Disconnect{From: p.own, To: id}.Append(nil))
	}
	p.transport.transmit(proto.Close{ID: p.own}.Append(nil))
	w.collect()
	p.end(context.Canceled)
	p.killed = true
}
