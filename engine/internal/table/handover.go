package table

import (
	"encoding/binary"
	"errors"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// An allocation that another process continues is a sequence of 8-byte words, little-endian:
// identity and account, activity, then the gates of ERROR 5, without next hops and neighbours in
// the timer wheel. HandoverVersion changes with the layout.
const (
	HandoverVersion = 2
	handoverWords   = 28 + NotConnectedSlots
	// HandoverLen is in bytes.
	HandoverLen = 8 * handoverWords
)

// ErrHandover is the error of [Table.RestoreAllocation] for bytes that are no allocation.
var ErrHandover = errors.New("table: malformed allocation of another process")

// AppendAllocation appends a live allocation for RestoreAllocation. No worker may run.
func (t *Table) AppendAllocation(b []byte, h Handle) []byte {
	e, _ := t.At(h)
	a, act, large := t.Account(h), t.Activity(h), t.LargeMessages(h)
	var link proto.AllocationID
	unlinkedAt := a.UnlinkedAt
	if host, ok := t.At(e.Link); ok {
		link = host.ID
	} else if e.Link != 0 {
		unlinkedAt = AtHostsEnd
	}
	flags := uint64(e.Role) | uint64(e.Flags)<<8 | uint64(a.DisconnectedBy)<<16
	for i, set := range []bool{e.Is(EverLinked), a.LinkBlocked, large.forwarded.Load()&reported != 0, a.RemovedByHost} {
		if set {
			flags |= 1 << (24 + i)
		}
	}
	for _, id := range [][16]byte{e.ID, a.Match, link, t.Player(h)} {
		b = append(b, id[:]...)
	}
	for _, word := range [...]uint64{
		t.Tenant(h), e.Endpoint.Hi, e.Endpoint.Lo, e.Endpoint.Tail, uint64(a.LostEndpoint), flags,
		pair(uint32(e.Nonce), uint32(a.Epoch)), pair(uint32(a.MaxConnections), uint32(a.AwaitedLinks)|uint32(a.Removals)<<16),
		pair(uint32(a.EndpointAt), a.LinkGate), pair(uint32(a.ReservedAt), uint32(a.DeferredUntil)),
		pair(uint32(a.CloseAt), uint32(a.UnlinkAt)), pair(uint32(unlinkedAt), a.StateIndex),
		pair(t.identity(h.slot()).path.Load(), act.heard.Load()),
		pair(act.relayed.Load(), act.received.Load()), pair(act.notified.Load(), act.unvalidated.Load()),
		act.quotaGate.Load(), act.sent.Load(), pair(large.dropped.Load(), large.Forwarded()),
		pair(t.mismatchGate(h).Load(), t.excessGate(h).Load()), uint64(a.MigrationAt),
	} {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	for i := range act.notConnected {
		b = binary.LittleEndian.AppendUint64(b, act.notConnected[i].Load())
	}
	return b
}

func pair(low, high uint32) uint64 { return uint64(high)<<32 | uint64(low) }

// Prepare takes and touches the memory of so many allocations for an empty table, so that
// RestoreAllocation does not wait for the kernel page by page.
func (t *Table) Prepare(allocations int) {
	allocations = min(allocations, t.w.max)
	for slot := range uint32(allocations) {
		t.addSlab(slot)
		t.identity(slot).meta.Store(0)
		t.slabs[slot/SlabRecords].Load().activities[slot%SlabRecords].heard.Store(0)
		cold := t.cold[slot/SlabRecords].Load()
		cold.accounts[slot%SlabRecords] = Account{}
		cold.large[slot%SlabRecords].dropped.Store(0)
	}
	t.byEndpoint.prepare(allocations)
	t.byID.prepare(allocations)
}

// RestoreAllocation adds the allocation in the first HandoverLen bytes, with its endpoint, and its
// link if its host is in the table already. Errors: ErrHandover, ErrFull.
func (t *Table) RestoreAllocation(b []byte, counterIndex func(tenant uint64) uint32) (Handle, error) {
	if len(b) < HandoverLen {
		return 0, ErrHandover
	}
	var ids [4][16]byte
	for i := range ids {
		ids[i] = [16]byte(b[16*i:])
	}
	var w [handoverWords - 8]uint64
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[64+8*i:])
	}
	role := Role(w[5])
	id := proto.AllocationID(ids[0])
	if _, exists := t.ByID(id); exists || role != RoleHost && role != RoleJoiner || uint32(w[5])>>28 != 0 {
		return 0, ErrHandover
	}
	h, err := t.Reserve(Spec{
		ID: id, Role: role, Match: ids[1], Player: ids[3], Tenant: w[0], Epoch: uint16(w[6] >> 32),
		MaxConnections: uint16(w[7]), CounterIndex: counterIndex(w[0]),
	}, Tick(w[9]))
	if err != nil {
		return 0, err
	}
	a, act, large, flags := t.Account(h), t.Activity(h), t.LargeMessages(h), w[5]
	a.LostEndpoint, a.AwaitedLinks, a.Removals, a.DisconnectedBy = uint32(w[4]), uint16(w[7]>>32), uint16(w[7]>>48), Role(flags>>16)
	a.LinkBlocked = flags>>25&1 == 1
	a.EndpointAt, a.LinkGate = Tick(w[8]), uint32(w[8]>>32)
	a.DeferredUntil = Tick(w[9] >> 32)
	a.CloseAt, a.UnlinkAt = Tick(w[10]), Tick(w[10]>>32)
	a.UnlinkedAt, a.StateIndex = Tick(w[11]), uint32(w[11]>>32)
	a.MigrationAt, a.RemovedByHost = Tick(w[19]), flags>>27&1 == 1
	act.heard.Store(uint32(w[12] >> 32))
	act.relayed.Store(uint32(w[13]))
	act.received.Store(uint32(w[13] >> 32))
	act.notified.Store(uint32(w[14]))
	act.unvalidated.Store(uint32(w[14] >> 32))
	act.quotaGate.Store(w[15])
	act.sent.Store(w[16])
	large.dropped.Store(uint32(w[17]))
	large.forwarded.Store(uint32(w[17] >> 32))
	if flags>>26&1 == 1 {
		large.TakeReport()
	}
	t.mismatchGate(h).Store(uint32(w[18]))
	t.excessGate(h).Store(uint32(w[18] >> 32))
	for i := range act.notConnected {
		act.notConnected[i].Store(w[20+i])
	}
	t.identity(h.slot()).path.Store(uint32(w[12]))
	if ep := (endpoint.Endpoint{Hi: w[1], Lo: w[2], Tail: w[3]}); !ep.IsZero() {
		if t.Bind(h, ep) != 0 {
			return 0, ErrHandover
		}
	}
	t.setBinding(h, Flags(flags>>8)|EverLinked*Flags(flags>>24&1), uint16(w[6]))
	if host, ok := t.ByID(ids[2]); ok && role == RoleJoiner {
		t.Link(h, host.Handle)
	}
	return h, nil
}
