package history

import (
	"maps"
	"strings"
	"sync"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

// Owner is the project of an allocation, and the player, "" if it is not known. Cut: Player is
// only the beginning of its name.
type Owner struct {
	Project, Player string
	Cut             bool
}

// ellipsis ends a name that is displayed and of which only the beginning is known.
const ellipsis = "…"

// maxOwners bounds the memory of owners to some 12 MB.
const maxOwners = 100_000

// Directory finds the live allocations of a relay by join code and by player. Any goroutine may
// call its methods.
type Directory struct {
	mu sync.Mutex // guards what follows
	// The join codes of live hosts, both ways. Two tenants may have the same code by
	// chance; byCode then has the newer one.
	byCode map[string]proto.AllocationID
	codes  map[proto.AllocationID]string
	// owners are those of live allocations, at most maxOwners.
	owners map[proto.AllocationID]Owner
}

// NewDirectory returns an empty directory.
func NewDirectory() *Directory {
	return &Directory{byCode: map[string]proto.AllocationID{}, codes: map[proto.AllocationID]string{}, owners: map[proto.AllocationID]Owner{}}
}

func (d *Directory) keepOwner(e *engine.ReserveEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.owners) < maxOwners {
		d.owners[e.ID] = Owner{e.Name.Project, e.Player, e.PlayerCut}
	}
}

// KeepCode keeps the join code of a live host, or of one that may come back.
func (d *Directory) KeepCode(host proto.AllocationID, code string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetCode(host)
	d.byCode[code], d.codes[host] = host, code
}

// forgetCode is called with the lock held.
func (d *Directory) forgetCode(host proto.AllocationID) {
	if code, ok := d.codes[host]; ok {
		delete(d.codes, host)
		if d.byCode[code] == host {
			delete(d.byCode, code)
		}
	}
}

func (d *Directory) forget(id proto.AllocationID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetCode(id)
	delete(d.owners, id)
}

func (d *Directory) allOwners() map[proto.AllocationID]Owner {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.owners)
}

// restore adds owners that are not known, except for allocations that have ended.
func (d *Directory) restore(owners map[proto.AllocationID]Owner, hasEnded func(proto.AllocationID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, o := range owners {
		if _, known := d.owners[id]; !known && !hasEnded(id) && len(d.owners) < maxOwners {
			d.owners[id] = o
		}
	}
}

// HostOf returns the host of a join code, in any case of letters.
func (d *Directory) HostOf(code string) (proto.AllocationID, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	host, ok := d.byCode[strings.ToUpper(code)]
	return host, ok
}

// CodeOf returns the join code of a live host; "": it has none.
func (d *Directory) CodeOf(host proto.AllocationID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.codes[host]
}

// OwnerOf returns the owner of a live allocation, the zero value if it is not known.
func (d *Directory) OwnerOf(id proto.AllocationID) Owner {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owners[id]
}

// PlayerOf returns the player of a live allocation, "" if it is not known, with an ellipsis if
// only the beginning is.
func (d *Directory) PlayerOf(id proto.AllocationID) string {
	o := d.OwnerOf(id)
	if o.Cut {
		return o.Player + ellipsis
	}
	return o.Player
}

// AllocationsOf returns the live allocations that may be of a player: of some only the beginning
// of the player's name is known.
func (d *Directory) AllocationsOf(player string) (all []proto.AllocationID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, o := range d.owners {
		if o.Player == player || o.Cut && strings.HasPrefix(player, o.Player) {
			all = append(all, id)
		}
	}
	return all
}

// Len returns the number of allocations whose owner is known.
func (d *Directory) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.owners)
}
