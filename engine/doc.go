// Package engine is the data plane of the relay: it takes datagrams in, decides
// about them, and sends them on. It is the package to embed.
//
//	srv, err := engine.New(engine.Config{Listen: addrs}, sealer)
//	res, err := srv.ReserveHost(ctx, alloc.HostRequest{…})  // while Run runs
//	err = srv.Run(ctx)                                       // until ctx ends
//
// # One datagram's life
//
//	recvmmsg → for each: step(now, from, packet) → outbox → sendmmsg
//	                       │ RELAY, PING: decided and queued right here, without
//	                       │ a lock, an allocation or a copy
//	                       └ BIND, CONNECT_REQUEST, DISCONNECT, CLOSE: form, seal
//	                         and signature here, then a bounded ring to control,
//	                         which alone changes state: commit(command)
//
// The hot path is worker.go (the loop; a panic costs one datagram), relay.go (RELAY,
// PING, the limits that may change) and outbox.go (sends). The rest, by what it
// answers:
//
//	admit.go      what a worker checks of the other messages
//	              bindmemory.go: a BIND that comes again; sources.go: who is not heard
//	refuse.go     which ERROR a datagram earns; mute.go, budget.go: when it is withheld
//	commit.go     control's verdicts; expiry.go, wheel.go: what time does
//	control.go    the control goroutine; inbox.go, ring.go: how commands reach it
//	brake.go      when nobody expires, since the fault may be ours
//	spoofed.go    who is being spoofed at
//	recovery.go   what comes back after a restart; ledger/: what is known of the run before
//	drain.go      how a relay runs dry
//	grace.go      how control knows that every worker has passed; queue.go: what waits for it
//	reserve.go    reservations for the Allocations service; seats.go: how many
//	listing.go    what an operator sees, end.go: closes; projects.go: who used how much
//	              names.go: what those are called who come back
//	large.go      messages that are larger than the receiver's way carries
//	outcome.go    what can become of a datagram; counters.go, stats.go: how it is counted
//	server.go     sockets, goroutines, life and death; probe.go: is it alive?
//
// # Who owns what
//
//	worker, its batches, outbox, scratch     the goroutine in worker.run
//	bytes of a received datagram             the worker; lent to the outbox until the flush
//	identities of the table, accounts        control writes; see alloc's doc.go for readers
//	stamps, gates, meters in the table       workers, atomics
//	wheel, queue, grace, hooks, ledger       control
//	seats, projects                          control
//	limits per second                        replaced as a whole; workers load them
//	BINDs remembered, mutes                  their worker
//	budgets, spoof guard                     anybody, atomics
//	counters                                 their goroutine; published at most once a millisecond
//
// No lock is held on the data path, and none while a hook runs.
//
// # Grace
//
// A worker in the middle of a batch may act on what the table said before. It
// publishes an epoch: odd in a batch, even after its flush. Control waits until
// each worker that was in a batch has left it before it
//
//   - sends BIND_RECEIVED for an endpoint that is new to its allocation, so that
//     no datagram for its former owner reaches it afterwards;
//   - forwards and echoes DISCONNECT, so that no RELAY overtakes it;
//   - ends an overdue allocation, so that a stamp written late still counts;
//   - sends ERROR 1 and lets a slot be used again.
//
// What waits is in one queue, in the order of the commits.
//
// # The rules
//
// They are here twice: in the engine, and in the reference model of
// model_test.go; TestModel compares both over random sequences. Each line says
// what a datagram earns, in the order of the checks. Where no reply is named
// there is none, only a counter ([Outcome]).
//
//	any message      from port 0 to 1023, an address of a relay, or a source that no
//	                 client has (sources.go): silence
//	                 < 4 bytes, no 0xDA72, server-only or reserved type: silence
//	                 other version: ERROR 0 with a zero id, if the type is one that
//	                 clients send and it has ≥ 22 bytes
//	                 not exactly the size of its type: silence, whoever sent it
//	PING, RELAY,     endpoint not bound to the id named: ERROR 3 with that id, but
//	CONNECT_REQUEST, silence while a BIND of the endpoint is on its way, and for 10 s
//	DISCONNECT       after three of them; an authentic BIND starts the count again
//	PING             echoed
//	RELAY            content above the limit: silence; no link: ERROR 5, once a second
//	                 per ordered pair and for at most 3 peers a second; peer without
//	                 an endpoint: silence; larger than the peer's way carries
//	                 (Transport.MaxMessage): silence, and not charged to the sender's
//	                 quota, since nothing leaves; sender beyond its quota, peer unproven
//	                 and beyond its allowance: silence; else forwarded as it came. The
//	                 first one of a match that not every client takes is reported
//	BIND             accept mode not 0, data that does not open, a ticket in place of
//	                 own data: silence; the last one that was accepted, at the same
//	                 endpoint, and its answer has left: BIND_RECEIVED; old nonce, and
//	                 one such was authentic before: silence; wrong MAC: silence; ended
//	                 allocation: ERROR 4, whatever the nonce; nonce: same endpoint equal
//	                 or higher, other endpoint higher, else silence and the allocation
//	                 lives on for 60 s from there, once; else BIND_RECEIVED, and the
//	                 endpoint's former owner is without one
//	CONNECT_REQUEST  data that does not open: silence; own id: ERROR 6; not the host of
//	                 the own match, or a ticket of another player: ERROR 2; host ended:
//	                 ERROR 4; host without an endpoint: silence; linked already:
//	                 ACCEPTED again; host full: REJECTED; more than 20 new links of the
//	                 host a second: silence; else linked, then ACCEPTED
//	DISCONNECT       link: closed both ways, forwarded and echoed; no link, same match:
//	                 echoed; else ERROR 5
//	CLOSE            not bound to the id: silence; else the allocation ends, silently
//
// An operator ends an allocation as CLOSE does ([Server.End]). A player who is
// kicked ([Server.Kick]) loses its link first, and each side gets a DISCONNECT
// from the other.
//
// More than 100 messages a second in the name of an allocation, from endpoints
// to which it is not bound, and for 10 s its DISCONNECT and CLOSE wait for a
// second: a RELAY of the same sender over that link cancels the one, any message
// of the owner the other.
//
// An endpoint from which nothing but a BIND has come is unproven: at most
// [Limits].UnprovenBytes go there, and no ERROR 1.
//
// A link needs one match: a joiner, its host, one tenant. The id in an ERROR is
// the one named for 3, and for 4 on a BIND; the sender's own for 2, 4 on a
// CONNECT_REQUEST, 5 and 6. ERRORs but 1 draw on budgets (budget.go): one of a
// code per endpoint in 200 ms; for 3 that names a live allocation, 5 a second of
// it; for others 10 a second and source prefix, and 20,000 in all. Budgets and
// quotas are off with [Config].Unlimited; rules stay.
//
// Time runs in ticks of 250 ms. A limit is over at the first tick that is later
// than the clock's start by more than the limit, so never early.
//
//	reserved, never bound        BindTimeout after the reservation: ends silently
//	bound                        IdleTimeout after it last sent or received, or
//	                             HearTimeout (or the idle limit, if longer) after it last
//	                             sent: ends, ERROR 1 to its endpoint if it has one
//	host before its first link   HostAloneTimeout in place of IdleTimeout; its clocks
//	                             start again with the first link
//	link without a RELAY         10 s after it was opened: closed silently
//
// Time in which the relay stood still (control was away for more than a second)
// does not count, and nobody expires in the second after it. Nobody expires for
// 30 s, and then not again within a minute, when more than a fifth of the bound,
// and at least 100, would within a second, or when the network is down.
//
// Every datagram with the right size from the endpoint bound to the id it names
// counts as sent, answered or not. RELAY and DISCONNECT count as received by
// the peer to whom they go.
//
// # After a restart
//
// For [Config].RecoverFor from the start, a BIND that was sealed under an
// earlier boot rebuilds its allocation, unless the state file says that it has ended
// (ERROR 4) or that the nonce is not new (silence; equal is good from the same
// endpoint).
//
//	CONNECT_REQUEST   to a host that may yet come back: silence; to one that did, by
//	                  a player who had no link: silence while its other places may
//	                  belong to those who had them
//	RELAY, no link    the host came back, and so did the joiner, who had a link: the
//	                  link is restored, the datagram lost; other doubt: silence
//	DISCONNECT        no link, same match: echoed, and no link comes back; other
//	                  doubt: silence
//	ERROR 3           about an id that may have been there: not limited by prefix
//
// What the state file does not know it does not forbid: without one, who had ended
// may come back within the window, and a captured BIND is good.
//
// # Where this differs from the design
//
//	ERROR 5 for at most 3 peers of one sender a second, so that its memory is bounded
//	every BIND to a new endpoint waits for grace: it may have been freed a moment ago
//	the first link of a host restarts both its clocks, or one that was silent for half
//	a minute would end at its first player
//	a ticket serves another allocation of the same player only within the match
//	the ratio of bytes to and from a proven endpoint is not limited: counting it would
//	write to the receiver's cache line for each datagram, and spectators live on it
//	all that leaves the relay has no ceiling: the quota of each allocation has
//
// # What was measured, kept and deleted
//
// On an Intel Xeon guest with two processors, Linux 6.18.44, over loopback, one
// processor for the relay and one for the generator; ratios of CPU per datagram
// unless it says otherwise, medians of interleaved runs. "C loop" is
// scripts/peers/swap: recvmmsg and sendmmsg and nothing else.
//
//	blocking recvmmsg, as Go's      kept where GOMAXPROCS leaves no processor to
//	scheduler wants it              spare: 1.6 times the C loop at 20,000/s, since
//	                                the scheduler's watchdog stays awake
//	blocking recvmmsg that keeps    kept: 0.99 to 1.15 times the C loop at 20,000/s,
//	the processor (sock/doc.go)     1.03 to 1.10 at 100,000/s, 1.04 to 1.07 at saturation, by
//	                                what a wake-up costs on the machine
//	poller of package net           kept as the portable build: 1.9 to 3.1 times
//	                                ours per echoed datagram (sock's benchmarks)
//	spinning 50 µs before blocking  deleted: 49 µs per datagram for 9.9 at 20,000/s
//	                                (p = 0.000, n = 10), all that the processor has; p50 11.5
//	                                µs for 18.0, p99 72 for 68 (p = 0.8)
//	batches of 16 to 256            64 kept: 1.66, 1.62, 1.62, 1.61, 1.61 µs per
//	                                datagram at saturation with 16, 32, 64, 128, 256
//	two passes over a batch, so     deleted: 3.46 µs per datagram for 3.51 with a
//	that cache misses overlap       million allocations, 3.00 for 3.01 with 1,000; 6.39 for
//	                                6.27 (p = 0.7, n = 8) with 400 at 100,000/s, where batches
//	                                are short, 6.65 for 6.71 (p = 0.7, n = 6) with 6,000
//	rest before receiving           kept as ReceiveDelay, off by default since it
//	                                is latency: 0.54 and 0.37 times the C loop at 20,000/s
//	                                with 200 and 500 µs, where waking up is cheap; 0.99 and
//	                                0.79 where it is dear, and a plain sleep in the C loop
//	                                itself gives 0.87 and 0.75. With 10 players per host at
//	                                100,000/s 0.79 and 0.71, without a rest 0.92
//	merging by destination          kept: 0.25 times a send alone with one destination
//	                                in a batch of 64, 0.33 with eight, 0.43 with 16, no
//	                                gain with 64 (sock's BenchmarkKernelMerge, six
//	                                interleaved rounds): loopback cuts a merged message
//	                                in the sender's call, 0.05 for a receiver that takes
//	                                it whole (BenchmarkKernelGRO). The whole relay 0.71
//	                                times the C loop with 10 players for each of 20 hosts in
//	                                a closed loop, 0.83 at 100,000/s. With all 10 for one host
//	                                and batches of 19, of 2.0 µs: recvmmsg 0.86, sendmmsg 0.87,
//	                                of which 0.67 are the receiver's half of loopback (cutting
//	                                0.30, queueing 0.17, buffers 0.19), step 0.16. A C loop
//	                                that merges as well, and does nothing else, gets no
//	                                further in a closed loop: 0.78 where Ferry has 0.80 in
//	                                the same run; at 100,000/s 0.75 and 0.95 (peers'
//	                                star-merge, eight interleaved rounds). Where the
//	                                receiver pays for itself (peers' veth) 0.58 in a
//	                                closed loop and 0.74, that C loop 0.55 and 0.60
//	looking again for datagrams     deleted: 3.02 µs for 2.79 (1.10 times, quartiles 1.01 and
//	before sending, while what      1.18, 10 rounds) with 10 players for each of 20 hosts at
//	is sent merges                  100,000/s: a look is a call, and brings one or two
//	UDP_GRO on receive              not built: where each datagram comes from a sender
//	                                of its own it gives nothing (206 ns for 197 per
//	                                datagram received, sock's BenchmarkKernelGRO, six
//	                                interleaved rounds); where one sender sends runs
//	                                with UDP_SEGMENT it is 8.8 for 198, but players at
//	                                60 Hz send no runs, and slots of 64 KiB cost cache
//	IP_PKTINFO                      on wildcards only: 256 ns for 232 per datagram received
//	path MTU modes                  OMIT, for safety: 0.96 to 1.03 times the others
//	a locked thread per worker      kept: no difference to an unlocked one (6.27 µs for 6.03,
//	                                p = 0.6; p99 133 for 128, p = 0.7), and pinning needs it
//	profile-guided build            not used: 0.98 times at 100,000/s (p = 0.2, n = 10), 0.99
//	                                in a closed loop (p = 0.6, n = 8), by a profile of
//	                                BenchmarkBatch
//	fewer calls per batch: no       deleted: 6.66 µs for 6.45 at 100,000/s (p = 0.97, n = 20),
//	deferred function, no function  although a batch then took 189 lines of code of 64 bytes
//	values, one call less around    for 226 (counted step by step)
//	each system call
//	counts published once a         kept: 208 ns of CPU for 289 per batch of one RELAY,
//	millisecond, not per batch      without the kernel's part: ten atomic stores fewer
//	look-ups that write the entry   kept: 0.76 to 0.83 times a step: a processor that copies
//	where it is used                what it has just written, in other sizes, waits. With
//	                                the row above 315 ns for 462 (BenchmarkBatch, batches
//	                                of one), 227 for 272 (batches of 64)
//	a time-out for each receive     kept: without one Linux restarts the call after the
//	                                signal that stops a goroutine. 6.45 µs for 6.57 in
//	                                the C loop at 100,000/s (p = 0.2, n = 10)
//	less work per wake-up           not found: at 100,000/s a relay sleeps 0.4 to 0.9 times per
//	                                datagram, and all code is cold by then. The kernel's part
//	                                is the same, 5.6 to 5.7 µs; in user mode are 4 % of the C
//	                                loop's time, 10 % of the null relay's and 15 % of Ferry's
//	                                (perf record -e cpu-clock -F 20000): 0.2, 0.6 and 1.0 µs,
//	                                where BenchmarkBatch has 0.3. In a closed loop Ferry costs
//	                                1.04 times the C loop and 0.86 times the null relay
//	endpoint as [3]uint64           deleted: look-ups took 1.8 to 2.1 times as long
//	                                as with a struct, which travels in registers
//
// What two virtual processors over loopback cannot show: pinning and steering
// over many cores, busy polling of a real queue, UDP_GRO behind a card that
// coalesces, offload of segmentation, and what a card's own interrupts cost.
package engine
