// Package sock moves UDP datagrams in batches between the kernel and the engine.
//
// It owns the listening sockets, the memory that datagrams are received into,
// the coding of socket addresses and control messages, and the rules for what
// the kernel's errors mean. It knows nothing of what the datagrams say.
//
// # Words
//
//	datagram  what one peer sent or is to be sent, possibly empty
//	slot      the memory for one datagram in a batch: header, address, bytes
//	batch     the slots of one call, owned by one goroutine
//	entry     a datagram in a SendBatch; several may leave as one message, see merge.go
//	endpoint  the 24-byte key of a peer: address or serial, kind, listener, local
//	local     a small number for the local address that a peer sent to
//	listener  the number that the engine gave to a Group
//	group     the sockets that share one address and port
//
// # Quarantine
//
// System calls of Linux are made here and nowhere else: no other package of the
// module imports x/sys/unix, and unsafe is imported by mmsg_linux.go alone,
// which a test enforces for this package.
//
// # Two builds
//
// On Linux the package calls recvmmsg(2) and sendmmsg(2) itself, on slots that
// are wired once; after a call only the slots that were used are reset. Every
// other platform, and Linux with the tag sockportable, goes through package net
// and the batches of x/net/ipv4 and ipv6, which allocate per received datagram.
// Both builds share the code that decides what to do with a result, and pass
// the same tests. What a platform lacks is told by [Capabilities]: outside
// Linux a group has one socket; on Windows, and for IPv4 on some BSDs, replies
// from a wildcard listener leave from the address the kernel chooses, and
// Windows moves one datagram per call.
//
// # Blocking
//
// On Linux a receiver blocks in recvmmsg on a blocking descriptor, with
// MSG_WAITFORONE so that the call returns with what there is, and with
// SO_RCVTIMEO so that its caller gets to look at flags: one system call per
// batch, and no poller around it. Each receiver has a thread.
//
// Go's scheduler takes the processor (its P) away from a goroutine that is in a
// system call for long, and its watchdog thread then stays awake, at 20 µs, to
// do that again: with one datagram per wake-up that costs more than the
// datagram. So with Config.HoldProcessor a receiver blocks without telling the
// scheduler, for at most 10 ms, while datagrams keep coming; after that it waits
// in poll(2), of which the scheduler knows. The collector is not kept waiting:
// the signal by which it stops a goroutine also interrupts the call. Sends do
// not tell the scheduler either; they never block: a full buffer fails the entry
// after one more try.
//
// A socket is closed in two steps. Wake or Close marks the Conn and shuts the
// socket down, which makes a blocked receiver return; the descriptor is closed
// by the last goroutine to leave a system call on it, so that its number cannot
// be reused under anyone.
//
// # Errors
//
// An error costs what it is about and nothing else; conn.go has the rules.
//
// Receiving ends on Close and Wake. Every other error, and a call that returns
// nothing without one, is counted and tried again, with a pause of 1 to 10 ms
// from the second in a row on. Signals and time-outs are no errors. There is one
// exception: EBADF or ENOTSOCK from a descriptor that the kernel confirms to be
// none of ours any more. Something else in the process has closed it, nothing
// will arrive there again, and a relay that is restarted serves while one that
// is deaf does not; so Recv returns it.
//
// Sending goes through the whole batch: the kernel stops at the message that it
// refuses, and the next call begins behind it. The same message is tried again
// once after EAGAIN, after a call without progress, and after ECONNREFUSED, which
// is about a datagram sent earlier; up to 16 times after EINTR; and datagram by
// datagram where the kernel may only have refused to cut a run. Otherwise it is
// lost: SendResult.Failed counts it, and Down if the network is down. ICMP errors
// stay off the sockets (IP_RECVERR), since they would hit a send to some other
// peer, and path MTUs learnt from ICMP are not believed (IP_PMTUDISC_OMIT).
//
// A datagram that is longer than its slot is told as truncated and never to be
// parsed. An empty one is a datagram like others.
//
// # Besides
//
// [Links] tells whether an interface with a listen address is down, and
// [MapFile] maps a file; package statefile uses them. They are here
// because what is told about the machine, and how, differs between systems.
package sock
