// Package fleet tests several ferry processes as one fleet: no player notices when
// one of them fails. It contains only tests, with the build tag lab. They use the
// namespaces, processes and players of package lab, the built ferry binary and a
// real store: redis-server, or the program that REDIS_SERVER names, such as valkey-server.
//
//	players ─┬─ bridge ─┬─ relay1, relay2 (region eu), relay3 (region us)
//	         │          ├─ api1, api2
//	         │          └─ store (redis-server)
//
// Each name is a network namespace. All machines also have a private address, over
// which they reach the store and each other:
//
//	203.0.113.2         players, with 198.18.0.0/16 for joiners, 198.19.0.0/16 for hosts
//	203.0.113.11 to 13  relays, 10.77.0.11 to 13
//	203.0.113.21, 22    API nodes, 10.77.0.21, 22
//	10.77.0.5           store
//
// Backends call the API nodes as through a load balancer: in turn, without nodes
// that refuse connections, and with one retry on the other node after a server
// error. All scenarios run one after the other on the same fleet and the same
// matches. A table at the end shows the results.
//
// Of ten matches seven use UDP on the shared sockets of a lab.Fleet. One uses DTLS,
// one WebSocket, and one has a host on DTLS and a joiner on WebSocket; these are
// lab.GameClients with a connection each, which reconnect and bind again when the
// relay is silent for 2 s or closes the connection; [lab.GameClient] describes the
// differences to Unity's client. The API directs WebSocket players to a wss name,
// where a proxy would terminate TLS; they use ws to the relay's port, as that proxy
// does.
//
//	go test -tags lab ./scripts/fleet -v                                the quick form
//	go test -tags lab ./scripts/fleet -v -fleet.matches 1000 -long      also checks goals of time
//
// The quick form checks counts: losses, refusals and placement. Durations are in
// the table of both forms; the long form checks them.
package fleet
