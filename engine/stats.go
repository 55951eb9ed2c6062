package engine

// Stats are counts since the server was made, and gauges of now. The counts of
// one worker are consistent to within a batch, and late by a millisecond or,
// when nothing more comes, by up to 250 ms; nobody is made to wait for them.
type Stats struct {
	// Received and ReceivedBytes count datagrams handled, and their bytes.
	Received, ReceivedBytes uint64
	// Sent and SentBytes count datagrams that the kernel took.
	Sent, SentBytes uint64
	// SendFailed counts datagrams that the kernel refused.
	SendFailed uint64
	// KernelDrops counts datagrams that the kernel dropped because a socket's
	// receive queue was full.
	KernelDrops uint64
	// Outcomes counts what became of the datagrams, by Outcome.
	Outcomes [NumOutcomes]uint64
	// Batches counts receive batches by size: 1, 2, 3-4, 5-8, … 129-256.
	Batches [batchBuckets]uint64

	// Allocations, Bound and Links are how many there are now.
	Allocations, Bound, Links int
	// Seats are taken: one for each host and one for each player that it asked
	// for, whether they came or not.
	Seats int

	// Rebuilt counts allocations of earlier runs that came back.
	Rebuilt uint64
	// Stalls counts times in which the relay stood still, and Holds those in
	// which the brake kept everybody from expiring; Braking is set while it does.
	Stalls, Holds uint64
	Braking       bool
	// Loaded is how many workers have so much waiting for control that they hold
	// each source prefix to its share.
	Loaded int
	// Draining is set while the relay runs dry.
	Draining bool

	// Workers has one row per worker, to see how the kernel spreads the load.
	Workers []WorkerStats
}

// WorkerStats are the counts of one worker.
type WorkerStats struct {
	Received uint64
	// Busy is set while the worker handles a batch, and Batches counts those
	// it began. A worker that stays busy at one count is stuck.
	Busy    bool
	Batches uint64
}

// Stats returns the counts. It may be called at any time.
func (s *Server) Stats() Stats {
	var st Stats
	for _, w := range s.workers {
		st.add(&w.counts.pub)
		epoch := w.epoch.count.Load()
		st.Workers = append(st.Workers, WorkerStats{
			Received: w.counts.pub.received.Load(), Busy: epoch&1 == 1, Batches: (epoch + 1) / 2,
		})
		if w.inbox.filling() {
			st.Loaded++
		}
	}
	st.add(&s.control.counts.pub)
	for _, g := range s.groups {
		for _, c := range g.Conns() {
			st.KernelDrops += c.Stats().KernelDrops
		}
	}
	st.Allocations, st.Bound, st.Links = s.shared.table.Counts()
	st.Seats = int(s.control.seats.taken.Load())
	st.Rebuilt, st.Draining = s.control.rebuilt.Load(), s.Draining()
	b := &s.control.brake
	st.Stalls, st.Holds, st.Braking = b.stallsEver.Load(), b.holdsEver.Load(), b.engaged.Load()
	return st
}

// filling reports whether a ring is an eighth full. Any goroutine may ask.
func (b *inbox) filling() bool {
	for i := range b.rings {
		if r := &b.rings[i]; r.waiting() >= len(r.slots)/8 {
			return true
		}
	}
	return false
}

func (st *Stats) add(p *published) {
	st.Received += p.received.Load()
	st.ReceivedBytes += p.receivedBytes.Load()
	st.Sent += p.sentDatagrams.Load()
	st.SentBytes += p.sentBytes.Load()
	st.SendFailed += p.sendFailed.Load()
	for i := range p.outcomes {
		st.Outcomes[i] += p.outcomes[i].Load()
	}
	for i := range p.batches {
		st.Batches[i] += p.batches[i].Load()
	}
}
