// Package bench puts load on a relay from outside and measures what it does
// with it.
//
// It is a black box that knows only addresses: it speaks the real protocol
// through the real API, shares no code with the engine, and drives every relay
// that it is compared with by the same generator. A [Dialect] adds what differs:
// how endpoints get ready, which header precedes the payload, and where it goes.
//
// # Words
//
//	endpoint  one player or host: an address and port of the generator
//	match     a host and its players
//	flow      one direction between two endpoints, with its own sequence numbers
//	due       the time at which the schedule wants a datagram sent
//	lag       how much later the generator handed it to the kernel
//	tick      the time in which each flow sends once
//	run       warm-up, measured interval, drain
//
// # The generator
//
// One thread sends, receives and records; it spins and never sleeps, since
// waking up takes longer than the precision that is asked of it. A few sockets,
// bound to 0.0.0.0, carry all endpoints: each has an address of its own in
// 127.0.0.0/8 as the source, named per datagram (IP_PKTINFO). So batches stay
// large however many endpoints there are, and a datagram costs the generator
// less than it costs the relay: about 1.2 µs, to send and to receive, on the
// machine class of the reference, measured with [Direct] in a closed loop.
// Nothing is allocated per datagram. Datagrams are never merged (UDP_SEGMENT):
// over loopback they would travel unsegmented and flatter whoever takes them so.
//
// # What is measured
//
//   - The loop is open by default. The schedule is a pure function of rate and
//     time, and latency counts from the time a datagram was due, so that a relay
//     that stalls cannot make the generator ask for less and hide the stall (no
//     coordinated omission).
//   - Only what arrives counts as delivered. Each payload has flow, sequence
//     number and due time; from them follow loss, duplicates, reordering
//     (RFC 4737) and misdelivery. Datagrams belong to the measured interval if
//     they were due in it, whenever they arrive.
//   - Latency is one way, on one clock. It includes the generator's lag, which is
//     reported beside it: when the lag is not small against the latency, the
//     figure is the generator's.
//   - CPU time of the server is the run time of its threads by the scheduler's
//     clock (schedstat), which does not depend on ticks, over the measured
//     interval, divided by the datagrams that arrived between the two readings.
//     A thread that ended in between is missing from it.
//   - A closed loop ([Config].Window) keeps a number of datagrams under way per
//     flow. It finds saturation quickly; its latency is that of full queues and
//     is compared with nothing.
//   - [FindMax] searches for the highest rate that meets a criterion. A rate has
//     to fail twice, because a virtual machine that was put aside for some
//     milliseconds overflows a socket buffer at any rate, and once more when a
//     rate near it has passed, because such times may last. What the generator
//     did not send in time passes nothing; if it was the limit at the lowest rate
//     that failed, what was found is a rate that the server carries at least.
//   - Work of the control plane beside the datagrams: repeated BINDs and
//     allocations over HTTP, at a rate or as fast as they are answered. It begins
//     after [Config].Baseline, so that one result has forwarding without and with
//     it ([Control]). An endpoint has one BIND under way, since answers carry
//     nothing to tell them apart. Calls are made by the Go runtime of this
//     process, which takes time from the generator's thread if they share a core:
//     the generator's lag is reported for both parts, and the difference is the
//     part of the movement that is not the server's.
//   - A run whose context ends reports on the part that was seen. What was under
//     way then still has the time of the drain to arrive, so that its losses are
//     real.
//
// # Games
//
// The shape netcode plays matches as games do: each endpoint is a driver of
// package netcode, connected through the relay, with a command per player and
// tick up and a snapshot down. Offered, sent, delivered and lost are then these
// messages, from the game that says them to the game that hears them, and
// latency includes the drivers of both sides, which run in the generator's
// thread; CPU per datagram counts what the relay forwarded, acknowledgements and
// heartbeats too. Drivers take what arrives at once, not with their next tick.
// There are no sockets, goroutines or allocations per player, so that one core
// carries thousands. The dialect has to tell in its header whom a datagram is
// from: ferry does, and direct with a header, for comparison; swap does not.
//
// # Whose limit
//
// [Result].Limit names who could not keep up. It is the generator when datagrams
// left late, not at all, or were dropped on its own sockets; such a run says
// nothing about the server. In a closed loop it is the generator when it was busy
// nearly all the time. Sessions of the shape churn run in this process: they take
// processor time from the generator's thread unless that has a core to itself.
//
// # How to measure
//
// Compare ratios within one run of rounds, never absolute figures: relays take
// turns on one machine, [NullRelay] and [Direct] among them, the first round
// after each start is dropped, and medians of paired ratios are told with their
// spread. [Machine].ID must be equal.
//
//   - Pin the generator to one core and the relay to another, and start the
//     generator's process with taskset(1) as well: [Config].Pin ties only its one
//     thread, and the Go runtime has more.
//   - Leave [Config].Progress nil: it takes processor time once a second.
//   - Switch rate limits and logs of the server off and name that in Limits. A
//     report on saturation doubts itself unless Limits begins with "off", "none"
//     or "dev".
//   - Reject rounds with [System].Steal above 1 % of their time.
//   - p99.9 needs a million samples.
//
// # Traps
//
//   - On loopback the kernel does the receiver's work, up to the socket, on the
//     sender's core. The relay pays for delivering to the generator, and the
//     generator for delivering to the relay: a relay on a real network card
//     pays for its receiving side instead.
//   - A relay that is nearly idle pays for a wake-up per datagram. CPU per
//     datagram at a low rate and at saturation are different quantities.
//   - Aligned ticks are bursts. Their datagrams are due at the same time and
//     cannot leave at the same time, so that latency contains the length of the
//     burst.
//   - Endpoints differ by address, not by port. A relay that spreads peers over
//     several sockets by a hash of address and port is still spread.
//   - Socket buffers hold about 10,000 small datagrams at the default of 4 MiB.
//     A closed loop with more than that under way measures drops.
//
// # What is not comparable
//
// A swap loop looks nothing up and checks nothing. TURN adds 4 bytes on one side
// and strips them on the other, which some servers do by copying; this protocol
// forwards its 38 bytes unchanged. Datagrams of the dialects therefore differ in
// size at equal payload; [Result].WireBytes tells. Figures of a nested virtual
// machine, where system calls and wake-ups are dear, make batching look better
// and tails worse than hardware does.
package bench
