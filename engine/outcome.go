package engine

// Outcome is what became of one datagram. Every datagram received ends in
// exactly one, so the outcomes add up to the datagrams received, but for those
// that wait for the control goroutine.
type Outcome uint8

// What was done.
const (
	// OutRelayed: a RELAY was forwarded to the peer.
	OutRelayed Outcome = iota
	// OutPong: a PING was echoed.
	OutPong
	// OutBound: a BIND was answered with BIND_RECEIVED.
	OutBound
	// OutAccepted: a CONNECT_REQUEST was answered with ACCEPTED.
	OutAccepted
	// OutRejected: a CONNECT_REQUEST to a full host was answered with REJECTED.
	OutRejected
	// OutDisconnected: a DISCONNECT was echoed, and forwarded if there was a link.
	OutDisconnected
	// OutClosed: a CLOSE ended its allocation.
	OutClosed
	// OutProbe: a probe of this process was answered.
	OutProbe
	// OutQoS: a QoS probe was answered.
	OutQoS
	// OutRecord: a record of DTLS without a message: part of a handshake, or what
	// the DTLS layer dropped, which counts it by reason.
	OutRecord
	// OutHeld: a CLOSE or DISCONNECT waits for a second, since its allocation is
	// being spoofed at.
	OutHeld
	// OutRelinked: a RELAY of a host that came back after a restart restored its
	// link; the datagram itself is not forwarded.
	OutRelinked
	// OutErrorVersion to OutErrorSelf: the datagram earned that ERROR.
	OutErrorVersion
	OutErrorUnauthorized
	OutErrorMismatch
	OutErrorNotFound
	OutErrorNotConnected
	OutErrorSelf

	// DropTruncated: longer than a receive slot, so part of it is lost.
	DropTruncated
	// DropSource: the kernel gave no source address that can be answered.
	DropSource
	// DropForbidden: from a source that no honest client has, see sources.go.
	DropForbidden
	// DropPlain: plain, from where a session of DTLS lives.
	DropPlain
	// DropIdentity: a BIND in the session of another allocation.
	DropIdentity
	// DropPanic: a fault of ours; only this datagram is lost.
	DropPanic
	// DropShort: shorter than the four bytes of a header.
	DropShort
	// DropSignature: does not begin with 0xDA72.
	DropSignature
	// DropVersion: wrong version, and too short or of no type that a client
	// sends, so it earns no ERROR 0.
	DropVersion
	// DropServerType: a type that only servers send; answering could loop.
	DropServerType
	// DropUnknownType: a reserved type.
	DropUnknownType
	// DropSize: not the size that its type and length field ask for.
	DropSize
	// DropOversize: a RELAY with more content than the limit.
	DropOversize
	// DropAcceptMode: a BIND with an accept mode other than AUTO.
	DropAcceptMode
	// DropSeal: connection data that this relay did not seal.
	DropSeal
	// DropTicket: a BIND with a ticket instead of the client's own data.
	DropTicket
	// DropMAC: a BIND whose signature is wrong.
	DropMAC
	// DropNonce: an authentic BIND whose nonce is not new enough.
	DropNonce
	// DropBusy: the ring to the control goroutine, or the table, was full.
	DropBusy
	// DropLoad: under load, and its prefix or allocation had its share.
	DropLoad
	// DropRate: more than one allocation may relay, links than a host may get,
	// or times than a BIND is answered, per second.
	DropRate
	// DropUnproven: more than may go to an endpoint from which nothing but a
	// BIND has come.
	DropUnproven
	// DropRecovering: soon after a restart, and about something that may yet
	// come back.
	DropRecovering
	// DropUnbound: a CLOSE from an endpoint that is not bound to the id.
	DropUnbound
	// DropHostUnbound: a CONNECT_REQUEST to a host without an endpoint; the
	// client repeats it each second.
	DropHostUnbound
	// DropPeerUnbound: a RELAY over an open link to a peer without an endpoint.
	DropPeerUnbound
	// DropReceiverSize: a RELAY that is larger than the way to its peer carries.
	DropReceiverSize
	// DropMuted: an ERROR was due and a rule forbade it: three ERROR 3 already,
	// a BIND under way, or ERROR 5 for this pair within the last second.
	DropMuted
	// DropBudget: an ERROR was due and a budget was empty.
	DropBudget
	// DropStale: its sender lost the endpoint while control had yet to decide.
	DropStale

	// NumOutcomes is the number of outcomes.
	NumOutcomes
)

// outcomeNames are the names under which outcomes are counted and exported.
var outcomeNames = [NumOutcomes]string{
	OutRelayed: "relayed", OutPong: "pong", OutBound: "bound", OutAccepted: "accepted",
	OutRejected: "rejected", OutDisconnected: "disconnected", OutClosed: "closed", OutProbe: "probe",
	OutQoS: "qos", OutRecord: "record", OutHeld: "held", OutRelinked: "relinked",
	OutErrorVersion: "error_version", OutErrorUnauthorized: "error_unauthorized",
	OutErrorMismatch: "error_mismatch", OutErrorNotFound: "error_not_found",
	OutErrorNotConnected: "error_not_connected", OutErrorSelf: "error_self_connect",
	DropTruncated: "truncated", DropSource: "source", DropForbidden: "forbidden", DropPlain: "plain", DropIdentity: "identity", DropPanic: "panic", DropShort: "short", DropSignature: "signature", DropVersion: "version",
	DropServerType: "server_type", DropUnknownType: "unknown_type", DropSize: "size",
	DropOversize: "oversize", DropAcceptMode: "accept_mode", DropSeal: "seal", DropTicket: "ticket",
	DropMAC: "mac", DropNonce: "nonce", DropBusy: "busy", DropLoad: "load", DropRate: "rate", DropUnproven: "unproven",
	DropRecovering: "recovering", DropUnbound: "unbound",
	DropHostUnbound: "host_unbound", DropPeerUnbound: "peer_unbound", DropReceiverSize: "receiver_size", DropMuted: "muted",
	DropBudget: "budget", DropStale: "stale",
}

// String returns the name under which the outcome is counted.
func (o Outcome) String() string {
	if o < NumOutcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// Dropped reports whether the datagram got no answer and went nowhere.
func (o Outcome) Dropped() bool { return o >= DropTruncated && o < NumOutcomes }
