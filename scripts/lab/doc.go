// Package lab is the network laboratory: the built ferry binary in a network of
// its own, players who behave as Unity Transport does, and attackers and
// faults around them. It owns what no other package has: network namespaces,
// datagrams with forged sources, a faulty network, and the verdict from outside
// on what the relay promises under attack and after a crash. It is a black box:
// it knows the wire, the API and the process, and shares no code with the engine.
//
//	clients ── veth ──┐
//	peers ─── veth ──── relay (ferry, 203.0.113.77:7777)
//	victim ── veth ──┘
//
// A [Fleet] is many players over plain UDP on few sockets; a [GameClient] is one
// player over UDP, DTLS or WebSocket, who comes back when the relay was gone.
//
// The four are network namespaces made by `ip netns` (iproute2), named after the
// process of the test, without any way to the outside: whatever is forged in
// here stays in here. Addresses are those that are set aside for tests and
// documentation, so that the relay takes them for public ones:
//
//	198.18.0.0/16      local in clients; the lower half belongs to joiners, the
//	                   upper one to attackers
//	198.19.0.0/16      local in peers: hosts
//	198.51.100.128/25  local in victim: joiners of whom the relay is cut off
//	203.0.113.77       the relay
//	203.0.113.130      the victim
//
// Tests of both families add 2001:db8:18::/64 in clients, 2001:db8:19::/64 in
// peers and 2001:db8:77::77 for the relay.
//
// # Cleaning up
//
// A shell that waits for the end of the test's process deletes the namespaces and
// control groups and kills what runs in them, also after a panic or a kill. A
// test that ends well does it itself. File systems of a test are the relay's
// alone and end with it.
//
// # Running it
//
// What needs root is behind the build tag lab:
//
//	go test ./scripts/lab                          the parts that need no root
//	go test -tags lab ./scripts/lab                the quick form of everything
//	go test -tags lab ./scripts/lab -run Flood -flood.duration 60s
//	go test -tags lab ./scripts/lab -run Soak -soak.duration 1h -long -timeout 2h
//
// Quick forms decide by counts. Long forms, by flags, decide by the goals of
// reliability-security.md 6.4 as well.
package lab
