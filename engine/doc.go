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
// The hot path is two files: worker.go (the loop) and relay.go (RELAY and
// PING). The rest, by what it answers:
//
//	admit.go      what a worker checks of the other messages
//	refuse.go     which ERROR a datagram earns; mute.go, budget.go: when it is withheld
//	commit.go     control's verdicts; expiry.go, wheel.go: what time does
//	control.go    the control goroutine; ring.go: how commands reach it
//	grace.go      how control knows that every worker has passed; queue.go: what waits for it
//	reserve.go    reservations for the Allocations service
//	outcome.go    what can become of a datagram; counters.go, stats.go: how it is counted
//	server.go     sockets, goroutines, life and death; probe.go: is it alive?
//
// # Who owns what
//
//	worker, its batches, outbox, scratch     the goroutine in worker.run
//	bytes of a received datagram             the worker; lent to the outbox until the flush
//	identities of the table, accounts        control writes; see alloc's doc.go for readers
//	stamps, gates, strangers in the table    workers, atomics
//	wheel, queue, grace, hooks               control
//	counters                                 their goroutine; published once per batch
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
//	any message      < 4 bytes, no 0xDA72, server-only or reserved type: silence
//	                 other version: ERROR 0 with a zero id, if the type is one that
//	                 clients send and it has ≥ 22 bytes
//	                 not exactly the size of its type: silence, whoever sent it
//	PING, RELAY,     endpoint not bound to the id named: ERROR 3 with that id, but
//	CONNECT_REQUEST, silence while a BIND of the endpoint is on its way, and for 10 s
//	DISCONNECT       after three of them; an authentic BIND starts the count again
//	PING             echoed
//	RELAY            content above the limit: silence; no link: ERROR 5, once a second
//	                 per ordered pair and for at most 4 peers a second; peer without
//	                 an endpoint: silence; else forwarded as it came
//	BIND             accept mode not 0, data that does not open, a ticket in place of
//	                 own data, wrong MAC: silence; ended allocation: ERROR 4, whatever
//	                 the nonce; nonce: same endpoint equal or higher, other endpoint
//	                 higher, else silence and the allocation lives on for 60 s from
//	                 there, once; else BIND_RECEIVED, and the endpoint's former owner
//	                 is without one
//	CONNECT_REQUEST  data that does not open: silence; own id: ERROR 6; not the host of
//	                 the own match, or a ticket of another player: ERROR 2; host ended:
//	                 ERROR 4; host without an endpoint: silence; linked already:
//	                 ACCEPTED again; host full: REJECTED; else linked, then ACCEPTED
//	DISCONNECT       link: closed both ways, forwarded and echoed; no link, same match:
//	                 echoed; else ERROR 5
//	CLOSE            not bound to the id: silence; else the allocation ends, silently
//
// A link needs one match: a joiner, its host, one tenant. The id in an ERROR is
// the one named for 3, and for 4 on a BIND; the sender's own for 2, 4 on a
// CONNECT_REQUEST, 5 and 6. ERRORs but 1 draw on budgets (budget.go), unless
// [Config].Unlimited.
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
//
// Every datagram with the right size from the endpoint bound to the id it names
// counts as sent, answered or not. RELAY and DISCONNECT count as received by
// the peer to whom they go.
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
//	blocking recvmmsg that keeps    kept: 0.99 times the C loop at 20,000/s, 1.03
//	the processor (sock/doc.go)     at 100,000/s, 1.07 at saturation
//	poller of package net           kept as the portable build: 1.9 to 3.1 times
//	                                ours per echoed datagram (sock's benchmarks)
//	spinning 50 µs before blocking  deleted: 10.0 µs per datagram for 8.7 at
//	                                20,000/s, 3.4 to 9.9 for 2.9 at 100,000/s, 33 to
//	                                59 for 10 at 5,000/s; p50 28 µs for 31, and 4 for
//	                                16 where it never blocks
//	batches of 16 to 256            64 kept: 1.66, 1.62, 1.62, 1.61, 1.61 µs per
//	                                datagram at saturation with 16, 32, 64, 128, 256
//	two passes over a batch, so     deleted: 3.46 µs per datagram for 3.51 with a
//	that cache misses overlap       million allocations, 3.00 for 3.01 with 1,000
//	rest before receiving           kept as ReceiveDelay, off by default since it
//	                                is latency: 0.54 and 0.37 times the C loop at
//	                                20,000/s with 200 and 500 µs
//	merging by destination          kept: 0.07 times a send alone with one
//	                                destination in a batch of 64, 0.19 with eight,
//	                                no loss with 64; the whole relay 0.78 times the
//	                                C loop with 10 players per host: what is left is
//	                                receiving, which merging does not touch
//	a locked thread per worker      kept: no difference to an unlocked one, and
//	                                pinning needs it
//	endpoint as [3]uint64           deleted: look-ups took 1.8 to 2.1 times as long
//	                                as with a struct, which travels in registers
//
// What two virtual processors over loopback cannot show: steering over many
// cores, busy polling of a real queue, UDP_GRO (loopback never coalesces; a
// generator that sends runs would flatter it), offload of segmentation, and what
// a network card's own interrupts cost.
package engine
