// Package lab tests the built ferry binary in a network of its own, with
// simulated players, attackers and faults. It creates network namespaces, sends
// datagrams with forged sources, injects network faults, and checks the relay's
// guarantees under attack and after a crash from outside: it uses the wire
// protocol, the API and the process, and no code of the engine.
//
//	clients ── veth ──┐
//	peers ─── veth ──── relay (ferry, 203.0.113.77:7777)
//	victim ── veth ──┘
//
// A [Fleet] runs many players over plain UDP on few sockets. A [GameClient] is one
// player over UDP, DTLS or WebSocket that reconnects when the relay was gone.
//
// The four names are network namespaces made by `ip netns` (iproute2) and named
// after the test's process. They have no route to the outside, so no forged
// datagram leaves them. The addresses are reserved for tests and documentation;
// the relay treats them as public:
//
//	198.18.0.0/16      local in clients: joiners in the lower half, attackers
//	                   in the upper half
//	198.19.0.0/16      local in peers: hosts
//	198.51.100.128/25  local in victim: joiners that the relay cannot reach
//	203.0.113.77       the relay
//	203.0.113.130      the victim
//
// Tests of IPv6 add 2001:db8:18::/64 in clients, 2001:db8:19::/64 in peers and
// 2001:db8:77::77 for the relay.
//
// Rows of the world (TestWorld) add a router between clients and the relay, whose paths
// may be narrow and whose addresses may be translated (nftables):
//
//	clients ── veth ── router ── veth ── relay
//
// Not covered: loss and delay (netem is not in every kernel; the simulation of engine has both), VLANs
// and bonds, several queues of a network card, IPv6 without a global address, NAT64, and
// the real transition of a radio.
//
// # Cleanup
//
// A [CleanupProcess] waits for the end of the test's process, then kills the
// processes in the namespaces and deletes the namespaces and control groups, also
// after a panic or a kill. A test that ends normally triggers it itself. Mounts of
// a test are private to the relay and end with it.
//
// # Running
//
// Tests that need root have the build tag lab:
//
//	go test ./scripts/lab                          tests that need no root
//	go test -tags lab ./scripts/lab                quick form of all tests
//	make attack                                    attacks at full rates, and a table
//	make world                                     a small game in each network, and a table
//	go test -tags lab ./scripts/lab -run Flood -flood.duration 60s
//	go test -tags lab ./scripts/lab -run Soak -soak.duration 1h -long -timeout 2h
//
// At the end, the tests print a table of what each attack cost the honest side.
// With -ferry they test another binary, such as that of an older version.
//
// The quick form checks counts only. With -long, the tests also check goals of
// time, rate and loss, which need an otherwise idle machine.
package lab
