package engine

import (
	"crypto/subtle"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// admission is a worker's scratch for the cryptography of BIND and
// CONNECT_REQUEST, so that neither allocates.
type admission struct {
	scratch alloc.Scratch
	deriver *alloc.Deriver
	signer  proto.Signer
	key     proto.Key
	memory  bindMemory
	named   uint64 // tenant whose name was last told to names
}

// bind filters a BIND, the cheapest check first: form, seal, what is known
// already, signature. Control decides about the state.
func (w *worker) bind(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseBind(pkt)
	if err != nil {
		return DropSize
	}
	if m.AcceptMode != 0 {
		return DropAcceptMode
	}
	c, ok := w.shared.sealer.Open(&w.seal.scratch, m.ConnectionData)
	if !ok {
		return DropSeal
	}
	if c.Role == alloc.RoleTicket {
		return DropTicket
	}
	if w.otherIdentity(&c) {
		return DropIdentity
	}
	e, live := w.shared.table.ByID(c.ID)
	if live {
		if w.seal.memory.has(&e, from, &m) {
			return w.bindAgain(now, &e)
		}
		if e.Is(table.EverBound|table.Deferred) && nonceOld(&e, from, m.Nonce) {
			return DropNonce
		}
	}
	if !w.shared.budgets.unlimited && w.inbox.loaded(now) && !w.shared.budgets.mayVerify(now, from, c.ID, &e) {
		return DropLoad
	}
	w.seal.deriver.Key(c.ID, &w.seal.key)
	if !w.seal.signer.Verify(pkt, &w.seal.key) {
		return DropMAC
	}
	if !live && c.Tenant != w.seal.named && c.Boot != w.shared.sealer.Boot() {
		w.shared.names.learn(&c)
		w.seal.named = c.Tenant
	}
	return w.bindAuthentic(now, from, &m, claimsOf(&c), &e)
}

// bindAuthentic hands a BIND with a good signature to control. The entry is
// empty if its allocation is not in the table.
func (w *worker) bindAuthentic(now int64, from endpoint.Endpoint, m *proto.Bind, c claims, e *table.Entry) Outcome {
	q := fresh
	if e.Is(table.EverBound) {
		q = known
	}
	if e.Handle != 0 {
		w.seal.memory.note(e.Handle, from, m)
	}
	n, outcome := w.hand(q, &command{kind: proto.TypeBind, from: from, claims: c, nonce: m.Nonce, now: now})
	if m := w.mute.find(from, now); m != nil {
		m.forgive(now) // It is who it says, also when we are too busy for it.
		if outcome == handedOver {
			m.bind = n
		}
	}
	return outcome
}

// bindAgain answers a BIND that is the last one once more: its BIND_RECEIVED
// was lost, or its client has heard nothing for a while.
func (w *worker) bindAgain(now int64, e *table.Entry) Outcome {
	if m := w.mute.find(e.Endpoint, now); m != nil {
		m.forgive(now)
	}
	w.shared.table.Activity(e.Handle).Heard(tick(now))
	if !w.shared.budgets.unlimited && !w.seal.memory.take(e.Handle, now) {
		return DropRate
	}
	w.out.add(e.Endpoint, proto.BindReceived{}.Append(w.out.reply()))
	return OutBound
}

// nonceOld is the rule of nonces: from the same endpoint equal or higher, from
// another one higher.
func nonceOld(e *table.Entry, from endpoint.Endpoint, nonce uint16) bool {
	return nonce < e.Nonce || nonce == e.Nonce && from != e.Endpoint
}

// connect filters a CONNECT_REQUEST: form, sender, then seal.
func (w *worker) connect(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseConnectRequest(pkt)
	if err != nil || len(m.ConnectionData) != alloc.ConnectionDataLen {
		return DropSize
	}
	sender, ok := w.shared.table.ByEndpoint(from)
	if !ok || sender.ID != m.ID {
		return w.mismatch(now, from, m.ID)
	}
	w.noteHeard(&sender, now)
	c, ok := w.shared.sealer.Open(&w.seal.scratch, m.ConnectionData)
	if !ok {
		return DropSeal
	}
	_, outcome := w.hand(known, &command{
		kind: proto.TypeConnectRequest, from: from, sender: sender, now: now, claims: claimsOf(&c),
	})
	return outcome
}

// disconnect filters a DISCONNECT: form and sender.
func (w *worker) disconnect(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseDisconnect(pkt)
	if err != nil {
		return DropSize
	}
	sender, ok := w.shared.table.ByEndpoint(from)
	if !ok || sender.ID != m.From {
		return w.mismatch(now, from, m.From)
	}
	w.noteHeard(&sender, now)
	_, outcome := w.hand(known, &command{kind: proto.TypeDisconnect, from: from, sender: sender, peer: m.To, now: now})
	return outcome
}

// close filters a CLOSE: form and sender. Who is not bound meets silence.
func (w *worker) close(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseClose(pkt)
	if err != nil {
		return DropSize
	}
	sender, ok := w.shared.table.ByEndpoint(from)
	if !ok || sender.ID != m.ID {
		if named, live := w.shared.table.ByID(m.ID); live {
			w.shared.spoof.wrong(named.Handle, now)
		}
		return DropUnbound
	}
	_, outcome := w.hand(known, &command{kind: proto.TypeClose, from: from, sender: sender, now: now})
	return outcome
}

// hand gives a command to control.
func (w *worker) hand(q class, c *command) (uint64, Outcome) {
	c.share = uint8(w.shared.budgets.gate(c.from))
	n, outcome := w.inbox.push(q, c)
	if outcome == handedOver {
		w.wakeControl()
	}
	return n, outcome
}

// bindRows is how many BINDs a worker remembers. An allocation that shares its
// row with another costs a signature more, nothing else.
const bindRows = 1024

// repeatRate is how often the same BIND is answered: a client repeats it once a
// second.
var repeatRate = table.Rate{Interval: 50_000, Burst: 20}

// bindMemory is what a worker remembers of BINDs whose signature it found good,
// so that one that comes again is answered without cryptography and without
// control. It belongs to its worker.
type bindMemory struct {
	rows [bindRows]bindRow
}

type bindRow struct {
	handle table.Handle
	from   endpoint.Endpoint
	mac    [proto.MACLen]byte
	nonce  uint16
	gate   atomic.Uint64
}

func (b *bindMemory) row(h table.Handle) *bindRow { return &b.rows[h.Slot()%bindRows] }

func (b *bindMemory) note(h table.Handle, from endpoint.Endpoint, m *proto.Bind) {
	r := b.row(h)
	if r.handle != h {
		r.gate.Store(0)
	}
	r.handle, r.from, r.mac, r.nonce = h, from, m.MAC, m.Nonce
}

// has reports whether a BIND, whose connection data is that of e, is the last
// one that control accepted for e, at the same endpoint, and the answer to that
// one has left: before that every worker must pass first.
func (b *bindMemory) has(e *table.Entry, from endpoint.Endpoint, m *proto.Bind) bool {
	r := b.row(e.Handle)
	return r.handle == e.Handle && r.from == from && r.nonce == m.Nonce &&
		e.Is(table.EverBound|table.Told) && e.Endpoint == from && e.Nonce == m.Nonce &&
		subtle.ConstantTimeCompare(r.mac[:], m.MAC[:]) == 1
}

// take draws one answer for h.
func (b *bindMemory) take(h table.Handle, now int64) bool {
	return repeatRate.Take(&b.row(h).gate, now)
}
