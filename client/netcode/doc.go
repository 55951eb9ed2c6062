// Package netcode is a connection layer for games: handshake, approval, RPCs,
// commands and snapshots between one server and its clients, over UDP, a relay or a
// network in memory. It offers what Netcode for Entities offers. Its packets are those of
// Unity Transport, its messages have a format of their own, so both sides must use this
// package.
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
// [HostRelay] and [JoinRelay] do the same over a relay, by join code.
//
// # A tick
//
//	d.Update(now)                            receive datagrams, run timers
//	d.Events()                               read changes of connections
//	conn.RPCs(), Commands(), Snapshot(), …   read received messages
//	conn.SendRPC, SendCommand, …             queue messages
//	d.Flush()                                send them, in as few packets as possible
//
// A [Driver] starts no goroutine and is not safe for concurrent use; [Driver.Run] is
// a loop of ticks. The caller passes the time. The same calls with the same
// datagrams, times and random bytes give the same datagrams. Returned slices and
// RPCs are valid until the next Update. In steady state nothing allocates, except the
// payloads of large RPCs, and no input causes a panic.
//
// # Messages
//
//	SendRPC        reliable and in order; a type with a codec, both directions
//	SendCommand    of a tick, client to server; repeated, each delivered once
//	SendSnapshot   of a tick, server to client; the newest one counts; acknowledged
//	SendMessage    unreliable bytes, both directions, as for voice or effects
//
// # Large RPCs
//
// An RPC that does not fit into one packet travels in parts, as the window of the reliable
// pipeline has room, over several ticks; the RPCs behind it wait. Limits.MaxRPCLen bounds its
// payload on both sides, Limits.MaxRPCQueue what waits at the sender. The receiver allocates
// the payload as its parts arrive. Before Connected an RPC must fit into one packet.
//
// # States
//
//	client: Connecting → Handshake → [Approval] → Connected → Disconnected
//	server:              Handshake → [Approval] → Connected → Disconnected
//
// Disconnected may follow any of them, and no state occurs twice. A connected connection also has
// the events Stalled, when nothing of the peer has come for four heartbeats, which is 2 s by default,
// and Resumed.
// Without delay, a connection takes these ticks:
//
//	tick  client event           server event           sent by Flush
//	1     Connecting                                    request
//	2                                                   accept with a cookie
//	3     Handshake                                     cookie, version
//	4                            Handshake, and         version, and
//	                             Connected or Approval  approved or approval request
//	5     Connected or Approval                         RPCs of the approval
//	6                            the game approves
//	7                            Connected              approved
//	8     Connected
//
// Before Connected only RPCs of [RegisterApprovalRPC] may pass; any other ends the
// connection of its sender. Commands and snapshots further need SetInGame on
// both sides; before that they are counted and ignored.
//
// A client whose connection was closed may connect again at once. Over a relay the
// DISCONNECT of the former link may arrive during the new attempt, which then
// requests a new link and continues.
//
// # Address validation and limits
//
// The source of a request may be forged, and its sender chooses the token of the connection.
// A server therefore keeps nothing of a client, and sends it nothing but the cookie, before
// the client has returned the cookie (RFC 9000, section 8): requests and heartbeats with
// forged sources take no place, cause no event, and are answered with less than three times
// their bytes. Over a relay the address is the allocation, which the relay has authenticated;
// the handshake is the same. A client that has proven its address has one of
// Limits.MaxHandshaking places until it is connected, and its source at most
// Limits.MaxHandshakingPerSource of them. A player that moves to another address keeps its
// connection, and proves the new address as well.
//
// The token alone, 8 random bytes in each datagram, identifies a connection: an attacker that
// reads the traffic can take it over. [DriverStats].Refused and Drops show a server under attack.
//
// One datagram has Limits.MaxMessageSize bytes, one Update takes 4096 of them, and one
// connection keeps 256 commands and 256 messages of it. At most 32 packets of RPCs are
// unacknowledged at a time; there is no congestion control.
//
// # Ticks and time
//
// Commands and snapshots come with jitter and loss. Package playout has a buffer that gives a
// server one command of a player for each tick, and a clock that tells a client which server
// time to show.
//
// # Differences from Netcode for Entities
//
//   - RPCs that arrive in an Update are available after it, not after the next
//   - a server has a connection from when the client has returned its cookie, which is with the
//     client's version, and so its Handshake event is two ticks later
//   - different versions give ReasonBadProtocolVersion, as documented there, with what differs,
//     see [VersionError]
//   - a client that a full server refuses has ReasonServerFull as Event.PeerReason
//   - a side that ends a connection sends the reason and a text; the event of the other side
//     has them as PeerReason and PeerText, and still ReasonClosedByRemote
//   - the handshake has a timeout on the client as well
//   - RequireApproval is a setting of the server alone; a client follows the server
//   - of several requests in one tick each gets its own result, see [Request]
//   - Broadcast returns the number of connections that it queued the RPC for
//   - a server gets all commands of a client that arrive, not only the newest of a tick
//   - a client in game that sends no commands acknowledges snapshots in datagrams of their own
//
// # Limitations
//
// Plain UDP is not encrypted: what an RPC during the approval carries, such as a password
// or a token, can be read and sent again by anyone on the path. Use a link over DTLS or QUIC,
// or tokens that are good for one connection and one moment.
//
// A server stops listening only by Close. There are no tick rates
// in the handshake, no identity that survives a reconnect, and no limit of
// bandwidth.
package netcode
