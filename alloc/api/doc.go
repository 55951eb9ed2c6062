// Package api is the Relay Allocations API as it looks from outside: its JSON
// bodies, its problem codes and a small HTTP client.
//
// It is a leaf. The server (alloc/httpapi), the players' library (client) and
// the load generator (bench) share it, so it imports the standard library only
// and knows neither the service nor the wire.
//
// The names and the required members of every body are those that Unity's
// Relay SDK 1.x parses, which throws when one is missing: protocol.md 4.
// Unknown members are ignored in both directions, so that either side may be
// the newer one.
package api
