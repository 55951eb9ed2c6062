package fleet

import "time"

// The shape of gifts: they must reach back to the oldest heartbeat that counts.
const (
	giftSlot  = 250 * time.Millisecond
	giftSlots = 32
)

// Gifts reach back further than any heartbeat that still counts.
const _ = uint(giftSlot*(giftSlots-1) - DeadAfter)

// gifts counts the seats of a relay that this process has given away lately, by
// when it did: the relay's next heartbeat knows of those before it, and of none
// after it. Times are since the fleet was made. Its owner's lock guards it.
type gifts struct {
	slots [giftSlots]int32
	last  int64 // the slot of the latest gift
}

func slotOf(at time.Duration) int64 { return int64(at / giftSlot) }

// add counts seats that are given at a time that is not before the last one.
func (g *gifts) add(at time.Duration, seats int) {
	slot := slotOf(at)
	for s := max(g.last+1, slot-giftSlots+1); s <= slot; s++ {
		g.slots[s%giftSlots] = 0
	}
	g.last = max(g.last, slot)
	g.slots[slot%giftSlots] += int32(seats)
}

// takeBack undoes an add, if it is not forgotten.
func (g *gifts) takeBack(at time.Duration, seats int) {
	if slot := slotOf(at); slot > g.last-giftSlots {
		g.slots[slot%giftSlots] -= int32(seats)
	}
}

// since returns the seats given from a time on, those just before it included:
// to count one twice for a second is better than to count it never.
func (g *gifts) since(at time.Duration) (seats int) {
	for s := max(slotOf(at), g.last-giftSlots+1, 0); s <= g.last; s++ {
		seats += int(g.slots[s%giftSlots])
	}
	return seats
}
