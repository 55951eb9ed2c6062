package playout_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/playout"
)

// bufferModel is a CommandBuffer without a bound of its memory. Its ticks do not wrap.
type bufferModel struct {
	capacity, next int
	waiting        map[int]byte
	last, lastTick int // -1: none
}

func (m *bufferModel) put(tick int, data byte) bool {
	_, taken := m.waiting[tick]
	switch {
	case tick >= m.next+m.capacity:
	case tick < m.next:
		if tick > m.lastTick {
			m.last, m.lastTick = int(data), tick
		}
	case taken:
	default:
		m.waiting[tick] = data
		return true
	}
	return false
}

func (m *bufferModel) take(tick int) (data int, exact bool) {
	if tick < m.next {
		return m.last, m.lastTick == tick
	}
	for ; m.next <= tick; m.next++ {
		command, ok := m.waiting[m.next]
		if ok {
			m.last, m.lastTick = int(command), m.next
			delete(m.waiting, m.next)
		}
		exact = ok && m.next == tick
	}
	return m.last, exact
}

// compareBuffer makes calls that ops chooses, on a buffer and the model.
func compareBuffer(t *testing.T, first uint32, capacity int, ops []byte) {
	t.Helper()
	const start = 1 << 20 // model's tick of first, so that late ones are above -1
	b := playout.NewCommandBuffer(first, capacity)
	m := &bufferModel{capacity: capacity, next: start, waiting: map[int]byte{}, last: -1, lastTick: -1}
	if capacity <= 0 {
		m.capacity = 64
	}
	for i := 0; i+1 < len(ops); i += 2 {
		data, by := byte(i), int(int8(ops[i+1]))
		if ops[i]%3 > 0 {
			tick := m.next + by
			want := m.put(tick, data)
			if got := b.Put(first+uint32(tick-start), []byte{data}); got != want {
				t.Fatalf("call %d: Put of tick %d, next is %d: %v", i/2, tick, m.next, got)
			}
		} else {
			tick := m.next + by/8
			want, wantExact := m.take(tick)
			got, exact := b.Take(first + uint32(tick-start))
			if exact != wantExact || (want < 0) != (len(got) == 0) || want >= 0 && got[0] != byte(want) {
				t.Fatalf("call %d: Take of tick %d: %v, %v, want %d, %v", i/2, tick, got, exact, want, wantExact)
			}
		}
	}
	if slack, deviation := b.Slack(); math.IsNaN(slack) || math.Abs(slack) > float64(m.capacity) || deviation < 0 {
		t.Errorf("slack %v, deviation %v", slack, deviation)
	}
}

// TestBufferModel: a buffer does what a map does, at any tick and across the wrap of ticks.
func TestBufferModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		ops := make([]byte, 600)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		first := []uint32{0, rng.Uint32(), math.MaxUint32 - 20, 1<<31 - 20}[rng.IntN(4)]
		compareBuffer(t, first, rng.IntN(70), ops)
	}
}

func FuzzBuffer(f *testing.F) {
	f.Add(uint32(math.MaxUint32-3), uint8(4), []byte{1, 0, 1, 3, 0, 0, 1, 250, 0, 8, 0, 16, 1, 4, 0, 120})
	f.Fuzz(func(t *testing.T, first uint32, capacity uint8, ops []byte) {
		compareBuffer(t, first, int(capacity), ops)
	})
}

// TestBufferLimits: the capacity is bounded, the largest jumps of ticks are safe, and commands far
// off move the slack by no more than the capacity.
func TestBufferLimits(t *testing.T) {
	b := playout.NewCommandBuffer(7, math.MaxInt)
	if !b.Put(7+4095, nil) || b.Put(7+4096, nil) {
		t.Error("the largest capacity is not 4096")
	}
	b = playout.NewCommandBuffer(7, 10)
	for _, tick := range []uint32{7 + 1<<31, 7 + 1<<31 - 1, 7 + 1<<31 + 1} {
		if b.Put(tick, []byte("far off")) {
			t.Errorf("tick %d was kept", tick)
		}
	}
	if slack, _ := b.Slack(); slack < -10 || slack > 10 {
		t.Errorf("slack %v", slack)
	}
	b.Put(7, []byte("first"))
	b.Put(8, []byte("second"))
	if data, exact := b.Take(8 + 1<<30); exact || string(data) != "second" {
		t.Errorf("%q, %v", data, exact)
	}
	if data, exact := b.Take(8); !exact || string(data) != "second" {
		t.Errorf("the newest command again: %q, %v", data, exact)
	}
}

// TestMargin: it says by how many ticks a client has to move.
func TestMargin(t *testing.T) {
	b := playout.NewCommandBuffer(0, 0)
	for tick := range uint32(200) {
		b.Put(tick+5, nil)
		b.Take(tick)
	}
	if m := b.Margin(); math.Abs(m-5) > 0.01 {
		t.Errorf("commands come 5 ticks ahead, the margin is %v", m)
	}
	for tick := uint32(200); tick < 400; tick++ {
		b.Put(tick-3, nil)
		b.Take(tick)
	}
	if m := b.Margin(); math.Abs(m+3) > 0.01 {
		t.Errorf("commands come 3 ticks late, the margin is %v", m)
	}
	for tick := uint32(400); tick < 800; tick += 2 { // 2 and 3 ticks ahead
		b.Put(tick+3, nil)
		b.Put(tick+2, nil)
		b.Take(tick)
		b.Take(tick + 1)
	}
	if slack, deviation := b.Slack(); math.Abs(slack-2.5) > 0.1 || math.Abs(deviation-0.5) > 0.1 {
		t.Errorf("slack %v, deviation %v", slack, deviation)
	}
	if m := b.Margin(); math.Abs(m-0.5) > 0.5 {
		t.Errorf("commands come 2 and 3 ticks ahead, the margin is %v", m)
	}
}

func TestBufferAllocates(t *testing.T) {
	b := playout.NewCommandBuffer(0, 16)
	data := bytes.Repeat([]byte{1}, 100)
	tick := uint32(0)
	turn := func() {
		b.Put(tick+15, data)
		if tick%5 > 0 {
			b.Put(tick+3, data)
		}
		b.Put(tick-1, data)
		b.Take(tick)
		tick++
	}
	for range 100 {
		turn()
	}
	if n := testing.AllocsPerRun(200, turn); n > 0 {
		t.Errorf("a turn allocates %v times", n)
	}
}
