// Package fleet places hosts on the relays of a fleet and finds the relay of a host.
//
//	API process                     store                     relay
//	alloc.Service                   Registry, Directory       engine.Server
//	  └ Fleet ── polls ───────────→   nodes  ←── heartbeat ── Announcer ← its hooks
//	      │ ├─── SetHome, HomeOf ─→   homes  ←── Hold, Drop ────┤ ↑
//	      │ └ Codes ──────────────→   codes  ←──────────────────┘ │ hosts, codes
//	      └ Dialer, Remote ───── reserve, describe, keep ─────→ Local → engine.Server
//
// The package opens no socket: package cluster is Dialer and Remote, store and
// its redis are Registry and Directory. API processes have no state of their
// own and do not know of each other. A relay alone knows what it holds; the
// store is a copy of that, and whatever the store loses the relays put back.
//
// # The life of a reservation
//
// A host is placed by [Place] among the relays as the registry had them a second
// ago, with what this process has given away since each one's last heartbeat
// added. The relay is asked for half of the time that is left, and the next one
// if it refuses or is silent, 2 s and 8 relays in all. [Local] hands the call to
// its engine, which alone counts seats and has the last word: it takes
// maxConnections + 1, or refuses, whatever the API process assumed. Then the
// announcer holds the host; then the store is told where it is (SetHome), and
// only then the player. A joiner has no seat of its own, is reserved at its
// host's relay, and is nowhere in the store.
//
// The engine has the seats back when the host ends, which the announcer hears of
// by its hook: when it was closed or not bound in time, or was ended
//
//   - by the Remote, which cancels a reservation whose answer was lost;
//   - by the Fleet, which ends one ([Ender]) of which the store could not be
//     told; if the relay does not hear of that either, it lapses unbound.
//
// A reservation that lapses does so after the engine's BindTimeout, 10 s, so
// that is the longest that a seat can be lost.
//
// A host that names no region goes to the default of its project, else to that
// of its client's address, else to the least loaded one; and to another if that
// has no room. One that names a region goes there or nowhere.
//
// # The life of a code
//
//	made       by alloc.Service: drawn, put into the store (PutCode), and kept by
//	           the host's relay (Fleet.KeepCode, Local.KeepCode), on its disk and by
//	           its Announcer; only then JoinCode returns it
//	refreshed  by the relay's Announcer, as long as the host lives (Hold)
//	found      by any API process: HostOf, HomeOf, and the relay is asked
//	dropped    by the relay's Announcer within a second of the host's end (Drop);
//	           by an API process whose relay says that the host is gone (Forget);
//	           by the store, unless it is refreshed within HoldFor
//	disputed   if the store lost it, and gave it to another host: the older host
//	           keeps it, the other one's relay is told (AnnouncerConfig.OnLost)
//
// # Failures
//
//	API process   its calls fail, the next one does them. A reservation that it
//	              had not handed out lapses. A code that it had is kept by the
//	              relay and the store.
//	relay         It is dead after 3 heartbeats, and nothing new goes there; an
//	              API process that asks it before loses one try and asks the next. Its
//	              hosts are away (alloc.ErrUnavailable, 503) until RecoverFor after
//	              that, then gone (alloc.ErrNotFound, 404). If it restarts in time it
//	              is asked as ever, and its engine knows who may come back.
//	store         What runs goes on. Relays keep what they hold, and try a heartbeat
//	              about once a second. New calls fail as fast as the store's client
//	              says so; 3 s after the last good poll no relay is asked for a host
//	              any more, since no player could find it. Regions are those of before.
//	              When it is back, heartbeats are there within 1.5 s and all hosts
//	              and codes within 5 s.
//	store's       The relay's next heartbeat finds out (Announce is not intact), and
//	memory        all hosts and codes are held anew within 5 s. Until then the relay
//	              announces that it is Healing; API processes notice that, and that
//	              relays vanish from the registry or polls fail, and for HealFor
//	              answer 503 where they would have said 404, so that no good code is
//	              called wrong and no host gets a second one.
//	link between  The relay is dead to all, as after its death: it cannot say that it
//	relay, store  lives. Its players do not notice; its codes are away, then gone, and
//	              come back with it.
//	link between  The relay is suspect to that process for 5 s: it is tried last.
//	relay, API
//
// # Limits of time
//
//	HeartbeatEvery   2 s      of a relay: half a dozen bytes a second for each
//	DeadAfter        6 s      3 heartbeats: two may be lost, and new matches are to be
//	                          placed elsewhere within 6 s
//	HoldFor          3 min    outlasts a death (6 s), a restart and the recovery (60 s),
//	                          although the last refresh was refreshEvery ago
//	refreshEvery     1 min    a third: two rounds may be missed
//	catchUp          3 s      and 1.5 s until the return is noticed: 5 s in all
//	lateAfter        5 s      a host refreshed later than that is caught up on
//	maxRetryPause    1 s      between tries of a store that is gone, half more or less,
//	                          so that a fleet does not knock at once
//	PollEvery        1 s      of an API process, a tenth more or less: a heartbeat is
//	                          known 0.5 s after it came, on average
//	minPollInterval  250 ms   between polls out of turn, for an unknown home
//	staleAfter       3 s      3 polls: without them no host is placed
//	HealFor          10 s     a heartbeat may have been lost (6 s), and the relay takes
//	                          less than 4 s to tell of all that it holds
//	suspectFor       5 s      a silent relay dies within a heartbeat more, or is better
//	ReserveWithin    2 s      a player waits; the API's own limit is 8 s
//	a try            half     of what is left of it, and at least 100 ms
//	relayTimeout     2 s      a join, a description, a code: there is one relay to ask
//	storeTimeout     1 s      each call to the store, should its client not be quicker,
//	                          and each end of a reservation that nobody could use
//	leaveTimeout     2 s      at the end of an Announcer
//
// # Limits of memory
//
//	Fleet      all nodes twice, some 600 bytes each; 1,024 reservations to give up
//	Announcer  56 bytes and a map's entry for each host, a million at most; 65,536
//	           ends that the store does not know of. Beyond that the store forgets
//	           by itself, and Stats counts it
//	Local      nothing
//
// # What was measured
//
// TestFleetSimulation runs Fleet and Local over many relays, whose engines count
// seats and serve no clients, with lost heartbeats and answers, deaths, drains and a
// rush. With 1,000 relays of 500 to 2,000 seats in 4 regions, 4 API processes and
// a million hosts:
//
//	at 75 % of all seats taken, the fullest relay of a region is 1.23 times as full
//	as the average one, 1.35 times at the most; nobody is refused or unavailable
//	in a rush that asks for more than there is, hosts are refused when 98.6 % of
//	the seats in question are taken (median; 97.9 % or more for 99 % of them):
//	what comes free is known a heartbeat and a poll later. So nearly all of them
//	are refused although some relay has had room for a moment
//	1.11 relays are asked for each host, over all; no relay ever promised more
//	seats than it has, and all came back in the end
//
// Asking two relays more, that announced no room, before a host is refused was
// tried and deleted: no fewer were refused, for 12 % more calls (one run each,
// 100 relays).
//
// A placement among 1,000 relays takes 25 to 40 µs, and a host that a relay holds
// 101 bytes of its Announcer.
package fleet
