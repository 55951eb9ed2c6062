// Package fleet shows that many machines behave as one: it owns the proof that
// no player notices when one of them dies. It has tests only, behind the build
// tag lab, and works with the namespaces, processes and players of package lab
// on the built ferry binary and a real redis-server.
//
//	players ─┬─ bridge ─┬─ relay1, relay2 (region eu), relay3 (region us)
//	         │          ├─ api1, api2
//	         │          └─ store (redis-server)
//
// Each of the names is a network namespace. All machines have a private address
// besides, over which they reach the store and each other:
//
//	203.0.113.2         players, with 198.18.0.0/16 for joiners, 198.19.0.0/16 for hosts
//	203.0.113.11 to 13  relays, 10.77.0.11 to 13
//	203.0.113.21, 22    API nodes, 10.77.0.21, 22
//	10.77.0.5           store
//
// Backends call the API nodes as through a load balancer: in turn, without those
// that take no connection, and the other one once when a call fails by the
// server's fault. All scenarios follow each other on one fleet under the same
// matches, as on an operator's bad day, and one table at the end says what the
// players saw.
//
// Of ten matches seven play over UDP on the shared sockets of a lab.Fleet; one
// over DTLS, one over WebSocket, and one with a host on DTLS whom a player joins
// by WebSocket are lab.GameClients with a connection each. When the relay is silent
// for 2 s or hangs up, those make a new one, by a new handshake, and bind again;
// what a Visitor does that Unity's client does not is said there. The API leads
// players of WebSocket to wss at a name, where a proxy would take TLS off; they
// use ws to the relay's port, as that proxy does.
//
//	go test -tags lab ./scripts/fleet -v                                the quick form
//	go test -tags lab ./scripts/fleet -v -fleet.matches 1000 -long      decides by goals of time as well
//
// Quick forms decide by counts: what was lost, refused or placed wrongly. How
// long something took is in the table of both forms, and decides in the long one.
package fleet
