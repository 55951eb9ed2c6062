package table

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

func TestHandover(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := newModel(t, 300, 200)
		for range 2000 {
			m.step(byte(random.IntN(256)), random.IntN(1000), random.IntN(1000))
		}
		for _, l := range m.live {
			fillRandomly(m.table, l.handle, random)
		}
		var moved []byte
		for _, role := range []Role{RoleHost, RoleJoiner} {
			for _, l := range m.live {
				if l.spec.Role == role {
					moved = m.table.AppendAllocation(moved, l.handle)
				}
			}
		}
		if len(moved) != len(m.live)*HandoverLen {
			t.Fatalf("%d allocations are %d bytes", len(m.live), len(moved))
		}
		to := sharedTable(300)
		if seed%2 == 1 {
			to.Prepare(len(m.live))
		}
		index := func(tenant uint64) uint32 { return uint32(tenant) }
		for b := moved; len(b) > 0; b = b[HandoverLen:] {
			h, err := to.RestoreAllocation(b, index)
			if err != nil {
				t.Fatal(err)
			}
			if e, _ := to.At(h); e.Role == RoleHost {
				continue
			}
			if again := to.AppendAllocation(nil, h); !bytes.Equal(again, b[:HandoverLen]) {
				t.Fatalf("the allocation is\n%x, it was\n%x", again, b[:HandoverLen])
			}
		}
		for _, l := range m.live {
			e, ok := to.ByID(l.spec.ID)
			if !ok || !bytes.Equal(to.AppendAllocation(nil, e.Handle), m.table.AppendAllocation(nil, l.handle)) {
				t.Fatalf("%v differs", l.spec.ID)
			}
			if got, want := to.Account(e.Handle).Links, m.table.Account(l.handle).Links; got != want {
				t.Errorf("%d links, not %d", got, want)
			} else if l.spec.Role == RoleHost && len(slices.Collect(to.LinkedJoiners(e.Handle))) != int(want) {
				t.Errorf("not all of %d links are found", want)
			}
			var found Entry
			if has := to.FindByEndpoint(l.endpoint, &found); !l.endpoint.IsZero() && (!has || found.Handle != e.Handle) {
				t.Errorf("%v is not found by its endpoint", l.spec.ID)
			}
			for _, other := range m.live {
				if has := to.FindPeer(&e, &other.spec.ID, &found); has != linked(l, other) {
					t.Errorf("linked: %v, not %v", has, linked(l, other))
				}
			}
		}
		a, b, c := to.Counts()
		if x, y, z := m.table.Counts(); a != x || b != y || c != z {
			t.Errorf("the counts are %d, %d, %d, not %d, %d, %d", a, b, c, x, y, z)
		}
	}
}

func fillRandomly(t *Table, h Handle, random *rand.Rand) {
	a, act, large := t.Account(h), t.Activity(h), t.LargeMessages(h)
	a.LostEndpoint, a.EndpointAt, a.LinkGate = random.Uint32(), Tick(random.Uint32()), random.Uint32()
	a.DeferredUntil, a.CloseAt, a.UnlinkAt = Tick(random.Uint32()), Tick(random.Uint32()), Tick(random.Uint32())
	a.UnlinkedAt, a.RemovedByHost = Tick(random.Uint32()), random.IntN(2) == 0
	a.MigrationAt, a.Removals = Tick(random.Uint32()), uint16(random.Uint32())
	a.StateIndex, a.AwaitedLinks = random.Uint32(), uint16(random.Uint32())
	a.DisconnectedBy, a.LinkBlocked = Role(random.IntN(3)), random.IntN(2) == 0
	act.heard.Store(random.Uint32())
	act.relayed.Store(random.Uint32())
	act.received.Store(random.Uint32())
	act.notified.Store(random.Uint32())
	act.unvalidated.Store(random.Uint32())
	act.quotaGate.Store(random.Uint64())
	act.sent.Store(random.Uint64())
	large.dropped.Store(random.Uint32())
	large.forwarded.Store(random.Uint32())
	t.mismatchGate(h).Store(random.Uint32())
	t.excessGate(h).Store(random.Uint32())
	t.identity(h.slot()).path.Store(random.Uint32())
	for i := range act.notConnected {
		act.notConnected[i].Store(random.Uint64())
	}
}

func TestHandoverMalformed(t *testing.T) {
	from, to := NewTable(10), NewTable(1)
	h, err := from.Reserve(Spec{ID: proto.AllocationID{1}, Role: RoleHost}, 5)
	if err != nil {
		t.Fatal(err)
	}
	good := from.AppendAllocation(nil, h)
	role := bytes.Clone(good)
	role[64+8*5] = 3
	rest := bytes.Clone(good)
	rest[64+8*5+3] = 0x80
	index := func(uint64) uint32 { return 0 }
	for name, b := range map[string][]byte{"short": good[:HandoverLen-1], "role": role, "rest": rest} {
		if _, err := to.RestoreAllocation(b, index); !errors.Is(err, ErrHandover) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := to.RestoreAllocation(good, index); err != nil {
		t.Error(err)
	}
	if _, err := to.RestoreAllocation(good, index); !errors.Is(err, ErrHandover) {
		t.Errorf("twice: %v", err)
	}
	good[0] = 2
	if _, err := to.RestoreAllocation(good, index); !errors.Is(err, ErrFull) {
		t.Errorf("in a full table: %v", err)
	}
}

func TestPrepare(t *testing.T) {
	const each, times = 2500, 2
	from, to := NewTable(each*times), NewTable(each*times)
	random := rand.New(rand.NewPCG(1, 2))
	var moved []byte
	for range each * times {
		var id proto.AllocationID
		binary.LittleEndian.PutUint64(id[:], random.Uint64())
		h, err := from.Reserve(Spec{ID: id, Role: RoleHost}, 1)
		if err != nil {
			t.Fatal(err)
		}
		from.Bind(h, endpoint.Endpoint{Hi: random.Uint64(), Lo: random.Uint64(), Tail: 1})
		moved = from.AppendAllocation(moved, h)
	}
	to.Prepare(each * times)
	restore := func() {
		for range each {
			if _, err := to.RestoreAllocation(moved, func(uint64) uint32 { return 0 }); err != nil {
				t.Fatal(err)
			}
			moved = moved[HandoverLen:]
		}
	}
	if n := testing.AllocsPerRun(times-1, restore); n != 0 {
		t.Errorf("%v allocations of memory", n)
	}
	if n, _, _ := to.Counts(); n != each*times {
		t.Errorf("%d allocations", n)
	}
}
