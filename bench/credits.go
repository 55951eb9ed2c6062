package bench

import "time"

// stall is how long a flow of a closed loop waits before it gives up what is
// under way and begins anew, in ns.
const stall = int64(200 * time.Millisecond)

// credits are the permissions to send of a closed loop, as a ring of flow
// numbers. The generator's goroutine owns it.
type credits struct {
	ring       []int32
	head, size int
	checked    int64 // last look for stalled flows
}

// newCredits gives each flow its window.
func newCredits(flows, window int) credits {
	c := credits{ring: make([]int32, flows*window)}
	for range window {
		for i := range flows {
			c.give(int32(i))
		}
	}
	return c
}

func (c *credits) give(flow int32) {
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

// heard gives a flow credit for n datagrams: the one that arrived and those that
// it overtook, which are most likely lost. What was given up before earns nothing.
func (c *credits) heard(f *flow, i int32, n uint32, now int64) {
	f.heard = now
	for ; n > 0 && f.inFlight > 0; n-- {
		f.inFlight--
		c.give(i)
	}
}

// revive takes what stalled flows have under way for lost.
func (c *credits) revive(flows []flow, now int64) {
	if now-c.checked < stall/4 {
		return
	}
	c.checked = now
	for i := range flows {
		f := &flows[i]
		if f.heard == 0 {
			f.heard = now
		}
		if f.inFlight > 0 && now-f.heard > stall {
			for ; f.inFlight > 0; f.inFlight-- {
				c.give(int32(i))
			}
			f.heard = now
		}
	}
}
