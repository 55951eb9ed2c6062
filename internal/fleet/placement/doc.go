// Package placement places hosts on the relays of a fleet and finds the relay of a host.
//
//	API process                     store                     relay
//	alloc.Service                   Registry, Directory       engine.Server
//	  └ Fleet ── polls ───────────→   nodes  ←── heartbeat ── Announcer ← its hooks
//	      │ ├─── SetHome, HomeOf ─→   homes  ←── Renew, Drop ────┤ ↑
//	      │ └ Codes ──────────────→   codes  ←──────────────────┘ │ hosts, codes
//	      └ Dialer, Relay  ───── reserve, describe, keep ─────→ Local → engine.Server
//
// The package opens no socket: package rpc implements Dialer and Relay, package redisstore
// implements Registry and Directory. API processes are stateless and do not know each other.
// Each relay owns its hosts; the store has a copy, which the relays restore after a loss.
//
// # Reservations
//
// [Place] chooses a relay for a host from the registry as read within the last second, plus the
// seats that this process has granted since each heartbeat. If the relay refuses or does not
// answer, the next one is asked, 2 s and 8 relays in all. [Local] passes the call to its engine,
// which alone counts seats: it takes maxConnections + 1 seats or refuses. Then the announcer holds
// the host, the store gets its home (SetHome), and the player gets the answer. A joiner takes no
// seat of its own, is reserved at its host's relay, and is not in the store.
//
// A reservation whose answer was lost is cancelled by the relay, and one whose home the store
// did not accept is ended by the Fleet. If that fails too, it expires unbound after the
// engine's BindTimeout, the longest time for which a seat can leak.
//
// A host without a region goes to the default region of its project, else to that of its client's
// address, else to the least loaded region; and to another one if that is full. A host with a
// region goes there or is refused.
//
// # Join codes
//
//	created    by alloc.Service: drawn, stored (PutCode), and kept by the host's relay
//	           (Fleet.KeepCode, Local.KeepCode), on its disk and in its Announcer
//	refreshed  by the relay's Announcer while the host lives (Renew)
//	dropped    by the relay's Announcer within a second of the host's end (Drop); by an
//	           API process whose relay reports that the host has ended (Forget); by the
//	           store unless refreshed within HostTTL
//	moved      by the relay's Announcer when a player has taken the place of the host
//	           (HostMigrated, MoveCode), until the store has answered. The former host is
//	           held until then, so the code leads to a host of that relay at any time,
//	           also after a crash
//	disputed   if the store lost the code and gave it to another host: the older host
//	           keeps it, the other host's relay is informed (AnnouncerConfig.OnLost)
//
// # Failures
//
//	API process   Unanswered reservations expire. Codes stay at the relay and in the store.
//	relay         It is dead after 3 missed heartbeats and gets no new hosts. Its hosts
//	              are unavailable (alloc.ErrUnavailable) for RecoverFor, then gone
//	              (alloc.ErrNotFound), unless it restarts in time.
//	store         Matches continue. 3 s after the last successful poll no relay is asked
//	              for a host, since no player could find it. All hosts and codes are held
//	              again within 5 s of the store's return.
//	store's data  The relay's next heartbeat detects the loss, and the relay announces that
//	              it is Healing until its hosts are held again. Until HealFor after that, a
//	              failed poll or the end of a relay, API processes answer ErrUnavailable in
//	              place of ErrNotFound, so that no valid code is rejected.
//	link between  The relay counts as dead everywhere. Its matches continue; its codes
//	relay, store  are unavailable, then gone, and return with it.
//	link between  The relay is suspect to that API process: it is tried last.
//	relay, API
//
// # A store for each region
//
// A [Regional] fleet has a Fleet with a store of its own for each region. The relays of a region
// know its store only, so all of the above is true of a region by itself. The first symbol of a
// join code names the region; a host that is known by its id is looked up in all stores at once,
// unless the process has met it before. While a store is away, the calls of its region and those
// about a host that no other store has are unavailable.
//
// # Limits of memory
//
// A Fleet keeps all nodes twice, some 600 bytes each, and 1,024 queued releases; a Regional the
// regions of 131,072 hosts, some 5 MB; an Announcer 56 bytes and a map's entry for each host, a
// million at most, and 65,536 unsent ends and as many moves, beyond which entries of the store
// expire and Stats counts them.
package placement
