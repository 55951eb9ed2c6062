// Package hooks lets an operator's own programs have a say in who plays, and hear
// of it: an [Admission] asks one before each allocation, [Webhooks] tell one what
// became of them.
//
// It owns both messages, their signature, and what happens when the other side is
// slow or gone. Neither is in a datagram's way.
//
// # Admission
//
// A POST with a [Request] as JSON, answered with 200 and
//
//	{"allow": true}
//	{"allow": false, "reason": "banned until Friday"}
//
// The reason is shown to the player, up to 200 bytes. Anything else, be it another
// status, a redirect, a body that is none of these or larger than 4 KiB, or no answer
// within the time-out (1 s), is no answer. What then happens is the operator's choice:
// fail open lets everybody in, fail closed answers 503 until the program is back.
// At most 64 questions are under way; more wait within their time-out. After 5
// failures in a row nothing is asked for 5 s, and then one question at a time until
// one is answered. Who called before is not remembered: each allocate and each
// join asks.
//
// # Webhooks
//
// A POST for each [Event] as JSON. Any 2xx means that it was heard. Another answer,
// or none within 5 s, has it sent again after 1, 2, 4 and 8 s, and then dropped;
// 4,096 events wait in memory, further ones are dropped. Both are counted. Events may
// come twice, in any order, and are lost when the process ends. The id says which
// are the same one. [Webhooks.SetTarget] sends what waits, and all that comes, to another
// program or under another secret.
//
// # The signature
//
// Both carry, if there is a secret, which webhooks require,
//
//	Ferry-Signature: t=1767323045,v1=5257a869e7…
//
// where t is the time in seconds since 1970 and v1 the HMAC-SHA256, in hexadecimal, of
// t in decimal, a full stop and the body, under the secret. [Verify] is the other
// side in Go. A test vector: the secret "0123456789abcdef", t=1767323045 and the body
//
//	{"type":"ended"}
//
// make v1=90a481d25bdbb424ae9b7ec4d0ee142dc0d065fd947ac92deefe3823df934881. A
// receiver should refuse messages that are older than 5 minutes.
package hooks
