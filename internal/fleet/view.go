package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// suspectFor is how long a relay that did not answer is tried last. It has one
// more heartbeat to die in, and asking it again costs a player's patience.
const suspectFor = 5 * time.Second

// view is what one process knows of the fleet: the registry as it was read, and
// what has been learned and given away since. Times are since the fleet was
// made. Its owner's lock guards it.
type view struct {
	nodes []Candidate // in the order of their ids
	notes map[alloc.RelayID]*note
	asOf  time.Duration // when the ages of the nodes were true

	first, last time.Duration // when the registry was read
	known       bool          // it was
	shaken      event         // the store failed or forgot, lastly
}

// note is what is known of a relay besides what it announces.
type note struct {
	boot  uint64
	given gifts
	// full is when it refused a host for lack of room, and room the seats that
	// it had at the most. drains is when it said that it drains. What it
	// announces later counts for more. silent is when it did not answer.
	full, drains, silent event
	room                 int
}

// event is something that happened at a time, or never did.
type event struct {
	at       time.Duration
	happened bool
}

func (e event) after(at time.Duration) bool { return e.happened && e.at >= at }

// read takes in what the registry had at that time.
func (v *view) read(seen []Seen, at time.Duration) {
	if v.vanished(seen, at) {
		v.shake(at)
	}
	if !v.known {
		v.known, v.first = true, at
	}
	v.last, v.asOf, v.nodes = at, at, make([]Candidate, len(seen))
	notes := make(map[alloc.RelayID]*note, len(seen))
	for i, s := range seen {
		v.nodes[i] = Candidate{Seen: s}
		n := v.notes[s.Relay]
		if n == nil || n.boot != s.Boot {
			n = &note{boot: s.Boot}
		}
		notes[s.Relay] = n
		if s.Healing && s.Age <= DeadAfter {
			v.shake(at)
		}
		n.amend(&v.nodes[i], at)
	}
	v.notes = notes
	slices.SortFunc(v.nodes, func(a, b Candidate) int { return slices.Compare(a.Relay[:], b.Relay[:]) })
}

// amend adds to a node, read at that time, what its heartbeat cannot know.
func (n *note) amend(c *Candidate, at time.Duration) {
	beat := at - c.Age
	c.Taken += n.given.since(beat)
	if n.full.after(beat) {
		c.Taken = max(c.Taken, c.Seats-n.room)
	}
	c.Draining = c.Draining || n.drains.after(beat)
	c.Suspect = n.silent.after(at - suspectFor)
}

// vanished reports whether a live relay is gone from the registry, which
// happens where it was withdrawn, and where the store has lost it.
func (v *view) vanished(seen []Seen, at time.Duration) bool {
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

// shake notes that the store failed, or has forgotten something.
func (v *view) shake(at time.Duration) { v.shaken = event{at, true} }

// healing reports whether what the store does not have may yet be announced
// again by a relay that holds it.
func (v *view) healing(now time.Duration) bool { return v.shaken.after(now - HealFor) }

// settled reports whether a relay that is alive must have announced itself.
func (v *view) settled(now time.Duration) bool {
	return v.known && now-v.first >= DeadAfter && !v.healing(now)
}

// find returns the index of a relay's node.
func (v *view) find(relay alloc.RelayID) (int, bool) {
	return slices.BinarySearchFunc(v.nodes, relay, func(c Candidate, id alloc.RelayID) int {
		return slices.Compare(c.Relay[:], id[:])
	})
}

// ageStep is how wrong ages may be: to set a thousand of them takes longer than
// to place a host.
const ageStep = 100 * time.Millisecond

// age sees to it that the ages of the nodes are those of now.
func (v *view) age(now time.Duration) {
	passed := now - v.asOf
	if passed < ageStep {
		return
	}
	for i := range v.nodes {
		v.nodes[i].Age += passed
	}
	v.asOf = now
}

// give takes seats of node i before its relay is asked, so that a burst of
// requests does not all go there.
func (v *view) give(i, seats int, now time.Duration) {
	c := &v.nodes[i]
	c.Taken += seats
	v.notes[c.Relay].given.add(now, seats)
}

// takeBack undoes a give of that time: the relay has not made the reservation.
func (v *view) takeBack(relay alloc.RelayID, boot uint64, seats int, at time.Duration) {
	n := v.notes[relay]
	if n == nil || n.boot != boot {
		return
	}
	n.given.takeBack(at, seats)
	if i, ok := v.find(relay); ok && slotOf(at) >= slotOf(v.asOf-v.nodes[i].Age) {
		v.nodes[i].Taken -= seats
	}
}

// learn notes what a relay said, and acts on it at once.
func (v *view) learn(relay alloc.RelayID, boot uint64, change func(*note)) {
	n := v.notes[relay]
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
		c.Taken = max(c.Taken, c.Seats-n.room)
	}
	c.Draining = c.Draining || n.drains.after(v.asOf-c.Age)
	c.Suspect = n.silent.after(v.asOf - suspectFor)
}

// regions returns the regions in which a relay lived when the registry was read,
// by id. One that is announced in several ways is told as its relay with the
// lowest id says.
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
		all[at].WebSocketURL = cmp.Or(all[at].WebSocketURL, alloc.WebSocketURL(c.Endpoints))
	}
	slices.SortFunc(all, func(a, b alloc.Region) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
