// Package sock moves UDP datagrams in batches between the kernel and the engine.
//
// It owns the listening sockets, the memory that datagrams are received into, the coding of socket
// addresses and control messages, and the rules for the kernel's errors. It does not parse the
// datagrams. No other package of the module imports x/sys/unix, and only mmsg_linux.go imports unsafe.
//
// On Linux the package calls recvmmsg(2) and sendmmsg(2) itself, on slots that are wired once. Every
// other platform, and Linux with the tag sockportable, goes through package net and the batches of
// x/net/ipv4 and ipv6, which allocate per received datagram. Both builds share the rules for the
// result of a call, and pass the same tests. [Capabilities] reports what a platform lacks.
//
// # Blocking
//
// On Linux a receiver, which has a thread of its own, blocks in recvmmsg on a blocking descriptor,
// with MSG_WAITFORONE, and with SO_RCVTIMEO so that its caller can check flags.
//
// Go's scheduler takes the processor (its P) away from a goroutine that is in a system call for long,
// and its watchdog thread then stays awake, at 20 µs, to do that again: with one datagram per wake-up
// that costs more than the datagram. So with Config.HoldProcessor a receiver blocks without notice to
// the scheduler, for at most 10 ms, while datagrams keep coming; after that it waits in poll(2) with
// notice. The garbage collector does not wait: the signal by which it stops a goroutine also
// interrupts the call. Sends do not notify the scheduler either; they never block. All other
// goroutines share the processors that no receiver holds; the watchdog preempts a receiver for those
// that wait, 49 times a second.
//
// A socket is closed in two steps. StopReceiving or Close marks the Conn and shuts the socket down,
// which makes a blocked receiver return; the descriptor is closed by the last goroutine to leave a
// system call on it, so that its number cannot be reused while a goroutine uses it.
//
// # Errors
//
// An error affects the datagram that it is about and no other. Receiving ends on Close, on
// StopReceiving, and on EBADF or ENOTSOCK from a descriptor that is no socket any more, since only a
// restart helps then. Every other error, and a call that returns neither error nor datagram, is
// counted and repeated, with a pause of 1 to 10 ms from the second consecutive one on.
//
// Send offers the whole batch: the kernel stops at a message that it refuses, and the next call begins
// after it. The same message is tried again once after EAGAIN, after a call without progress, and
// after ECONNREFUSED, which is about a datagram sent earlier; up to 16 times after EINTR; and datagram
// by datagram where the kernel may only have refused to cut a run. Otherwise it is lost and counted.
package sock
