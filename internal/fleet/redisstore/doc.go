// Package redisstore keeps the state of a fleet in Redis or Valkey: the homes of hosts, their join
// codes, the relays, and the usage of quotas. It defines the keys and the scripts, and it alone
// determines how long a join code of a fleet lasts.
//
// The package needs Redis 7 or Valkey: scripts that only read are called by EVALSHA_RO, so that a
// user may have no right to write their keys. Each script touches keys of one hash slot, as a
// cluster requires. A change of two slots is two steps, in an order that is safe if the second step
// is missing:
//
//	PutCode  code → host, then the host's entry: no caller knows the code yet
//	Renew    codes, then hosts: a host never has a code before the code leads to it; a
//	         lost code is reported, and removed from the host's entry by the next Renew
//	         or CodeOf
//	Drop     hosts, then codes: the relay rejects a code of a host that has ended
//	Forget   as Drop, but the host stays
//
// Every change compares first: it removes a code only if the code still leads to that host, a host
// only if it still has that home, and an entry of a relay only if it is of that boot. A step that is
// repeated, or that a stalled server executes late, has no effect beyond HostTTL.
//
// A [Store] has a part for each kind of entry, with the scripts of that kind beside it. All parts
// make their calls through one client with its breaker, and one sealer signs and verifies.
// [Directory] and [Registry] implement the interfaces of package placement and pass the tests of
// package storetest, which also fix what the interfaces leave open:
//
//   - A host has one code: PutCode reports false and changes nothing for a host that has one.
//   - Of two codes of one host, the one that its relay holds counts.
//   - A code that a relay does not know lasts as long as its host.
//   - What Forget removes may still be there for a moment.
//   - A code that MoveCode has given to a host counts as older than the code of any host that a
//     relay holds, so a late Renew of the former host's relay does not take the code back.
//
// # Unavailable stores
//
// A call ends within Config.Timeout, and so does its connection. After five consecutive calls without
// an answer, 20 in a cluster, a circuit breaker opens: all calls fail at once, except one every 200
// to 400 ms that probes the store. An answered probe closes the breaker. A call is repeated, within
// its timeout, only on a connection that the server had closed. All shards of a cluster share the
// breaker: a single unavailable shard fails the calls that need it, each after its timeout.
//
// # Several stores
//
// [Stores] are those of a fleet in which each region has its own. What concerns the whole fleet is in
// all of them: bans, and the list of API processes. A lease is in the store of its relay, a bucket in
// the one that a hash of its key names. Before its first call, and every 2 s, an API process publishes
// its region and the symbols of all regions in each store, and a relay reads them. A process does not use a
// store that contradicts its settings ([RegionsError]).
//
// # What is in Redis
//
// All keys begin with a prefix, "ferry:" by default. The part in braces determines the hash slot. T
// is the tenant's hash, a time is in milliseconds by the clock of the server, and every key expires.
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
//	regions           hash    symbol → region:end, own →           HostTTL after the last call of
//	                          =region:end, if each region has a    an API process, at most 2 s
//	                          store of its own                     more
//	signer:{nodes}:ID string  certificate of a key, in DER         1 h after its last use
//	lease:SCOPE       hash    holder → used:end                    as its longest lease
//	bucket:KEY        string  when it is full again, in µs         until it is full
//
// Relays write code, codes, host, {nodes}, {nodes}:end, signer and lease, API processes the first three,
// signer and all others; docs/fleet.md has users that can do no more. An end or a time that is later than its
// author may write it does not count. A key of another type is removed by the next script that writes it.
//
// SCOPE and KEY are digests, so that no key contains the name of a player. A host with its code takes
// some 1,170 bytes, 500 of which are seals. A server must not evict keys (maxmemory-policy
// noeviction, the default).
//
// # Seals
//
// A seal is "until.ID.signature": the signature of a key of the cluster over the key and the value of
// the entry and the end of the seal. ID is a prefix of the SHA-256 of the certificate, which its owner
// stores once. Readers verify
//
//	code → host            by a relay or an API process
//	host → relay, boot     by that relay or an API process
//	announcement           by that relay
//
// and treat an entry without a valid seal as absent, except that the home of a host is then
// unavailable: a host that is not found loses its code. Relays verify the entries that keep them from
// writing their own, and replace those without a valid seal. The seal of a code is also in the entry
// of its host, so that no process signs a code which it only read there. What the password of the
// store still permits is in docs/security.md.
//
// # Losses
//
// A server that is empty, has failed over or goes on from an older copy is detected by each relay at
// its next heartbeat, by the replication id of the server; the relay restores its hosts and codes,
// and repeats a move that was lost. Bans have a number of their last change, by which processes
// detect an older copy and write back those that it lacks. Leases and buckets are lost.
//
// A code whose writes were lost may be given to a second host; then the older host gets it back. A
// code never has two hosts, since it is one key.
//
// # Clocks
//
// A seal ends by the clock of its author, between HostTTL and five minutes more after it was made, and
// is accepted for five minutes after that: a replayed entry counts for at most 13 minutes. Ages of
// relays and of codes are by the clock of the server that has them. A relay reports the age of a host,
// not the time of its reservation, so clocks are never compared. When a server with another clock
// takes over, relays seem older or younger by the difference until their next heartbeat.
package redisstore
