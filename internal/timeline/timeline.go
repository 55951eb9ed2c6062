// Package timeline keeps what happened to allocations lately, in a fixed amount of memory: the
// last events of all, and those of one in order. An allocation that has ended stays until
// newer events take its place.
package timeline

import (
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Kind is what happened.
type Kind uint8

// The kinds. Peer is another allocation, where there is one.
const (
	Reserved       Kind = iota // a host was allocated, or a joiner of the host Peer
	CodeMade                   // a join code was made for it
	Joined                     // the joiner Peer was reserved for it
	Bound                      // a BIND from Endpoint was accepted, the first or from another endpoint
	Linked                     // with Peer
	Unlinked                   // from Peer
	BindRefused                // a BIND was refused, with a Reason
	ConnectRefused             // a CONNECT_REQUEST to Peer was refused, with a Reason
	MessageRefused             // another message was refused, with a Reason
	Ended                      // with a Reason
	numKinds
)

var kindNames = [numKinds]string{
	"reserved", "code", "joined", "bound", "linked", "unlinked", "bind refused", "connect refused", "message refused", "ended",
}

// isRefusal reports whether a client, or an attacker, causes such events at will.
func (k Kind) isRefusal() bool { return k >= BindRefused && k <= MessageRefused }

// String returns the name of the kind in JSON.
func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return "unknown"
}

// Event is one event, or several like it.
type Event struct {
	ID       proto.AllocationID
	Peer     proto.AllocationID
	Endpoint netip.AddrPort // the last one; the zero value for sessions of DTLS and WebSocket
	Kind     Kind
	Reason   string    // in words, the rest of a sentence; "" if none is needed
	First    time.Time // when the first of them happened
	Last     time.Time
	Count    uint32 // at least 1; stays at its largest value
}

// isRepeated reports whether b repeats a. A refusal from another endpoint, which may be
// forged, is a repetition too.
func (a *Event) isRepeated(b *Event) bool {
	return a.Kind == b.Kind && a.Reason == b.Reason && a.Peer == b.Peer && (a.Endpoint == b.Endpoint || a.Kind.isRefusal())
}

// entry is an event in the ring. Entries have numbers from 1.
type entry struct {
	Event
	before uint64 // number of the allocation's previous event; 0: none
}

// Timeline holds events. Any goroutine may use it.
type Timeline struct {
	mu   sync.Mutex // guards what follows
	ring []entry
	last uint64                        // number of the newest entry
	of   map[proto.AllocationID]uint64 // number of the newest event of each allocation in the ring
}

// New returns a timeline of at most so many events, about 200 bytes each.
func New(events int) *Timeline {
	events = max(1, events)
	return &Timeline{ring: make([]entry, events), of: make(map[proto.AllocationID]uint64, events)}
}

// repeats is among how many of the last events of an allocation Add looks for one that a
// refusal repeats.
const repeats = 8

// Add adds an event of this moment. One that repeats the allocation's previous event, or a
// refusal that repeats one of the last few, counts there, so that no client fills the
// timeline by repetition.
func (t *Timeline) Add(e Event, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.of[e.ID]
	depth := 1
	if e.Kind.isRefusal() {
		depth = repeats
	}
	for n := before; n >= t.oldest() && n != 0 && depth > 0; n, depth = t.at(n).before, depth-1 {
		if was := t.at(n); was.isRepeated(&e) {
			was.Last, was.Endpoint = now, e.Endpoint
			was.Count += min(1, ^uint32(0)-was.Count)
			return
		}
	}
	t.last++
	slot := t.at(t.last)
	if oldest := t.oldest(); oldest > 1 && t.of[slot.ID] == oldest-1 {
		delete(t.of, slot.ID) // It has no newer event.
	}
	e.First, e.Last, e.Count = now, now, 1
	*slot = entry{e, before}
	t.of[e.ID] = t.last
}

func (t *Timeline) at(number uint64) *entry { return &t.ring[number%uint64(len(t.ring))] }

// oldest returns the number of the oldest entry in the ring.
func (t *Timeline) oldest() uint64 {
	if n := uint64(len(t.ring)); t.last > n {
		return t.last - n + 1
	}
	return 1
}

// Of returns the events of an allocation, the oldest first, as far as they are kept.
func (t *Timeline) Of(id proto.AllocationID) (all []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, oldest := t.of[id], t.oldest()
	for n >= oldest && n != 0 {
		e := t.at(n)
		all = append(all, e.Event)
		n = e.before
	}
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return all
}

// refusalsAmong is how many of the newest events Refusals looks at: some 0.3 ms, in which
// Add waits.
const refusalsAmong = 5000

// Refusals returns at most so many refusals among the newest events of all allocations, the
// newest first.
func (t *Timeline) Refusals(most int) (all []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.oldest()
	if t.last > refusalsAmong {
		end = max(end, t.last-refusalsAmong)
	}
	for n := t.last; n >= end && n != 0 && len(all) < most; n-- {
		if e := t.at(n); e.Kind.isRefusal() {
			all = append(all, e.Event)
		}
	}
	return all
}
