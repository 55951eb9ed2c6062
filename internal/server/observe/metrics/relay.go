package metrics

import (
	"maps"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

func writeRelay(p *page, st engine.Stats) {
	p.single("ferry_allocations", gauge, "Live allocations, bound or not.", count(st.Allocations))
	p.single("ferry_bound", gauge, "Allocations that are bound to an endpoint.", count(st.Bound))
	p.single("ferry_seats", gauge, "Reserved seats: one for each host and one for each of its maxConnections.", count(st.Seats))
	p.single("ferry_links", gauge, "Open links between a player and its host.", count(st.Links))

	p.family("ferry_datagrams_total", counter, "Datagrams received and sent.")
	p.sample("ferry_datagrams_total", st.Received, "direction", "in")
	p.sample("ferry_datagrams_total", st.Sent, "direction", "out")
	p.family("ferry_bytes_total", counter, "Bytes of those datagrams, without UDP and IP headers.")
	p.sample("ferry_bytes_total", st.ReceivedBytes, "direction", "in")
	p.sample("ferry_bytes_total", st.SentBytes, "direction", "out")
	p.single("ferry_send_failed_total", counter, "Datagrams that the kernel did not accept.", st.SendFailed)
	p.single("ferry_kernel_drops_total", counter,
		"Datagrams that the kernel dropped because the receive queue of a socket of the relay was full, or the checksum wrong.", st.KernelDrops)

	p.single("ferry_recovery_rebuilt_total", counter, "Allocations of the previous run that were restored.", st.Rebuilt)
	p.single("ferry_brake_engaged", gauge, "1 while expiry is paused, because the fault may be on the side of the relay.",
		boolGauge(st.Private.ExpiryPaused))
	p.single("ferry_brake_holds_total", counter, "Times that expiry was paused.", st.Private.ExpiryPauses)
	p.single("ferry_stalls_total", counter, "Times that the process stalled for more than a second.", st.Private.Stalls)
	p.family("ferry_reservations_refused_total", counter, "Reservations that the relay refused, by reason: the limit of a player that has as much as it may, or the table of sessions has no room for their project or player.")
	for _, reason := range slices.Sorted(maps.Keys(st.Refused)) {
		p.sample("ferry_reservations_refused_total", st.Refused[reason], "reason", reason)
	}
	p.single("ferry_player_replaced_total", counter, "Silent allocations that ended because their player reserved one more than it may have.",
		st.Private.PlayerReplaced)
	p.single("ferry_state_file_slow_changes_total", counter, "Changes of the state file that waited for its disk for 10 ms or more.",
		st.Private.SlowChanges)
	p.single("ferry_workers_under_load", gauge, "Workers that limit each source prefix to its share.", count(st.Private.WorkersUnderLoad))
	p.single("ferry_draining", gauge, "1 while the relay drains and accepts no new allocations.", boolGauge(st.Draining))

	p.outcomes(&st)
	p.batches(&st)
	p.workers(st.Private.Workers)
	if st.Private.FastPath.Passed != nil {
		p.fastPath(&st.Private.FastPath)
	}
}

func count(n int) uint64 { return uint64(max(n, 0)) }

func boolGauge(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (p *page) fastPath(c *privateapi.FastPathCounts) {
	p.single("ferry_fast_on", gauge, "1 while the program in the kernel relays, 0 while it leaves everything to the sockets.", boolGauge(c.On))
	p.family("ferry_fast_attached", gauge, "Interfaces that the program serves.")
	for _, name := range c.Interfaces {
		p.sample("ferry_fast_attached", 1, "interface", name, "mode", c.Mode)
	}
	p.single("ferry_fast_datagrams_total", counter, "Datagrams that the program relayed; part of the other counts as well.", c.Datagrams)
	p.single("ferry_fast_bytes_total", counter, "Bytes of those datagrams, without UDP and IP headers.", c.Bytes)
	p.family("ferry_fast_passed_total", counter, "Datagrams of the relay protocol's RELAY that the program left to the sockets, by reason.")
	p.samples("ferry_fast_passed_total", c.Passed, "reason")
	p.single("ferry_fast_filter_changes_total", counter,
		"Changes of nftables or of tc's filters, after which each player's next datagram went to the sockets first.", c.FilterChanges)
	p.family("ferry_fast_no_next_hop_total", counter, "Endpoints to which the program does not send, by reason, since the network last changed.")
	p.samples("ferry_fast_no_next_hop_total", c.NoNextHop, "reason")
}

func (p *page) outcomes(st *engine.Stats) {
	p.family("ferry_outcomes_total", counter, "Datagrams that were relayed or answered, by outcome.")
	p.samples("ferry_outcomes_total", st.Outcomes, "outcome")
	p.family("ferry_drops_total", counter, "Datagrams that were dropped, by reason.")
	p.samples("ferry_drops_total", st.Drops, "reason")
}

// batches writes the sizes of receive batches. The buckets of the engine end at
// the powers of two.
func (p *page) batches(st *engine.Stats) {
	const name = "ferry_receive_batch_size"
	p.family(name, histogram, "Datagrams per receive call.")
	var total uint64
	for i, n := range st.Private.BatchSizes {
		total += n
		p.sample(name+"_bucket", total, "le", strconv.Itoa(1<<i))
	}
	p.sample(name+"_bucket", total, "le", "+Inf")
	p.sample(name+"_sum", st.Received)
	p.sample(name+"_count", total)
}

// workers writes one row per worker of a UDP socket, to see how the kernel spreads the
// load, and one per intake, which handles the messages of a transport.
func (p *page) workers(rows []privateapi.WorkerStats) {
	p.family("ferry_worker_received_total", counter, "Datagrams received and handled, by worker of a UDP socket.")
	intakes := 0
	for i, row := range rows {
		if row.Transport != "" {
			intakes++
			continue
		}
		p.sample("ferry_worker_received_total", row.Received, "worker", strconv.Itoa(i))
	}
	if intakes == 0 {
		return
	}
	p.family("ferry_intake_received_total", counter, "Messages of a transport such as WebSocket received and handled, by intake.")
	for i, row := range rows[len(rows)-intakes:] {
		p.sample("ferry_intake_received_total", row.Received, "transport", row.Transport, "intake", strconv.Itoa(i))
	}
}

type Process struct {
	MaxAllocations int
	// MaxSeats is the maximum number of reserved seats, 0 for no limit.
	MaxSeats int
	// Awaited is the number of allocations of the previous run that may still be
	// restored, Lost the number of those that were not.
	Awaited int
	Lost    uint64
	// Storing is set while the state file has all that the next run must know.
	Storing bool
	// ForeignSockets is the number of sockets of other processes on the UDP port.
	ForeignSockets int
	// MemoryLimit is in bytes, 0 if unknown. While MemoryTight is set allocations are
	// refused; MemoryRefused counts them.
	MemoryLimit   int64
	MemoryTight   bool
	MemoryRefused uint64
	// RefusedTotal counts connections to the API that were closed unread because of the
	// limit.
	RefusedTotal uint64
	// EvictedTotal and EvictedAddress count those that were closed for a newer one, at that
	// limit and at that of an address, and EvictedProtected those with a valid token.
	EvictedTotal, EvictedAddress, EvictedProtected uint64
	// RefusedHeader counts connections of a proxy that did not begin with a PROXY
	// header.
	RefusedHeader uint64
	// AcceptFailed counts the attempts to accept a connection that failed, as for want of
	// descriptors.
	AcceptFailed uint64
	// UDP are the counters of the network namespace.
	UDP machine.UDP
	// Queues are those of its interfaces.
	Queues machine.Queues
}

// writeCapacity writes the counts of the process that belong to a relay.
func writeCapacity(p *page, st Process) {
	p.single("ferry_max_allocations", gauge, "Maximum number of allocations.", count(st.MaxAllocations))
	p.single("ferry_max_seats", gauge, "Maximum number of reserved seats; 0: no limit. ferry_seats / ferry_max_seats is the used share, by which a fleet scales.",
		count(st.MaxSeats))
	p.single("ferry_recovery_awaited", gauge, "Allocations of the previous run that may still be restored.", count(st.Awaited))
	p.single("ferry_recovery_lost_total", counter, "Allocations of the previous run that were not restored.", st.Lost)
	p.single("ferry_state_file_complete", gauge, "1 while the state file has all that the next run must know.", boolGauge(st.Storing))
	p.single("ferry_foreign_sockets", gauge, "Sockets of other processes on the UDP port.", count(st.ForeignSockets))

	p.single("ferry_memory_limit_bytes", gauge, "Memory limit of the process in bytes; 0 if unknown.", count(int(st.MemoryLimit)))
	p.single("ferry_memory_short", gauge, "1 while allocations are refused because memory is short.", boolGauge(st.MemoryTight))
	p.family("ferry_allocations_refused_total", counter, "Allocations that were refused by this process, by reason.")
	p.sample("ferry_allocations_refused_total", st.MemoryRefused, "reason", "memory")
	if u := &st.UDP; u.Known {
		p.single("ferry_host_udp_queue_full_total", counter, "Datagrams to any socket of the network namespace whose receive queue was full.",
			u.QueueFull)
		p.single("ferry_host_udp_checksum_errors_total", counter, "Datagrams to any socket of the network namespace with a wrong checksum.",
			u.ChecksumErrors)
		p.single("ferry_host_udp_send_drops_total", counter,
			"Messages of any socket of the network namespace that a queue of the machine dropped before they left; the relay counts them as sent. Datagrams that GSO merged count once.", u.SendDrops)
		p.single("ferry_host_queue_drops_total", counter,
			"Packets of any program that the queues of the network namespace's interfaces dropped: also those that the fast path sends.", st.Queues.Dropped)
	}
}

func writeProcess(p *page, st Process) {
	p.family("ferry_http_connections_refused_total", counter, "Connections to the API that were closed, by reason: unread, for the limit in total or a missing PROXY header; or evicted for a newer one, at the limit in total or of an address without a valid token, or protected by one.")
	p.sample("ferry_http_connections_refused_total", st.RefusedTotal, "reason", "total")
	p.sample("ferry_http_connections_refused_total", st.RefusedHeader, "reason", "proxy_header")
	p.sample("ferry_http_connections_refused_total", st.EvictedTotal, "reason", "evicted_total")
	p.sample("ferry_http_connections_refused_total", st.EvictedAddress, "reason", "evicted_address")
	p.sample("ferry_http_connections_refused_total", st.EvictedProtected, "reason", "evicted_protected")
	p.single("ferry_accept_failed_total", counter, "Attempts to accept a connection that failed, as without a free descriptor.",
		st.AcceptFailed)
}
