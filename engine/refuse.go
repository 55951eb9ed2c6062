package engine

import (
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

const (
	errorLen = proto.HeaderLen + len(proto.AllocationID{}) + 1 /* code */
	// minForError: a reply to an unknown sender is strictly smaller than the datagram, so that a
	// forged source gains nothing.
	minForError = errorLen + 1
)

// ERROR 1 answers no datagram.
var errorOutcomes = [...]outcome{
	proto.ErrorVersion:      outErrorVersion,
	proto.ErrorUnauthorized: outErrorUnauthorized,
	proto.ErrorMismatch:     outErrorMismatch,
	proto.ErrorNotFound:     outErrorNotFound,
	proto.ErrorNotConnected: outErrorNotConnected,
	proto.ErrorSelfConnect:  outErrorSelf,
}

// Only messages of another version, checks and QoS probes are answered.
func (w *worker) handleMalformed(now int64, from endpoint.Endpoint, pkt []byte, t proto.Type, err error) outcome {
	switch {
	case err == proto.ErrShort:
		return dropShort
	case err == proto.ErrSignature && pkt[0] == proto.QoSMagic:
		return w.answerQoS(now, from, pkt)
	case err == proto.ErrSignature:
		return w.answerCheck(from, pkt)
	case !t.FromClient() || len(pkt) < minForError:
		return dropVersion
	}
	if o, refused := w.shared.sources.refuses(from); refused {
		return o
	}
	if !w.shared.budgets.takeError(from, proto.ErrorVersion, now) {
		return dropBudget
	}
	return w.sendError(from, proto.AllocationID{}, proto.ErrorVersion)
}

// refuseBind returns the outcome of a message that is dropped before it is looked at. It reports the
// allocation of a BIND, whose player is probably honest.
//
//go:noinline
func (w *worker) refuseBind(now int64, from endpoint.Endpoint, pkt []byte, o outcome) outcome {
	m, err := proto.ParseBind(pkt)
	if err != nil {
		return o
	}
	if c, ok := w.shared.sealer.Open(&w.crypto.scratch, m.ConnectionData); ok && c.Role != seal.RoleTicket {
		w.reportRefusal(now, from, proto.TypeBind, c.ID, proto.AllocationID{}, o)
	}
	return o
}

// UTP 2.x binds again with a new nonce on ERROR 3.
func (w *worker) refuseMismatch(now int64, from endpoint.Endpoint, t proto.Type, id proto.AllocationID) outcome {
	if o, refused := w.shared.sources.refuses(from); refused {
		return o
	}
	named, live := w.shared.table.ByID(id)
	if live {
		w.shared.budgets.spoofGuard.noteForged(named.Handle, now)
		w.reportRefusal(now, from, t, id, proto.AllocationID{}, outErrorMismatch)
	}
	m := w.mutes.find(from, now)
	if m == nil && !live && !(w.shared.recovering(now) && w.shared.previousRun.mayHold(id)) {
		return dropMuted // The table of senders is full.
	}
	if m != nil && (m.isSilent(now) || w.inbox.isPending(m.bind)) {
		return dropMuted
	}
	if !w.takeMismatch(now, from, id, &named, live) {
		return dropBudget
	}
	if m != nil {
		m.noteError(now)
	}
	return w.sendError(from, id, proto.ErrorMismatch)
}

func (w *worker) takeMismatch(now int64, from endpoint.Endpoint, id proto.AllocationID, named *table.Entry, live bool) bool {
	switch {
	case w.shared.budgets.unlimited:
		return true
	case !w.shared.budgets.takeEndpoint(from, proto.ErrorMismatch, now):
		return false
	case live:
		return w.takeLiveMismatch(now, from, named)
	case w.shared.recovering(now) && w.shared.previousRun.holds(id):
		return w.shared.budgets.takeRecover(id, now)
	case w.shared.recovering(now) && w.shared.previousRun.mayHold(id):
		return w.shared.budgets.takeProcess(now)
	}
	return w.shared.budgets.takePrefix(from, now) && w.shared.budgets.takeProcess(now)
}

// takeLiveMismatch takes an ERROR 3 from its budgets, on which a player depends whose address has
// changed. In the network to which the allocation is bound, as after a NAT rebinding, it has a
// part of its own, which a flood from elsewhere cannot use up. Any other takes from its prefix
// first.
func (w *worker) takeLiveMismatch(now int64, from endpoint.Endpoint, named *table.Entry) bool {
	b := w.shared.budgets
	if from.Network() == named.Endpoint.Network() {
		return b.rates.rebind.Take(b.rebindGate(named.ID), now)
	}
	return b.takeLivePrefix(from, named.ID, now) &&
		w.shared.table.TakeMismatch(named.Handle, b.rates.mismatch, now) && liveProcessRate.Take(&b.liveProcess, now)
}

// A game logs a line for each ERROR 5, so it comes at most once a second per pair.
func (w *worker) refuseUnlinked(now int64, sender *table.Entry, to proto.AllocationID) outcome {
	if w.shared.recovering(now) && sender.Is(table.Recovered) {
		if outcome, doubt := w.requestRelink(now, sender, to); doubt {
			return outcome
		}
	}
	if !w.shared.table.TakeNotConnected(sender.Handle, to, now) {
		return dropMuted
	}
	if !w.shared.budgets.takeError(sender.Endpoint, proto.ErrorNotConnected, now) {
		return dropBudget
	}
	w.shared.table.ChargeReply(sender.Handle, w.shared.budgets.rates.excessPath, errorLen, now)
	w.reportRefusal(now, sender.Endpoint, proto.TypeRelay, sender.ID, to, outErrorNotConnected)
	return w.sendError(sender.Endpoint, sender.ID, proto.ErrorNotConnected)
}

func (w *worker) sendError(to endpoint.Endpoint, id proto.AllocationID, code proto.ErrorCode) outcome {
	w.out.add(to, proto.Error{ID: id, Code: code}.Append(w.out.reply()))
	return errorOutcomes[code]
}

// The rates of [Hooks].OnRefuse: for a source prefix, for the receiver of what may not go on its
// path, and for a worker or control.
var (
	refusalPrefixRate = table.Rate{IntervalMicros: 200_000, Burst: 5}
	starvedRate       = table.Rate{IntervalMicros: 5_000_000, Burst: 1}
	refusalRate       = table.Rate{IntervalMicros: 20_000, Burst: 50}
)

// refusalGates belong to one goroutine.
type refusalGates struct {
	all      uint32
	prefixes [sourceBuckets]uint32
}

func (g *refusalGates) take(b *budgets, from endpoint.Endpoint, now int64) bool {
	return refusalPrefixRate.TakePlain(&g.prefixes[b.prefixIndex(from)%sourceBuckets], now) &&
		refusalRate.TakePlain(&g.all, now)
}

// reportRefusal reports a refused message of a known allocation to control, for
// [Hooks].OnRefuse, and returns its outcome.
//
//go:noinline
func (w *worker) reportRefusal(now int64, from endpoint.Endpoint, t proto.Type, id, peer proto.AllocationID, o outcome) outcome {
	if w.shared.reportsRefusals && w.refusals.take(w.shared.budgets, from, now) {
		w.enqueue(known, &command{kind: t, from: from, sender: table.Entry{ID: id}, peer: peer, now: now, refused: o})
	}
	return o
}

// reportStarved is reportRefusal of a RELAY that may not go on the path to the peer. Players of one
// host may be starved together, and each is reported.
//
//go:noinline
func (w *worker) reportStarved(now int64, sender, peer *table.Entry) outcome {
	b, all := w.shared.budgets, w.refusals.all
	switch {
	case !w.shared.reportsRefusals || !refusalRate.TakePlain(&w.refusals.all, now):
	case !b.starved.Take(b.endpointHash(peer.Endpoint, 0), starvedRate, now):
		w.refusals.all = all
	default:
		w.enqueue(known, &command{
			kind: proto.TypeRelay, from: sender.Endpoint, sender: *sender, peer: peer.ID, now: now, refused: dropUnvalidated,
		})
	}
	return dropUnvalidated
}

func (c *command) refusal(o outcome) privateapi.RefuseEvent {
	e := privateapi.RefuseEvent{ID: c.sender.ID, Peer: c.peer, From: c.from.AddrPort(), Message: c.kind, Outcome: o.String()}
	switch {
	case c.refused != 0:
	case c.kind == proto.TypeBind:
		e.ID = c.claims.id
	case c.kind == proto.TypeConnectRequest:
		e.Peer = c.claims.id
	}
	return e
}

// The outcome is that of a command that changed nothing.
func (o outcome) isRefusal() bool {
	switch o {
	case outBound, outAccepted, outDisconnected, outClosed, outHeld, outRelinked, outcomePending:
		return false
	}
	return true
}

const (
	// mutesAfter: UTP 1.x does not react to ERROR 3 and binds again only after silence, so more of
	// them would keep it from binding.
	mutesAfter = 3
	muteMillis = 10_000

	muteSets = 1024 // 4,096 endpoints: about 200 KiB per worker
	muteWays = 4
)

type muted struct {
	from  endpoint.Endpoint
	until int64  // ms; end of the silence
	last  int64  // ms; last use
	bind  uint64 // number of its last BIND in the inbox
	count uint8  // ERROR 3 since it last sent an authentic BIND
}

// muteTable has fixed memory, so that an attacker cannot make it grow. It belongs to one worker:
// the kernel passes all datagrams of an endpoint to the same one. Its entries hold endpoints, not
// hashes as [table.KeyedGates], so that no other endpoint is silenced with one.
type muteTable struct {
	sets   [muteSets][muteWays]muted
	secret uint64
}

// find returns nil if the set is full of endpoints that were seen within muteMillis.
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
	x := endpoint.Mix64(ep.Hi^t.secret) ^ ep.Lo
	return endpoint.Mix64(endpoint.Mix64(x)^ep.Tail^t.secret>>7) >> 32 % muteSets
}

func (m *muted) isSilent(now int64) bool { return now < m.until }

func (m *muted) noteError(now int64) {
	m.count++
	if m.count >= mutesAfter {
		m.count, m.until = 0, now+muteMillis
	}
}

// reset is for an authentic BIND. Another endpoint may take the entry.
func (m *muted) reset(now int64) {
	m.count, m.until, m.last = 0, 0, now-muteMillis-1
}
