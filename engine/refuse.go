package engine

import (
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// minForError is the smallest datagram in bytes that is answered with an ERROR. An ERROR
// has 21 bytes, and a reply to an unknown sender is strictly smaller than the datagram
// that it answers, so that a forged source gains nothing.
const minForError = proto.ErrorLen + 1

// errorOutcomes are the outcomes of the ERROR codes. ERROR 1 has none: it answers no
// datagram.
var errorOutcomes = [...]outcome{
	proto.ErrorVersion:      outErrorVersion,
	proto.ErrorUnauthorized: outErrorUnauthorized,
	proto.ErrorMismatch:     outErrorMismatch,
	proto.ErrorNotFound:     outErrorNotFound,
	proto.ErrorNotConnected: outErrorNotConnected,
	proto.ErrorSelfConnect:  outErrorSelf,
}

// handleMalformed handles a datagram without a valid header. It drops all but messages of
// another version (ERROR 0), probes of this process and QoS probes.
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

// refuseSource returns the outcome of a message from a source that is refused. It reports the
// allocation of a BIND from a private network, whose player is probably honest.
//
//go:noinline
func (w *worker) refuseSource(now int64, from endpoint.Endpoint, t proto.Type, pkt []byte, o outcome) outcome {
	if o != dropPrivate || t != proto.TypeBind {
		return o
	}
	m, err := proto.ParseBind(pkt)
	if err != nil {
		return o
	}
	if c, ok := w.shared.sealer.Open(&w.crypto.scratch, m.ConnectionData); ok && c.Role != seal.RoleTicket {
		w.reportRefusal(now, from, t, c.ID, proto.AllocationID{}, o)
	}
	return o
}

// refuseMismatch answers a datagram whose endpoint is not bound to the id that it names
// with ERROR 3, on which UTP 2.x binds again with a new nonce.
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

// takeLiveMismatch takes an ERROR 3 about a live allocation from its budgets: on it a
// player depends whose address has changed. One in the network to which the allocation
// is bound, as after a NAT rebinding, has a part of its own, so that a flood from
// elsewhere cannot use it up. Any other takes from the budget of its prefix first.
func (w *worker) takeLiveMismatch(now int64, from endpoint.Endpoint, named *table.Entry) bool {
	b := w.shared.budgets
	if from.Network() == named.Endpoint.Network() {
		return b.rates.rebind.Take(b.rebindGate(named.ID), now)
	}
	return b.takeLivePrefix(from, named.ID, now) &&
		w.shared.table.TakeMismatch(named.Handle, b.rates.mismatch, now) && liveProcessRate.Take(&b.liveProcess, now)
}

// refuseUnlinked answers a RELAY without a link with ERROR 5, the first at once and then
// at most once a second per pair, since a game logs a line for each.
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
	w.shared.table.ChargeReply(sender.Handle, w.shared.budgets.rates.excessPath, proto.ErrorLen, now)
	w.reportRefusal(now, sender.Endpoint, proto.TypeRelay, sender.ID, to, outErrorNotConnected)
	return w.sendError(sender.Endpoint, sender.ID, proto.ErrorNotConnected)
}

func (w *worker) sendError(to endpoint.Endpoint, id proto.AllocationID, code proto.ErrorCode) outcome {
	w.out.add(to, proto.Error{ID: id, Code: code}.Append(w.out.reply()))
	return errorOutcomes[code]
}

// The rates of [Hooks].OnRefuse: so many refusals of one source prefix, and of one worker,
// or of control.
var (
	refusalPrefixRate = table.Rate{IntervalMicros: 200_000, Burst: 5}
	refusalRate       = table.Rate{IntervalMicros: 20_000, Burst: 50}
)

// refusalGates limit how many refusals are reported. They belong to one goroutine.
type refusalGates struct {
	all      uint32
	prefixes [sourceBuckets]uint32
}

// take reports whether a refusal of a message from there may be reported now.
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

// refusal returns the report of a command that was refused.
func (c *command) refusal(o outcome) RefuseEvent {
	e := RefuseEvent{ID: c.sender.ID, Peer: c.peer, From: c.from.AddrPort(), Message: c.kind, Outcome: o.String()}
	switch {
	case c.refused != 0:
	case c.kind == proto.TypeBind:
		e.ID = c.claims.id
	case c.kind == proto.TypeConnectRequest:
		e.Peer = c.claims.id
	}
	return e
}

// isRefusal reports whether it is the outcome of a command that changed nothing.
func (o outcome) isRefusal() bool {
	switch o {
	case outBound, outAccepted, outDisconnected, outClosed, outHeld, outRelinked, outcomePending:
		return false
	}
	return true
}

const (
	// mutesAfter is how many ERROR 3 an endpoint gets that does not bind. UTP 1.x
	// does not react to ERROR 3 and binds again only after silence, so more of them
	// would keep it from binding.
	mutesAfter = 3
	// muteMillis is for how long such an endpoint then gets no reply, in milliseconds.
	muteMillis = 10_000

	muteSets = 1024 // 4,096 endpoints: about 200 KiB per worker
	muteWays = 4
)

// muted is a worker's entry of an endpoint that is not bound to the id that it uses.
type muted struct {
	from  endpoint.Endpoint
	until int64  // ms; end of the silence
	last  int64  // ms; last use
	bind  uint64 // number of its last BIND in the inbox
	count uint8  // ERROR 3 since it last sent an authentic BIND
}

// muteTable holds such endpoints in fixed memory, so that an attacker cannot make it
// grow. It belongs to one worker, which is enough: the kernel passes all datagrams of an
// endpoint to the same one. It is not [table.KeyedGates], whose keys are hashes: an entry
// holds its endpoint, so that no other is silenced with it, and needs no atomics.
type muteTable struct {
	sets   [muteSets][muteWays]muted
	secret uint64
}

// find returns the entry of an endpoint, a new one if it has none, or nil if its set is
// full of endpoints that were seen within muteMillis.
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

// isSilent reports whether the endpoint gets no reply now.
func (m *muted) isSilent(now int64) bool { return now < m.until }

// noteError counts an ERROR 3 to the endpoint.
func (m *muted) noteError(now int64) {
	m.count++
	if m.count >= mutesAfter {
		m.count, m.until = 0, now+muteMillis
	}
}

// reset restarts the count of ERROR 3 after an authentic BIND. Another endpoint may take
// the entry.
func (m *muted) reset(now int64) {
	m.count, m.until, m.last = 0, 0, now-muteMillis-1
}
