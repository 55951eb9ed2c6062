// Package dtls serves DTLS 1.2 with a pre-shared key on the UDP port of a relay. It
// owns the handshakes, the keys and the records; the engine interprets the messages.
//
//	r, err := dtls.New(dtls.Config{})
//	// engine.Config.Records is r: the engine calls Open, Alive, Seal and Run
//
// # Handshake and session
//
//	ClientHello           67 bytes or more: parsed, and a suite chosen
//	  HelloVerifyRequest  44 bytes, without state
//	  ServerHello(Done)   75 to 86 bytes: the handshake is half open
//	ClientKeyExchange     stored; it names the allocation
//	Finished              keys are derived and the Finished is verified: the
//	                      session is established
//	  Finished            75 bytes
//	application data      opened and sealed by the relay's workers
//	close_notify          authentic: the session ends; so it does when idle
//
// The key of the handshake is the allocation's, the identity its id:
// 16 bytes, or text. Cipher suites: TLS_PSK_WITH_AES_128_GCM_SHA256 and
// TLS_PSK_WITH_AES_256_GCM_SHA384. With a pre-shared key alone there is no forward
// secrecy: an attacker that records a session and learns the key of the allocation
// later can decrypt it. Real clients have no other key.
//
// # Ownership
//
//	handshakes of a source prefix    the worker that the prefix is assigned to
//	sessions in the table            added and removed under the table's lock, read by
//	                                 any goroutine without it
//	window, sequence number, clocks  atomics of the session
//	datagrams                        two queues per worker: Open fills, the worker empties
//
// Goroutines: two and one for timeouts, none per handshake or
// session. Memory: 2,560 datagrams of 1.5 KB per worker, below 1 KB
// per handshake and 3 KB at its last step, 2 KB per session; all bounded by Config.
//
// # Why not a library's handshake
//
// The key schedule is pion's (github.com/pion/dtls/v3/pkg/crypto/prf). Its
// connections are not used: for each ClientHello, forged or not, a pion server
// keeps a random cookie, goroutines and timers. Both Finished cover the cookie, so
// a stateless one cannot be added around it, nor can messages be renumbered. It
// also answers errors with plain alerts, after which real clients give up. With a
// pre-shared key alone there are four messages to parse. The tests run the
// handshake with the clients of pion and OpenSSL.
//
// # Attacks
//
// An answer to a hello is never larger than the hello, and our last flight never larger
// than that of the client since our last answer: a client whose flight comes in several
// datagrams, as those of OpenSSL do when repeated, is answered at the last of them. Each
// datagram gets one answer at most, whatever the number of its messages and
// records, and nothing after a ClientHello is processed. Nothing is retransmitted
// without a request. Answers to hellos without a valid cookie are limited by source
// prefix, to 1,000 a second; an attacker that forges more than that with the address of
// a player delays its handshake. A hello is answered with a ServerHello at once while there are
// fewer than 256 handshakes without a cookie, and fewer than 32
// of its prefix, since clients of UTP 2.0.2 to 2.6.0 that
// reconnect understand nothing else. Above these limits, if the ServerHello is
// larger than the hello, and if its source has another half-open handshake, it is
// answered with a cookie. The other half-open handshakes are reserved for clients
// with a cookie, so forged sources cannot take them. At the limit of its prefix, a new
// handshake with a cookie evicts the oldest of the prefix, those without a cookie
// first; at the limit of 4,096, the oldest of all.
//
// Key derivations are limited by handshake and by prefix. Nothing carries over from a
// handshake that may have been forged to one with a cookie.
//
// ClientHellos without a cookie have a queue of their own, and a source prefix has a
// share of each queue, so a flood of either does not displace the rest of a handshake.
//
// A session to which no allocation is bound within 5 s ends (15 s if the allocation is
// bound to another session, since a client that moved binds only after ERROR 3). At most
// a quarter of the table holds unbound sessions of one prefix. When the table is full, a
// new session replaces an unbound one: of the prefix with most of these, first one to
// which an allocation was bound before, then the oldest. A bound session is never evicted.
//
// The key follows from the relay's master key and the id, so a valid Finished proves that
// the relay issued the id, even if it has forgotten it. The handshake of an allocation
// that has ended is therefore finished, since its client needs ERROR 4: without an answer
// a game waits for ever. Such sessions are unbindable, and an attacker may have the keys
// of very many allocations that have ended. They take at most a sixteenth of the table,
// and the prefix with most of them loses the oldest. They are the first to end when the
// table is full, and end no other session, at their source neither. An unbindable session
// ends 5 s after the handshake, or 2 s after ERROR 4, which a client that did not receive
// it requests again after 1 s. It is not stored and not handed over, so it never resumes.
// Key derivations for ids that cannot be bound are limited to 2,000 a second in all.
//
// Undecryptable records, alerts in plain text, malformed identities and wrong keys
// are counted ([Event]) and not answered. A ClientKeyExchange is not authenticated
// and may be forged: the latest is used, and a wrong Finished does not end the
// handshake. A ClientHello must not be fragmented, as with the servers of OpenSSL
// and Mbed TLS.
//
// # Sizes
//
// In bytes of UDP content, as measured by the tests (Mbed TLS: by hand, 2.28.3):
//
//	ClientHello                                      answer directly
//	  67  no extensions, one suite                   44, a cookie: 75 would be more
//	  82  extended master secret, renegotiation,     44, a cookie: 86 would be more
//	      one suite and nothing else
//	 122  pion, one suite                            86
//	 126  Mbed TLS, one suite, name of 12 datagrams    86
//	 136  pion, one suite, name "relay"              86
//	 416  Mbed TLS, all suites                       86
//
// Mbed TLS without a name sends 105. A record is 37 bytes longer than its message.
//
// # A hello from the source of a session
//
// A real client that received nothing for 2 s sends a ClientHello beside its
// session every second, and stops when the answer to its PING is received. A host
// without players does so all the time. A client that was killed and started again
// on the same port sends a ClientHello too, and no records of its old session. A
// hello is therefore not answered while records of the session are received, nor
// for 2.5 s after the first hello since the last record. After that a
// handshake runs beside the session and replaces it when it is finished. A session
// of the same allocation keeps the serial and so the binding, since a real client
// sends no BIND in its new session. A hello with a valid cookie is always answered,
// since its client has left the old session.
//
// # After a restart
//
// A session resumes in the next process if it is in Config.Sessions, since real
// clients before UTP 2.7 hardly ever start another handshake. The file holds the
// public part of the handshake, from which the keys are derived, and two bounds:
//
//	Sent      above every sequence number that was sealed
//	Received  above every sequence number that was accepted
//
// A bound is stored before a number at or above it is used. The next process seals
// from Sent on and accepts nothing below Received. No pair of key and nonce is used
// twice, and no record is accepted twice, wherever the process was killed. Reserved
// numbers that were not used are lost: those of the relay, which clients tolerate,
// and a client's records of about 200 ms at most. docs/security.md has the complete
// argument.
//
// Sessions of the previous process are dormant: the keys are derived once, when the
// first record is received, if the allocation can still be bound. A session keeps its
// serial, and with it the binding that is in the relay's state file. It ends when its
// allocation was not bound again and cannot come back.
package dtls
