package placement

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// suspectFor is the time for which a relay that did not answer is tried last. Within it
// the relay misses a heartbeat if it is dead, and each try of it delays a player.
const suspectFor = 5 * time.Second

// view is the state of the fleet as one process sees it: the registry as it was last
// read, plus observations and granted seats since. Times are since the fleet was
// created. relays.mu guards it.
type view struct {
	nodes    []Candidate // in the order of their ids
	observed map[alloc.RelayID]*observation
	asOf     time.Duration // when the ages of the nodes were true

	first, last time.Duration // when the registry was read
	known       bool          // it was
	suspect     event         // when the store last failed or lost data
	failed      event         // when it last failed
}

type observation struct {
	boot   uint64
	grants recentGrants
	// full is when it last refused a host for lack of seats, freeSeats the most seats
	// that it can have had then. draining is when it refused a host because it drains.
	// A later heartbeat overrides both. noAnswer is when it last did not answer.
	full, draining, noAnswer event
	freeSeats                int
	silent                   uint64 // reservations that it has not answered
}

type event struct {
	at       time.Duration
	happened bool
}

func (e event) after(at time.Duration) bool { return e.happened && e.at >= at }

func (v *view) setNodes(seen []Seen, at time.Duration) {
	if v.lostLiveRelay(seen, at) {
		v.markSuspect(at)
	}
	if !v.known {
		v.known, v.first = true, at
	}
	v.last, v.asOf, v.nodes = at, at, make([]Candidate, len(seen))
	notes := make(map[alloc.RelayID]*observation, len(seen))
	for i, s := range seen {
		v.nodes[i] = Candidate{Seen: s}
		n := v.observed[s.Relay]
		if n == nil || n.boot != s.Boot {
			n = &observation{boot: s.Boot}
		}
		notes[s.Relay] = n
		if s.Healing && s.Age <= DeadAfter {
			v.markSuspect(at)
		}
		n.apply(&v.nodes[i], at)
	}
	v.observed = notes
	slices.SortFunc(v.nodes, func(a, b Candidate) int { return slices.Compare(a.Relay[:], b.Relay[:]) })
}

// apply adds to a node, read at that time, what is newer than its heartbeat.
func (n *observation) apply(c *Candidate, at time.Duration) {
	beat := at - c.Age
	c.Taken += n.grants.since(beat)
	if n.full.after(beat) {
		c.Taken = max(c.Taken, c.Seats-n.freeSeats)
	}
	c.Draining = c.Draining || n.draining.after(beat)
	c.Suspect = n.noAnswer.after(at - suspectFor)
}

// lostLiveRelay reports whether a live relay is missing from the registry: it was
// withdrawn, or the store has lost data.
func (v *view) lostLiveRelay(seen []Seen, at time.Duration) bool {
	if len(v.nodes) == 0 {
		return false
	}
	there := make(map[alloc.RelayID]bool, len(seen))
	for i := range seen {
		there[seen[i].Relay] = true
	}
	return slices.ContainsFunc(v.nodes, func(c Candidate) bool {
		return c.Age+at-v.asOf <= DeadAfter && !there[c.Relay]
	})
}

func (v *view) markSuspect(at time.Duration) { v.suspect = event{at, true} }

// healing reports whether a host that the store does not have may still be announced
// again by its relay.
func (v *view) healing(now time.Duration) bool { return v.suspect.after(now - HealFor) }

func (v *view) markFailed(at time.Duration) {
	v.markSuspect(at)
	v.failed = event{at, true}
}

// isStale reports whether the registry was read too long ago to say which relays live.
func (v *view) isStale(now time.Duration) bool { return !v.known || now-v.last > staleAfter }

// isUnknown reports whether a silent relay may live: the store could not be read, or not until a
// moment ago.
func (v *view) isUnknown(c *Candidate, now time.Duration) bool {
	return v.isStale(now) || c.Age > DeadAfter && v.failed.after(now-HealFor)
}

func (v *view) settled(now time.Duration) bool {
	return v.known && now-v.first >= DeadAfter && !v.healing(now)
}

func (v *view) find(relay alloc.RelayID) (int, bool) {
	return slices.BinarySearchFunc(v.nodes, relay, func(c Candidate, id alloc.RelayID) int {
		return slices.Compare(c.Relay[:], id[:])
	})
}

// ageTolerance is the permitted error of ages: to update a thousand of them takes longer
// than to place a host.
const ageTolerance = 100 * time.Millisecond

