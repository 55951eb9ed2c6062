package dtls

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/proto"
)

func (g *rig) own(id proto.AllocationID, o driver.Owner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.owners == nil {
		g.owners = make(map[proto.AllocationID]driver.Owner)
	}
	g.owners[id] = o
}

func (g *rig) connectOf(n int, o driver.Owner) (*peer, bool) {
	g.own(testID(n), o)
	p := newPeer(g, at(fmt.Sprintf("198.18.%d.%d:7", n/200, 1+n%200)), n)
	return p, p.connect()
}

// TestShares: twenty players of one project, each with 13 bound allocations, leave room for
// the players of others, and for other players of theirs.
func TestShares(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{MaxSessions: 256})
	attacker := driver.Owner{Project: 1}
	var got int
	for n := range 20 * 13 {
		attacker.Player = uint32(n % 20)
		if _, ok := g.connectOf(n, attacker); ok {
			got++
		}
	}
	if got != 20*12 {
		t.Errorf("20 players of the only project have %d sessions, want 12 each", got)
	}
	if p, ok := g.connectOf(1000, driver.Owner{Project: 1, Player: 99}); !ok || !g.Alive(p.from) {
		t.Error("another player of the project has no session")
	}
	for n := range 15 {
		o := driver.Owner{Project: 2 + uint32(n)%3, Player: 100 + uint32(n)}
		if !g.HasRoom(o) {
			t.Errorf("no room for %+v", o)
		}
		if _, ok := g.connectOf(2000+n, o); !ok {
			t.Errorf("player %d of another project has no session", n)
		}
	}
	if o := (driver.Owner{Project: 9}); g.HasRoom(o) {
		t.Error("the table has room although all 256 are bound")
	}
}

// TestSharesOfProjects: above 7/8 of the table a project gets no more than its share, and
// below it all that others do not need.
func TestSharesOfProjects(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{MaxSessions: 64})
	if _, ok := g.connectOf(0, driver.Owner{Project: 2}); !ok {
		t.Fatal("no session")
	}
	n := 1
	for ; ; n++ {
		if _, ok := g.connectOf(n, driver.Owner{Project: 1, Player: uint32(n)}); !ok {
			break
		}
	}
	if n != 56 {
		t.Errorf("one of two projects has %d sessions, want 55 of 64", n-1)
	}
	if g.HasRoom(driver.Owner{Project: 1, Player: 999}) || !g.HasRoom(driver.Owner{Project: 2, Player: 999}) {
		t.Error("a call would be told something else than its player meets")
	}
	// A client that roams has its session already, and needs another one.
	roams := newPeer(g, at("203.0.113.9:9"), 7)
	if !roams.connect() {
		t.Error("a client that roams has no session")
	}
	g.wantCounts(map[event]uint64{dropSessionsFull: 1})
}

// TestSharesAreForgotten: nothing is kept of an allocation without a session.
func TestSharesAreForgotten(t *testing.T) {
	t.Parallel()
	var s shares
	for n := range 100 {
		var id proto.AllocationID
		binary.LittleEndian.PutUint32(id[:], uint32(n))
		for range 2 {
			s.add(id, driver.Owner{Project: uint32(n % 3), Player: uint32(n % 7)})
		}
	}
	for n := range 100 {
		var id proto.AllocationID
		binary.LittleEndian.PutUint32(id[:], uint32(n))
		s.remove(id)
		s.remove(id)
	}
	if len(s.owners)+len(s.projects) != 0 {
		t.Errorf("%d allocations and %d projects are left", len(s.owners), len(s.projects))
	}
}
