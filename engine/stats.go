package engine

import "time"

// Stats are counters since New, and gauges. The counters of one worker are consistent to
// within a batch, and late by a millisecond, or by up to 250 ms when it receives nothing
// more.
type Stats struct {
	// Received and ReceivedBytes count the datagrams that were handled.
	Received, ReceivedBytes uint64
	// Sent and SentBytes count the datagrams that the kernel accepted.
	Sent, SentBytes uint64
	// SendFailed counts the datagrams that the kernel refused.
	SendFailed uint64
	// KernelDrops counts the datagrams that the kernel dropped because a socket's
	// receive queue was full, or their checksum was wrong.
	KernelDrops uint64
	// Outcomes counts datagrams by [Outcome].
	Outcomes [NumOutcomes]uint64
	// BatchSizes counts receive batches by their number of datagrams: 1, 2, 3-4, 5-8,
	// and so on to 129-256.
	BatchSizes [BatchBuckets]uint64

	// Allocations, Bound and Links are the current numbers of allocations, of those
	// that are bound to an endpoint, and of open links.
	Allocations, Bound, Links int
	// Seats is the number of seats that are taken: one for each host and one for each
	// connection that it requested.
	Seats int

	// PlayerRefused counts reservations above [Config].PlayerLimits, by the limit,
	// PlayerReplaced the allocations that ended for their player's next one.
	PlayerRefused  [NumPlayerLimits]uint64
	PlayerReplaced uint64
	// SessionsFull counts reservations that were refused since [Config].Records have no room
	// for a session of that project or player.
	SessionsFull uint64

	// Rebuilt counts the allocations of earlier runs that came back.
	Rebuilt uint64
	// Stalls counts the times in which the process was stalled for more than a second,
	// and ExpiryPauses those in which expiry paused; ExpiryPaused is set while it does.
	Stalls, ExpiryPauses uint64
	ExpiryPaused         bool
	// StateComplete is set while the state file has all that the next run must know. It
	// is not without a state file, or while that cannot be written.
	StateComplete bool
	// SlowChanges counts the changes of the state file that waited for its disk for 10 ms
	// or more: meanwhile no client is bound or connected.
	SlowChanges uint64
	// WorkersUnderLoad is the number of workers with so many commands waiting for
	// control that they limit those of each source prefix.
	WorkersUnderLoad int
	// Draining is set while the relay drains.
	Draining bool

	// FastPath counts what [Config].FastPath did.
	FastPath FastPathCounts

	// Workers has one element per worker, those of the sockets first, which shows how
	// the kernel spreads the load.
	Workers []WorkerStats
}

// WorkerStats are the counts of one worker.
type WorkerStats struct {
	Received uint64
	// Intake is set for a worker that handles the messages of a [Transport] instead of
	// the datagrams of a socket.
	Intake bool
	// Busy is set while the worker handles a batch, and Batches counts the batches
	// that it began. A worker that is busy at the same count for long is stuck.
	Busy    bool
	Batches uint64
	// CPU is the processor time of the worker's thread, in steps of a second; 0: it is not
	// known, as for intakes.
	CPU time.Duration
}

// Stats returns the current counts. It may be called at any time.
func (s *Server) Stats() Stats {
	var st Stats
	for _, w := range s.workers {
		st.add(&w.counts.pub)
		epoch := w.epoch.count.Load()
		st.Workers = append(st.Workers, WorkerStats{
			Received: w.counts.pub.received.Load(), Intake: w.conn == nil, Busy: epoch&1 == 1, Batches: (epoch + 1) / 2,
			CPU: time.Duration(w.cpu.Load()),
		})
		if w.inbox.isFilling() {
			st.WorkersUnderLoad++
		}
	}
	st.add(&s.control.counts.pub)
	if s.cfg.FastPath != nil {
		st.addFastPath(s.cfg.FastPath.Counts())
	}
	for _, g := range s.groups {
		for _, c := range g.Conns() {
			st.KernelDrops += c.Stats().KernelDrops
		}
	}
	st.Allocations, st.Bound, st.Links = s.shared.table.Counts()
	st.Seats = int(s.control.seats.taken.Load())
	st.Rebuilt, st.Draining = s.control.rebuilt.Load(), s.Draining()
	st.SessionsFull = s.control.players.noSession.Load()
	for l := range NumPlayerLimits {
		st.PlayerRefused[l] = s.control.players.refused[l].Load()
	}
	st.PlayerReplaced = s.control.players.replaced.Load()
	b := &s.control.pause
	st.Stalls, st.ExpiryPauses, st.ExpiryPaused = b.stallsTotal.Load(), b.pausesTotal.Load(), b.isActive.Load()
	st.StateComplete = s.control.rewrite.complete.Load()
	st.SlowChanges = s.control.stateFile.SlowChanges()
	return st
}

