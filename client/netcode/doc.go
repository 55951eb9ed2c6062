// Package netcode is a connection layer for games: handshake, approval, RPCs, commands and
// snapshots between one server and its clients, over UDP, a relay or a network in memory. It offers
// what Netcode for Entities offers. Its packets are those of Unity Transport, its messages have a
// format of their own, so both sides must use this package.
//
// A server that prints the RPCs of its clients:
//
//	rpcs := new(netcode.RPCRegistry)
//	chat, err := netcode.RegisterRPC(rpcs, "chat", netcode.Raw())
//	d, err := netcode.NewServer(netcode.Config{RPCs: rpcs})
//	err = d.Listen(address.FromUDP(netip.MustParseAddrPort("0.0.0.0:7979")))
//	err = d.Run(ctx, 60, func(now time.Time, tick uint32) {
//		for conn := range d.Conns() {
//			for rpc := range conn.RPCs() {
//				if text, ok := chat.From(rpc); ok {
//					fmt.Printf("%d: %s\n", conn.NetworkID(), text)
//				}
//			}
//		}
//	})
//
// [HostRelay] and [JoinRelay] do the same over a relay, by join code. [MigrateRelay] goes on
// without a host that has left.
//
// # A tick
//
//	d.Update(now)                            receive datagrams, run timers
//	d.Events()                               read changes of connections
//	conn.RPCs(), Commands(), Snapshot(), …   read received messages
//	conn.SendRPC, SendCommand, …             queue messages
//	d.Flush()                                send them, in as few packets as possible
//
// A [Driver] starts no goroutine and is not safe for concurrent use; [Driver.Run] is a loop of
// ticks. The same calls with the same datagrams, times and random bytes give the same datagrams.
// What it returns is valid until the next Update. In steady state nothing allocates, except the
// payloads of large RPCs, and no input causes a panic. Package playout buffers commands and
// snapshots against jitter.
//
// # Messages
//
//	SendRPC        reliable and in order; a type with a codec, both directions
//	SendCommand    of a tick, client to server; repeated, each delivered once
//	SendSnapshot   of a tick, server to client; the newest one counts; acknowledged
//	SendMessage    unreliable bytes, both directions, as for voice or effects
//
// # States
//
//	client: Connecting → Handshake → [Approval] → Connected → Disconnected
//	server:              Handshake → [Approval] → Connected → Disconnected
//
// Disconnected may follow any of them, and no state occurs twice. A connected connection also has
// the events Stalled, when nothing of the peer has come for four heartbeats, and Resumed. Without
// delay a client is connected in the fifth tick, or in the second after the game's approval.
//
// Before Connected only RPCs of [RegisterApprovalRPC] may pass; any other ends the
// connection of its sender. Commands and snapshots further need SetInGame on
// both sides; before that they are counted and ignored.
//
// # Address validation and limits
//
// A server keeps nothing of a client, and sends it nothing but a cookie, before the client has
// returned the cookie (RFC 9000, section 8): requests with forged sources take no place, cause no
// event, and are answered with less than three times their bytes. A client that has proven its
// address has one of Limits.MaxHandshaking places until it is connected. A player that moves to
// another address keeps its connection, and proves the new address as well.
//
// The token alone, 8 random bytes in each datagram, identifies a connection: an attacker that
// reads the traffic can take it over. [DriverStats].Refused and Drops show a server under attack.
//
// One datagram has Limits.MaxMessageSize bytes, one Update takes 4096 of them, and one
// connection keeps 256 commands and 256 messages of it. At most 32 packets of RPCs are
// unacknowledged at a time; there is no congestion control.
//
// # Differences from Netcode for Entities
//
//   - RPCs that arrive in an Update are available after it, not after the next
//   - a server has a connection, and its Handshake event, when the client has returned its cookie
//   - different versions give ReasonBadProtocolVersion with a [VersionError]
//   - a client that a full server refuses has ReasonServerFull as Event.PeerReason
//   - a side that ends a connection sends a reason and a text, Event.PeerReason and PeerText
//   - the handshake has a timeout on the client as well
//   - RequireApproval is a setting of the server alone; a client follows the server
//   - a server gets all commands of a client that arrive, not only the newest of a tick
//
// # Limitations
//
// Plain UDP is not encrypted: what an RPC during the approval carries, such as a password
// or a token, can be read and sent again by anyone on the path. Use a link over DTLS or QUIC,
// or tokens that are good for one connection and one moment.
//
// A server stops listening only by Close. There is no identity that survives a reconnect, and no
// limit of bandwidth.
package netcode
