package engine

// # The rules of the protocol
//
// The engine implements them, and so does the reference model in model_test.go;
// TestModel compares both over random sequences. Each line says how the relay
// answers a datagram, in the order of the checks. Where no reply is named there is
// none, only a counter ([outcome]).
//
//	any message      from port 0 to 1023, an address of a relay, a source that no client
//	                 has, a private network unless these are allowed, or one that is
//	                 banned (sources.go): silence; a RELAY or PING of the allocation
//	                 that is bound to the source goes on
//	                 < 4 bytes, no 0xDA72, server-only or reserved type: silence
//	                 other version: ERROR 0 with a zero id, if the type is one that
//	                 clients send and it has ≥ 22 bytes
//	                 not exactly the size of its type: silence, whatever the sender
//	PING, RELAY,     endpoint not bound to the id named: ERROR 3 with that id, but
//	CONNECT_REQUEST, silence while a BIND of the endpoint is on its way, and for 10 s
//	DISCONNECT       after three of them; an authentic BIND starts the count again
//	PING             echoed
//	RELAY            content above the limit: silence; no link: ERROR 5, once a second
//	                 per ordered pair and for at most 3 peers a second; peer without
//	                 an endpoint: silence; larger than the peer's way carries
//	                 (Transport.MaxMessage): silence, and not charged to the sender's
//	                 quota, since nothing leaves; sender beyond its quota, or more than
//	                 may go on the path to the peer: silence;
//	                 else forwarded unchanged. One that not every client behind
//	                 the peer's transport takes is counted for the peer, and the
//	                 first one of a match is reported
//	BIND             see the table below
//	CONNECT_REQUEST  data that does not open: silence; own id: ERROR 6; not the host of
//	                 the own match, or a ticket of another player: ERROR 2; host ended:
//	                 ERROR 4; host without an endpoint: silence; linked already:
//	                 ACCEPTED again; host full: REJECTED, unless the same player has
//	                 another link to it, see below; more than one new link of the
//	                 joiner a second (3 at once) or 20 of the host: silence; else
//	                 linked, then ACCEPTED
//	DISCONNECT       link: closed both ways, forwarded and echoed; no link, same match:
//	                 echoed; else ERROR 5
//	CLOSE            not bound to the id: silence; else the allocation ends, silently
//	sign of life     of a session, such as the pong of a page in the background: counts
//	                 as a message of the allocation that is bound to it, and goes no
//	                 further
//
// # BIND
//
// The first row that applies decides. An allocation here is that of the BIND.
//
//	if                                              answer         effect
//	----------------------------------------------  -------------  --------------------------
//	accept mode not 0, data that does not open,     none
//	or a ticket in place of own data
//	repeats the last accepted BIND, at the same     BIND_RECEIVED
//	endpoint, after its answer
//	old nonce, and a BIND with an old nonce was     none
//	authentic before
//	wrong MAC                                       none
//	the endpoint is kept by another allocation (1)  none
//	the allocation has ended, another one is        none
//	bound to the endpoint
//	the allocation has ended                        ERROR 4
//	a reservation for a host's place that is taken  ERROR 4        the reservation ends
//	nonce lower than the last accepted one, or      none           the allocation lives on for
//	equal to it at another endpoint                                60 s from there, once
//	else                                            BIND_RECEIVED  bound to the endpoint, whose
//	                                                               former owner loses it
//
//	(1) it was heard there within 2 s by something other than a BIND; but it gives way if the
//	    BIND's allocation lost the endpoint within 10 s, or if that one's path is validated and
//	    its own is not
//
// An operator ends an allocation as CLOSE does ([Server.End]). A player that is
// kicked ([Server.Kick]) loses its link first, and each side gets a DISCONNECT
// from the other.
//
// An allocation is under a spoofing attack while more than 100 messages a second
// name it from endpoints to which it is not bound. For 10 s its DISCONNECT and
// CLOSE then wait for a second: a RELAY of the same sender over that link cancels
// the DISCONNECT, any message of the owner cancels the CLOSE.
//
// A player that comes back to a full host with another allocation, as after a crash or when
// its page was reloaded, gets its own place: that of its link whose client was silent for
// longest. The link yields if that was for more than 2 s, or its session of DTLS or WebSocket
// is closed: the host gets a DISCONNECT of it first, the old allocation ends, and its client
// gets no message. Silent for less, or after a restart of the relay in its window: silence,
// since clients repeat the CONNECT_REQUEST each second and a REJECTED is final for them. The
// same player is the same subject of an issuer's token, or the same name that a backend
// gives; the holders of a static token may be many, and each of them is REJECTED. Such a
// player's CONNECT_REQUESTs to a full host draw on its new links, answered or not.
//
// A player, in the same sense, has a limited number of live hosts, joiners, joiners at one host
// and seats of its hosts ([PlayerLimits]). A reservation beyond ends its own allocations of the
// same role, or of that host, that were silent for longest, as many as need be, if each was
// never bound, was silent for more than 10 s or its session is closed; their clients get no
// message. Otherwise the reservation is refused and none ends.
//
// Path validation, as in RFC 9000, section 8: the source of a BIND over plain UDP may
// be forged. A new path is
//
//	validated    to a session of DTLS or WebSocket; to the network from which the
//	             player called the API, over TCP; and to the network (an IPv4 address,
//	             an IPv6 /56) of the former endpoint, if that path was validated
//	limited      to another network, if that of the call is known. Its allowance is
//	             [Limits].UnvalidatedRatio times the bytes of the BIND, and of each
//	             message from there, and at most 1 MiB. A RELAY to it takes from the
//	             allowance, or is excess if that is too small: 256 kB/s of an
//	             allocation, 5 MB/s of an IPv4 /24 or IPv6 /48 and 64 MB/s of the
//	             relay, each with a burst of one second. Private and loopback addresses
//	             have no limit by network, since behind a proxy all players have one.
//	             Replies to its messages, and DISCONNECTs to it, take from the same and
//	             are never withheld. It stays limited: a relay forwards byte for byte, so
//	             such a path hides where traffic comes from, and amplifies none
//	unvalidated  to any other. At most [Limits].UnvalidatedBytes may go there, until a
//	             message other than a BIND validates it
//
// A BIND on a validated path counts as a message of its owner. No ERROR 1 goes to an
// endpoint from which nothing but another BIND has come.
//
// An allocation that was bound to its endpoint for 5 s and loses it to another one may
// take it back within 10 s, and then keeps it for 10 s after its last message in place of
// 2 s. The other one may not take it back in turn.
//
// A link needs one match: a joiner, its host, one tenant. The id in an ERROR is
// the one named for 3, and for 4 on a BIND; the sender's own for 2, 4 on a
// CONNECT_REQUEST, 5 and 6. ERRORs but 1 draw on budgets (budget.go): one of a
// code per endpoint in 200 ms; for 3 that names a live allocation, 20 a second in the
// network to which it is bound, and from elsewhere 5 a second of it and a source
// prefix, 1,000 of it, 50 of a prefix and 50,000 in all; for others 10 a second and
// source prefix, and 20,000 in all. Budgets and
// quotas are off with [Config].Unlimited; rules stay.
//
// Time runs in ticks of 250 ms. A limit is over at the first tick that is later
// than the clock's start by more than the limit, so never early.
//
//	reserved, never bound        Timeouts.Bind after the reservation: ends silently
//	bound                        Timeouts.Idle after it last sent or received, or
//	                             Timeouts.Receive (or the idle limit, if longer) after it last
//	                             sent: ends, ERROR 1 to its endpoint if it has one
//	host before its first link   Timeouts.HostAlone in place of Timeouts.Idle; its clocks
//	                             start again with the first link
//	link                         ends with its joiner's or its host's allocation, with or
//	                             without a RELAY, or by DISCONNECT
//
// Time in which the relay stood still (control was away for more than a second)
// does not count, and nothing expires in the second after it. Expiry pauses for
// 30 s, and then not again within a minute, when more than a fifth of the bound
// allocations, and at least 100, would expire within a second, or when the network
// is down: the fault may be on the side of the relay.
//
// Each datagram with the right size from the endpoint bound to the id it names
// counts as sent, answered or not. RELAY and DISCONNECT count as received by
// the peer to which they go.
//
// # Host migration
//
// With [HostMigration].Window a player may take the place of its host by
// [Server.MigrateHost], not by a message of the protocol. A host has left when it has ended,
// but not by an operator; when its owner says that it leaves ([Server.LeaveHost], for a token that
// many share with the host's own connection data); and, for a
// player that asks, when it was silent for HostMigration.Silence. One that was never bound has
// no players, and leaving ends it.
//
// A player of a host is a joiner that is bound now, and is linked to it, was at its end, or
// whose link one side has closed, if the host sent nothing later than 2 s after that. What it
// sends after it has said that it leaves does not count. A player is none, but removed, if
// the host sent a DISCONNECT of it, which may find no link, and has at its end as many other
// links as it sent DISCONNECTs of players, each within 2 s of the one before: a host that
// leaves disconnects all, and one that removes a player keeps the others.
//
// In the order of the checks:
//
//	ticket             not of this tenant and player: not found
//	forgotten          the host of the ticket is not known any more, as after a crash, and
//	                   the join code leads to another one: present, or unavailable while
//	                   that may come back
//	player             its allocation is not bound, or was not when the relay restarted: not
//	                   found
//	join code          leads to a host that is neither that of the ticket nor one that took
//	                   its place, or the place of such a one: not found
//	host left          longer ago than HostMigration.Window, or the joiner is no player of
//	                   it: not found
//	host not left      removed the joiner, and was silent or sent something later, or was
//	                   never linked to it: not found; sent something later than 2 s after
//	                   the joiner closed the link: present; else wait
//	another player     has the place: present, unless that host has left too; its players
//	                   and those of the host before may then take its place, each as long
//	                   as the place of their own host may be taken
//	candidate          the same player (as at a full host) holds the reservation for the
//	                   place: a new one replaces it, without more time; another one does:
//	                   after 2 s it yields to a player that has had none, after
//	                   Timeouts.Bind to any; else wait
//	else               a reservation with the former host's number of connections, also
//	                   while the relay drains. It takes seats, needs room for a session of
//	                   DTLS, and expires as any other
//
// The first BIND of the candidate takes the place: the former host ends, a silent one with
// ERROR 1 to its endpoint, and the new host has the join code. If a
// host that was silent has been heard again, the BIND gets ERROR 4, as those of reservations
// that have ended. While no player has the place, and until the code has moved, a join gets the
// ErrMigration, also at a silent host that had a player.
//
// A migration survives a handover to another process and, by the state file, a crash: a host that
// had left does not come back (ERROR 4), its place may be taken for HostMigration.Window from
// the restart, and the candidate has its 2 s again. A host that has not come back
// HostMigration.Silence after the restart counts as silent. Its players may ask before they bind
// again, or if they do not: the file says which had links, or closed them, and which it had removed;
// these are players if it had no link left. What the file does not know is unavailable until that
// silence has passed, then not found. A new host comes back as any host, with the join code.
//
// # After a restart
//
// For [Recovery].Window from the start, a BIND that was sealed under an
// earlier boot rebuilds its allocation, unless the state file says that it has ended
// (ERROR 4) or that the nonce is not new (silence; equal is good from the same
// endpoint).
//
//	CONNECT_REQUEST   to a host that may yet come back: silence; to one that did, by
//	                  a player that had no link: silence while its other places may
//	                  belong to players that had one
//	RELAY, no link    the host came back, and so did the joiner, which had a link: the
//	                  host's RELAY restores the link, and, if the state file is complete
//	                  and has the link, the joiner's too; the datagram is lost; other
//	                  doubt: silence
//	DISCONNECT        no link, same match: echoed, and no link comes back; other
//	                  doubt: silence
//	ERROR 3           about an id that may have been there: not limited by prefix; in the
//	                  state file: as many as reach each allocation in a third of the
//	                  window, but 20,000 to 100,000 a second, and 1,000 about one
//
// The state file forbids only what it records: without one, an allocation that had
// ended may come back within the window, and a captured BIND is accepted.
//
// # Choices of this implementation
//
//	ERROR 5 for at most 3 peers of one sender a second, so that its memory is bounded
//	every BIND to a new endpoint waits for a grace period: the endpoint may have been
//	freed a moment ago
//	the first link of a host restarts both its clocks, or one that was silent for half
//	a minute would end at its first player
//	a ticket serves another allocation of the same player only within the match
//	the ratio of bytes to and from a validated endpoint is not limited: counting it would
//	write to the receiver's cache line for each datagram, and spectators depend on it
//	no message of an unmodified client contains anything that it cannot have known
//	before, so over plain UDP the API's answer over TCP is the proof of receipt
//	the sum of what leaves the relay has no ceiling, only the quota of each allocation
