// Package table is the map of the relay's allocations, by endpoint and by id, with
// their links. Workers read it without a lock while the control goroutine, its one
// writer, changes it.
//
// # Words
//
//	control     the one goroutine that changes the table
//	worker      any goroutine that reads it; each serves one socket
//	slot        the place of one allocation in the table, used again and again
//	generation  how many allocations a slot has had, from 1; it skips 0
//	handle      slot and generation: the name of one allocation within a process
//	record      identity, activity and account: the three parts of a slot
//	chunk       a slab of 1,024 slots
//	shard       a 64th of an index, with cells of its own
//	line        8 cells, one cache line, that a reader looks through at once
//	cell        part of a hash, and the slot it leads to
//	tombstone   a cell that was freed in a line that readers must go past
//	snapshot    a copy of an identity as it was at one instant: an [Entry]
//	tick        250 ms
//	stamp       the tick at which an allocation was last heard of
//	grace       waiting until every worker has ended the batch it was in
//
// # Memory ordering
//
// Workers read the table without a lock while control changes it. Every word
// that both of them touch is a sync/atomic value, so the race detector sees
// all of it, and the operations on them have one order that all goroutines
// agree on (Go memory model). Who writes which word:
//
//	identity           control only, under its sequence number; generation, role,
//	                   flags and nonce share its meta word
//	cells, their swap  control only
//	chunk pointers     control only, once each
//	activity           workers and control, as follows; control stores all of it
//	                   anew in Reserve, when no worker can hold the slot
//	  heard, active, fromHost, fromJoiner, mismatch, strangers
//	                   by compare-and-swap; fromHost and fromJoiner are those of a
//	                   joiner, for both directions of its link
//	  meter            workers, by a plain store: of two at once one is not counted
//	  tally            control, in Reserve
//	  unproven         control in Unprove, workers in Prove, by plain stores;
//	                   workers take from it by compare-and-swap
//	account, lists     control only, and only control reads them: plain words
//	counts             control only; anybody reads them, each for itself
//
// The contract has five points. The tests of the first are named TestContract1
// and so on.
//
// 1. Records never move, and the index is a hint. A cell leads to a slot; what
// counts is the key inside the record. Cells are swapped as a whole when a
// shard grows, and old ones are not written again, so a reader on them finds
// what was there when they were swapped; if it finds nothing, it looks at the
// current ones before that means anything. A reader goes from line to line
// until it meets one with an empty cell. So a cell that is freed becomes empty
// only if its line has an empty one already, for then nothing was ever placed
// beyond; otherwise it becomes a tombstone. Entries that stay are never moved
// within cells.
//
// 2. A snapshot is true as a whole. Control makes the sequence number odd,
// stores the words, and makes it even. A reader takes the number, the words and
// the number again, and begins anew if it was odd or has changed; it may wait
// for control, never control for it. Generation, role, flags, nonce, id,
// endpoint and link are under one number, so a slot that was reused cannot lend
// its endpoint to an id, nor a link to a host that came later, nor an endpoint
// the nonce of another.
//
// 3. Stamps are written by workers, only when they change, which is four times
// a second at the most; and they lie on a line of their own, so that writing
// one takes no identity away from the readers. They never go back, and of two
// written at once the later stays. What limits ERROR 3 and ERROR 5, what goes to
// an unproven endpoint, and what an allocation relays lies there too; only the
// last is written for each RELAY, by the worker of its sender. Counters are not
// in the table: each worker has its own. But for [LargeMessages], for which an
// operator asks by allocation: workers write them for messages that are dropped or
// doubtful and read them for no other, and there is no room on the line of the
// stamps, so eight allocations share one.
//
// 4. A slot is not used again before [Table.Recycle], which control calls
// after grace. It then has another generation, so no handle from before leads
// anywhere. Reading a reused slot would be harmless; the grace is for stamps,
// which carry no generation.
//
// 5. [Table.End] closes all links of a host with one write, that of its own
// record: a joiner's link names the host's handle, which is stale from there
// on. The records of its joiners are not touched, whatever their number.
//
// # The order of stores
//
// Control stores in an order such that whatever a record says can be found:
//
//	Reserve   cell for the id; then the record
//	Bind      the old owner: its record, then its cell is freed;
//	          the new owner: cell for the new endpoint, then the record,
//	          then the cell of its old endpoint is freed
//	Admit, Mark, Unmark
//	          the record
//	Link      the joiner's record, which is both directions
//	Unlink    the joiner's record
//	End       Unlink; then the record; then its cells are freed
//
// A cell without its record, before the store or after it, leads to a record
// with another key or none, and that is a miss. So for a reader Reserve, Link,
// Unlink and End of a host each happen at the one write of a record. Bind is
// two such writes when it takes an endpoint from somebody: in between nobody is
// bound to it, and never are two. The end of a joiner is two as well: in
// between it lives without a link. A shard that grows places all entries in
// its new cells before it shows them, and places the new entry afterwards.
//
// So each call of [Table.FindByEndpoint], [Table.FindPeer], [Table.ByID] and
// [Table.At] returns what was true at some instant between call and return. Two calls are
// two instants: a worker that has looked up a sender, and then its peer, may
// act on a sender that has moved, unlinked or ended since. That lasts until
// the end of its batch, since it keeps no entry longer, and hence the grace.
//
// # What the caller owes
//
// Methods in table.go, quota.go and stamp.go but Unprove, and Counts, are for
// any goroutine; Unprove and the rest of writer.go are for control alone.
// Handles given to control's methods, but for [Table.At] and [Table.End], are of
// live allocations of this table; an id is reserved once at a time, a link
// opened only where there is none. Control lets every worker pass, that is end
// the batch it is in,
//
//   - after Bind of another endpoint, before it tells the new owner: else a
//     datagram for the old owner could reach it afterwards;
//   - after Unlink, before it tells either side: else a datagram could overtake
//     the end of the link;
//   - after End, before it tells the owner, and before Recycle: else a worker
//     could stamp the allocation that has the slot next;
//   - between finding an allocation overdue and ending it: it looks at the
//     stamps again, since a worker may have heard of it just then.
//
// A worker that keeps an entry or a handle beyond its batch takes it to control,
// which asks At again.
//
// # Sizes
//
// An allocation takes 224 bytes of slabs: 64 of identity, 64 of activity, 8 of
// large messages and 88 of account; and two cells of 8 bytes, of which a quarter
// to five eighths stay empty. That is 258 bytes for each of a million, and 274
// MiB resident with the program around them; TestMillion measures it. No slab
// and no cell holds a pointer, so a collection takes well under a millisecond
// whatever the number of allocations, and stops the process for tens of
// microseconds.
//
// A look-up that hits costs one line of cells and one identity: two cache
// misses when the table is large, and nothing else that matters. Cells of a
// line are compared without a branch on their content, as a processor that
// guesses wrong waits for both misses before it can go on with the next one.
// A growth copies one shard, 1/64 of an index: about 2 ms of control's time at
// a million allocations, none of the workers'.
package table
