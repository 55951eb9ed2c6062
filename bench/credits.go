package bench

import (
	"time"
)

// stallTimeout is how long, in ns, a flow of a closed loop waits for datagrams in flight
// before it counts them as lost and continues.
const stallTimeout = int64(200 * time.Millisecond)

// credits are the permissions to send of a closed loop, as a ring of flow
// numbers. The generator's goroutine owns it.
type credits struct {
	ring       []int32
	head, size int
	checked    int64 // last look for stalled flows
}

func newCredits(flows, window int) credits {
	c := credits{ring: make([]int32, flows*window)}
	for range window {
		for i := range flows {
			c.add(int32(i))
		}
	}
	return c
}

func (c *credits) add(flow int32) {
	if c.size < len(c.ring) {
		c.ring[(c.head+c.size)%len(c.ring)] = flow
		c.size++
	}
}

func (c *credits) take() (int32, bool) {
	if c.size == 0 {
		return 0, false
	}
	flow := c.ring[c.head]
	if c.head++; c.head == len(c.ring) {
		c.head = 0
	}
	c.size--
	return flow, true
}

// creditArrival gives a flow credit for n datagrams: one and those that it overtook.
func (c *credits) creditArrival(f *flow, i int32, n uint32, now int64) {
	f.lastArrival = now
	for ; n > 0 && f.inFlight > 0; n-- {
		f.inFlight--
		c.add(i)
	}
}

func (c *credits) restoreStalled(flows []flow, now int64) {
	if now-c.checked < stallTimeout/4 {
		return
	}
	c.checked = now
	for i := range flows {
		f := &flows[i]
		if f.lastArrival == 0 {
			f.lastArrival = now
		}
		if f.inFlight > 0 && now-f.lastArrival > stallTimeout {
			for ; f.inFlight > 0; f.inFlight-- {
				c.add(int32(i))
			}
			f.lastArrival = now
		}
	}
}
