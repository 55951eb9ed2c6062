// Package rpc implements the protocol between API processes and the relays of a fleet:
// reservations, their cancellation when an answer is lost, and the commands of operators.
//
// [Server] is the listener of a relay (7779/tcp), [Dialer] holds an API's connections to all
// relays, and [CA] issues the certificates of both. Package placement chooses the relay of a call.
//
// # The calls
//
// A call is an HTTPS request (TLS 1.3, HTTP/1.1, POST) with a JSON object. Unknown members are
// ignored, and members that the first version did not have may be missing; a missing, null or
// repeated one of the first version is refused. What changes the meaning of a call has another
// path, and an API process asks a relay only for what its announcement names
// (placement.Capability), so the processes of a fleet are upgraded in any order. Every call has
// the header Ferry-Deadline-Ms, 1 to 10000: the time that the caller waits, from the arrival of
// the call on. No clocks are compared.
//
//	/cluster/v1/reserve-host    api         project, environment, player, maxConnections;
//	                            may be missing: playerName, individual, tag
//	/cluster/v1/reserve-joiner  api         project, environment, player, host;
//	                            may be missing: playerName, individual, tag
//	/cluster/v1/migrate         api         project, environment, player, host, code,
//	                            ticket, clientAddress
//	/cluster/v1/leave           api         project, environment, player, host;
//	                            may be missing: proof
//	/cluster/v1/describe        api, admin  id
//	/cluster/v1/keep-code       api         host, code
//	/cluster/v1/end             api         id
//	/cluster/v1/cancel          api         keys
//	/cluster/v1/drain           api, admin  deadlineMs, threshold; -1: the relay's setting
//	/cluster/v1/undrain         api, admin
//	/cluster/v1/kick            api, admin  id
//	/cluster/v1/close           api, admin  id
//	/cluster/v1/page            api, admin  target: a path of the relay's admin pages
//
// The last five are idempotent commands of operators ([Operator]). The relay logs all of them
// but page with the name in the caller's certificate.
//
// An answer has status 200 and the result, or another status and {"error": name, "detail": text}.
// The errors of package alloc and of [Operator] are sent by name; "migration" has the reason and
// the time to wait in two further members, "host-present" the id of the host, and "player-limit" the
// limit, which earlier versions do not send. All other errors become alloc.ErrUnavailable with the
// reason in the text.
//
// # Idempotency of reservations
//
// Reservations, of which migrate is one, have an Idempotency-Key of 128 random bits. The relay
// keeps the outcome for 10 s:
//
//   - A repeated call gets the same bytes, after the first one if that is still in progress. A
//     key with a different call is refused.
//   - A reservation that is made after the deadline, or after its key was cancelled, is ended at once.
//   - An API process without an answer cancels the key in the background, for up to 10 s. If the
//     cancellation arrives before the call, the call is refused.
//
// So a seat leaks only if the relay makes the reservation in time and the API process dies before
// it uses the answer; it then expires unbound. Package net/http repeats a call whose connection
// breaks, at the same relay. This package never tries another relay.
//
// # Authentication
//
// The CA of the cluster signs all certificates. Each has one role, as the URI ferry:role:api,
// :relay or :admin. A relay's certificate has its relay id as a DNS name, which the caller
// verifies. Sessions are not resumed. The key of an API process, or of an admin, is worth the
// whole fleet, since it drains relays; that of a relay permits no calls.
//
// The files are checked every 10 s. Changed files apply to new connections if a peer with the
// same CA would accept them; otherwise the previous ones stay in use and the reason is logged.
// The CA file may hold revocation lists ([CA.Revoke], or openssl ca -gencrl): a revoked
// certificate opens no connection, and a relay refuses the next call on an open one, as for a
// certificate that has expired. A list takes effect at the nodes whose CA file has it. A
// connection is closed with its first answer after 5 minutes, so a removed CA is trusted for
// that long.
//
// testdata/openssl.sh makes the files of [NewCA] and [CA.Issue] with OpenSSL.
//
// # Limits
//
//	4 KiB     body of a call; 16 KiB of an answer, and 1 MiB of a page
//	5 s       for a handshake, and to send a call
//	1,024     connections to a relay, 128 from one address
//	1,024     reservations in progress at a relay; then "busy"
//	32,768    outcomes that a relay keeps, below 30 MiB; then the oldest is dropped
//	16        calls in progress from one API process to one relay; the next waits for
//	          up to half of its time
//	4,096     keys that wait to be cancelled at one relay; further ones are dropped
//	4,096     relays of an API process
//
// An unauthenticated client with eight addresses can hold all connections of a relay for the 5 s
// of a handshake, repeatedly, so the listener belongs into a private network.
package rpc
