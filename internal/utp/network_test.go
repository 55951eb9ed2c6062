package utp

import (
	"bytes"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// weather is what a network does to datagrams, in percent and in steps.
type weather struct {
	loss, copies int
	delay        int // steps
	jitter       int // more steps, up to this many; they reorder
}

var (
	calm = weather{}
	bad  = weather{loss: 30, copies: 30, delay: 1, jitter: 6}
)

// network carries datagrams between endpoints in memory, from a seed. Each
// step is one tick of all of them, of 10 ms.
type network struct {
	t     testing.TB
	w     weather
	rng   *rand.Rand
	ends  []*Endpoint // at place(i)
	at    map[address.Addr]int
	air   []flight
	steps int
	// transcript sums up every datagram that was sent, in order.
	transcript uint64
	game       func(end int) // called for each endpoint between Update and Flush
}

type flight struct {
	due      int
	from, to int
	data     []byte
}

func newNetwork(t testing.TB, seed uint64, w weather, ends ...*Endpoint) *network {
	n := &network{t: t, w: w, rng: rand.New(rand.NewPCG(seed, 42)), ends: ends, at: map[address.Addr]int{}}
	for i := range ends {
		n.at[place(i)] = i
	}
	return n
}

func (n *network) step() {
	n.steps++
	now := time.Duration(n.steps) * 10 * time.Millisecond
	for _, e := range n.ends {
		e.Advance(now)
	}
	var later []flight
	for _, f := range n.air {
		if f.due > n.steps {
			later = append(later, f)
			continue
		}
		n.ends[f.to].Receive(place(f.from), f.data)
	}
	n.air = later
	for i, e := range n.ends {
		e.Update()
		n.game(i)
		e.Flush()
		n.collect(i)
	}
}

func (n *network) collect(from int) {
	sum := fnv.New64a()
	for to, data, ok := n.ends[from].Next(); ok; to, data, ok = n.ends[from].Next() {
		sum.Write([]byte{byte(n.transcript), byte(n.transcript >> 8), byte(n.transcript >> 16), byte(from), byte(n.steps), byte(n.steps >> 8)})
		sum.Write(data)
		n.transcript = sum.Sum64()
		times := 1
		if n.rng.IntN(100) < n.w.loss {
			times = 0
		} else if n.rng.IntN(100) < n.w.copies {
			times = 2
		}
		for range times {
			due := n.steps + 1 + n.w.delay
			if n.w.jitter > 0 {
				due += n.rng.IntN(n.w.jitter + 1)
			}
			n.air = append(n.air, flight{due, from, n.at[to], bytes.Clone(data)})
		}
	}
}

// match is a server, endpoint 0, and clients that send each other numbered
// payloads on every pipeline. Each notes what came, per connection.
type match struct {
	*network
	conns    [][]ConnID // of each endpoint
	sent     [][][]int  // by endpoint, connection index and pipeline: payloads handed to Send
	received [][][][]int
	lost     []string // reasons of disconnects
	total    int      // payloads to send on each pipeline
	size     []int    // of a payload, by pipeline
}

func newMatch(t testing.TB, seed uint64, w weather, cfg Config, clients, total int, size []int) *match {
	var ends []*Endpoint
	for i := range clients + 1 {
		cfg.Rand = newSeeded(seed + uint64(i))
		ends = append(ends, newEndpoint(t, cfg))
	}
	m := &match{network: newNetwork(t, seed, w, ends...), total: total, size: size}
	m.conns = make([][]ConnID, len(ends))
	m.sent = make([][][]int, len(ends))
	m.received = make([][][][]int, len(ends))
	m.game = m.play
	ends[0].Listen(true)
	for i := 1; i < len(ends); i++ {
		connect(t, ends[i], place(0))
	}
	return m
}

// play takes events and sends as much as the windows take, two payloads per
// pipeline and step at most.
func (m *match) play(end int) {
	e := m.ends[end]
	for ev, ok := e.NextEvent(); ok; ev, ok = e.NextEvent() {
		switch ev.Kind {
		case EventIncoming, EventConnected:
			m.conns[end] = append(m.conns[end], ev.Conn)
			m.sent[end] = append(m.sent[end], make([]int, len(m.size)))
			m.received[end] = append(m.received[end], make([][]int, len(m.size)))
		case EventData:
			i := slices.Index(m.conns[end], ev.Conn)
			m.note(end, i, ev)
		case EventDisconnected:
			m.lost = append(m.lost, ev.Reason.String())
		}
	}
	for i, id := range m.conns[end] {
		if m.w == calm && e.State(id) == StateHalfOpen {
			continue // It would be withheld at some point, and be lost.
		}
		for p := range m.size {
			if e.conns.find(id) != nil && e.conns.find(id).waiting && e.layouts[p].order != StageReliableSequenced {
				continue // The same before the client is validated.
			}
			for range 2 {
				if m.sent[end][i][p] == m.total || m.size[p] == 0 {
					break
				}
				err := e.Send(id, PipelineID(p), numbered(m.sent[end][i][p], m.size[p]))
				if err == ErrQueueFull {
					break
				}
				must(m.t, err)
				m.sent[end][i][p]++
			}
		}
	}
}

func (m *match) note(end, i int, ev Event) {
	if len(ev.Data) != m.size[ev.Pipeline] {
		m.t.Fatalf("%d bytes on pipeline %d", len(ev.Data), ev.Pipeline)
	}
	number := int(ev.Data[0])<<24 | int(ev.Data[1])<<16 | int(ev.Data[2])<<8 | int(ev.Data[3])
	if !bytes.Equal(ev.Data, numbered(number, len(ev.Data))) {
		m.t.Fatalf("payload %d arrived damaged", number)
	}
	m.received[end][i][ev.Pipeline] = append(m.received[end][i][ev.Pipeline], number)
}

func (m *match) complete(p PipelineID) bool {
	for end, list := range m.received {
		if len(list) < 1 || end == 0 && len(list) < len(m.ends)-1 {
			return false
		}
		for _, received := range list {
			if len(received[p]) < m.total {
				return false
			}
		}
	}
	return true
}

// TestBadWeather: everything reliable arrives once and in order, and sequenced
// payloads never go back, whatever is lost, doubled and reordered.
func TestBadWeather(t *testing.T) {
	for _, v := range []struct {
		name     string
		cfg      Config
		size     []int
		reliable PipelineID
		ordered  []PipelineID
	}{
		{"entities", NetcodeForEntities(), []int{4, 40, 300, 3000}, EntitiesReliable, nil},
		{"game objects", gameObjects(), []int{4, 40, 2000, 300}, gameObjectsReliable, []PipelineID{gameObjectsSequenced}},
		{"small window", reliableOnly(3), []int{0, 1000}, 1, nil},
		{"fragments", Config{Pipelines: []Pipeline{{StageFragmentation, StageReliableSequenced}}}, []int{0, 4000}, 1, nil},
	} {
		for seed := range uint64(3) {
			m := newMatch(t, seed, bad, v.cfg, 3, 150, v.size)
			for !m.complete(v.reliable) {
				if m.step(); m.steps > 20000 {
					t.Fatalf("%s, seed %d: not complete after %d steps", v.name, seed, m.steps)
				}
			}
			if len(m.lost) != 0 {
				t.Fatalf("%s, seed %d: %v", v.name, seed, m.lost)
			}
			m.check(v.reliable, v.ordered)
		}
	}
}

func (m *match) check(reliable PipelineID, ordered []PipelineID) {
	m.t.Helper()
	for end, list := range m.received {
		for i, received := range list {
			for n, number := range received[reliable] {
				if n != number || n >= m.total {
					m.t.Fatalf("endpoint %d, connection %d: payload %d is number %d", end, i, n, number)
				}
			}
			for _, p := range ordered {
				if !slices.IsSorted(received[p]) {
					m.t.Errorf("endpoint %d, connection %d: pipeline %d went back", end, i, p)
				}
				if len(received[p]) == 0 {
					m.t.Errorf("endpoint %d, connection %d: nothing on pipeline %d", end, i, p)
				}
			}
			for p := range received {
				if len(slices.Compact(slices.Sorted(slices.Values(received[p])))) > m.total {
					m.t.Errorf("endpoint %d: more on pipeline %d than was sent", end, p)
				}
			}
		}
	}
}

// TestCalm: on a perfect network nothing is sent twice and all of it arrives.
func TestCalm(t *testing.T) {
	m := newMatch(t, 1, calm, NetcodeForEntities(), 3, 100, []int{4, 40, 300, 3000})
	for range 150 {
		m.step()
	}
	for p := range m.size {
		if !m.complete(PipelineID(p)) {
			t.Errorf("pipeline %d is not complete", p)
		}
		m.check(PipelineID(p), nil)
	}
	for end, e := range m.ends {
		for _, id := range m.conns[end] {
			if st, _ := e.ConnStats(id); st.Resent+st.Duplicates+st.Late+st.Lost+uint64(st.InFlight) != 0 {
				t.Errorf("%+v", st)
			}
		}
		drops := maps.Clone(e.Stats().Drops)
		if delete(drops, string(dropState)); len(drops) != 0 {
			t.Errorf("%v", drops)
		}
	}
}

// TestDeterminism: the same seed gives the same datagrams, byte by byte.
func TestDeterminism(t *testing.T) {
	run := func(seed uint64) uint64 {
		m := newMatch(t, seed, bad, gameObjects(), 5, 40, []int{4, 40, 3000, 300})
		for range 300 {
			m.step()
		}
		return m.transcript
	}
	first, again, other := run(7), run(7), run(8)
	if first != again || first == other {
		t.Errorf("transcripts %x, %x and, of another seed, %x", first, again, other)
	}
}

// TestNoGrowth: a match that goes on keeps what it has.
func TestNoGrowth(t *testing.T) {
	m := newMatch(t, 3, bad, NetcodeForEntities(), 4, 1<<30, []int{4, 40, 300, 3000})
	size := func() (n int) {
		for _, e := range m.ends {
			n += cap(e.out.buf) + cap(e.events.buf) + cap(e.out.list) + cap(e.events.list)
			n += smallPacket*len(e.pool.small) + maxDatagram*len(e.pool.large) + cap(e.closing.disconnects) + len(e.conns.slots)
		}
		return n
	}
	for range 2000 {
		m.forget()
		m.step()
	}
	before := size()
	for range 2000 {
		m.forget()
		m.step()
	}
	if after := size(); after > before+before/4 {
		t.Errorf("%d bytes, %d later", before, after)
	}
}

func (m *match) forget() {
	for _, list := range m.received {
		for _, received := range list {
			for p := range received {
				received[p] = received[p][:0]
			}
		}
	}
}
