// Package admin answers the operator: health, metrics, and what there is to see
// and to do about a running relay. An index is at /.
//
// It owns the questions "does this process still work" and "should it be sent
// anything". /livez asks the relay itself, with a datagram through its UDP
// socket and back, and looks whether any worker is stuck in one batch; it does
// not depend on anything outside the process, so that a failure elsewhere
// restarts nothing here. /readyz is yes between start and the begin of the end.
//
//	GET /drain                              is it running dry
//	POST /drain?deadline=1h&threshold=0     take no new allocations, exit when the others have ended
//	DELETE /drain                           take new allocations again
//	GET /nodes                              this process, or all of a fleet
//	POST /nodes/NODE/drain, DELETE          the same as /drain, if NODE is this process; see below
//	GET /nodes/NODE/allocations, ...        the same as /allocations, /usage and /stats there
//	GET /allocations?cursor=0&limit=100     a page of those that live; filters are tenant, or project and
//	                                        environment, role, match, bound, transport
//	GET /allocations/ID                     one of them; /allocations/ID/players: those of a host
//	DELETE /allocations/ID                  end it
//	POST /allocations/ID/kick               remove a player from its match
//	GET /usage                              player-seconds, datagrams and bytes of each project
//	GET /stats                              the counters
//	GET /config                             the settings in force, without secrets
//	POST /reload                            read the settings again: all of them, or none
//	GET /log-level, PUT /log-level?level=   the level of the log
//
// All of that is JSON; an error is a line of text. The types are those of this
// package, which ferry ctl and ferry top read.
//
// # A fleet
//
// An API process of a fleet has no relay, but reaches all relays of its fleet: NODE
// is then the id of any of them, or as much of its beginning as is no other's, and
// what ends or kicks an allocation does so wherever it is. 503 means that a relay
// which may have it did not answer. /allocations/ID and its players are shown of
// hosts, of which the store knows where they are; all else is asked of a NODE.
//
// # Who may
//
// The listener belongs on loopback, where [AddrAllowed] insists on it unless told
// otherwise, and there whoever is on the machine is the operator. With a token
// every page but /livez and /readyz asks for it; then the listener may be
// public, over TLS. On a public listener without a token, which the operator has
// to ask for, others see health and numbers, and only the machine itself the
// rest. Web pages are kept out all the same, as a browser of the operator's
// reaches loopback.
package admin
