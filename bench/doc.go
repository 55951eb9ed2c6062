// Package bench generates load for a relay from outside and measures how the relay
// forwards it: delivery, latency, CPU time per datagram.
//
//	ferry, err := bench.NewDialect(bench.DialectConfig{BaseURL: "http://127.0.0.1:7777"})
//	if err != nil {
//		return err
//	}
//	result, err := bench.Run(ctx, bench.Config{Load: bench.Load{Shape: "star", Matches: 50, Rate: 20_000}}, ferry)
//	if err != nil {
//		return err
//	}
//	fmt.Println(result.Latency.P99, result.LossRatio, result.Valid, result.Causes)
//	return report.Write(os.Stdout, result)
//
// [Run] makes one run, and [FindMax] searches for the highest rate that meets thresholds.
// Package report compares results and writes them; the command ferry bench does all of that.
//
// The generator knows only addresses: it uses the real protocol and the real API,
// shares no code with the engine, and is the same for every relay. A [Dialect] has the differences
// between relays: how endpoints get ready, the header before the payload, and the destination.
//
// # Terms
//
//	endpoint  one player or host: an address and port of the generator
//	match     a host and its players
//	flow      one direction between two endpoints, with its own sequence numbers
//	due       the time at which the schedule sends a datagram
//	lag       the delay from then until the generator gave it to the kernel
//	tick      the time in which each flow sends once
//	run       warm-up, measured interval, drain
//
// # The generator
//
// One thread sends, receives and records. It spins and never sleeps, since a wake-up
// takes longer than the precision of the schedule. A few sockets, bound to a wildcard,
// carry all endpoints: each endpoint has its own source address in 127.0.0.0/8, which
// each datagram names (IP_PKTINFO). Batches therefore stay large with any number of
// endpoints, and a datagram costs the generator less than the relay.
// The loop does not allocate. Over DTLS, and over TCP, whose connections it reads and writes
// without blocking, the same thread does all work. It never merges datagrams
// (UDP_SEGMENT): over loopback they would travel unsegmented, which favours relays that
// receive them unsegmented.
//
// # Transports
//
// Over DTLS each datagram is a record. The generator encrypts and decrypts, in its thread, so
// that its lag includes that work; what its UDP sockets drop is its own loss, as without DTLS.
//
// Over ws and wss each endpoint has a TCP connection, and each datagram is one message, which
// is written by itself when it is due. The generator never waits for a connection:
//
//   - The lag of a datagram ends when the kernel was offered it. What the kernel then has no
//     room for waits in the generator until there is some. The kernel's buffer is full because
//     the relay, or the network, does not take what is in it, so this time is not lag. It is in
//     the latency, and Connections.Waited and Connections.WindowClosed show it.
//   - If 256 KiB of a connection wait, or the relay has ended it, what is due is not sent. It
//     counts in Result.Blocked, is lost, and the server is the cause.
//   - If the generator does not read in time, its receive buffers fill up, and the relay has to
//     wait or to drop. The kernel counts no drops on such sockets, so the generator looks at
//     the room that is left when there is more than it reads at once: a buffer that was nearly
//     full makes the run invalid (Connections.Backlogged).
//   - An endpoint whose connection ends opens another one and binds again, as clients do, and
//     so does one over DTLS to which the relay does not reply. Recovery counts from there.
//   - Memory of the server's process per endpoint does not include that of its sockets, which
//     is the kernel's.
//
// # What is measured
//
//   - The loop is open by default. The schedule is a pure function of rate and
//     time, and latency counts from the time at which a datagram was due. A relay
//     that stalls therefore cannot slow the generator and hide the stall (no
//     coordinated omission).
//   - What was offered and did not arrive is infinitely late in every quantile of the latency, and
//     LossRatio is its share. Each payload has flow, sequence number, due time and a checksum; they
//     and the header before them yield loss, duplicates, reordering (RFC 4737), misdelivery and
//     corruption. The checksum has a key that a relay does not know, so that it cannot rewrite the due
//     time. A datagram counts if it was due in the measured interval, and arrives before the end of the drain.
//   - Latency is one way, on one clock. It includes the generator's lag, which the result has as well.
//   - Gaps are the longest times in which something was due and nothing was delivered, to an endpoint
//     and to any: what players see of a restart of the relay. Recovery counts from the first ERROR 3
//     only, which comes when the relay runs again, or from the end of a connection.
//   - CPU time of the server is the run time of its threads by the scheduler's
//     clock (schedstat), which does not depend on ticks, over the measured
//     interval, divided by the datagrams that arrived between the two readings.
//     It lacks threads that ended in between.
//   - A closed loop (Load.Window) keeps a number of datagrams in flight per
//     flow. It finds saturation quickly; its latency is that of full queues and is
//     not comparable.
//   - FindMax searches for the highest rate that meets a criterion. A rate has to fail twice, because
//     a virtual machine that the hypervisor pauses overflows a socket buffer at any rate, and once more
//     when a rate near it has passed, because such pauses may last. If nothing but the generator failed
//     at the lowest rate that failed, the result is a lower bound of the server's maximum.
//   - After the silence of the shape idle each pair plays: Gaps.Absent has the endpoints that are no longer
//     there, whatever answered their keep-alives.
//   - Matches that come and go (Load.ReplaceRate): a live match falls silent when a new
//     one is connected, and its endpoints are used again when the relay has reported the end of their
//     allocations (Result.Replaced).
//   - A run whose context ends reports on the part before. Datagrams in flight
//     then still have the time of the drain to arrive, so that losses are real.
//
// # Limits
//
// Result.Causes says by evidence what limited or disturbed a run, and several may hold:
//
//   - The generator, if datagrams did not leave, if its own sockets dropped some, if it left the
//     receive buffer of a TCP connection nearly full, or if 1 % left
//     late by more than 1 ms, or by more than half a tick if datagrams are due together, or if 1 %
//     of the sessions or calls of the API began more than 10 ms late. In a closed loop it is the
//     generator if it was busy nearly all the time.
//   - The machine, if the hypervisor took more than 1 % of the processors' time, or, which only
//     Config.ServerPID shows, processes other than generator and server more than 5 %, or if
//     generator and server are bound to one processor.
//   - The server, if datagrams were lost that the generator's sockets did not drop, or were not
//     sent because it ended a connection or did not read from it, if some arrived at another
//     endpoint, changed, twice or after later ones, or if it did not answer a keep-alive.
//
// Result.Valid is false if the generator or the machine is among them, or if the run was
// interrupted: such a run says nothing about the server. Relays are compared by medians of paired
// ratios of interleaved rounds, on one machine (Machine.ID).
//
//   - Pin the generator to one core and the relay to another, and start the
//     generator's process with taskset(1) as well: Load.Pinned pins only its one
//     thread, and the Go runtime and the sessions of the shape churn have more.
//   - Leave Config.OnSecond nil: it takes processor time once a second.
//   - Switch rate limits and logs of the server off and note that in Label.Limits.
//     A report on saturation warns unless Limits begins with "off", "none" or "dev".
//
// # Limitations
//
//   - On loopback the kernel does the receiver's work, up to the socket, on the
//     sender's core. The relay pays for delivery to the generator, and the
//     generator for delivery to the relay; with a real network card each side pays
//     for its own receiving.
//   - A nearly idle relay pays for a wake-up per datagram: CPU time per datagram at
//     a low rate and at saturation are different quantities.
//   - The tick of a star is a burst. Its datagrams are due at the same time and cannot
//     leave at the same time, so that latency contains the length of the burst.
//   - Loopback has one address of IPv6, so that each endpoint there has a socket of its own and
//     each datagram a system call: compare families with Sources of a routed prefix.
//   - Endpoints differ by address, not by port. A relay that distributes peers over
//     several sockets by a hash of address and port still distributes them.
//   - Socket buffers hold about 10,000 small datagrams at the default of 4 MiB.
//     A closed loop with more than that in flight measures drops.
//   - Datagrams of the dialects differ in size at equal payload: see Result.WireBytes.
//   - System calls and wake-ups are expensive in a nested virtual machine. Its figures
//     overstate the effect of batching and the tail of the latency.
package bench
