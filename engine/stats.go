package engine

// Stats are counts since the server was made, and gauges of now. The counts of
// one worker are consistent to within a batch, and late by a millisecond or,
// when nothing more comes, by up to 250 ms; nobody is made to wait for them.
type Stats struct {
	// Received and ReceivedBytes count datagrams handled, and their bytes.
	Received, ReceivedBytes uint64
	// Sent and SentBytes count datagrams that the kernel took.
	Sent, SentBytes uint64
	// SendFailed counts datagrams that the kernel refused.
	SendFailed uint64
	// KernelDrops counts datagrams that the kernel dropped because a socket's
	// receive queue was full.
	KernelDrops uint64
	// Outcomes counts what became of the datagrams, by Outcome.
	Outcomes [NumOutcomes]uint64
	// Batches counts receive batches by size: 1, 2, 3-4, 5-8, … 129-256.
	Batches [batchBuckets]uint64

	// Allocations, Bound and Links are how many there are now.
	Allocations, Bound, Links int
	// Seats are taken: one for each host and one for each player that it asked
	// for, whether they came or not.
	Seats int

	// Rebuilt counts allocations of earlier runs that came back.
	Rebuilt uint64
	// Stalls counts times in which the relay stood still, and Holds those in
	// which the brake kept everybody from expiring; Braking is set while it does.
	Stalls, ExpiryPauses uint64
	ExpiryPaused         bool
	// Loaded is how many workers have so much waiting for control that they hold
	// each source prefix to its share.
	WorkersUnderLoad int
	// Draining is set while the relay runs dry.
	Draining bool

	// Workers has one row per worker, to see how the kernel spreads the load.
	Workers []WorkerStats
}

// WorkerStats are the counts of one worker.
type WorkerStats struct {
	Received uint64
	// Busy is set while the worker handles a batch, and Batches counts those
	// it began. A worker that stays busy at one count is stuck.
	Busy    bool
	Batches uint64
}

// Stats returns the counts. It may be called at any time.
func (s *Server) Stats() Stats {
	var st Stats
	for _, w := range s.workers {
		st.add(&w.counts.pub)
		epoch := w.epoch.count.Load()
		st.Workers = append(st.Workers, WorkerStats{
			Received: w.counts.pub.received.Load(), Busy: epoch&1 == 1, Batches: (epoch + 1) / 2,
		})
		if w.inbox.isFilling() {
			st.WorkersUnderLoad++
		}
	}
	st.add(&s.control.counts.pub)
	for _, g := range s.groups {
		for _, c := range g.Conns() {
			st.KernelDrops += c.Stats().KernelDrops
		}
	}
	st.Allocations, st.Bound, st.Links = s.shared.table.Counts()
	st.Seats = int(s.control.seats.taken.Load())
	st.Rebuilt, st.Draining = s.control.rebuilt.Load(), s.Draining()
	b := &s.control.pause
	st.Stalls, st.ExpiryPauses, st.ExpiryPaused = b.stallsTotal.Load(), b.pausesTotal.Load(), b.isActive.Load()
	return st
}

// filling reports whether a ring is an eighth full. Any goroutine may ask.
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
		st.Batches[i] += p.batches[i].Load()
	}
}

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
	DropUnvalidated
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
	DropMAC: "mac", DropNonce: "nonce", DropBusy: "busy", DropLoad: "load", DropRate: "rate", DropUnvalidated: "unproven",
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
