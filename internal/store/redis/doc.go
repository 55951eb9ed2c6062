// Package redisstore keeps the state of a fleet in Redis or Valkey: where hosts
// are, their join codes, which relays there are, and what is used of quotas. It
// owns the layout of keys and the scripts, and no other package does. What is
// kept, what is lost when, and whose clock counts is in package store.
//
// It uses commands of Redis 6 only. Each script touches keys of one hash slot,
// so that a cluster will do; what needs two slots is two steps, in an order
// that leaves no harm between them:
//
//	PutCode  code → host, then the host's entry; a code of which the second
//	         step is missing leads to its host, and nobody was told
//	Hold     codes, then hosts: a host never has a code before the code leads
//	         to it; a host that lost its code is told so, and the code is taken
//	         from its entry, by the next Hold or CodeOf, whichever is first
//	Drop     hosts, then codes: a code that stays leads to a host that has
//	         ended, for as long as it lasts, and its relay says so
//	Forget   as Drop, but the host stays
//
// Every change of what is there compares first: a code is dropped only if it
// still leads to that host, a host only if it is still at that home, an entry of
// a relay only if it is that boot's. A step that is repeated, or that a server
// carries out late because it stood still when its caller gave up, does no harm
// that outlasts HoldFor.
//
// # When the store does not answer
//
// A call ends within Config.Timeout, with its connection. After five calls in a
// row without an answer, 20 in a cluster, all calls fail at once, and one in
// 200 to 400 ms is let through to see whether the store is back. One that is
// answered opens the way for all. So who depends on the store waits for the
// time-out for a moment and then not at all, nobody hammers a server that comes
// back, and everybody is back within half a second. A call is tried a second
// time, within its time-out, only on a connection that the server had closed
// meanwhile. The breaker is one for all shards of a cluster: one shard of many
// that is gone fails the calls that need it, each after its time-out.
package redisstore
