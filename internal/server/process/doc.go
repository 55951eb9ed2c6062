// Package process combines the parts of Ferry in one process: the relay with its transports,
// the Allocations service with its store, the HTTP API, which shares its port with the
// WebSocket, and the admin pages. The commands serve, relay, api and dev all run
// an [App]. Its data plane, its server and the order of its parts are those of package relay,
// which demo runs. Its [Mode] determines the parts:
//
//	serve, dev  admin, relay, API; the service calls the relay, and keeps its codes
//	            in memory
//	relay       admin, store, relay, WebSocket port, cluster listener, announcer
//	api         admin, store, dialer, fleet, API; the service calls the fleet
//
// The package owns what concerns the whole process: the checks of a configuration before
// anything is opened ([Check]), the addresses that are advertised to players, the order
// of the shutdown, and readiness: a process is ready once its relay has answered a
// datagram through its own socket. It also owns the state file for the next start, the
// watches of memory and of the UDP port, and the drain, at whose end Run returns.
//
// Relay, API and process publish what happens on one stream (package events). The log of
// ferry dev, the timeline, join codes, a fleet's announcer, webhooks and metrics subscribe to
// it, in the order of App.subscribe.
//
// Each part is a type that has the parts it uses as fields, and is complete when it was made:
// App.build creates them in the order of dependency. What a part causes in one that is made after it
// goes by an event. A group starts them in that order, each when those before it are ready.
//
// The shutdown reverses the order of the start: a relay of a fleet deregisters from the
// store, the API finishes the calls that it has accepted, the relay stops with its
// WebSockets, then the admin pages stop. No goroutine is left when Run returns.
//
// A process of a fleet is ready whether its store is available or not. A relay works
// without it. An API process answers what it cannot do with 503 and Retry-After, call by
// call: if a load balancer removed all API processes at once, callers would get less.
//
// A reload changes everything that it can, or nothing (settings.Reload). Policy (callers,
// admission, webhooks and quotas) is an immutable value behind one pointer, and the
// handler of calls with its tokens behind another; a call finishes with the values that
// it began with. Keys of issuers that remain, queued webhooks, the state of an admission
// circuit breaker that remains, and all counters survive.
//
// Quotas are checked against the relay's own counters, which include players that came
// back after a restart. In a fleet they are checked against the reports of the relays,
// every 2 s, and may be exceeded by the reservations since. Each API process counts the
// unbound reservations of a player for itself, until the bind time-out, since it does
// not learn of binds.
package process
