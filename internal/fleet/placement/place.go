package placement

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
)

type Candidate struct {
	Seen
	// Suspect is set for a node that recently did not answer, whatever it announces. It
	// is tried after all others.
	Suspect bool
	// Unknown is set while it is not known whether the node lives: the store does not answer, or
	// did not until a moment ago and the node may not have announced itself since. Place
	// ignores it.
	Unknown bool
}

// IsDead reports whether the node is known to have failed: it does not announce itself any more,
// and has not said that it stops.
func (c *Candidate) IsDead() bool { return c.Age > DeadAfter && !c.Unknown && !c.Stopped }

type Request struct {
	// Region is where it must be. Empty: anywhere.
	Region string
	// Seats is the number of seats: one for the host, and its maxConnections.
	Seats int
}

// suspectWeight is the factor by which a suspect is less likely drawn than others.
const suspectWeight = 1e-6

// maxLoadDiscount bounds the part of its weight that a node loses to its measured load,
// so that a node with free seats can always be drawn.
const maxLoadDiscount = 1 - 1.0/64

// minLoadDifference is the difference of two loads that decides between nodes.
// Less is noise of the last heartbeat, which would send every host of the next
// two seconds the same way.
const minLoadDifference = 1.0 / 8

// Place returns the nodes that a host should try, as indexes, the best first,
// and at most as many as asked for. Nodes that are dead, drain, or lack the
// seats are not among them.
//
// In a region two nodes are drawn at random, weighed by their free seats and by
// what their processors have left, and the one with more to spare comes first
// (the power of two choices), so that processes with outdated views do not all choose the
// same node. Without a demanded region the least loaded
// region comes first.
//
// With the same rnd it returns the same. Errors: alloc.ErrRegion if no node, dead or alive, is of
// the demanded region, alloc.ErrNoRelay if all of it are dead or have stopped, alloc.ErrDraining if
// the others drain, and alloc.ErrFull.
func Place(nodes []Candidate, q Request, most int, rnd *rand.Rand) ([]int, error) {
	d := draw{nodes: nodes, seats: q.Seats, most: most, rnd: rnd}
	if q.Region == "" {
		for _, region := range d.regions() {
			d.from(region)
		}
	} else if !slices.ContainsFunc(nodes, func(c Candidate) bool { return c.Region == q.Region }) {
		return nil, alloc.ErrRegion
	} else {
		d.from(q.Region)
	}
	if len(d.drawn) == 0 {
		return nil, refusal(nodes, q.Region)
	}
	return d.drawn, nil
}

// refusal says why no node of a region, or of any if it is empty, takes a host.
func refusal(nodes []Candidate, region string) error {
	err := alloc.ErrNoRelay
	for i := range nodes {
		switch c := &nodes[i]; {
		case region != "" && c.Region != region, c.Age > DeadAfter, c.Stopped:
		case !c.Draining:
			return alloc.ErrFull
		default:
			err = alloc.ErrDraining
		}
	}
	return err
}

// isRefusal reports whether err is one of those of refusal.
func isRefusal(err error) bool {
	return errors.Is(err, alloc.ErrFull) || errors.Is(err, alloc.ErrDraining) || errors.Is(err, alloc.ErrNoRelay)
}

type draw struct {
	nodes []Candidate
	seats int
	most  int
	rnd   *rand.Rand
	drawn []int
}

func (d *draw) from(region string) {
	for len(d.drawn) < d.most {
		first := d.one(region)
		if first < 0 {
			return
		}
		d.drawn = append(d.drawn, first)
		second := d.one(region)
		if second < 0 {
			return
		}
		d.drawn = append(d.drawn, second)
		if d.fuller(first, second) {
			n := len(d.drawn)
			d.drawn[n-2], d.drawn[n-1] = second, first
		}
		d.drawn = d.drawn[:min(len(d.drawn), d.most)]
	}
}

func (d *draw) one(region string) int {
	var total float64
	for i := range d.nodes {
		total += d.weight(i, region)
	}
	at, last := d.rnd.Float64()*total, -1
	for i := range d.nodes {
		w := d.weight(i, region)
		if w == 0 {
			continue
		}
		last = i
		if at -= w; at < 0 {
			break
		}
	}
	return last
}

func (d *draw) weight(i int, region string) float64 {
	c := &d.nodes[i]
	if c.Region != region || !d.fits(c) || slices.Contains(d.drawn, i) {
		return 0
	}
	w := float64(c.Seats-c.Taken) * (1 - min(c.load(), maxLoadDiscount))
	if c.Suspect {
		w *= suspectWeight
	}
	return w
}

// fuller reports whether the second of two nodes is better: the one with the smaller
// part of its seats taken or, if their loads differ by at least minLoadDifference, with
// the smaller maximum of both. A suspect node is fuller than any other.
func (d *draw) fuller(first, second int) bool {
	a, b := &d.nodes[first], &d.nodes[second]
	if a.Suspect != b.Suspect {
		return a.Suspect
	}
	fullA, fullB := d.taken(a), d.taken(b)
	if math.Abs(a.load()-b.load()) >= minLoadDifference {
		fullA, fullB = max(fullA, a.load()), max(fullB, b.load())
	}
	return fullA > fullB
}

func (d *draw) taken(c *Candidate) float64 { return float64(c.Taken+d.seats) / float64(c.Seats) }

func (d *draw) fits(c *Candidate) bool {
	return c.Age <= DeadAfter && !c.Draining && d.seats > 0 && c.Seats-c.Taken >= d.seats
}

// load returns the announced load, within its bounds whatever was announced.
func (c *Candidate) load() float64 {
	if !(c.Load > 0) { // catches NaN as well
		return 0
	}
	return min(c.Load, 1)
}

// regions returns the regions that have room, the least loaded first.
func (d *draw) regions() []string {
	type region struct {
		id           string
		seats, taken int
	}
	var all []region
	for i := range d.nodes {
		c := &d.nodes[i]
		if !d.fits(c) {
			continue
		}
		at := slices.IndexFunc(all, func(r region) bool { return r.id == c.Region })
		if at < 0 {
			at, all = len(all), append(all, region{id: c.Region})
		}
		all[at].seats += c.Seats
		all[at].taken += c.Taken
	}
	slices.SortFunc(all, func(a, b region) int {
		return cmp.Or(
			cmp.Compare(float64(a.taken)/float64(a.seats), float64(b.taken)/float64(b.seats)),
			cmp.Compare(a.id, b.id),
		)
	})
	ids := make([]string, len(all))
	for i, r := range all {
		ids[i] = r.id
	}
	return ids
}
