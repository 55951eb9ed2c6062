// Package httpapi serves the Relay Allocations API over an [alloc.Service]:
// allocate, joincode, join and regions, and its own description at
// /openapi.yaml. Shapes, statuses and codes are those that an unmodified Unity
// SDK parses (protocol.md 4); the bodies themselves are package api's.
//
// # A request's way
//
// Path (404), pre-flight (204), method (405), bearer token (401), rates (429),
// body (413, 400), service. Each step costs less than the next one, and
// nothing of a body is read before its sender is known and within its rates.
// Every error is a problem document, and every answer carries X-Request-Id.
//
// # Who is calling
//
// A token is one of Config.Tokens, or one that Config.Authenticate knows, such as
// a JSON Web Token; both are one thing from there on, and one player if they name
// the same one. A token of kind player is one player: it owns what it allocates and can ask
// for join codes of nothing else. A token of kind server is a backend: it owns
// every allocation of its project and environment. With Config.Anonymous a
// caller without a known token is let in as a new player at every call, in
// project "dev", environment "dev". Such a caller cannot be recognised again,
// so its joincode call is answered as that of a server: whoever knows the id
// of an allocation of dev/dev gets its code. That is meant for a developer's
// machine and for nothing else.
//
// # Limits
//
// What is counted, with the defaults; beyond it the answer is 429 with
// Retry-After, and no other caller notices:
//
//	60 a minute     requests of one player and call; 6000 of a backend
//	120 a minute    requests of players from one client address, all tokens
//	                together, those that nobody knows among them
//	10 a minute     joins of one player that name no live code; 600 of a backend
//	10 a minute     the same of all players of one client address
//	120 a minute    tokens from one client address that Config.Authenticate
//	                refuses: further ones are not looked at
//	20              allocations of one player, reserved and not bound yet: the
//	                service counts those (alloc.ServiceConfig.MaxOutstanding);
//	                in a fleet each counts for the whole bind time-out (10 s)
//
// Each bucket holds a minute's worth and is refilled evenly. A client address
// is an IPv4 address or the /56 of an IPv6 address; that of a backend does not
// count, since many players are behind it. A principal is all tokens of one
// player; anonymous callers have no name, so their principal is their address.
// Pre-flights and the description cost next to nothing and are not counted.
//
// How often joins of a tenant fail in all refuses nothing: else one player
// could lock out the others. It makes the join codes that come after longer
// (alloc.ServiceConfig.FailuresPerSecond).
//
// Counts are kept in tables of fixed size, below 20 MiB in all. Where too many
// callers meet, the fullest bucket is forgotten, so a crowd of addresses can
// win back a little of what it has spent, and takes nothing from others.
//
// [LimitListener] bounds connections, 4,096 in all and 64 of an address, and
// [NewServer] the time and the bytes that each may take: 5 s for headers of
// 8 KiB, 10 s for a body of 16 KiB, 10 s for the answer, 60 s of idling.
//
// # Behind a reverse proxy
//
// Whoever puts a proxy in front names it in Config.TrustedProxies and in
// ConnLimits.TrustedProxies. Otherwise all callers have the proxy's address,
// and the limits of one address hold for all of them together. A trusted proxy
// that sends no X-Forwarded-For leaves its callers without an address; they
// are then counted by principal only.
//
// # Limitations
//
// TLS and the refusal of plain HTTP belong to whoever listens;
// [PlainHTTPAllowed] is the rule for the latter. All limits are per process: of
// two that serve one tenant, each permits the whole. With Config.Taker the two of
// a principal hold for all processes together, and for each alone when nobody
// answers there; a guesser may still make one more failed join at each. A token
// that was refused is looked at anew each time, and so is one that was not. Somebody with 64 addresses
// can take all connections, for as long as the time-outs let each of them.
package httpapi
