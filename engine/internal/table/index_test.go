package table

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func (c *cells) find(hash uint64) (slots []uint32) {
	tag := tagOf(hash)
	for at := hash; ; at++ {
		line := c.line(at)
		for found := line.match(tag); found != 0; found &= found - 1 {
			if slot, ok := line.slot(found, tag); ok {
				slots = append(slots, slot)
			}
		}
		if line.hasEmpty() {
			return slots
		}
	}
}

func (c *cells) steps(hash uint64, slot uint32) int {
	for n := 0; n < len(c.lines); n++ {
		line := c.line(hash + uint64(n))
		for i := range line {
			if line[i].Load() == makeCell(hash, slot) {
				return n
			}
		}
	}
	return -1
}

// shardModel is one shard, and its expected content: the hash of each slot.
type shardModel struct {
	shard shard
	hash  map[uint32]uint64
	count map[uint64]int // slots with that hash
}

func newShardModel() *shardModel {
	m := &shardModel{hash: make(map[uint32]uint64), count: make(map[uint64]int)}
	m.shard.counts = new(cellCounts)
	m.shard.cells.Store(newCells(minLines))
	return m
}

func (m *shardModel) insert(hash uint64, slot uint32) {
	m.shard.insert(hash, slot, func(slot uint32) uint64 { return m.hash[slot] })
	m.hash[slot] = hash
	m.count[hash]++
}

func (m *shardModel) remove(slot uint32) bool {
	hash := m.hash[slot]
	delete(m.hash, slot)
	m.count[hash]--
	return m.shard.remove(hash, slot)
}

func (m *shardModel) check(t *testing.T) {
	t.Helper()
	c := m.shard.cells.Load()
	used, live := 0, 0
	for i := range c.lines {
		for j := range c.lines[i] {
			switch c.lines[i][j].Load() {
			case 0:
			case tombstone:
				used++
			default:
				used++
				live++
			}
		}
	}
	if used != m.shard.counts.used || live != m.shard.counts.live || live != len(m.hash) {
		t.Fatalf("%d used and %d live cells, counted as %d and %d, want %d live",
			used, live, m.shard.counts.used, m.shard.counts.live, len(m.hash))
	}
	for slot, hash := range m.hash {
		hits := 0
		for _, s := range c.find(hash) {
			if s == slot {
				hits++
			}
			if _, there := m.hash[s]; !there {
				t.Fatalf("a reader is led to slot %d, which is not there", s)
			}
		}
		if hits != 1 {
			t.Fatalf("slot %d under %#x found %d times", slot, hash, hits)
		}
	}
}

// TestIndexModel has few lines and fewer tags, so that lines fill, tags are equal and probes wrap.
func TestIndexModel(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	for _, c := range []struct{ tags, lines, slots int }{
		{1, 1, 40}, {2, 1, 60}, {3, 8, 44}, {1 << 20, 2, 300}, {1 << 20, 1 << 16, 1000},
	} {
		t.Run(fmt.Sprintf("%d tags, %d lines, %d slots", c.tags, c.lines, c.slots), func(t *testing.T) {
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			m := newShardModel()
			for range 20_000 {
				slot := r.Uint32N(uint32(c.slots))
				if _, there := m.hash[slot]; !there {
					m.insert(uint64(r.IntN(c.tags))<<33|uint64(r.IntN(c.lines)), slot)
				} else if !m.remove(slot) {
					t.Fatalf("slot %d is not there", slot)
				}
				if r.IntN(100) == 0 {
					m.check(t)
				}
			}
			m.check(t)
		})
	}
}

// TestIndexRemoveIsExact: an allocation that moves has two cells, and another
// one may have the same tag; only the cell that is meant goes.
func TestIndexRemoveIsExact(t *testing.T) {
	t.Parallel()
	const oldHash, newHash = 7<<32 | 1, 9<<32 | 1
	m := newShardModel()
	m.insert(oldHash, 5)
	m.insert(oldHash, 6)
	m.insert(newHash, 5)
	if m.shard.remove(newHash, 6) {
		t.Error("removed a slot under a hash that it never had")
	}
	if !m.shard.remove(oldHash, 5) {
		t.Error("did not remove the old cell")
	}
	c := m.shard.cells.Load()
	if got := fmt.Sprint(c.find(oldHash), c.find(newHash)); got != "[6] [5]" {
		t.Errorf("found %s, want [6] [5]", got)
	}
}

func TestContract1ChurnKeepsCellsBounded(t *testing.T) {
	t.Parallel()
	const stay, rounds = 1000, 200_000
	m := newShardModel()
	r := rand.New(rand.NewPCG(3, 4))
	for slot := range uint32(stay) {
		m.insert(r.Uint64(), slot)
	}
	before := len(m.shard.cells.Load().lines)
	for i := range uint32(rounds) {
		slot := stay + i%64
		if _, there := m.hash[slot]; there {
			m.remove(slot)
		}
		m.insert(r.Uint64(), slot)
	}
	m.check(t)
	after := len(m.shard.cells.Load().lines)
	if after > 2*before || after*lineCells > 4*(stay+64) {
		t.Errorf("%d cells after churn, %d before, for %d entries", after*lineCells, before*lineCells, len(m.hash))
	}
}