// isFilling reports whether a ring is an eighth full. Any goroutine may call it.
func (b *inbox) isFilling() bool {
	for i := range b.rings {
		if r := &b.rings[i]; r.size() >= len(r.slots)/8 {
			return true
		}
	}
	return false
}

func (st *Stats) add(p *published) {
	st.Received += p.received.Load()
	st.ReceivedBytes += p.receivedBytes.Load()
	st.Sent += p.sentDatagrams.Load()
	st.SentBytes += p.sentBytes.Load()
	st.SendFailed += p.sendFailed.Load()
	for i := range p.outcomes {
		st.Outcomes[i] += p.outcomes[i].Load()
	}
	for i := range p.batches {
		st.BatchSizes[i] += p.batches[i].Load()
	}
}

func (st *Stats) addFastPath(c FastPathCounts) {
	st.FastPath = c
	st.Received += c.Datagrams
	st.ReceivedBytes += c.Bytes
	st.Sent += c.Datagrams
	st.SentBytes += c.Bytes
	st.Outcomes[OutRelayed] += c.Datagrams
}

// Outcome is the result of one datagram. Each received datagram has exactly one, so the
// outcomes add up to the datagrams received, except for those that wait for control.
type Outcome uint8

// The outcomes of datagrams that were answered or forwarded, then those of drops.
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
	// OutRecord: a DTLS record without a message: part of a handshake, or dropped by
	// the DTLS layer, which counts its drops by reason.
	OutRecord
	// OutHeld: a CLOSE or DISCONNECT waits for a second, since its allocation is under
	// a spoofing attack.
	OutHeld
	// OutRelinked: a RELAY of a host or joiner that came back after a restart restored a link;
	// the datagram itself was not forwarded.
	OutRelinked
	// OutAlive: a session that is bound gave a sign of life, see [Intake].
	OutAlive
	// OutErrorVersion to OutErrorSelf: the datagram was answered with that ERROR.
	OutErrorVersion
	OutErrorUnauthorized
	OutErrorMismatch
	OutErrorNotFound
	OutErrorNotConnected
	OutErrorSelf

	// DropTruncated: longer than a receive slot.
	DropTruncated
	// DropSource: the kernel gave no source address that can be answered.
	DropSource
	// DropForbidden: from a source that no client has, see sources.go, or that is banned.
	DropForbidden
	// DropPrivate: from a private network, see [Config].AllowPrivateSources.
	DropPrivate
	// DropPlain: a plain message from the address of a DTLS session.
	DropPlain
	// DropIdentity: a BIND in the session of another allocation.
	DropIdentity
	// DropPanic: a fault of the relay; only this datagram is lost.
	DropPanic
	// DropShort: shorter than the four bytes of a header.
	DropShort
	// DropSignature: does not begin with 0xDA72.
	DropSignature
	// DropVersion: of another version, but too short for an ERROR 0, or of a type that
	// no client sends.
	DropVersion
	// DropServerType: a type that only servers send; answering could loop.
	DropServerType
	// DropUnknownType: a reserved type.
	DropUnknownType
	// DropSize: not the size that its type and length field require.
	DropSize
	// DropOversize: a RELAY with more content than the limit.
	DropOversize
	// DropAcceptMode: a BIND with an accept mode other than AUTO.
	DropAcceptMode
	// DropSeal: connection data that this relay has not sealed.
	DropSeal
	// DropTicket: a BIND with a ticket instead of the client's own data.
	DropTicket
	// DropMAC: a BIND whose signature is wrong.
	DropMAC
	// DropNonce: an authentic BIND whose nonce is not new enough.
	DropNonce
	// DropEndpointHeld: an authentic BIND from the endpoint of another allocation that
	// was heard from there in the last two seconds: its source may be forged.
	DropEndpointHeld
	// DropBusy: the ring to the control goroutine, or the table, was full.
	DropBusy
	// DropLoad: under load, and the budget of its prefix or allocation was used up.
	DropLoad
	// DropRate: above the quota of an allocation, the rate of new links of a joiner or
	// host, or the rate of repeated BINDs.
	DropRate
	// DropUnvalidated: more than may go to an endpoint whose path is not validated, see
	// [Limits].
	DropUnvalidated
	// DropRecovering: it concerns an allocation or a link that may still come back
	// after a restart.
	DropRecovering
	// DropUnbound: a CLOSE from an endpoint that is not bound to the id, or a sign of life
	// of a session that is not bound.
	DropUnbound
	// DropHostUnbound: a CONNECT_REQUEST to a host without an endpoint. The client
	// repeats it each second.
	DropHostUnbound
	// DropPlaceHeld: a CONNECT_REQUEST to a full host at which another allocation of the
	// same player was heard in the last two seconds. The client repeats it each second.
	DropPlaceHeld
	// DropPeerUnbound: a RELAY over an open link to a peer without an endpoint.
	DropPeerUnbound
	// DropReceiverSize: a RELAY that is larger than the transport of its peer carries.
	DropReceiverSize
	// DropMuted: no ERROR was sent because of three ERROR 3 before, a pending BIND, or
	// an ERROR 5 for this pair within the last second.
	DropMuted
	// DropBudget: no ERROR was sent because a budget was used up.
	DropBudget
	// DropStale: its sender lost the endpoint before control executed the command.
	DropStale

	// NumOutcomes is the number of outcomes.
	NumOutcomes
)

