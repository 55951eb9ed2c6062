package playout

import "math"

const (
	defaultCapacity = 64 // ticks, about one second
	maxCapacity     = 4096
)

// CommandBuffer holds the commands of one player until the server's ticks that use them.
type CommandBuffer struct {
	slots []slot // a ring: the ticks from next on
	head  int    // index of the slot for next
	next  uint32 // the tick after the last one taken

	any      bool // last is a command
	last     []byte
	lastTick uint32

	// The slack is for how many ticks a command waits: 0 means that the next Take uses it, below 0
	// that it is late. It is smoothed, and has a mean deviation.
	slack, deviation float64
	samples          uint64
}

// slot keeps its buffer when it is empty.
type slot struct {
	used bool
	data []byte
}

// NewCommandBuffer returns a buffer for the ticks from first on. It holds the commands of the
// next capacity ticks: 0 means 64, the limit is 4096.
func NewCommandBuffer(first uint32, capacity int) *CommandBuffer {
	if capacity <= 0 {
		capacity = defaultCapacity
	}
	return &CommandBuffer{slots: make([]slot, min(capacity, maxCapacity)), next: first}
}

// Put copies a command of a client for a tick of the server, and reports whether the buffer
// has it for this tick now. It refuses a second command of a tick, and one for capacity or
// more ticks ahead. A late command is for Take to repeat, if it is newer.
func (b *CommandBuffer) Put(tick uint32, data []byte) bool {
	ahead := int(int32(tick - b.next))
	kept := false
	switch {
	case ahead >= len(b.slots):
	case ahead < 0:
		if !b.any || int32(tick-b.lastTick) > 0 {
			b.any, b.last, b.lastTick = true, append(b.last[:0], data...), tick
		}
	default:
		s := &b.slots[(b.head+ahead)%len(b.slots)]
		if s.used {
			return false
		}
		s.used, s.data = true, append(s.data[:0], data...)
		kept = true
	}
	b.addSlack(float64(min(max(ahead, -len(b.slots)), len(b.slots))))
	return kept
}

// Take returns the command for a tick, which is valid until the next Put or Take. If there is
// none, exact is false and data is the player's newest command before it, nil before the
// first: a game repeats a movement, and may not want to repeat a shot. Ticks ascend.
func (b *CommandBuffer) Take(tick uint32) (data []byte, exact bool) {
	skip := int(int32(tick - b.next))
	if skip < 0 {
		return b.last, b.any && b.lastTick == tick
	}
	for range min(skip, len(b.slots)) {
		b.pop()
	}
	b.next = tick
	exact = b.pop()
	return b.last, exact
}

func (b *CommandBuffer) pop() bool {
	s := &b.slots[b.head]
	used := s.used
	if used {
		s.data, b.last = b.last, s.data
		s.used, b.any, b.lastTick = false, true, b.next
	}
	b.head = (b.head + 1) % len(b.slots)
	b.next++
	return used
}

// addSlack smooths as the estimate of a round trip in TCP does, with the plain mean of the first.
func (b *CommandBuffer) addSlack(ticks float64) {
	if b.samples++; b.samples == 1 {
		b.slack = ticks
		return
	}
	gain := max(1.0/16, 1/float64(b.samples))
	difference := ticks - b.slack
	b.deviation += gain * (math.Abs(difference) - b.deviation)
	b.slack += gain * difference
}

// Margin returns by how many ticks the client may run later, or below 0 should run earlier,
// with nearly all of its commands in time: the smoothed number of ticks for which commands
// wait, less four mean deviations. The next correction must wait until 64 commands of corrected
// ticks were used.
func (b *CommandBuffer) Margin() float64 { return b.slack - 4*b.deviation }
