// Package netcode owns connections as a game sees them: handshake, approval,
// connected, disconnected and why; RPCs, commands and snapshots. It says over
// package utp what Netcode for Entities says, in the same outer shape and with
// bytes of its own, so that it talks to itself alone.
//
// # A tick
//
//	d.Update(now)                          what arrived, and what the time ended
//	d.ConnectionEventsForTick()            what became of connections
//	conn.RPCs(), Command(), Snapshot()     what they brought
//	conn.SendRPC, SendCommand, …           what the game says
//	d.Flush()                              all of it, in as few packets as can be
//
// A [Driver] belongs to one goroutine and has none; [Driver.Run] is for who wants
// a loop. The time is the caller's. The same calls with the same datagrams,
// times and random bytes give the same datagrams. What is handed out is valid
// until the next Update. In steady state nothing allocates, and nothing panics
// whatever arrives.
//
// # States
//
//	client: Connecting → Handshake → [Approval] → Connected → Disconnected
//	server:              Handshake → [Approval] → Connected → Disconnected
//
// Any of them may be followed by Disconnected at once, and none comes twice.
// Without delay, a connection takes these ticks:
//
//	tick  client event           server event           sent by Flush
//	1     Connecting                                    request
//	2                            Handshake              accept, version
//	3     Handshake                                     version
//	4                            Connected or Approval  approved, or the question
//	5     Connected or Approval                         RPCs of the approval
//	6                            the game approves
//	7                            Connected              approved
//	8     Connected
//
// Before Connected only RPCs with [DuringApproval] may pass; any other ends the
// connection of who sent it. Commands and snapshots further need SetInGame on
// both sides; before that they are counted and ignored.
//
// Who was thrown out may connect again at once. Over a relay the end of the former
// link may still be on its way then: the attempt asks for a new link and goes on.
//
// # Where Unity does otherwise
//
//   - RPCs that arrive in an Update are offered in it, not in the next
//   - different versions give ReasonBadProtocolVersion, as documented there
//   - a side that ends a connection tells the other why, see [CloseInfo]; the
//     event there still has ReasonClosedByRemote, and comes with the notice
//   - a client does not stay in the handshake for ever
//   - of several requests in one tick each gets its own result
//   - Broadcast returns how many it reached
//   - a command goes out once, without those of earlier ticks
//
// # Limitations
//
// A server can not stop listening other than by Close. There are no tick rates
// in the handshake, no identity that survives a reconnect, and no limit of
// bytes per second.
package netcode
