package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Costs are unit costs of a worker, in seconds of one processor, and its limits.
type Costs struct {
	Wake     float64 // to block in the receive call and be woken, once per sleep
	Batch    float64 // the receive and send calls, without their datagrams
	Datagram float64 // both halves of the kernel's way, and the relay's step
	MaxBatch int     // datagrams in a batch
	Buffer   int     // datagrams that the socket's buffer holds
}

// saturation returns the datagrams per second of a worker whose batches are full.
func (c Costs) saturation() float64 { return 1 / (c.Datagram + c.Batch/float64(c.MaxBatch)) }

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
			now = next + c.Wake
			r.Busy += c.Wake
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
	Rate, PerDatagram, Batch float64
}

// fit returns the costs that explain three runs: one at a low rate, where each datagram
// comes alone and after a sleep; a saturated one, where batches are full and there is no
// sleep; and one between them, whose simulation decides how much of the first is the
// wake-up and how much the calls.
func fit(low, middle, saturated Point, maxBatch, buffer int) Costs {
	costs := func(calls float64) Costs {
		return Costs{
			Wake: low.PerDatagram - saturated.PerDatagram - calls*(1-1/float64(maxBatch)), Batch: calls,
			Datagram: saturated.PerDatagram - calls/float64(maxBatch), MaxBatch: maxBatch, Buffer: buffer,
		}
	}
	least, most := 0.0, low.PerDatagram-saturated.PerDatagram
	for range 30 {
		calls := (least + most) / 2
		if r := simulate(costs(calls), Load{Rate: middle.Rate}, 0.5, 1); r.PerDatagram() < middle.PerDatagram {
			least = calls
		} else {
			most = calls
		}
	}
	return costs(least)
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
