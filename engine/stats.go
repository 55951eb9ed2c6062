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
	// Outcomes counts datagrams that were answered or forwarded, by outcome, such as "relayed", and
	// Drops all others, by reason, such as "nonce". All names are there. Each datagram is counted
	// once, so the counts add up to Received, except for those that wait for control.
	Outcomes, Drops map[string]uint64
	// BatchSizes counts receive batches by their number of datagrams: 1, 2, 3-4, 5-8,
	// and so on to 129-256.
	BatchSizes []uint64

	// Allocations, Bound and Links are the current numbers of allocations, of those
	// that are bound to an endpoint, and of open links.
	Allocations, Bound, Links int
	// Seats is the number of seats that are taken: one for each host and one for each
	// connection that it requested.
	Seats int

	// PlayerRefused counts reservations above [Config].PlayerLimits, by the limit: "hosts", "joiners"
	// and "seats". PlayerReplaced counts the allocations that ended for their player's next one.
	PlayerRefused  map[string]uint64
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
	// Transport is the name of the [Transport] whose messages the worker handles; empty for the
	// datagrams of a socket.
	Transport string
	// Busy is set while the worker handles a batch, and Batches counts the batches
	// that it began. A worker that is busy at the same count for long is stuck.
	Busy    bool
	Batches uint64
	// CPU is the processor time of the worker's thread, in steps of a second; 0: it is not
	// known, as for those of a transport.
	CPU time.Duration
}

