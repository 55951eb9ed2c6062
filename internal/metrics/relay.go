package metrics

import (
	"io"
	"strconv"

	"github.com/ferryrelay/ferry/engine"
)

// writeRelay writes the counts of the data plane, all of one moment.
func (m *Metrics) writeRelay(w io.Writer) {
	st := m.cfg.Stats()
	var p page
	p.single("ferry_allocations", gauge, "Allocations that live, bound or not.", count(st.Allocations))
	p.single("ferry_bound", gauge, "Allocations that are bound to an endpoint.", count(st.Bound))
	p.single("ferry_seats", gauge, "Seats that are promised: one for each host and one for each player that it asked for.", count(st.Seats))
	p.single("ferry_links", gauge, "Open links between a player and its host.", count(st.Links))

	p.family("ferry_datagrams_total", counter, "Datagrams received and handled, and sent.")
	p.sample("ferry_datagrams_total", st.Received, "direction", "in")
	p.sample("ferry_datagrams_total", st.Sent, "direction", "out")
	p.family("ferry_bytes_total", counter, "Bytes of those datagrams, without UDP and IP headers.")
	p.sample("ferry_bytes_total", st.ReceivedBytes, "direction", "in")
	p.sample("ferry_bytes_total", st.SentBytes, "direction", "out")
	p.single("ferry_send_failed_total", counter, "Datagrams that the kernel did not take.", st.SendFailed)
	p.single("ferry_kernel_drops_total", counter, "Datagrams that the kernel dropped because a receive queue was full.", st.KernelDrops)

	p.single("ferry_recovery_rebuilt_total", counter, "Allocations of the run before that came back.", st.Rebuilt)
	p.single("ferry_brake_engaged", gauge, "1 while nobody expires, since the fault may be the relay's own.", truth(st.ExpiryPaused))
	p.single("ferry_brake_holds_total", counter, "Times in which nobody was let expire.", st.ExpiryPauses)
	p.single("ferry_stalls_total", counter, "Times in which the process stood still for more than a second.", st.Stalls)
	p.single("ferry_workers_under_load", gauge, "Workers that hold each source prefix to its share.", count(st.WorkersUnderLoad))
	p.single("ferry_draining", gauge, "1 while no new allocations are taken, before the end.", truth(st.Draining))

	p.outcomes(&st)
	p.batches(&st)
	p.workers(st.Workers)
	p.flush(w)
}

// count makes a gauge of a number of things.
func count(n int) uint64 { return uint64(max(n, 0)) }

// truth makes a gauge of what is so or not.
func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// outcomes writes what became of the datagrams: those that something was done
// about, and those that were dropped.
func (p *page) outcomes(st *engine.Stats) {
	p.family("ferry_outcomes_total", counter, "Datagrams that were relayed or answered, by what was done.")
	for o := range engine.NumOutcomes {
		if !o.Dropped() {
			p.sample("ferry_outcomes_total", st.Outcomes[o], "outcome", o.String())
		}
	}
	p.family("ferry_drops_total", counter, "Datagrams that were dropped, by reason.")
	for o := range engine.NumOutcomes {
		if o.Dropped() {
			p.sample("ferry_drops_total", st.Outcomes[o], "reason", o.String())
		}
	}
}

// batches writes the sizes of receive batches. The buckets of the engine end at
// the powers of two.
func (p *page) batches(st *engine.Stats) {
	const name = "ferry_receive_batch_size"
	p.family(name, histogram, "Datagrams per receive call.")
	var total uint64
	for i, n := range st.BatchSizes {
		total += n
		p.sample(name+"_bucket", total, "le", strconv.Itoa(1<<i))
	}
	p.sample(name+"_bucket", total, "le", "+Inf")
	p.sample(name+"_sum", st.Received)
	p.sample(name+"_count", total)
}

// workers writes one row per worker, to see how the kernel spreads the load.
func (p *page) workers(rows []engine.WorkerStats) {
	p.family("ferry_worker_received_total", counter, "Datagrams received and handled, by worker.")
	for i, row := range rows {
		p.sample("ferry_worker_received_total", row.Received, "worker", strconv.Itoa(i))
	}
}
