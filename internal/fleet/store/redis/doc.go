// Package redisstore keeps the state of a fleet in Redis or Valkey: the homes of hosts,
// their join codes, the relays, and the usage of quotas. It defines the keys and the
// scripts. Package store documents what is kept, what is lost when, and which clock
// counts.
//
// The package needs Redis 7 or Valkey: scripts that only read are called by EVALSHA_RO, so
// that a user may have no right to write their keys. Each script touches keys of one hash slot,
// as a cluster requires. A change of two slots is two steps, in an order that is safe if
// the second step is missing:
//
//	PutCode  code → host, then the host's entry; without the second step the code leads
//	         to its host, and no caller knows it
//	Hold     codes, then hosts: a host never has a code before the code leads to it; a
//	         lost code is reported, and removed from the host's entry by the next Hold
//	         or CodeOf
//	Drop     hosts, then codes: a remaining code leads to a host that has ended, until
//	         the code expires; the relay rejects it
//	Forget   as Drop, but the host stays
//
// Every change compares first: it removes a code only if the code still leads to that
// host, a host only if it still has that home, and an entry of a relay only if it is of
// that boot. A step that is repeated, or that a stalled server executes after its caller
// gave up, has no effect beyond HoldFor.
//
// # Unavailable stores
//
// A call ends within Config.Timeout, and so does its connection. After five consecutive
// calls without an answer, 20 in a cluster, a circuit breaker opens: all calls fail at
// once, except one every 200 to 400 ms that probes the store. An answered probe closes
// the breaker. So callers wait for the timeout for a moment and then not at all, a
// returning server is not overloaded, and all calls succeed within half a second of its
// return. A call is repeated, within its timeout, only on a connection that the server
// had closed. All shards of a cluster share the breaker: a single unavailable shard fails
// the calls that need it, each after its timeout.
package redisstore
