package engine

import (
	"time"

	"github.com/ferryrelay/ferry/internal/privateapi"
)

// Stats are counters since New, and gauges. A worker's counters are consistent to within a batch,
// and late by a millisecond, or by up to 250 ms if it receives nothing more.
type Stats struct {
	// Received and ReceivedBytes count the datagrams that were handled.
	Received, ReceivedBytes uint64
	// Sent, SentBytes and SendFailed are what the kernel accepted and refused.
	Sent, SentBytes uint64
	SendFailed      uint64
	// KernelDrops are datagrams for which a receive queue was full, or with a wrong checksum.
	KernelDrops uint64
	// Outcomes counts datagrams that were answered or forwarded, by outcome, such as "relayed",
	// and Drops all others, by reason. All names are there. The counts add up to Received, except
	// for those that wait for control.
	Outcomes, Drops map[string]uint64

	// Allocations, Bound and Links are current numbers: all, those with an endpoint, and open
	// links.
	Allocations, Bound, Links int
	// Seats are taken, see [Config].MaxSeats.
	Seats int

	// Refused counts the reservations that were refused, by reason: "player_" and the Reason of an
	// alloc.ErrPlayerLimit, or "sessions", since [Config].Records have no room.
	Refused map[string]uint64

	// Rebuilt counts the allocations of earlier runs that came back.
	Rebuilt  uint64
	Draining bool

	// Private is for the programs of this module, see [Server.Private].
	Private privateapi.Stats
}

// Stats returns the current counts. It may be called at any time.
func (s *Server) Stats() Stats {
	st := Stats{Refused: make(map[string]uint64), Private: privateapi.Stats{BatchSizes: make([]uint64, batchBuckets)}}
	var outcomes [numOutcomes]uint64
	for _, w := range s.workers {
		st.add(&w.counts.pub, &outcomes)
		epoch := w.epoch.count.Load()
		st.Private.Workers = append(st.Private.Workers, privateapi.WorkerStats{
			Received: w.counts.pub.received.Load(), Transport: w.transport, Busy: epoch&1 == 1, Batches: (epoch + 1) / 2,
			CPU: time.Duration(w.cpu.Load()),
		})
		if w.inbox.isFilling() {
			st.Private.WorkersUnderLoad++
		}
	}
	st.add(&s.control.counts.pub, &outcomes)
	if path := s.cfg.fastPath(); path != nil {
		st.addFastPath(path.Counts(), &outcomes)
	}
	st.Outcomes, st.Drops = countsByName(&outcomes)
	for _, g := range s.groups {
		for _, c := range g.Conns() {
			st.KernelDrops += c.Stats().KernelDrops
		}
	}
	st.Allocations, st.Bound, st.Links = s.shared.table.Counts()
	st.Seats = int(s.control.seats.taken.Load())
	st.Rebuilt, st.Draining = s.control.rebuilt.Load(), s.control.drain.active.Load()
	st.Refused["sessions"] = s.control.players.noSession.Load()
	for l, name := range playerLimitNames {
		st.Refused["player_"+name] = s.control.players.refused[l].Load()
	}
	st.Private.PlayerReplaced = s.control.players.replaced.Load()
	b := &s.control.pause
	st.Private.Stalls, st.Private.ExpiryPauses, st.Private.ExpiryPaused = b.stallsTotal.Load(), b.pausesTotal.Load(), b.isActive.Load()
	st.Private.StateComplete = s.control.rewrite.complete.Load()
	st.Private.SlowChanges = s.control.stateFile.SlowChanges()
	return st
}

// isFilling may be called by any goroutine.
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
		st.Private.BatchSizes[i] += p.batches[i].Load()
	}
}

func (st *Stats) addFastPath(c privateapi.FastPathCounts, outcomes *[numOutcomes]uint64) {
	st.Private.FastPath = c
	st.Received += c.Datagrams
	st.ReceivedBytes += c.Bytes
	st.Sent += c.Datagrams
	st.SentBytes += c.Bytes
	outcomes[outRelayed] += c.Datagrams
}

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

// Each received datagram has exactly one outcome.
type outcome uint8

// The outcomes of datagrams that were answered or forwarded, then those of drops.
const (
	outRelayed outcome = iota
	outPong
	outBound
	outAccepted
	outRejected
	outDisconnected
	outClosed
	outCheck
	outQoS
	// outRecord: a DTLS record without a message. The DTLS layer counts its drops by reason.
	outRecord
	// outHeld: a CLOSE or DISCONNECT of an allocation under a spoofing attack waits for a second.
	outHeld
	// outRelinked: a RELAY after a restart restored a link, and was not forwarded.
	outRelinked
	// outAlive: a session that is bound gave a sign of life, see [Intake].
	outAlive
	outErrorVersion
	outErrorUnauthorized
	outErrorMismatch
	outErrorNotFound
	outErrorNotConnected
	outErrorSelf

	// dropTruncated: longer than a receive slot.
	dropTruncated
	// dropSource: the kernel gave no source address.
	dropSource
	// dropForbidden: from a source that no client has, see sources.go, or that is banned.
	dropForbidden
	// dropPrivate: from a private network, see [Config].AllowPrivateSources.
	dropPrivate
	dropPlain
	// dropIdentity: a BIND in the session of another allocation.
	dropIdentity
	// dropPanic: a fault of the relay; only this datagram is lost.
	dropPanic
	dropShort
	dropSignature
	// dropVersion: too short for an ERROR 0, or of a type that no client sends.
	dropVersion
	// dropServerType: only servers send it; answering could loop.
	dropServerType
	dropUnknownType
	dropSize
	dropOversize
	dropAcceptMode
	dropSeal
	// dropTicket: a BIND with a ticket instead of the client's own data.
	dropTicket
	dropMAC
	dropNonce
	// dropEndpointHeld: another allocation was heard there in the last 2 s, so the source may be
	// forged.
	dropEndpointHeld
	// dropBusy: the ring to control, or the table, was full.
	dropBusy
	// dropLoad: under load, and the budget of its prefix or allocation was used up.
	dropLoad
	// dropRate: a quota, the rate of new links or that of repeated BINDs.
	dropRate
	// dropUnvalidated: more than may go on the path, see [Limits].
	dropUnvalidated
	// dropRecovering: what it concerns may still come back after a restart.
	dropRecovering
	// dropUnbound: a CLOSE or a sign of life from an endpoint that is not bound.
	dropUnbound
	// dropHostUnbound: the client repeats its CONNECT_REQUEST each second.
	dropHostUnbound
	// dropPlaceHeld: a full host, where the same player was heard by another allocation in the
	// last 2 s.
	dropPlaceHeld
	dropPeerUnbound
	dropReceiverSize
	// dropMuted: three ERROR 3 before, a pending BIND, or an ERROR 5 for this pair within a
	// second.
	dropMuted
	// dropBudget: a budget of ERRORs was used up.
	dropBudget
	// dropStale: its sender lost the endpoint before control executed the command.
	dropStale

	numOutcomes
)

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

func (o outcome) String() string {
	if o < numOutcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

func (o outcome) isDrop() bool { return o >= dropTruncated && o < numOutcomes }
