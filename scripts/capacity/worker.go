package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Costs are unit costs of a worker, in seconds of one processor, and its limits.
type Costs struct {
	Wake     float64 // to block in the receive call and be woken, after a long sleep
	Cooling  float64 // the sleep after which a wake-up costs 63 % of that; 0: always all
	Batch    float64 // the receive and send calls, without their datagrams
	Datagram float64 // both halves of the kernel's way, and the relay's step
	MaxBatch int     // datagrams in a batch
	Buffer   int     // datagrams that the socket's buffer holds
}

// saturation returns the datagrams per second of a worker whose batches are full.
func (c Costs) saturation() float64 { return 1 / (c.Datagram + c.Batch/float64(c.MaxBatch)) }

// wake returns the cost of a wake-up after a sleep. It grows with the sleep, since caches
// lose the relay's lines and the processor enters deeper idle states.
func (c Costs) wake(sleep float64) float64 {
	if c.Cooling == 0 {
		return c.Wake
	}
	return c.Wake * (1 - math.Exp(-sleep/c.Cooling))
}

// Load is what arrives at one worker: bursts at random times (a Poisson process). A burst
// is the snapshots of one host for all its players, or one datagram of a player.
type Load struct {
	Rate  float64 // datagrams per second
	Burst int     // datagrams in the burst of a host
	Share float64 // part of the datagrams that come in such bursts
}

// Run is what a worker did in a simulated time.
type Run struct {
	Arrived, Sent, Dropped, Left int
	Batches                      int
	Busy, Time                   float64   // s
	delays                       []float64 // s, sorted
}

// PerDatagram returns the processor time of a datagram that was sent, in seconds.
func (r *Run) PerDatagram() float64 { return r.Busy / float64(r.Sent) }

// BatchSize returns the mean size of a batch.
func (r *Run) BatchSize() float64 { return float64(r.Sent) / float64(r.Batches) }

// Delay returns the time from arrival to sending that a part q of the datagrams did not
// exceed.
func (r *Run) Delay(q float64) float64 {
	if len(r.delays) == 0 {
		return 0
	}
	return r.delays[min(int(q*float64(len(r.delays))), len(r.delays)-1)]
}

// simulate runs a worker for so many seconds. It takes what has arrived, up to a batch,
// and sends it together; it sleeps if nothing has arrived.
func simulate(c Costs, l Load, seconds float64, seed uint64) Run {
	rng := rand.New(rand.NewPCG(seed, 1))
	bursts := l.Rate * l.Share / float64(max(l.Burst, 1))
	events := bursts + l.Rate*(1-l.Share)
	var (
		r       = Run{Time: seconds}
		waiting []float64 // times of arrival
		now     float64   // the worker's time
		next    = rng.ExpFloat64() / events
	)
	// arrive moves what arrives up to a time into the buffer.
	arrive := func(until float64) {
		for ; next <= until && next < seconds; next += rng.ExpFloat64() / events {
			n := 1
			if rng.Float64()*events < bursts {
				n = l.Burst
			}
			r.Arrived += n
			room := min(n, c.Buffer-len(waiting))
			r.Dropped += n - room
			for range room {
				waiting = append(waiting, next)
			}
		}
	}
	for {
		arrive(now)
		if len(waiting) == 0 {
			if next >= seconds {
				break
			}
			wake := c.wake(next - now)
			now = next + wake
			r.Busy += wake
			arrive(now)
		}
		if now >= seconds {
			break
		}
		n := min(len(waiting), c.MaxBatch)
		took := c.Batch + float64(n)*c.Datagram
		now += took
		r.Busy += took
		r.Batches++
		r.Sent += n
		for _, at := range waiting[:n] {
			r.delays = append(r.delays, now-at)
		}
		arrive(now) // before the batch leaves the buffer: it was full for that long
		waiting = append(waiting[:0], waiting[n:]...)
	}
	r.Left = len(waiting)
	slices.Sort(r.delays)
	return r
}

// Point is a measured run: processor time per datagram in seconds, and the mean batch.
type Point struct {
	Rate, PerDatagram, Batch float64 // rate 0: saturated
}

// perDatagram returns what the model says of a run.
func (c Costs) perDatagram(p Point) float64 {
	if p.Rate == 0 {
		return c.Datagram + c.Batch/p.Batch
	}
	r := simulate(c, Load{Rate: p.Rate}, 0.2, 1)
	return r.PerDatagram()
}

// fit returns the costs with the least sum of squares of relative errors at the points. It
// goes along one cost after another as long as that helps, and then with smaller steps.
func fit(points []Point, maxBatch, buffer int) Costs {
	c := Costs{Wake: 10e-6, Cooling: 10e-6, Batch: 1e-6, Datagram: 3e-6, MaxBatch: maxBatch, Buffer: buffer}
	wrong := func(c Costs) (sum float64) {
		for _, p := range points {
			e := c.perDatagram(p)/p.PerDatagram - 1
			sum += e * e
		}
		return sum
	}
	least := wrong(c)
	for step := 1.5; step > 1.002; step = math.Sqrt(step) {
		for better := true; better; {
			better = false
			for _, factor := range []float64{step, 1 / step} {
				for _, change := range []func(*Costs){
					func(c *Costs) { c.Wake *= factor },
					func(c *Costs) { c.Cooling *= factor },
					func(c *Costs) { c.Batch *= factor },
					func(c *Costs) { c.Datagram *= factor },
					func(c *Costs) { c.Batch, c.Datagram = c.Batch*factor, c.Datagram/factor },
				} {
					next := c
					change(&next)
					if w := wrong(next); w < least {
						c, least, better = next, w, true
					}
				}
			}
		}
	}
	return c
}

// ratio returns a/b, and 0 for 0/0.
func ratio(a, b float64) float64 {
	if a == 0 && b == 0 {
		return 0
	}
	return a / b
}

// ceil rounds up to an int.
func ceil(x float64) int { return int(math.Ceil(x)) }
