// Package hooks calls an operator's own HTTP programs: an [Admission] asks one before
// each reservation, [Webhooks] send events to another.
//
// # Admission
//
// An admission request is a POST with a [Request] as JSON. A valid response has status
// 200 and one of the bodies
//
//	{"allow": true}
//	{"allow": false, "reason": "banned until Friday"}
//
// The API returns the reason, up to 200 bytes of it, to the player. Everything else is a
// failure: another status, a redirect, another body, a body above 4 KiB, or no response
// within the time-out (1 s). After a failure the operator's choice applies: fail open
// admits the player, fail closed answers 503.
//
// At most 64 requests are in progress; others wait for their turn, for a time-out at most.
// A quarter is for projects with less than a quarter, and the next turn is that of the
// project with the fewest requests. So the players of one project, whose responses are late
// or missing, make no other project wait.
//
// A circuit breaker for each project opens after 5 consecutive failures. It sends no request
// of the project for 5 s, and then one at a time until one succeeds. Another one is for all
// projects: it opens after 5 consecutive requests that got no connection. When three
// projects have an open one, and no project has had a valid response for 5 s, one failure
// opens that of the next. Failures of up to 1,024 projects are remembered.
//
// Responses are not cached: each allocate and each join sends a request.
//
// # Webhooks
//
// A webhook is a POST with an [Event] as JSON. Any 2xx status acknowledges it. Without
// one within 5 s the event is sent again after 1, 2, 4 and 8 s, and then dropped. The
// queue holds 4,096 events in memory, which are lost when the process ends; further
// events are dropped. An event may arrive twice, with the same id, and events may arrive
// in any order.
//
// # The signature
//
// Both messages have a signature if a secret is set; webhooks require one:
//
//	Ferry-Signature: t=1767323045,v1=5257a869e7…
//
// where t is the time in seconds since 1970 and v1 the HMAC-SHA256, in hexadecimal, of
// t in decimal, a full stop and the body, under the secret. A test vector: the secret
// "0123456789abcdef", t=1767323045 and the body
//
//	{"type":"ended"}
//
// result in v1=90a481d25bdbb424ae9b7ec4d0ee142dc0d065fd947ac92deefe3823df934881. A
// receiver should reject messages that are older than 5 minutes.
package hooks
