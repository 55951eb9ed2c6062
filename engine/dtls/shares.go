package dtls

import (
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/proto"
)

// sharedAbove is the part of the table, in eighths, above which each project has a share of
// it, and each player one of its project's: below, a project may use what no other needs.
const sharedAbove = 7

// shares counts the allocations with sessions by project and by player. A second session of
// an allocation does not count: all but the bound one are evicted when others need room. The
// lock of the table guards it.
type shares struct {
	owners   map[proto.AllocationID]driver.Owner
	projects map[uint32]*projectShare
}

type projectShare struct {
	allocations int
	players     map[uint32]int // allocations of each
}

func (s *shares) add(id proto.AllocationID, o driver.Owner) {
	if _, counted := s.owners[id]; counted {
		return
	}
	if s.owners == nil {
		s.owners, s.projects = make(map[proto.AllocationID]driver.Owner), make(map[uint32]*projectShare)
	}
	s.owners[id] = o
	p := s.projects[o.Project]
	if p == nil {
		p = &projectShare{players: make(map[uint32]int)}
		s.projects[o.Project] = p
	}
	p.allocations++
	p.players[o.Player]++
}

func (s *shares) remove(id proto.AllocationID) {
	o, counted := s.owners[id]
	if !counted {
		return
	}
	delete(s.owners, id)
	p := s.projects[o.Project]
	p.allocations--
	if p.players[o.Player]--; p.players[o.Player] == 0 {
		delete(p.players, o.Player)
	}
	if p.allocations == 0 {
		delete(s.projects, o.Project)
	}
}

// allow reports whether an owner may have a session of one more allocation in a table for
// most sessions: always while it has room for all, and else within its share.
func (s *shares) allow(o driver.Owner, most int) bool {
	if len(s.owners) < most*sharedAbove/8 {
		return true
	}
	p := s.projects[o.Project]
	if p == nil {
		return true
	}
	ofProject := most / len(s.projects)
	players := len(p.players)
	if p.players[o.Player] == 0 {
		players++
	}
	return p.allocations < ofProject && p.players[o.Player] < max(1, ofProject/players)
}
