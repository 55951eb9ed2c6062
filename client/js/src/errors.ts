/** Why a connection ended, or why connect or send failed. */
export type Reason =
  | "closed" // close was called
  | "lost" // the relay could not be reached again
  | "in-use" // another session uses this allocation
  | "no-websocket" // this runtime has no WebSocket
  | "unreachable" // no WebSocket to the relay opens
  | "bind-timeout" // the relay does not answer BIND
  | "connect-timeout" // the relay does not answer CONNECT_REQUEST: the host has not bound yet, for example
  | "rejected" // the host has all the players it may have
  | "unauthorized" // ERROR 2: hostConnectionData is not for this player
  | "self-connect" // ERROR 6: hostConnectionData is the player's own
  | "idle-timeout" // ERROR 1: the relay ended the allocation, which was silent
  | "not-found" // ERROR 4: the allocation or its host has ended
  | "not-connected" // there is no link to a peer
  | "match-over" // no player can take the place of the host

export class RelayError extends Error {
  override readonly name = "RelayError"
  readonly reason: Reason

  constructor(reason: Reason, detail: string) {
    super("relay: " + detail)
    this.reason = reason
  }
}
