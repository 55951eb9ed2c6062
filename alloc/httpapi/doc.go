// Package httpapi serves the Relay Allocations API over an [alloc.Service]:
// allocate, joincode, join and regions, and its own description at
// /openapi.yaml. Shapes, statuses and codes are those that an unmodified Unity
// SDK parses (protocol.md 4); the bodies themselves are package api's.
//
// # A request's way
//
// Path (404), pre-flight (204), method (405), bearer token (401), rate (429),
// body (413, 400), service. Each step costs less than the next one, and
// nothing of a body is read before its sender is known and within its rate.
// Every error is a problem document, and every answer carries X-Request-Id.
//
// # Who is calling
//
// A token of kind player is one player: it owns what it allocates and can ask
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
// Each principal has a bucket per call that holds a minute's worth of requests
// and is refilled evenly. Anonymous callers have no name, so they are counted
// by client address (an IPv6 address by its /64). Joins that name no live code
// are counted per tenant besides, since the length of the codes is reckoned
// from that rate; beyond it the tenant's joins pause.
//
// # Limitations
//
// TLS, the number of connections and the refusal of plain HTTP belong to
// whoever listens; [PlainHTTPAllowed] is the rule for the last one. All limits
// are per process: of two that serve one tenant, each permits the whole.
package httpapi
