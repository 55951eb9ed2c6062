// Package cluster is the call from an API process to a relay of its fleet: what
// reserves a place there, and takes it back when the answer is lost; and what an
// operator has any relay do through any API. It owns the
// listener of a relay (7779/tcp), the connections of an API to all relays, and
// the certificates by which they know each other. Which relay is asked is the
// business of package fleet, and what a relay does with the question its own.
//
// # The calls
//
// HTTPS with TLS 1.3, HTTP/1.1, POST, JSON. Members that are unknown, missing,
// null or there twice are refused, so a relay is brought up to date before the
// APIs that ask it. Every call has the header Ferry-Deadline-Ms, 1 to 10000:
// what its caller still waits, from arrival on. No clocks are compared.
//
//	/cluster/v1/reserve-host    api         project, environment, player, maxConnections
//	/cluster/v1/reserve-joiner  api         project, environment, player, host
//	/cluster/v1/describe        api, admin  id
//	/cluster/v1/keep-code       api         host, code
//	/cluster/v1/end             api         id
//	/cluster/v1/cancel          api         keys
//	/cluster/v1/drain           api, admin  deadlineMs, threshold; -1: the relay's own
//	/cluster/v1/undrain         api, admin
//	/cluster/v1/kick            api, admin  id
//	/cluster/v1/close           api, admin  id
//	/cluster/v1/page            api, admin  target: a path of the relay's admin pages
//
// The last five are an operator's ([Operator]). The relay logs what it did for one,
// with the name in the certificate of who asked; close is end for people, and page
// shows and changes nothing. They are safe to repeat: who hears no answer asks
// again.
//
// An answer has status 200, or it is a verdict: {"error": name, "detail": text}.
// The errors of package alloc, and of an operator's calls, travel by name and are
// the same errors on the other side. All others are alloc.ErrUnavailable there, with the reason in the text.
//
// # A reservation is made once, or ended
//
// Both reservations carry an Idempotency-Key, 128 random bits. The relay
// remembers what became of it for 10 s:
//
//   - The same call again gets the same bytes. It waits for the first one if that
//     is still under way. A key with another call is refused.
//   - What the relay makes after the deadline is ended at once, and so is what it
//     makes for a key that was cancelled meanwhile.
//   - An API that hears no answer cancels the key in the background, for 10 s. A
//     key that is cancelled before its call has come refuses it.
//
// So a place leaks in one case only: the relay made it in time, and the API died
// before it could tell anybody. It then lapses as a reservation that nobody
// binds, after 10 s by default. A call whose connection breaks is sent again to
// the same relay, by package net/http, which knows the header. Nothing here asks
// another relay.
//
// # Who is believed
//
// All certificates are signed by the cluster's authority, and each names one role
// as the URI ferry:role:api, :relay or :admin. That of a relay names its relay id
// as a DNS name, which is all that a caller goes by: whoever takes over a relay's
// address cannot answer there, and whoever takes an API's certificate cannot pass
// for a relay. No session is resumed.
//
// Whoever takes an API's key and reaches the listeners can reserve all places, see
// the ids and addresses of those who play, end and kick them, and drain every
// relay. A drain with a deadline of a millisecond ends the relay with all that it
// holds, so that key is worth the whole fleet; an admin's is worth the same but for
// the places. No call tells the keys of those who play. A relay's certificate does
// nothing at other relays. Each person's certificate of role admin, and each API's,
// should have a name of its own (--name), which the log then has.
//
// Files are looked at every 10 s. New ones are in force for new connections if
// they would be believed by a peer with the same authority; otherwise those
// before stay, and the log has the reason. Connections end with the first answer
// after 5 minutes, so that is how long an authority that was taken out is still
// believed. To replace it: put both into everybody's file of authorities, issue
// new certificates, take the old one out.
//
// [NewCA] and [CA.Issue] make the files. So do these lines, with OpenSSL 3:
//
//	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 \
//	  -subj "/CN=ferry cluster" -addext keyUsage=critical,keyCertSign,cRLSign \
//	  -addext basicConstraints=critical,CA:TRUE,pathlen:0 -keyout ca-key.pem -out ca.pem
//
// For each API:
//
//	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=api" \
//	  -addext subjectAltName=URI:ferry:role:api -addext extendedKeyUsage=clientAuth \
//	  -addext keyUsage=critical,digitalSignature -keyout api-key.pem -out api.csr
//	openssl x509 -req -in api.csr -copy_extensions copy -days 365 \
//	  -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out api.pem
//
// And for each relay, with its own id:
//
//	RELAY=6f1de3a2-5f34-4a3e-9d4c-0a5f3a1b2c3d
//	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=relay" \
//	  -addext subjectAltName=URI:ferry:role:relay,DNS:$RELAY -addext extendedKeyUsage=serverAuth \
//	  -addext keyUsage=critical,digitalSignature -keyout relay-key.pem -out relay.csr
//	openssl x509 -req -in relay.csr -copy_extensions copy -days 365 \
//	  -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out relay.pem
//
// # Limits
//
//	4 KiB     body of a call; 16 KiB of an answer, and a page of 1 MiB
//	5 s       to shake hands; to send a call
//	1,024     connections to a relay, 128 from one address
//	1,024     reservations under way at a relay; then "busy"
//	32,768    keys remembered by a relay, below 30 MiB; then the oldest goes early
//	16        calls under way from one API to one relay; the next waits for half
//	          of its time
//	4,096     keys that wait to be cancelled at one relay; then one lapses
//	4,096     relays that an API reaches
//
// # Figures
//
// Both sides in one process on two cores, nearly idle but for it, three runs,
// connections not open yet, 2026-11-22, Go 1.26.8, with
// go test ./internal/cluster -run ^$ -bench . -benchtime 8000x
//
//	                             HTTP/1.1, 16 conns   HTTP/2
//	a call, one after another    161 to 209 µs        240 to 290 µs
//	allocations of both sides    236, 21 kB           249, 26 kB
//	2,000/s: p50                 0.7 to 0.8 ms        0.9 ms
//	2,000/s: p99                 2.4 to 4.9 ms        2.9 to 3.5 ms
//	2,000/s: part of one core    56 to 67 %           74 to 82 %
//	500 ms of standstill, where
//	500 calls have to fail       735 to 740 fail      536 to 567 fail
//	2,000/s with half a core,
//	6,000 calls                  696 fail             2,410 fail
//
// So it is HTTP/1.1. A handshake takes 2.5 ms of both sides together, which is
// why the pool is small: with 64 connections the standstill cost 3,900 to 5,700
// of 6,000 calls, and with 16 and no bound on the wait for one, 600 to 3,800.
//
// # Limitations
//
// The listener belongs into a private network all the same. A stranger gets no
// further than the handshake, but with eight addresses can hold all connections
// for the 5 s that a handshake may take, over and over; APIs that are connected
// notice nothing of it, for up to 5 minutes. There is no list of revoked
// certificates: what is stolen is believed until it ends or the authority is
// replaced.
package cluster
