// Package timeline keeps what happened to allocations lately, in a fixed amount of memory: the
// last events of all, those of one and those of a project in order. An allocation that has
// ended stays until newer events take its place.
package timeline

import (
	"iter"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

type Kind uint8

// The kinds. Peer is another allocation, where there is one. A live upgrade hands their numbers
// over, so new ones come last.
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
	MessageDropped             // a message of Peer to it was dropped, with a Reason
	Ended                      // with a Reason
	CallRefused                // a call of the API was refused, with a Reason; it has no allocation
	Migrated                   // the host Peer has taken its place
	Returned                   // after a restart of the relay; a joiner of the host Peer
	LimitReached               // a further reservation of its player, or of the player of Peer to join it, was refused, with a Reason
	numKinds
)

var kindNames = [numKinds]string{
	"reserved", "code", "joined", "bound", "linked", "unlinked", "bind refused", "connect refused", "message refused", "message dropped",
	"ended", "call refused", "migrated", "returned", "limit reached",
}

// isRefusal reports whether a client, or an attacker, causes such events at will.
func (k Kind) isRefusal() bool {
	return k >= BindRefused && k <= MessageDropped || k == CallRefused || k == LimitReached
}

// String returns the name of the kind in JSON.
func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return "unknown"
}

type Event struct {
	ID       proto.AllocationID
	Project  string // "" if it is not known
	Peer     proto.AllocationID
	Endpoint netip.AddrPort // the last one, with port 0 for a WebSocket; the zero value if it is not known
	Kind     Kind
	Reason   string    // in words, the rest of a sentence; "" if none is needed
	First    time.Time // when the first of them happened
	Last     time.Time
	Count    uint32 // at least 1; stays at its largest value
}

// Row returns the event as operators see it, without its ID.
func (e *Event) Row() operator.WhyEvent {
	row := operator.WhyEvent{
		What: e.Kind.String(), Reason: e.Reason, Endpoint: operator.EndpointText(e.Endpoint), First: e.First, Last: e.Last, Count: e.Count,
	}
	if !e.Peer.IsZero() {
		row.Peer = e.Peer.String()
	}
	return row
}

// isRepeated reports whether b repeats a. A refusal from another endpoint, which may be
// forged, is a repetition too.
func (a *Event) isRepeated(b *Event) bool {
	return a.ID == b.ID && a.Kind == b.Kind && a.Reason == b.Reason && a.Peer == b.Peer && (a.Endpoint == b.Endpoint || a.Kind.isRefusal())
}

// isAfter reports whether a is later than b, which is nil if it is too old to be kept.
func (a *Event) isAfter(b *Event) bool { return b == nil || a.Last.After(b.Last) }

// entry is an event in the ring. Entries have numbers from 1.
type entry struct {
	Event
	before          uint64 // number of the allocation's previous event; 0: none
	beforeOfProject uint64 // number of the project's previous event; 0: none
}

// Timeline holds events. Any goroutine may use it.
type Timeline struct {
	mu   sync.Mutex // guards what follows
	ring []entry
	last uint64 // number of the newest entry
	// The number of the newest event of each allocation and of each project in the ring.
	of        map[proto.AllocationID]uint64
	ofProject map[string]uint64
}

// New returns a timeline of at most so many events, about 200 bytes each.
func New(events int) *Timeline {
	events = max(1, events)
	return &Timeline{ring: make([]entry, events), of: make(map[proto.AllocationID]uint64, events), ofProject: map[string]uint64{}}
}

// repeats is among how many of the last events of an allocation, or for a call of its
// project, Add looks for one that a refusal repeats.
const repeats = 8

// Add adds an event of this moment. One that repeats the allocation's previous event, or a
// refusal that repeats one of the last few, counts there, so that no client fills the
// timeline by repetition. A call that was refused repeats one of its project.
func (t *Timeline) Add(e Event, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was := t.repeated(&e); was != nil {
		was.Last, was.Endpoint = now, e.Endpoint
		was.Count += min(1, ^uint32(0)-was.Count)
		return
	}
	e.First, e.Last, e.Count = now, now, 1
	t.append(e)
}

// append is called with the lock held.
func (t *Timeline) append(e Event) {
	t.last++
	slot := t.at(t.last)
	if gone := t.oldest() - 1; gone > 0 { // Those without a newer event.
		if t.of[slot.ID] == gone {
			delete(t.of, slot.ID)
		}
		if t.ofProject[slot.Project] == gone {
			delete(t.ofProject, slot.Project)
		}
	}
	*slot = entry{e, t.of[e.ID], t.ofProject[e.Project]}
	if !e.ID.IsZero() {
		t.of[e.ID] = t.last
	}
	if e.Project != "" {
		t.ofProject[e.Project] = t.last
	}
}

// All returns all events, the oldest first.
func (t *Timeline) All() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all()
}

func (t *Timeline) all() (all []Event) {
	for n := t.oldest(); n <= t.last; n++ {
		all = append(all, t.at(n).Event)
	}
	return all
}

// Restore puts events before all others, the oldest first. It leaves those of an unknown kind out,
// which a newer version may have handed over.
func (t *Timeline) Restore(older []Event) {
	next := New(len(t.ring))
	for i := range older {
		if older[i].Kind < numKinds {
			next.append(older[i])
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.all() {
		next.append(e)
	}
	t.ring, t.last, t.of, t.ofProject = next.ring, next.last, next.of, next.ofProject
}

// repeated returns the event that e repeats, or nil.
func (t *Timeline) repeated(e *Event) *entry {
	depth := 1
	if e.Kind.isRefusal() {
		depth = repeats
	}
	all := t.newestOf(e.ID)
	if e.ID.IsZero() {
		all = t.newestOfProject(e.Project)
	}
	for was := range all {
		if was.isRepeated(e) {
			return was
		}
		if depth--; depth == 0 {
			break
		}
	}
	return nil
}

// newestOf are the events of an allocation in the ring, the newest first.
func (t *Timeline) newestOf(id proto.AllocationID) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for n := t.of[id]; n >= t.oldest() && n != 0 && yield(t.at(n)); n = t.at(n).before {
		}
	}
}

func (t *Timeline) newestOfProject(project string) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for n := t.ofProject[project]; n >= t.oldest() && n != 0 && yield(t.at(n)); n = t.at(n).beforeOfProject {
		}
	}
}

func (t *Timeline) at(number uint64) *entry { return &t.ring[number%uint64(len(t.ring))] }

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
	for e := range t.newestOf(id) {
		all = append(all, e.Event)
	}
	slices.Reverse(all)
	return all
}

// OfProject returns at most so many events of a project, the newest first. An event of an
// allocation whose project was not known is in none.
func (t *Timeline) OfProject(project string, most int) (all []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := range t.newestOfProject(project) {
		if len(all) == most {
			break
		}
		all = append(all, e.Event)
	}
	return all
}

// refusalsAmong is how many of the newest events Refusals looks at: some 0.3 ms, in which
// Add waits.
const refusalsAmong = 5000

// Refusals returns at most so many refusals of messages among the newest events of all
// allocations, the newest first.
func (t *Timeline) Refusals(most int) (all []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.oldest()
	if t.last > refusalsAmong {
		end = max(end, t.last-refusalsAmong)
	}
	for n := t.last; n >= end && n != 0 && len(all) < most; n-- {
		if e := t.at(n); e.Kind.isRefusal() && e.Kind != CallRefused {
			all = append(all, e.Event)
		}
	}
	return all
}
