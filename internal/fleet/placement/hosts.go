package placement

import (
	"time"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// hostChunk is how many hosts a slab has: 56 KiB.
const hostChunk = 1024

// hosts are the hosts of a relay as the store should have them, ordered by when they
// were last sent to it. A host takes 56 bytes and a map entry, without pointers. The
// owner's lock guards it.
type hosts struct {
	index  map[proto.AllocationID]uint32
	slabs  [][]host
	used   uint32 // places that were ever used, the first of which stays empty
	free   uint32 // the first of those that are not any more
	oldest uint32
	newest uint32
}

// host is a held host. Slots are numbered from 1; 0 means none.
type host struct {
	id       proto.AllocationID
	tenant   uint64
	code     uint64 // as joincode.Pack has it; 0: none
	since    int64  // ms since 1970
	lastSent uint32 // stamp of when it was last sent to the store; 0: not in this run

	older, newer uint32
}

func newHosts() hosts { return hosts{index: make(map[proto.AllocationID]uint32), used: 1} }

func (h *hosts) len() int { return len(h.index) }

func (h *hosts) at(place uint32) *host { return &h.slabs[place/hostChunk][place%hostChunk] }

func (h *hosts) find(id proto.AllocationID) *host {
	place, ok := h.index[id]
	if !ok {
		return nil
	}
	return h.at(place)
}

// add adds a new host that was sent to the store at that stamp, which is now, or 0 for
// a host that must be sent before others.
func (h *hosts) add(id proto.AllocationID, tenant uint64, since time.Time, sent uint32) *host {
	place := h.free
	if place != 0 {
		h.free = h.at(place).newer
	} else {
		place = h.used
		h.used++
		if int(place/hostChunk) == len(h.slabs) {
			h.slabs = append(h.slabs, make([]host, hostChunk))
		}
	}
	h.index[id] = place
	*h.at(place) = host{id: id, tenant: tenant, since: since.UnixMilli(), lastSent: sent}
	behind := h.newest
	if sent == 0 {
		behind = 0
	}
	h.link(place, behind)
	return h.at(place)
}

func (h *hosts) remove(id proto.AllocationID) (host, bool) {
	place, ok := h.index[id]
	if !ok {
		return host{}, false
	}
	h.unlink(place)
	delete(h.index, id)
	gone := *h.at(place)
	*h.at(place) = host{newer: h.free}
	h.free = place
	return gone, true
}

// first appends to dst the n hosts that were sent the longest ago, but none that was sent
// at the stamp before or later.
func (h *hosts) first(dst []HostEntry, n int, before uint32) []HostEntry {
	for place := h.oldest; place != 0 && n > 0; n-- {
		x := h.at(place)
		if x.lastSent >= before {
			break
		}
		dst = append(dst, x.entry())
		place = x.newer
	}
	return dst
}

// markSent records that a host was sent to the store at that stamp, which is now.
func (h *hosts) markSent(id proto.AllocationID, now uint32) {
	if place, ok := h.index[id]; ok {
		h.unlink(place)
		h.link(place, h.newest)
		h.at(place).lastSent = now
	}
}

// oldestSent returns the stamp of the host that was sent the longest ago, and false if
// there is none.
func (h *hosts) oldestSent() (uint32, bool) {
	if h.oldest == 0 {
		return 0, false
	}
	return h.at(h.oldest).lastSent, true
}

// newerThan returns the field with the host behind place; behind 0 is the oldest.
func (h *hosts) newerThan(place uint32) *uint32 {
	if place == 0 {
		return &h.oldest
	}
	return &h.at(place).newer
}

// olderThan returns the field with the host before place; before 0 is the newest.
func (h *hosts) olderThan(place uint32) *uint32 {
	if place == 0 {
		return &h.newest
	}
	return &h.at(place).older
}

// link inserts a host behind another one, or as the oldest if older is 0.
func (h *hosts) link(place, older uint32) {
	x, next := h.at(place), h.newerThan(older)
	x.older, x.newer = older, *next
	*h.olderThan(*next) = place
	*next = place
}

func (h *hosts) unlink(place uint32) {
	x := h.at(place)
	*h.newerThan(x.older) = x.newer
	*h.olderThan(x.newer) = x.older
}

func (x *host) entry() HostEntry {
	return HostEntry{Host: x.id, Tenant: x.tenant, Code: joincode.Unpack(x.code), Since: time.UnixMilli(x.since)}
}
