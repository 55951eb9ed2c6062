// Package store remembers which join code leads to which host, and for a fleet
// which relay has which host and which relays there are. It owns the life of a
// join code, and no other package does.
//
//	MemoryDirectory  hosts and codes of a fleet, for tests and one process
//	MemoryRegistry   relays of a fleet, likewise
//	redis            all of this, and quotas, for many machines
//
// alloc.MemoryStore has the codes of a relay that runs in one process with its API.
//
// Debian 12 has no Valkey, so that the tests of redis start redis-server alone;
// REDIS_SERVER=valkey-server has them start that.
//
// Every store keeps the contract of alloc.Store, fleet.Directory or
// fleet.Registry and is put through the tests of package storetest. Points that
// the interfaces leave open are settled there:
//
//   - A host has one code, so PutCode reports false and changes nothing for a
//     host that has one already. That makes concurrent first requests for a code
//     agree on one, across processes as well.
//   - Of two codes of one host the one counts that its relay holds.
//   - A code that a relay has not been told of lasts as long as its host.
//   - What Forget drops may be there for a moment yet.
//
// # What is in Redis
//
// All keys begin with a prefix, "ferry:" by default. A brace holds what decides
// the hash slot. T is the tenant's hash, a time is in milliseconds by the clock
// of the server, and every key ends by itself.
//
//	key               type    content                              lasts
//	code:{T}:CODE     string  host:since                           HoldFor after Put or Hold
//	codes:{T}         sorted  CODE by the time it ends, to count   as its last code
//	                  set
//	host:ID           hash    h → relay:boot, c → T:CODE           HoldFor after SetHome, Put
//	                                                               or Hold
//	{nodes}           hash    relay → at:boot:number:JSON          as its longest entry
//	{nodes}:end       sorted  relay by the time its entry ends,    likewise
//	                  set     RecoverFor + DeadAfter + 1 min
//	lease:SCOPE       hash    holder → used:end                    as its longest lease
//	bucket:KEY        string  when it is full again, in µs         until it is full
//
// SCOPE and KEY are digests, so that no name of a player is a key. A host with
// its code takes some 650 bytes there. A server must not evict keys
// (maxmemory-policy noeviction, the default); what it evicts all the same comes
// back as what is lost does.
//
// # What is lost when
//
//	an API process dies       what was in Forget's queue: those codes lead to
//	                          hosts that have ended until HoldFor is over
//	a relay dies              nothing; its hosts and codes last for HoldFor, which
//	                          is longer than the time in which it may come back
//	Redis dies and is empty   everything; at its next heartbeat each relay learns
//	                          of it and holds all it has, codes included
//	Redis fails over          what was written last; relays learn of that too, by
//	                          the history of the server, which is another one, and
//	                          hold all they have. A host that was reserved just
//	                          then is announced by its relay, not by the API
//	one shard of a cluster    the same, for what is on it; the others go on
//	Redis stands still        nothing; what callers gave up may be done late. A
//	                          code of a host that has ended may come back so, and
//	                          leads nowhere until HoldFor is over
//	leases, buckets           gone with the server; relays report again, players
//	                          get what a new minute would give them
//
// A code whose writes were lost may be given to a second host before the first
// one's relay holds it again. Then the older host gets it back, and the younger
// one's relay is told that it has lost it. At no time does one code lead to two
// hosts, for it is one key; and CodeOf looks where the code leads before it says
// that a host has it.
//
// # Whose clock counts
//
// Ages of relays and of codes are by the clock of the server that has them, one
// clock for all who read. A relay tells how long ago it reserved a host, by its
// own clock, and not when; so clocks are never compared, and a wrong one harms
// nobody. When a server takes over whose clock differs, relays seem older or
// younger by that much until their next heartbeat, which is two seconds at most.
package store
