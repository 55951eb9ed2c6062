// Package dtls is the way into the relay by DTLS 1.2 with a pre-shared key, on
// the relay's UDP port. It owns the handshakes, the keys and the records; the
// messages inside are the engine's.
//
//	r, err := dtls.New(dtls.Config{PSK: keyOf})
//	// r is an engine.Records: the engine calls Open, Alive, Seal and Run
//
// # One session's life
//
//	ClientHello           67 bytes or more: parsed, and a suite chosen
//	  HelloVerifyRequest  44 bytes, and nothing is remembered
//	  ServerHello(Done)   75 to 86 bytes: a handshake is under way
//	ClientKeyExchange     kept; it names the allocation
//	Finished              keys are derived and the Finished is checked: a session
//	  Finished            75 bytes
//	application data      opened and sealed by the relay's workers
//	close_notify          authentic: the session ends. So it does when idle
//
// The key of the handshake is the allocation's (Config.PSK), the identity its id:
// 16 bytes, or text. Cipher suites: TLS_PSK_WITH_AES_128_GCM_SHA256 and
// TLS_PSK_WITH_AES_256_GCM_SHA384. With a pre-shared key alone there is no forward
// secrecy: an attacker that records a session and learns the key of the allocation
// later can read it. Real clients have no other key.
//
// # Ownership
//
//	handshakes of a source prefix    the worker that the prefix is given to
//	sessions in the table            added and removed under the table's lock, read by
//	                                 any goroutine without it
//	window, sequence number, clocks  atomics of the session
//	datagrams                        a ring per worker: Open fills, the worker empties
//
// Goroutines: Config.Workers and one that keeps the time, none per handshake or
// session. Memory: Config.Queue datagrams of 1.5 KB per worker, below 1 KB per
// handshake and 3 KB at its last step, 2 KB per session; all bounded by Config.
//
// # Why the flights are ours
//
// The key schedule is pion's (github.com/pion/dtls/v3/pkg/crypto/prf). Its
// connections are not used: a pion server makes its cookie at random and keeps it
// with some goroutines and timers for each ClientHello, forged or not, and the
// cookie is part of what both Finished cover, so a stateless one cannot be put
// around it, nor can the messages be renumbered. It also answers failures with
// plain alerts, at which real clients give up. With a pre-shared key alone there
// are four messages to understand; pion's client, OpenSSL's and Mbed TLS's agree
// with what is made here.
//
// # What an attacker can do
//
// An answer to a hello without a cookie is never larger than that hello, and each
// datagram earns one at most, however many messages and records are in it: what
// follows a ClientHello is not heard. We repeat nothing on our own. Below Config.Direct
// handshakes under way, and below half of HalfOpenPerPrefix of one prefix, a hello
// is answered with a ServerHello at once, since clients of UTP 2.0.2 to 2.6.0 that
// re-home understand nothing else; above, if the ServerHello were larger than the
// hello, and where another handshake is under way, it earns a cookie first. The
// rest of the places are for those with a cookie, so forged sources cannot take
// them. An attacker with sources of its own can hold HalfOpenPerPrefix places of
// each prefix for HandshakeTimeout; where all HalfOpen are taken the oldest handshake
// makes room for the next one with a cookie.
//
// What cannot be decrypted, alerts in plain text, unknown identities and wrong
// keys are met with silence and counted ([Event]). A ClientKeyExchange is plain
// and may be forged: the latest is tried, and a wrong Finished ends nothing. A
// ClientHello has to come in one piece, as with OpenSSL's and Mbed TLS's servers.
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
// # A hello where a session lives
//
// A real client that heard nothing for 2 s says hello beside its session, again
// each second, and gives that up when the answer to its PING comes; so a lone host
// does all the time. One that was killed and started again on the same port says
// hello too, and its session is silent. So nothing is answered there while records
// of the session come, nor for Config.Quiet after the first hello since the last
// record. After that a handshake runs beside the session, and takes its place when
// it is finished; the session is heard until then. If it is of the same allocation
// it keeps the serial, so what is bound to it goes on: a real client says no BIND
// in its new session. A hello with a good cookie is always answered: its client
// has left the old session already.
//
// # After a restart
//
// A session goes on in the next process if it is in Config.Sessions: real clients
// before UTP 2.7 hardly ever handshake again. The file holds the public part of
// the handshake, from which the keys follow anew, and two bounds:
//
//	Sent      above every sequence number that was sealed
//	Received  above every sequence number that was accepted
//
// A bound is stored before a number at or above it is used. The next process seals
// from Sent on and accepts nothing below Received, so no pair of key and nonce is
// used twice, and no record is accepted twice, wherever the process was killed. The
// price is what was reserved and not used: numbers of ours, which no client misses,
// and a client's records of at most some 200 ms. docs/security.md has the whole
// argument, and what is not believed.
//
// Sessions of the process before are dormant until the first authentic record
// comes, which costs the keys once. They keep their serial, and with it the
// binding that the relay's state file has.
package dtls
