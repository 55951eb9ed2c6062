package engine

import (
	"crypto/subtle"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

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
