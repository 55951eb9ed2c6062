package engine

import (
	"crypto/subtle"
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// bindScratch is a worker's memory for BIND and CONNECT_REQUEST, so that neither allocates.
type bindScratch struct {
	scratch seal.Scratch
	deriver *seal.Deriver
	signer  proto.Signer
	key     proto.Key
	repeats bindCache
}

// bind checks a BIND, the cheapest check first.
func (w *worker) bind(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParseBind(pkt)
	if err != nil {
		return dropSize
	}
	if m.AcceptMode != 0 {
		return w.refuseBind(now, from, pkt, dropAcceptMode)
	}
	c, ok := w.shared.sealer.Open(&w.crypto.scratch, m.ConnectionData)
	if !ok {
		return dropSeal
	}
	if c.Role == seal.RoleTicket {
		return w.reportRefusal(now, from, proto.TypeBind, c.Joiner, c.ID, dropTicket)
	}
	if w.bindsOtherAllocation(&c) {
		return w.reportRefusal(now, from, proto.TypeBind, c.ID, proto.AllocationID{}, dropIdentity)
	}
	e, live := w.shared.table.ByID(c.ID)
	if live {
		if w.crypto.repeats.isRepeat(&e, from, &m) {
			return w.repeatBindReceived(now, &e)
		}
		if e.Is(table.EverBound|table.ExpiryDeferred) && isStaleNonce(&e, from, m.Nonce) {
			return w.reportRefusal(now, from, proto.TypeBind, c.ID, proto.AllocationID{}, dropNonce)
		}
	}
	if !w.shared.budgets.unlimited && w.inbox.isUnderLoad(now) && !w.shared.budgets.mayVerify(now, from, c.ID, &e) {
		return dropLoad
	}
	w.crypto.deriver.Key(c.ID, &w.crypto.key)
	if !w.crypto.signer.Verify(pkt, &w.crypto.key) {
		return w.reportRefusal(now, from, proto.TypeBind, c.ID, proto.AllocationID{}, dropMAC)
	}
	claims := claimsOf(&c)
	if !live && c.Boot != w.shared.sealer.Boot() && w.shared.recovering(now) {
		claims.names = namesOf(&c)
	}
	claims.path = w.pathOf(&c, from)
	return w.enqueueBind(now, from, &m, claims, &e)
}

func (w *worker) pathOf(c *seal.Claims, from endpoint.Endpoint) path {
	ip := from.AddrPort().Addr()
	switch {
	case !ip.IsValid():
		return pathValidated // A session: its handshake was a proof of receipt.
	case c.Network == (seal.NetworkTag{}):
		return pathUnknown
	case c.Network == w.crypto.deriver.NetworkTag(ip):
		return pathValidated
	}
	return pathElsewhere
}

// The entry is zero if the allocation is not in the table.
func (w *worker) enqueueBind(now int64, from endpoint.Endpoint, m *proto.Bind, c claims, e *table.Entry) outcome {
	q := fresh
	if e.Is(table.EverBound) {
		q = known
	}
	if e.Handle != 0 {
		w.crypto.repeats.store(e.Handle, from, m)
	}
	n, outcome := w.enqueue(q, &command{kind: proto.TypeBind, from: from, claims: c, nonce: m.Nonce, now: now})
	if m := w.mutes.find(from, now); m != nil {
		m.reset(now) // The sender is authentic, even if its command found no room.
		if outcome == outcomePending {
			m.bind = n
		}
	}
	return outcome
}

func (w *worker) repeatBindReceived(now int64, e *table.Entry) outcome {
	if m := w.mutes.find(e.Endpoint, now); m != nil {
		m.reset(now)
	}
	w.shared.table.Activity(e.Handle).RecordReceive(tick(now))
	if !w.shared.budgets.unlimited && !w.crypto.repeats.takeReply(e.Handle, now) {
		return dropRate
	}
	w.out.add(e.Endpoint, proto.BindReceived{}.Append(w.out.reply()))
	return outBound
}

func isStaleNonce(e *table.Entry, from endpoint.Endpoint, nonce uint16) bool {
	return nonce < e.Nonce || nonce == e.Nonce && from != e.Endpoint
}

func (w *worker) connect(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParseConnectRequest(pkt)
	if err != nil || len(m.ConnectionData) != proto.MaxConnectionData {
		return dropSize
	}
	var sender table.Entry
	if !w.shared.table.FindByEndpoint(from, &sender) || sender.ID != m.ID {
		return w.refuseMismatch(now, from, proto.TypeConnectRequest, m.ID)
	}
	w.noteReceived(&sender, now, len(pkt))
	c, ok := w.shared.sealer.Open(&w.crypto.scratch, m.ConnectionData)
	if !ok {
		return w.reportRefusal(now, from, proto.TypeConnectRequest, sender.ID, proto.AllocationID{}, dropSeal)
	}
	_, outcome := w.enqueue(known, &command{
		kind: proto.TypeConnectRequest, from: from, sender: sender, now: now, claims: claimsOf(&c),
	})
	return outcome
}

func (w *worker) disconnect(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParseDisconnect(pkt)
	if err != nil {
		return dropSize
	}
	var sender table.Entry
	if !w.shared.table.FindByEndpoint(from, &sender) || sender.ID != m.From {
		return w.refuseMismatch(now, from, proto.TypeDisconnect, m.From)
	}
	w.noteReceived(&sender, now, len(pkt))
	_, outcome := w.enqueue(known, &command{kind: proto.TypeDisconnect, from: from, sender: sender, peer: m.To, now: now})
	return outcome
}

func (w *worker) close(now int64, from endpoint.Endpoint, pkt []byte) outcome {
	m, err := proto.ParseClose(pkt)
	if err != nil {
		return dropSize
	}
	var sender table.Entry
	if !w.shared.table.FindByEndpoint(from, &sender) || sender.ID != m.ID {
		if claimed, live := w.shared.table.ByID(m.ID); live {
			w.shared.budgets.spoofGuard.noteForged(claimed.Handle, now)
		}
		return dropUnbound
	}
	_, outcome := w.enqueue(known, &command{kind: proto.TypeClose, from: from, sender: sender, now: now})
	return outcome
}

func (w *worker) enqueue(q class, c *command) (uint64, outcome) {
	c.bucket = uint8(w.shared.budgets.prefixIndex(c.from))
	n, outcome := w.inbox.push(q, c)
	if outcome == outcomePending {
		w.wakeControl()
	}
	return n, outcome
}

// bindCacheSize is how many BINDs a worker caches. Two allocations that share an
// entry cost one more signature check, nothing else.
const bindCacheSize = 1024

// repeatRate: a client repeats a BIND once a second.
var repeatRate = table.Rate{IntervalMicros: 50_000, Burst: 20}

// bindCache holds verified BINDs, so that a repeated one needs no cryptography. It belongs to its
// worker.
type bindCache struct {
	entries [bindCacheSize]bindCacheEntry
}

type bindCacheEntry struct {
	handle table.Handle
	from   endpoint.Endpoint
	mac    [len(proto.Bind{}.MAC)]byte
	nonce  uint16
	gate   atomic.Uint64
}

func (b *bindCache) entry(h table.Handle) *bindCacheEntry { return &b.entries[h.Slot()%bindCacheSize] }

func (b *bindCache) store(h table.Handle, from endpoint.Endpoint, m *proto.Bind) {
	r := b.entry(h)
	if r.handle != h {
		r.gate.Store(0)
	}
	r.handle, r.from, r.mac, r.nonce = h, from, m.MAC, m.Nonce
}

// isRepeat reports whether a BIND is the last one that control accepted for e, and its answer has
// left: until then a grace period must end first.
func (b *bindCache) isRepeat(e *table.Entry, from endpoint.Endpoint, m *proto.Bind) bool {
	r := b.entry(e.Handle)
	return r.handle == e.Handle && r.from == from && r.nonce == m.Nonce &&
		e.Is(table.EverBound|table.BindConfirmed) && e.Endpoint == from && e.Nonce == m.Nonce &&
		subtle.ConstantTimeCompare(r.mac[:], m.MAC[:]) == 1
}

func (b *bindCache) takeReply(h table.Handle, now int64) bool {
	return repeatRate.Take(&b.entry(h).gate, now)
}
