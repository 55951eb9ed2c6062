// Package app puts the parts of Ferry together in one process: the relay with its
// ways in, the Allocations service with its store, the HTTP API, which shares its
// port with the WebSocket, and the admin pages. It is what ferry serve, relay, api,
// dev and demo run, so that none of them takes a way of its own. Which parts a
// process has, its [Mode] says:
//
//	serve, dev  admin, relay, API; the service asks the relay, and keeps its codes
//	            in memory
//	relay       admin, store, relay, WebSocket port, cluster listener, announcer
//	api         admin, store, dialer, fleet, API; the service asks the fleet
//
// It owns what belongs to the whole: what a configuration must have before
// anything is opened ([Check]), how players are told to reach the relay, the
// order of the end, and when the process is ready, which it is once the relay
// has answered a datagram through its own socket. So does what watches over it:
// the state file for the next start, the memory, the UDP port, and the drain,
// at whose end Run returns.
//
// The end goes from outside in, in the reverse of that order: a relay of a fleet
// tells the store that it goes, the API answers the calls that it has taken and
// takes no more, then the relay stops and the WebSockets with it, then the admin
// pages. Nothing of it is left when Run returns.
//
// A process of a fleet is ready whether its store is or not. A relay relays without
// it; an API process answers what it cannot do with 503 and Retry-After, call by
// call, since a load balancer that took out all of them at once would answer less.
//
// A reload changes all it can at once or nothing ([App.Reload]). Who may call and who
// hears of it are terms, an immutable set behind one pointer, besides the handler of
// calls with its tokens, behind another: a call ends by what it has met. The keys of
// issuers that stay, webhooks that wait, the rest of an admission program that stays
// and all counts go on.
//
// A quota is held against what the relay itself has, those included who came back
// after a restart. Quotas in a fleet count what relays report every 2 s, and may be exceeded by what
// is reserved meanwhile. What a player has reserved and not bound is counted by each
// API process for itself, until the bind time-out, since it does not hear of binds.
package app