// outcomeNames are the names of outcomes in metrics.
var outcomeNames = [NumOutcomes]string{
	OutRelayed: "relayed", OutPong: "pong", OutBound: "bound", OutAccepted: "accepted",
	OutRejected: "rejected", OutDisconnected: "disconnected", OutClosed: "closed", OutProbe: "probe",
	OutQoS: "qos", OutRecord: "record", OutHeld: "held", OutRelinked: "relinked",
	OutAlive:        "alive",
	OutErrorVersion: "error_version", OutErrorUnauthorized: "error_unauthorized",
	OutErrorMismatch: "error_mismatch", OutErrorNotFound: "error_not_found",
	OutErrorNotConnected: "error_not_connected", OutErrorSelf: "error_self_connect",
	DropTruncated: "truncated", DropSource: "source", DropForbidden: "forbidden", DropPrivate: "private", DropPlain: "plain",
	DropIdentity: "identity", DropPanic: "panic", DropShort: "short", DropSignature: "signature", DropVersion: "version",
	DropServerType: "server_type", DropUnknownType: "unknown_type", DropSize: "size",
	DropOversize: "oversize", DropAcceptMode: "accept_mode", DropSeal: "seal", DropTicket: "ticket",
	DropMAC: "mac", DropNonce: "nonce", DropEndpointHeld: "endpoint_held", DropBusy: "busy", DropLoad: "load", DropRate: "rate",
	DropUnvalidated: "unvalidated",
	DropRecovering:  "recovering", DropUnbound: "unbound",
	DropHostUnbound: "host_unbound", DropPlaceHeld: "place_held", DropPeerUnbound: "peer_unbound", DropReceiverSize: "receiver_size",
	DropMuted:  "muted",
	DropBudget: "budget", DropStale: "stale",
}

// String returns the name of the outcome in metrics.
func (o Outcome) String() string {
	if o < NumOutcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// Dropped reports whether the datagram was neither answered nor forwarded.
func (o Outcome) Dropped() bool { return o >= DropTruncated && o < NumOutcomes }