// Stats returns the current counts. It may be called at any time.
func (s *Server) Stats() Stats {
	st := Stats{BatchSizes: make([]uint64, batchBuckets), PlayerRefused: make(map[string]uint64)}
	var outcomes [numOutcomes]uint64
	for _, w := range s.workers {
		st.add(&w.counts.pub, &outcomes)
		epoch := w.epoch.count.Load()
		st.Workers = append(st.Workers, WorkerStats{
			Received: w.counts.pub.received.Load(), Transport: w.transport, Busy: epoch&1 == 1, Batches: (epoch + 1) / 2,
			CPU: time.Duration(w.cpu.Load()),
		})
		if w.inbox.isFilling() {
			st.WorkersUnderLoad++
		}
	}
	st.add(&s.control.counts.pub, &outcomes)
	if s.cfg.FastPath != nil {
		st.addFastPath(s.cfg.FastPath.Counts(), &outcomes)
	}
	st.Outcomes, st.Drops = countsByName(&outcomes)
	for _, g := range s.groups {
		for _, c := range g.Conns() {
			st.KernelDrops += c.Stats().KernelDrops
		}
	}
	st.Allocations, st.Bound, st.Links = s.shared.table.Counts()
	st.Seats = int(s.control.seats.taken.Load())
	st.Rebuilt, st.Draining = s.control.rebuilt.Load(), s.Draining()
	st.SessionsFull = s.control.players.noSession.Load()
	for l, name := range playerLimitNames {
		st.PlayerRefused[name] = s.control.players.refused[l].Load()
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

func (st *Stats) add(p *published, outcomes *[numOutcomes]uint64) {
	st.Received += p.received.Load()
	st.ReceivedBytes += p.receivedBytes.Load()
	st.Sent += p.sentDatagrams.Load()
	st.SentBytes += p.sentBytes.Load()
	st.SendFailed += p.sendFailed.Load()
	for i := range p.outcomes {
		outcomes[i] += p.outcomes[i].Load()
	}
	for i := range p.batches {
		st.BatchSizes[i] += p.batches[i].Load()
	}
}

func (st *Stats) addFastPath(c FastPathCounts, outcomes *[numOutcomes]uint64) {
	st.FastPath = c
	st.Received += c.Datagrams
	st.ReceivedBytes += c.Bytes
	st.Sent += c.Datagrams
	st.SentBytes += c.Bytes
	outcomes[outRelayed] += c.Datagrams
}

// countsByName returns the counts of the datagrams that were answered or forwarded, and of the others.
func countsByName(counts *[numOutcomes]uint64) (outcomes, drops map[string]uint64) {
	outcomes, drops = make(map[string]uint64, dropTruncated), make(map[string]uint64, numOutcomes-dropTruncated)
	for o, n := range counts {
		if o := outcome(o); o < dropTruncated {
			outcomes[o.String()] = n
		} else {
			drops[o.String()] = n
		}
	}
	return outcomes, drops
}

// outcome is the result of one datagram. Each received datagram has exactly one, so the
// outcomes add up to the datagrams received, except for those that wait for control.
type outcome uint8

// The outcomes of datagrams that were answered or forwarded, then those of drops.
const (
	// outRelayed: a RELAY was forwarded to the peer.
	outRelayed outcome = iota
	// outPong: a PING was echoed.
	outPong
	// outBound: a BIND was answered with BIND_RECEIVED.
	outBound
	// outAccepted: a CONNECT_REQUEST was answered with ACCEPTED.
	outAccepted
	// outRejected: a CONNECT_REQUEST to a full host was answered with REJECTED.
	outRejected
	// outDisconnected: a DISCONNECT was echoed, and forwarded if there was a link.
	outDisconnected
	// outClosed: a CLOSE ended its allocation.
	outClosed
	// outCheck: a check of this process was answered, see Server.Check.
	outCheck
	// outQoS: a QoS probe was answered.
	outQoS
	// outRecord: a DTLS record without a message: part of a handshake, or dropped by
	// the DTLS layer, which counts its drops by reason.
	outRecord
	// outHeld: a CLOSE or DISCONNECT waits for a second, since its allocation is under
	// a spoofing attack.
	outHeld
	// outRelinked: a RELAY of a host or joiner that came back after a restart restored a link;
	// the datagram itself was not forwarded.
	outRelinked
	// outAlive: a session that is bound gave a sign of life, see [Intake].
	outAlive
	// outErrorVersion to outErrorSelf: the datagram was answered with that ERROR.
	outErrorVersion
	outErrorUnauthorized
	outErrorMismatch
	outErrorNotFound
	outErrorNotConnected
	outErrorSelf

	// dropTruncated: longer than a receive slot.
	dropTruncated
	// dropSource: the kernel gave no source address that can be answered.
	dropSource
	// dropForbidden: from a source that no client has, see sources.go, or that is banned.
	dropForbidden
	// dropPrivate: from a private network, see [Config].AllowPrivateSources.
	dropPrivate
	// dropPlain: a plain message from the address of a DTLS session.
	dropPlain
	// dropIdentity: a BIND in the session of another allocation.
	dropIdentity
	// dropPanic: a fault of the relay; only this datagram is lost.
	dropPanic
	// dropShort: shorter than the four bytes of a header.
	dropShort
	// dropSignature: does not begin with 0xDA72.
	dropSignature
	// dropVersion: of another version, but too short for an ERROR 0, or of a type that
	// no client sends.
	dropVersion
	// dropServerType: a type that only servers send; answering could loop.
	dropServerType
	// dropUnknownType: a reserved type.
	dropUnknownType
	// dropSize: not the size that its type and length field require.
	dropSize
	// dropOversize: a RELAY with more content than the limit.
	dropOversize
	// dropAcceptMode: a BIND with an accept mode other than AUTO.
	dropAcceptMode
	// dropSeal: connection data that this relay has not sealed.
	dropSeal
	// dropTicket: a BIND with a ticket instead of the client's own data.
	dropTicket
	// dropMAC: a BIND whose signature is wrong.
	dropMAC
	// dropNonce: an authentic BIND whose nonce is not new enough.
	dropNonce
	// dropEndpointHeld: an authentic BIND from the endpoint of another allocation that
	// was heard from there in the last two seconds: its source may be forged.
	dropEndpointHeld
	// dropBusy: the ring to the control goroutine, or the table, was full.
	dropBusy
	// dropLoad: under load, and the budget of its prefix or allocation was used up.
	dropLoad
	// dropRate: above the quota of an allocation, the rate of new links of a joiner or
	// host, or the rate of repeated BINDs.
	dropRate
	// dropUnvalidated: more than may go to an endpoint whose path is not validated, see
	// [Limits].
	dropUnvalidated
	// dropRecovering: it concerns an allocation or a link that may still come back
	// after a restart.
	dropRecovering
	// dropUnbound: a CLOSE from an endpoint that is not bound to the id, or a sign of life
	// of a session that is not bound.
	dropUnbound
	// dropHostUnbound: a CONNECT_REQUEST to a host without an endpoint. The client
	// repeats it each second.
	dropHostUnbound
	// dropPlaceHeld: a CONNECT_REQUEST to a full host at which another allocation of the
	// same player was heard in the last two seconds. The client repeats it each second.
	dropPlaceHeld
	// dropPeerUnbound: a RELAY over an open link to a peer without an endpoint.
	dropPeerUnbound
	// dropReceiverSize: a RELAY that is larger than the transport of its peer carries.
	dropReceiverSize
	// dropMuted: no ERROR was sent because of three ERROR 3 before, a pending BIND, or
	// an ERROR 5 for this pair within the last second.
	dropMuted
	// dropBudget: no ERROR was sent because a budget was used up.
	dropBudget
	// dropStale: its sender lost the endpoint before control executed the command.
	dropStale

	// numOutcomes is the number of outcomes.
	numOutcomes
)

// outcomeNames are the names of outcomes in metrics.
var outcomeNames = [numOutcomes]string{
	outRelayed: "relayed", outPong: "pong", outBound: "bound", outAccepted: "accepted",
	outRejected: "rejected", outDisconnected: "disconnected", outClosed: "closed", outCheck: "check",
	outQoS: "qos", outRecord: "record", outHeld: "held", outRelinked: "relinked",
	outAlive:        "alive",
	outErrorVersion: "error_version", outErrorUnauthorized: "error_unauthorized",
	outErrorMismatch: "error_mismatch", outErrorNotFound: "error_not_found",
	outErrorNotConnected: "error_not_connected", outErrorSelf: "error_self_connect",
	dropTruncated: "truncated", dropSource: "source", dropForbidden: "forbidden", dropPrivate: "private", dropPlain: "plain",
	dropIdentity: "identity", dropPanic: "panic", dropShort: "short", dropSignature: "signature", dropVersion: "version",
	dropServerType: "server_type", dropUnknownType: "unknown_type", dropSize: "size",
	dropOversize: "oversize", dropAcceptMode: "accept_mode", dropSeal: "seal", dropTicket: "ticket",
	dropMAC: "mac", dropNonce: "nonce", dropEndpointHeld: "endpoint_held", dropBusy: "busy", dropLoad: "load", dropRate: "rate",
	dropUnvalidated: "unvalidated",
	dropRecovering:  "recovering", dropUnbound: "unbound",
	dropHostUnbound: "host_unbound", dropPlaceHeld: "place_held", dropPeerUnbound: "peer_unbound", dropReceiverSize: "receiver_size",
	dropMuted:  "muted",
	dropBudget: "budget", dropStale: "stale",
}

// String returns the name of the outcome in metrics.
func (o outcome) String() string {
	if o < numOutcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// isDrop reports whether the datagram was neither answered nor forwarded.
func (o outcome) isDrop() bool { return o >= dropTruncated && o < numOutcomes }
