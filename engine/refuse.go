package engine

import (
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// minForError is the smallest datagram in bytes that may earn an ERROR. An
// ERROR has 21 bytes, and a reply to a stranger is strictly smaller than what
// it answers, so that nobody gains by forging a source.
const minForError = proto.ErrorLen + 1

// errorOutcomes are the outcomes under which each ERROR is counted. ERROR 1 is
// not among them: it answers no datagram.
var errorOutcomes = [...]Outcome{
	proto.ErrorVersion:      OutErrorVersion,
	proto.ErrorUnauthorized: OutErrorUnauthorized,
	proto.ErrorMismatch:     OutErrorMismatch,
	proto.ErrorNotFound:     OutErrorNotFound,
	proto.ErrorNotConnected: OutErrorNotConnected,
	proto.ErrorSelfConnect:  OutErrorSelf,
}

// refuse handles a datagram without a good header: silence, but ERROR 0 for a
// client of another version, and an answer for our own probe and for QoS probes.
func (w *worker) handleMalformed(now int64, from endpoint.Endpoint, pkt []byte, t proto.Type, err error) Outcome {
	switch {
	case err == proto.ErrShort:
		return DropShort
	case err == proto.ErrSignature && pkt[0] == proto.QoSMagic:
		return w.answerQoS(now, from, pkt)
	case err == proto.ErrSignature:
		return w.answerProbe(from, pkt)
	case !t.FromClient() || len(pkt) < minForError:
		return DropVersion
	case w.shared.sources.isRefused(from):
		return DropForbidden
	case !w.shared.budgets.takeError(from, proto.ErrorVersion, now):
		return DropBudget
	}
	return w.sendError(from, proto.AllocationID{}, proto.ErrorVersion)
}

// mismatch answers a datagram whose endpoint is not bound to the id it names
// with ERROR 3, on which UTP 2.x binds again with a new nonce.
func (w *worker) refuseMismatch(now int64, from endpoint.Endpoint, id proto.AllocationID) Outcome {
	named, live := w.shared.table.ByID(id)
	if live {
		w.shared.spoofGuard.noteForged(named.Handle, now)
	}
	m := w.mutes.find(from, now)
	if m == nil && !live && !(w.shared.recovering(now) && w.shared.previousRun.mayHold(id)) {
		return DropMuted // Too many strangers to remember whom we told.
	}
	if m != nil && (m.isSilent(now) || w.inbox.isPending(m.bind)) {
		return DropMuted
	}
	if !w.takeMismatch(now, from, id, named.Handle, live) {
		return DropBudget
	}
	if m != nil {
		m.noteError(now)
	}
	return w.sendError(from, id, proto.ErrorMismatch)
}

func (w *worker) takeMismatch(now int64, from endpoint.Endpoint, id proto.AllocationID, named table.Handle, live bool) bool {
	switch {
	case w.shared.budgets.unlimited:
		return true
	case !w.shared.budgets.takeEndpoint(from, proto.ErrorMismatch, now):
		return false
	case live:
		return w.shared.table.TakeMismatch(named, mismatchRate, now)
	case w.shared.recovering(now) && w.shared.previousRun.mayHold(id):
		return w.shared.budgets.takeProcess(now)
	}
	return w.shared.budgets.takePrefix(from, now) && w.shared.budgets.takeProcess(now)
}

// stranger answers a RELAY for which there is no link with ERROR 5, the first
// at once and then at most once a second per pair: each is a line in the log
// of a game.
func (w *worker) refuseUnlinked(now int64, sender *table.Entry, to proto.AllocationID) Outcome {
	if w.shared.recovering(now) && sender.Is(table.Recovered) {
		if outcome, doubt := w.requestRelink(now, sender, to); doubt {
			return outcome
		}
	}
	if !w.shared.table.TakeNotConnected(sender.Handle, to, now) {
		return DropMuted
	}
	if !w.shared.budgets.takeError(sender.Endpoint, proto.ErrorNotConnected, now) {
		return DropBudget
	}
	return w.sendError(sender.Endpoint, sender.ID, proto.ErrorNotConnected)
}

func (w *worker) sendError(to endpoint.Endpoint, id proto.AllocationID, code proto.ErrorCode) Outcome {
	w.out.add(to, proto.Error{ID: id, Code: code}.Append(w.out.reply()))
	return errorOutcomes[code]
}

const (
	// mismatchesPerEndpoint is how many ERROR 3 an endpoint gets that does not
	// bind. UTP 1.x does not react to ERROR 3 and binds again only after
	// silence, so telling it more often would keep it out.
	mutesAfter = 3
	// muteMillis is how long such an endpoint meets silence, in milliseconds.
	muteMillis = 10_000

	muteSets = 1024 // 4,096 endpoints: about 200 KiB per worker
	muteWays = 4
)

// muted is what a worker remembers of an endpoint that is not bound to what it
// claims.
type muted struct {
	from  endpoint.Endpoint
	until int64  // ms; silence before
	last  int64  // ms; last use
	bind  uint64 // number of its last BIND in the inbox
	count uint8  // ERROR 3 since it last sent an authentic BIND
}

// muteTable is a fixed-size memory of such endpoints, so that strangers cannot
// make it grow. It belongs to one worker, which is enough: the kernel hands all
// datagrams of an endpoint to the same one.
type muteTable struct {
	sets   [muteSets][muteWays]muted
	secret uint64
}

// find returns the entry of an endpoint, a fresh one if it has none, or nil if
// all places are taken by endpoints that were seen within muteMillis.
func (t *muteTable) find(from endpoint.Endpoint, now int64) *muted {
	set := &t.sets[t.set(from)]
	oldest := &set[0]
	for i := range set {
		m := &set[i]
		if m.from == from {
			m.last = now
			return m
		}
		if m.last < oldest.last {
			oldest = m
		}
	}
	if !oldest.from.IsZero() && now-oldest.last <= muteMillis {
		return nil
	}
	*oldest = muted{from: from, last: now}
	return oldest
}

func (t *muteTable) set(ep endpoint.Endpoint) uint64 {
	x := mix64(ep.Hi^t.secret) ^ ep.Lo
	return mix64(mix64(x)^ep.Tail^t.secret>>7) >> 32 % muteSets
}

// silent reports whether the endpoint meets silence now.
func (m *muted) isSilent(now int64) bool { return now < m.until }

// told notes that the endpoint was sent an ERROR 3.
func (m *muted) noteError(now int64) {
	m.count++
	if m.count >= mutesAfter {
		m.count, m.until = 0, now+muteMillis
	}
}

// forgive starts the count of ERROR 3 again: the endpoint sent an authentic BIND.
// Its place may be taken by whoever needs one.
func (m *muted) reset(now int64) {
	m.count, m.until, m.last = 0, 0, now-muteMillis-1
}
