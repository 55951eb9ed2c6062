// Package program is the program in the kernel that relays as a worker of package engine
// does, and the memory that both share. relay.c decides; this package loads it.
//
// # Rules
//
// The program decides "relay"; everything else it leaves to a worker. It writes nothing
// before its last check, so what it leaves has no trace, but that it has seen the sender, and has
// asked after it. Package engine's relay, and what it does here:
//
//	rule of a worker                    the program
//	the frame: its interface's, IPv4 without options or fragments and with a right header
//	    checksum, or IPv6 with UDP first, lengths that agree, not merged by GRO; else the kernel's stack
//	UDP checksum                        corrected by the difference: a wrong one stays wrong, and
//	                                    the receiver drops it; none (0): left
//	a message that is not a RELAY of its exact size, or is too large: left
//	source is bound to From             by id: the record's endpoint is the source, and the address
//	                                    it came to, by its interface (any, for an address
//	                                    of loopback), is that of the endpoint
//	From is linked to To                the same, with generations
//	the receiver's endpoint             plain UDP of the same family, with a next hop; else left
//	                                    every 5 s one datagram of each next hop is left, so that the
//	                                    kernel uses the neighbour and notices its changes
//	                                    left until the program has seen a RELAY of it, at the address
//	                                    to which it is bound: otherwise NAT in the kernel translates what
//	                                    it sends, and must translate what it gets
//	quota                               the same word and arithmetic; used up: left
//	                                    left too unless a worker has heard of the sender within 5 s, and
//	                                    since the kernel's filters changed, which are in front of sockets;
//	                                    after 4 s the first one of each tick is, and the others are not
//	path validation                     both paths are validated; else left
//	timestamps, counts                  the same words, but that the sender was heard; counts by processor
//	larger than the MTU of the next hop, which is 1,280 bytes over IPv6: left
//	what leaves                         TTL 64, TOS 0, no DF, as the sockets send
//
// A plain message from the source of a DTLS session is dropped by workers. Control takes the
// next hop from the owner of that endpoint when the session begins, and the program sends nothing
// for a sender without one.
//
// # Memory
//
// Slabs and id lines are those of package table, in arrays that the kernel maps: 128 KiB for
// 1,024 allocations and 64 bytes for each four, taken at once. All other arrays together have
// 0.6 MiB, 48 KiB per listen address and 16 KiB per processor.
//
// Each word that both sides use is read and written as a whole. amd64 keeps the order of
// loads and of stores, which the sequence numbers of records need; arm64 does not, so the
// program is for amd64 alone.
//
// The program is not pinned: it is detached when its last descriptor is closed, so the
// socket of a process that was killed gets the next datagram.
//
// TestFastPathEquals and TestModelFastPath in package engine compare it with a worker.
package program
