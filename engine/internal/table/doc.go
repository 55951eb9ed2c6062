// Package table is the map of the relay's allocations, by endpoint and by id, with
// their links. Workers read it without a lock while the control goroutine, its one
// writer, changes it.
//
// # Terms
//
//	control     the one goroutine that changes the table
//	worker      any goroutine that reads it
//	slot        the memory of one allocation in the table; it is reused
//	generation  the number of an allocation in its slot, from 1; it skips 0
//	handle      slot and generation: they identify an allocation within a process
//	record      the content of a slot in three parts: identity, activity, account
//	slab        the memory of 1,024 slots
//	shard       1/64 of an index, with cells of its own
//	line        8 cells in one cache line; a reader compares them at once
//	cell        part of a hash, and a slot
//	tombstone   a cell that was freed in a line that readers must go past
//	snapshot    a consistent copy of an identity: an [Entry]
//	tick        250 ms
//	grace period
//	            an interval in which every worker ends the batch that it was in at
//	            the beginning (as in RCU)
//
// # Memory ordering
//
// Every word that both workers and control touch is a sync/atomic value, so the
// operations on them have one order that all goroutines agree on (Go memory model).
// Which goroutine writes which word, and which reads it for each RELAY:
//
//	word                    written by                          read per RELAY by
//	identity but path       control, under the sequence number  the workers of both sides
//	next hop                control, with the number or alone   a program in the kernel
//	path, validated         workers of peers, once a tick       the same
//	path, not validated     workers of peers for each RELAY, the owner's for each message
//	quotaGate, sent         the owner's worker, for each RELAY  itself
//	heard, relayed,         the owner's worker, once a tick     itself
//	received
//	notConnected            the owner's worker, 3 a second      none
//	mismatchGate            any worker, for each ERROR 3        none
//	excess                  workers of peers, beyond the allowance of a limited path
//	unvalidated             workers of peers, once a tick while the path is not validated
//	counterIndex, notified  control                             the owner's worker
//	cells, their swap       control                             the workers of both sides
//	slab pointers           control, once each                  the workers of both sides
//	owner                   control, before the id is found     none; handshakes of DTLS read it
//	account, lists          control; plain words that only control reads
//	counts                  control; any goroutine reads them, one by one
//
// The worker of an owner is the one to whose socket the kernel hands the datagrams of its
// endpoint. While an owner changes its endpoint there may be two; so timestamps and gates
// are changed by compare-and-swap, but for heard, quotaGate and sent, which are plain stores: of
// two messages at once one is not counted. Control resets all words of a record in Reserve,
// when no worker can hold the slot, and heard and path in BeginPath.
//
// The contract has five points.
//
// 1. Records never move, and the index is a hint: a reader compares the key inside the
// record. Cells are swapped as a whole when a shard grows, and old ones are not written
// again, so a reader on them finds the entries of the time of the swap, and repeats a
// miss on the current ones. A reader goes from line to line until one has an empty cell.
// So a freed cell becomes empty only if its line has an empty one already, for then no
// entry was ever placed beyond; otherwise it becomes a tombstone. Entries that stay are
// never moved within cells.
//
// 2. A snapshot is consistent. Control makes the sequence number odd, stores the words,
// and makes it even. A reader takes the number, the words and the number again, and
// starts again if it was odd or has changed; control never waits for it. Generation,
// role, flags, nonce, id, endpoint and link are under one number, so a slot that was
// reused cannot lend its endpoint to an id, nor a link to a host that came later. The
// number has 16 bits: a reader would have to stop in the middle of a snapshot for exactly
// 2^15 writes of one record, or a multiple. The other half of its word is the [NextHop],
// which changes with the endpoint in one store.
//
// 3. Workers write timestamps only when the tick changes. A RELAY touches three lines of
// records: the identities of the sender and of its peer, which all workers read and which
// change four times a second at the most, in path; and the sender's activity, which is
// written for each RELAY, by its worker alone. So a worker does not wait for lines that
// others write with each RELAY. Timestamps never go back, and of two written at once the
// later stays. Each worker has counters of its own, but for what operators read by
// allocation: sent, on a line that the worker writes anyway, and [LargeMessages], of which
// eight allocations share a line.
//
// 4. A slot is not used again before [Table.Recycle], after a grace period, and then has
// another generation, so no earlier handle leads anywhere. The grace period is for
// timestamps, which carry no generation.
//
// 5. [Table.End] closes all links of a host with one write, that of its own record: a
// joiner's link is the host's handle, which is stale from then on.
//
// # A program in the kernel
//
// A table may lie in memory that a program in the kernel reads and writes as one more
// worker ([NewTableIn]). Differences to a worker:
//
//   - It finds ids, not endpoints, by an index of its own that does not grow and has a hash
//     without products of 128 bits; it looks at 4 lines at most.
//   - A snapshot that fails, and whatever else it does not decide, it leaves to a worker.
//   - It sends to an endpoint only by a [NextHop] other than zero. The next hop is in the word of the
//     sequence number, and each change of an endpoint clears it in its first store: no snapshot
//     has the next hop of one endpoint and another endpoint. It clears [NextHopUnseen] there, its
//     only store to an identity, by compare-and-swap: if control stores at the same time, that
//     store wins, and the bit stays.
//   - It does not write heard, which says that a datagram came to a socket, and so through the
//     kernel's filters; it relays for 5 s after that. It may write received for a datagram that it
//     leaves to a worker.
//   - Its costs of quotas are those of [Quota], in integers.
//
// # The order of stores
//
// Control stores in an order such that a reader can find every key in a record:
//
//	Reserve   cells for the id; then the record
//	Bind      the old owner: its record, then its cell is freed;
//	          the new owner: cell for the new endpoint, then the record,
//	          then the cell of its old endpoint is freed
//	RecordBind, SetFlags, ClearFlags, SetNextHop
//	          the record
//	Link      the joiner's record, which is both directions
//	Unlink    the joiner's record
//	End       Unlink; then the record; then its cells are freed
//
// A cell without its record, before the store or after it, leads to a record
// with another key or none, and that is a miss. So for a reader Reserve, Link,
// Unlink and End of a host each happen at the one write of a record. Bind is
// two such writes when it takes an endpoint from another allocation: in between
// none is bound to it, and never are two. The end of a joiner is two as well: in
// between it exists without a link. A shard that grows places all entries in
// its new cells before it publishes them, and places the new entry afterwards.
//
// So each look-up returns a state that held at some instant between call and return. Two
// calls are two instants: a worker may act on a sender that has moved, unlinked or ended
// since, until the end of its batch; hence the grace period.
//
// # Obligations of the caller
//
// Methods in table.go are for any goroutine; those in writer.go are for control alone.
// Handles given to control's methods, but for [Table.At] and [Table.End], are of
// live allocations of this table; an id is reserved once at a time, a link
// opened only where there is none. Control waits for a grace period
//
//   - after Bind of another endpoint, before it answers the new owner: else a
//     datagram for the old owner could reach it afterwards;
//   - after Unlink, before it sends to either side: else a datagram could overtake
//     the end of the link;
//   - after End, before it sends to the owner, and before Recycle: else a worker
//     could write the timestamps of the next allocation in the slot;
//   - between finding an allocation expired and ending it: it reads the
//     timestamps again, since a worker may have received a datagram meanwhile.
//
// A worker that keeps an entry or a handle beyond its batch takes it to control,
// which asks At again.
//
// # Sizes
//
// An allocation takes 264 bytes of slabs: 64 of identity, 64 of activity, 8 of large
// messages, 8 of two gates, 24 of its owner and 96 of account; and two cells of 8 bytes, of
// which a quarter to five eighths stay empty (TestMillion). None holds a pointer, so a
// collection takes well under a millisecond whatever the number of allocations.
//
// A look-up that hits costs one line of cells and one identity: two cache misses when the
// table is large. A growth copies one shard, 1/64 of an index: about 2 ms of control's time
// at a million allocations, none of the workers'.
package table
