// Package placement places hosts on the relays of a fleet and finds the relay of a host.
//
//	API process                     store                     relay
//	alloc.Service                   Registry, Directory       engine.Server
//	  └ Fleet ── polls ───────────→   nodes  ←── heartbeat ── Announcer ← its hooks
//	      │ ├─── SetHome, HomeOf ─→   homes  ←── Renew, Drop ────┤ ↑
//	      │ └ Codes ──────────────→   codes  ←──────────────────┘ │ hosts, codes
//	      └ Dialer, Remote ───── reserve, describe, keep ─────→ Local → engine.Server
//
// The package opens no socket: package rpc implements Dialer and Remote, package
// store and its redis implement Registry and Directory. API processes are stateless and
// do not know each other. Each relay owns its hosts; the store has a copy, which the
// relays restore after a loss.
//
// # Reservations
//
// [Place] chooses a relay for a host from the registry as read within the last second,
// plus the seats that this process has granted since each heartbeat. The relay gets half
// of the time that is left; if it refuses or does not answer, the next one is asked, 2 s
// and 8 relays in all. [Local] passes the call to its engine, which alone counts seats: it
// takes maxConnections + 1 seats or refuses. Then the announcer holds the host, the store
// gets its home (SetHome), and the player gets the answer. A joiner takes no seat of its
// own, is reserved at its host's relay, and is not in the store.
//
// The engine frees the seats when the host ends, and its hook tells the announcer. A host
// ends when it is closed, when it is not bound in time, or by
//
//   - the Remote, which cancels a reservation whose answer was lost;
//   - the Fleet, which ends a reservation ([Ender]) whose home the store did not accept.
//     If that fails too, the reservation expires unbound.
//
// An unbound reservation expires after the engine's BindTimeout, 10 s, which is the
// longest time for which a seat can leak.
//
// A host without a region goes to the default region of its project, else to that of its
// client's address, else to the least loaded region; and to another one if that is full.
// A host with a region goes there or is refused.
//
// # Join codes
//
//	created    by alloc.Service: drawn, stored (PutCode), and kept by the host's relay
//	           (Fleet.KeepCode, Local.KeepCode), on its disk and in its Announcer; then
//	           JoinCode returns it
//	refreshed  by the relay's Announcer while the host lives (Renew)
//	resolved   by any API process: HostOf, HomeOf, and a call to the relay
//	dropped    by the relay's Announcer within a second of the host's end (Drop); by an
//	           API process whose relay reports that the host has ended (Forget); by the
//	           store unless refreshed within HostTTL
//	moved      by the relay's Announcer when a player has taken the place of the host
//	           (HostMigrated, MoveCode), until the store has answered. The former host is
//	           held until no player may take its place any more, so the code leads to a
//	           host of that relay at any time. If the relay is killed before that, its
//	           next run has the code of the new host on its disk, learns from Renew to
//	           which host it leads, and moves it if that is an ended one of its own
//	disputed   if the store lost the code and gave it to another host: the older host
//	           keeps it, the other host's relay is informed (AnnouncerConfig.OnLost)
//
// # Failures
//
//	API process   Its calls fail, and another process serves the next ones. Unanswered
//	              reservations expire. Codes stay at the relay and in the store.
//	relay         It is dead after 3 missed heartbeats and gets no new hosts; an API
//	              process that asks it earlier loses one try. Its hosts are unavailable
//	              (alloc.ErrUnavailable, 503) for RecoverFor, then gone
//	              (alloc.ErrNotFound, 404). If it restarts in time it is asked as
//	              before, and its engine knows the players that may return.
//	store         Matches continue. Relays keep their hosts and retry heartbeats about
//	              once a second. New calls fail as fast as the client of the store
//	              reports; 3 s after the last successful poll no relay is asked for a
//	              host, since no player could find it. Regions stay as they were. When
//	              the store is back, heartbeats are there within 1.5 s and all hosts
//	              and codes within 5 s.
//	store's data  The relay's next heartbeat detects the loss (Announce is not intact),
//	              and all hosts and codes are held again within 5 s. Until then the
//	              relay announces that it is Healing. For HealFor after that, after a
//	              relay vanishes from the registry or after a failed poll, API processes
//	              answer 503 instead of 404, so that no valid code is rejected and no
//	              host gets a second one, and instead of 400 for a region without a relay.
//	link between  The relay counts as dead everywhere, because it cannot announce
//	relay, store  itself. Its matches continue; its codes are unavailable, then gone,
//	              and return with it.
//	link between  The relay is suspect to that API process for 5 s: it is tried last.
//	relay, API
//
// # A store for each region
//
// A [Regional] fleet has a Fleet with a store of its own for each region. The relays of a
// region know its store only, so all of the above is true of a region by itself. The first
// symbol of a join code names the region; a host that is known by its id is looked up in
// all stores at once, unless the process has met it before. A host without a region goes
// to a region whose store answers. While a store is away, the calls of its region and
// those about a host that no other store has are unavailable.
//
// # Limits of time
//
//	HeartbeatEvery   2 s      of a relay
//	DeadAfter        6 s      3 heartbeats: two may be lost, and new matches go elsewhere
//	                          within 6 s
//	HostTTL          3 min    outlasts a death (6 s), a restart and the recovery (60 s),
//	                          even if the last refresh was refreshEvery ago
//	refreshEvery     1 min    a third: two rounds may be missed
//	catchUp          3 s      plus 1.5 s to detect the return: 5 s in all
//	lateAfter        5 s      a host that is due for longer is refreshed at the rate of
//	                          catchUp
//	maxRetryPause    1 s      between tries of an unavailable store, half more or less,
//	                          so that the relays of a fleet do not retry at once
//	PollEvery        1 s      of an API process, a tenth more or less: a heartbeat is
//	                          known after 0.5 s on average
//	minPollInterval  250 ms   between polls out of turn, for an unknown home
//	staleAfter       3 s      3 polls: without them no host is placed
//	HealFor          10 s     a lost heartbeat (6 s), and less than 4 s in which the relay
//	                          announces all its hosts
//	suspectFor       5 s      a relay that does not answer misses a heartbeat within
//	                          that time, or has recovered
//	ReserveWithin    2 s      a player waits; the API's own limit is 8 s
//	a try            half     of what is left of it, and at least 100 ms
//	relayTimeout     2 s      a join, a description, a code: one relay is asked
//	storeTimeout     1 s      each call to the store, and each end of an unused
//	                          reservation
//	leaveTimeout     2 s      at the end of an Announcer
//
// # Limits of memory
//
//	Fleet      all nodes twice, some 600 bytes each; 1,024 queued releases
//	Regional   the regions of 131,072 hosts, some 5 MB
//	Announcer  56 bytes and a map's entry for each host, a million at most; 65,536
//	           unsent ends, and as many moves. Beyond that entries of the store expire, and Stats
//	           counts them
//	Local      nothing
//
// # Measurements
//
// TestFleetSimulation runs Fleet and Local over many relays, whose engines count
// seats and serve no clients, with lost heartbeats and answers, deaths, drains and a
// burst. With 1,000 relays of 500 to 2,000 seats in 4 regions, 4 API processes and
// a million hosts:
//
//	at 75 % of all seats taken, the fullest relay of a region is 1.23 times as full
//	as the average one, 1.35 times at the most; no host is refused or unavailable
//	in a burst beyond the capacity, hosts are refused when 98.6 % of the seats of
//	the region are taken (median; 97.9 % or more for 99 % of them): free seats are
//	known a heartbeat and a poll later. So nearly all refused hosts would have
//	found a free seat for a moment
//	1.11 relays are asked per host on average; no relay exceeds its seats, and all
//	seats are free in the end
//
// To ask two more relays without announced seats before a refusal was tried and
// deleted: it refused as many hosts, with 12 % more calls (one run each, 100 relays).
//
// A placement among 1,000 relays takes 25 to 40 µs, and a host takes 101
// bytes of its relay's Announcer.
package placement