// TestContract1LineThatWasFullStaysClosed: an entry that had to go beyond a
// full line is found when that line has lost all of its own.
func TestContract1LineThatWasFullStaysClosed(t *testing.T) {
	t.Parallel()
	m := newShardModel()
	for slot := range uint32(lineCells + 1) {
		m.insert(uint64(slot)<<33|3, slot)
	}
	beyond := uint32(lineCells)
	if n := m.shard.cells.Load().steps(m.hash[beyond], beyond); n != 1 {
		t.Fatalf("the entry beyond lies %d lines further, want 1", n)
	}
	for slot := range beyond {
		m.remove(slot)
		m.check(t)
	}
	if m.shard.counts.used != 1+lineCells {
		t.Errorf("%d cells used, want tombstones in the line that was full", m.shard.counts.used)
	}
	m.remove(beyond)
	if m.shard.counts.used != lineCells {
		t.Errorf("%d cells used, want no tombstone in a line that was never full", m.shard.counts.used)
	}
	// The tombstones serve again.
	m.insert(3, 50)
	if m.shard.counts.used != lineCells {
		t.Errorf("%d cells used, want the tombstone used again", m.shard.counts.used)
	}
	m.check(t)
}

// TestHashIsSeeded: an attacker cannot prepare endpoints that collide in a table.
func TestHashIsSeeded(t *testing.T) {
	t.Parallel()
	a, b := NewTable(1), NewTable(1)
	ep, id := testEndpoint(1), testID(1)
	if a.secret == b.secret || a.hashEndpoint(ep) == b.hashEndpoint(ep) || a.hashID(id) == b.hashID(id) {
		t.Error("two tables hash alike")
	}
}

// TestHashSpreads: endpoints of real networks come in rows, and yet no entry is far from its line.
func TestHashSpreads(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	const n = 1 << 16
	v4 := func(a, port int) endpoint.Endpoint {
		addr := netip.AddrFrom4([4]byte{100, byte(a >> 16), byte(a >> 8), byte(a)})
		return endpoint.UDP(netip.AddrPortFrom(addr, uint16(port)), 0, 0)
	}
	v6 := func(net, host int) endpoint.Endpoint {
		addr := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 5: byte(net >> 8), 6: byte(net), 14: byte(host >> 8), 15: byte(host)})
		return endpoint.UDP(netip.AddrPortFrom(addr, 7777), 0, 0)
	}
	for name, key := range map[string]func(i int) endpoint.Endpoint{
		"addresses":        func(i int) endpoint.Endpoint { return v4(i, 7777) },
		"ports":            func(i int) endpoint.Endpoint { return v4(1, i) },
		"ports of several": testEndpoint,
		"locals":           func(i int) endpoint.Endpoint { return endpoint.UDP(v4(1, 9).AddrPort(), uint16(i), 0) },
		"v6 networks":      func(i int) endpoint.Endpoint { return v6(i, 1) },
		"v6 hosts":         func(i int) endpoint.Endpoint { return v6(1, i) },
		"serials":          func(i int) endpoint.Endpoint { return endpoint.Serial(endpoint.KindDTLS, uint64(i)) },
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable(1)
			hash := func(slot uint32) uint64 { ep := key(int(slot)); return table.hashEndpoint(ep) }
			checkSpread(t, n, hash)
		})
	}
	t.Run("ids", func(t *testing.T) {
		table := NewTable(1)
		checkSpread(t, n, func(slot uint32) uint64 { return table.hashID(testID(int(slot))) })
	})
}

func checkSpread(t *testing.T, n int, hash func(slot uint32) uint64) {
	t.Helper()
	var x index
	x.init()
	for slot := range uint32(n) {
		x.shard(hash(slot)).insert(hash(slot), slot, hash)
	}
	// The bounds are 8 standard deviations of a binomial distribution.
	mean, slack := n/shardCount, 8*32
	for i := range x.shards {
		if live := x.shards[i].counts.live; live < mean-slack || live > mean+slack {
			t.Errorf("shard %d holds %d of %d, want about %d", i, live, n, mean)
		}
	}
	longest, away := 0, 0
	for slot := range uint32(n) {
		steps := x.shard(hash(slot)).cells.Load().steps(hash(slot), slot)
		longest = max(longest, steps)
		if steps > 0 {
			away++
		}
	}
	if longest > 8 || away > n/10 {
		t.Errorf("longest probe %d lines, %d of %d entries not in tnext own line", longest, away, n)
	}
}
