// Package sock moves UDP datagrams in batches between the kernel and the engine.
//
// It owns the listening sockets, the memory that datagrams are received into,
// the coding of socket addresses and control messages, and the rules for the
// kernel's errors. It does not parse the datagrams.
//
// # Terms
//
//	datagram  the payload from or to one peer, possibly empty
//	slot      the memory for one datagram in a batch: header, address, bytes
//	batch     the slots of one call, owned by one goroutine
//	entry     a datagram in a SendBatch; several may leave as one message, see merger
//	endpoint  the 24-byte key of a peer: address or serial, kind, listener, local
//	local     a small number for the local address that a peer sends to
//	listener  the number that the engine gave to a Group
//	group     the sockets that share one address and port
//
// # System calls
//
// No other package of the module imports x/sys/unix, and only mmsg_linux.go imports
// unsafe; a test enforces the latter for this package.
//
// # Two builds
//
// On Linux the package calls recvmmsg(2) and sendmmsg(2) itself, on slots that
// are wired once; after a call only the slots that were used are reset. Every
// other platform, and Linux with the tag sockportable, goes through package net
// and the batches of x/net/ipv4 and ipv6, which allocate per received datagram.
// Both builds share the rules for the result of a call, and pass
// the same tests. [Capabilities] reports what a platform lacks: outside
// Linux a group has one socket; on Windows, and for IPv4 on some BSDs, replies
// from a wildcard listener leave from the address the kernel chooses, and
// Windows moves one datagram per call.
//
// # Blocking
//
// On Linux a receiver blocks in recvmmsg on a blocking descriptor, with
// MSG_WAITFORONE so that the call returns the datagrams in the buffer, and with
// SO_RCVTIMEO so that its caller can check flags: one system call per
// batch, and no poller. Each receiver has a thread.
//
// Go's scheduler takes the processor (its P) away from a goroutine that is in a
// system call for long, and its watchdog thread then stays awake, at 20 µs, to
// do that again: with one datagram per wake-up that costs more than the
// datagram. So with Config.HoldProcessor a receiver blocks without notice to the
// scheduler, for at most 10 ms, while datagrams keep coming; after that it waits
// in poll(2) with notice. The garbage collector does not wait:
// the signal by which it stops a goroutine also interrupts the call. Sends do
// not notify the scheduler either; they never block: a full buffer fails the entry
// after one more try.
//
// All other goroutines share the processors that no receiver holds. The watchdog
// preempts a goroutine that ran for 10 ms, which it sees at its next tick, so each receiver
// gives its processor to those that wait about every 20 ms (49 times a second).
// The receiver gets it back by way of two thread switches, as its thread is locked.
//
// A socket is closed in two steps. StopReceiving or Close marks the Conn and shuts the
// socket down, which makes a blocked receiver return; the descriptor is closed
// by the last goroutine to leave a system call on it, so that its number cannot
// be reused while a goroutine uses it.
//
// # Errors
//
// An error affects the datagram that it is about and no other; conn.go has the rules.
//
// Receiving ends on Close and StopReceiving. Every other error, and a call that
// returns neither error nor datagram, is counted and repeated, with a pause of 1 to
// 10 ms from the second consecutive one on. Signals and time-outs are no errors. There is one
// exception: EBADF or ENOTSOCK from a descriptor that the kernel confirms to be
// no socket any more. Another part of the process has closed it, no datagram
// will arrive there again, and only a restart of the relay helps; so Recv returns it.
//
// Send offers the whole batch: the kernel stops at a message that it
// refuses, and the next call begins after it. The same message is tried again
// once after EAGAIN, after a call without progress, and after ECONNREFUSED, which
// is about a datagram sent earlier; up to 16 times after EINTR; and datagram by
// datagram where the kernel may only have refused to cut a run. Otherwise it is
// lost: SendResult.Failed counts it, and Down if the network is down. ICMP errors
// are disabled on the sockets (IP_RECVERR), since they would fail a send to another
// peer. Path MTUs learnt from ICMP are ignored over IPv4 (IP_PMTUDISC_OMIT), where routers
// fragment. Over IPv6 they do not, so the kernel fragments by what it has learnt
// (IPV6_PMTUDISC_DONT): the first datagram of a size that does not fit is lost, and those
// that are sent until the Packet Too Big arrives. A run that does not fit is refused, and its
// destination gets no run of that size for a while.
//
// A datagram that is longer than its slot is reported as truncated and must not be
// parsed. An empty one is valid.
//
// # Other system functions
//
// [Group.SteerByCPU] selects the socket of a datagram by the receiving CPU. [Links] reports whether an
// interface with a listen address is down, [MapFile] maps a file, and [PinThread] binds a thread to a CPU.
// They are here because they differ between systems.
package sock