func (v *view) updateAges(now time.Duration) {
	passed := now - v.asOf
	if passed < ageTolerance {
		return
	}
	for i := range v.nodes {
		v.nodes[i].Age += passed
	}
	v.asOf = now
}

// grant takes seats of node i before its relay is asked, so that a burst of requests is
// spread over the relays.
func (v *view) grant(i, seats int, now time.Duration) {
	c := &v.nodes[i]
	c.Taken += seats
	v.observed[c.Relay].grants.add(now, seats)
}

func (v *view) undoGrant(relay alloc.RelayID, boot uint64, seats int, at time.Duration) {
	n := v.observed[relay]
	if n == nil || n.boot != boot {
		return
	}
	n.grants.undo(at, seats)
	if i, ok := v.find(relay); ok && slotOf(at) >= slotOf(v.asOf-v.nodes[i].Age) {
		v.nodes[i].Taken -= seats
	}
}

func (v *view) update(relay alloc.RelayID, boot uint64, change func(*observation)) {
	n := v.observed[relay]
	if n == nil || n.boot != boot {
		return
	}
	change(n)
	i, ok := v.find(relay)
	if !ok {
		return
	}
	c := &v.nodes[i]
	if n.full.after(v.asOf - c.Age) {
		c.Taken = max(c.Taken, c.Seats-n.freeSeats)
	}
	c.Draining = c.Draining || n.draining.after(v.asOf-c.Age)
	c.Suspect = n.noAnswer.after(v.asOf - suspectFor)
}

// regions returns the regions in which a relay lived when the registry was read,
// by id. If its relays announce different texts, that of the lowest relay id counts.
func (v *view) regions() []alloc.Region {
	var all []alloc.Region
	for i := range v.nodes {
		c := &v.nodes[i]
		if c.Age-(v.asOf-v.last) > DeadAfter {
			continue
		}
		at := slices.IndexFunc(all, func(r alloc.Region) bool { return r.ID == c.Region })
		if at < 0 {
			at, all = len(all), append(all, alloc.Region{ID: c.Region})
		}
		all[at].Description = cmp.Or(all[at].Description, c.Description)
		all[at].QoSAddress = cmp.Or(all[at].QoSAddress, c.QoSAddress)
		all[at].WebSocketURL = cmp.Or(all[at].WebSocketURL, WebSocketURL(c.Endpoints))
	}
	slices.SortFunc(all, func(a, b alloc.Region) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// WebSocketURL returns the URL of the WebSocket endpoint among endpoints, wss
// before ws, or "" if there is none.
func WebSocketURL(endpoints []alloc.ServerEndpoint) string {
	for _, scheme := range []string{"wss", "ws"} {
		for _, e := range endpoints {
			if e.ConnectionType == scheme {
				return scheme + "://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))) + "/"
			}
		}
	}
	return ""
}

const (
	grantSlot  = 250 * time.Millisecond
	grantSlots = 32
)

// The slots reach back further than the heartbeat of any live relay.
const _ = uint(grantSlot*(grantSlots-1) - DeadAfter)

// recentGrants counts, by time, the seats of a relay that this process has granted: the
// relay's next heartbeat includes those before it, and none after it. Times are since
// the fleet was created. relays.mu guards it.
type recentGrants struct {
	slots [grantSlots]int32
	last  int64 // the slot of the latest grant
}

func slotOf(at time.Duration) int64 { return int64(at / grantSlot) }

// add counts seats granted at a time, which is not before that of the last add.
func (g *recentGrants) add(at time.Duration, seats int) {
	slot := slotOf(at)
	for s := max(g.last+1, slot-grantSlots+1); s <= slot; s++ {
		g.slots[s%grantSlots] = 0
	}
	g.last = max(g.last, slot)
	g.slots[slot%grantSlots] += int32(seats)
}

func (g *recentGrants) undo(at time.Duration, seats int) {
	if slot := slotOf(at); slot > g.last-grantSlots {
		g.slots[slot%grantSlots] -= int32(seats)
	}
}

// since returns the seats granted since a time, including those just before it: to count
// a seat twice for a second is better than not to count it.
func (g *recentGrants) since(at time.Duration) (seats int) {
	for s := max(slotOf(at), g.last-grantSlots+1, 0); s <= g.last; s++ {
		seats += int(g.slots[s%grantSlots])
	}
	return seats
}
