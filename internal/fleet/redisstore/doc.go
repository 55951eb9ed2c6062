// Package redisstore keeps the state of a fleet in Redis or Valkey: the homes of hosts,
// their join codes, the relays, and the usage of quotas. It defines the keys and the
// scripts. It alone determines how long a join code of a fleet lasts.
//
// The package needs Redis 7 or Valkey: scripts that only read are called by EVALSHA_RO, so
// that a user may have no right to write their keys. Each script touches keys of one hash slot,
// as a cluster requires. A change of two slots is two steps, in an order that is safe if
// the second step is missing:
//
//	PutCode  code → host, then the host's entry; without the second step the code leads
//	         to its host, and no caller knows it
//	Renew     codes, then hosts: a host never has a code before the code leads to it; a
//	         lost code is reported, and removed from the host's entry by the next Renew
//	         or CodeOf
//	Drop     hosts, then codes: a remaining code leads to a host that has ended, until
//	         the code expires; the relay rejects it
//	Forget   as Drop, but the host stays
//
// Every change compares first: it removes a code only if the code still leads to that
// host, a host only if it still has that home, and an entry of a relay only if it is of
// that boot. A step that is repeated, or that a stalled server executes after its caller
// gave up, has no effect beyond HostTTL.
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
//
// The tests start redis-server; REDIS_SERVER=valkey-server makes them start Valkey, which
// Debian 12 has in its backports.
//
// A [Store] has a part for each kind of entry, with the scripts of that kind beside it. All parts make
// their calls through one client with its breaker, and one sealer signs and verifies. [Directory] and
// [Registry] implement the interfaces of package placement and pass the tests of package storetest, which
// also fix what the interfaces leave open:
//
//   - A host has one code, so PutCode reports false and changes nothing for a
//     host that has one already. That makes concurrent first requests for a code
//     agree on one, across processes as well.
//   - Of two codes of one host, the one that its relay holds counts.
//   - A code that a relay does not know lasts as long as its host.
//   - What Forget removes may still be there for a moment.
//   - A code that MoveCode has given to a host counts as older than the code of any host
//     that a relay holds. So a Renew that the relay of the former host began before the host
//     ended, or that the store executes late, does not take the code back.
//
// # Several stores
//
// [Stores] are those of a fleet in which each region has its own. What concerns the whole
// fleet is in all of them: bans, and the list of API processes. A lease is in the store of
// its relay, a bucket in the one that a hash of its key names. Before its first call, and
// every 2 s, a process publishes its region and the symbols of all regions in each store;
// if others have published something else, it does not use the store ([RegionsError]).
//
// # What is in Redis
//
// All keys begin with a prefix, "ferry:" by default. The part in braces
// determines the hash slot. T is the tenant's hash, a time is in milliseconds by the clock
// of the server, and every key expires.
//
//	key               type    content                              lasts
//	code:{T}:CODE     string  host:since:seal; since is 0 after    HostTTL after Put, Move or
//	                          Move                                 Renew
//	codes:{T}         sorted  CODE by the time it ends, to count   as its last code
//	                  set
//	host:ID           hash    h → relay:boot:seal,                 HostTTL after SetHome, Put
//	                          c → T:CODE:seal                      or Renew
//	{nodes}           hash    relay → at:boot:number:seal:JSON     as its longest entry
//	{nodes}:end       sorted  relay by the time its entry ends,    likewise
//	                  set     RecoverFor + DeadAfter + 1 min
//	{nodes}:api       hash    boot → at:seal:JSON, of API          2 min after the last
//	                          processes                            announcement
//	regions           hash    symbol → region:end, own →           HostTTL after the last call,
//	                          =region:end, if each region has a    at most 2 s more
//	                          store of its own
//	signer:{nodes}:ID string  certificate of a key, in DER         1 h after its last use
//	lease:SCOPE       hash    holder → used:end                    as its longest lease
//	bucket:KEY        string  when it is full again, in µs         until it is full
//
// SCOPE and KEY are digests, so that no key contains the name of a player. A host with
// its code takes some 1,170 bytes, 500 of which are seals. A server must not evict keys (maxmemory-policy
// noeviction, the default); evicted keys are restored like lost ones.
//
// # Who may write what
//
// A seal is "until.ID.signature": the signature of a key of the cluster over the key and
// the value of the entry and the end of the seal. ID is a prefix of the SHA-256 of the
// certificate, which its owner stores once. Readers verify
//
//	code → host            by a relay or an API process
//	host → relay, boot     by that relay or an API process
//	announcement           by that relay
//
// and treat an entry without a valid seal as absent, except that the home of a host is then
// unavailable: a host that is not found loses its code. Relays verify the entries that keep
// them from writing their own, and replace those without a valid seal. The seal of a code
// is also in the entry of its host, so that no process signs a code which it only read
// there.
//
// MoveCode is a call of the relay that has both hosts. It decides by the entry of the code, in
// one script: the code must lead to the former host, so that a call that is executed late moves
// nothing that has moved on. The entries of both hosts follow it.
//
// Not sealed are: since and at, which the store's clock sets; regions, which only keep
// processes with other settings from using the store; the list of a tenant's codes,
// which only limits the number of codes; leases and buckets. No signature shows that an entry
// does not exist. So the password of the store suffices to delete entries, to repeat an
// entry within its time, to exceed or to use up quotas, and to stop the store, but not
// to lead players elsewhere. docs/fleet.md has users with fewer rights.
//
// # What is lost when
//
//	an API process dies       the queue of Forget: those codes belong to ended
//	                          hosts until HostTTL is over
//	a relay dies              nothing; its hosts and codes last for HostTTL, which
//	                          is longer than the time in which it may come back
//	Redis dies and is empty   everything; at its next heartbeat each relay detects
//	                          it and restores all its hosts and codes
//	Redis fails over          the last writes; relays detect that too, by the
//	                          replication id of the server, and restore all their
//	                          hosts. A host that was reserved at that moment is
//	                          announced by its relay, not by the API
//	                          A move that is lost leads the code back to the
//	                          former host, until the relay, which notices that
//	                          too, repeats it
//	Redis goes on from an     the same. Entries of relays and seals of codes and homes
//	older copy                have ended by then, or end within minutes. Bans have a
//	                          number of their last change, by which processes detect
//	                          the copy and write those back that it lacks
//	one shard of a cluster    the same, for its keys; the others continue
//	Redis stands still        nothing; calls that timed out may be executed late.
//	                          The code of an ended host may be restored by that, and
//	                          is useless until HostTTL is over
//	leases, buckets           lost with the server; relays report again, players
//	                          get the budget of a new minute
//
// A code whose writes were lost may be given to a second host before the first
// one's relay holds it again. Then the older host gets it back, and the relay of
// the younger host gets an event that the code is lost. A code never has two hosts, since
// it is one key; and CodeOf checks the host of the code before it returns it.
//
// # Whose clock counts
//
// A seal ends by the clock of its author, between HostTTL and five minutes more after it was
// made, and is accepted for five minutes after that. So a replayed entry counts for at most
// 13 minutes, and an author's clock may be behind by five. For all other times:
//
// Ages of relays and of codes are by the clock of the server that has them, one
// clock for all readers. A relay reports the age of a host by its own clock, not the time
// of its reservation, so clocks are never compared and a wrong clock has no effect. When a
// server with another clock takes over, relays seem older or younger by the difference
// until their next heartbeat, at most two seconds.
package redisstore
