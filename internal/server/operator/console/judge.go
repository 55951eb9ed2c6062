package console

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	// maxRoundTrip is the longest p99 of a round trip through the relay, in milliseconds, that is
	// no problem: beyond a frame of the game, players notice.
	maxRoundTrip = 20.0
	// maxTripsLost is how many of the last round trips may be lost.
	maxTripsLost = 2
	// maxRefusedShare is the share of datagrams that the kernel may refuse to send, one in so many.
	maxRefusedShare = 1000

	// nowOver is the time over which the present rate is taken, everywhere in the console.
	nowOver = 10 * time.Second
	// A reason grows if its present rate is above growsFrom per second and growsBy times what it
	// was before.
	growsFrom, growsBy = 10, 3
)

// reading is what the judge keeps of one sample.
type reading struct {
	at                      time.Time
	trip                    float64 // ms; below 0: lost
	received, receivedBytes uint64
	sent, sentBytes         uint64
	sendFailed, kernelDrops uint64
	drops                   map[string]uint64 // by reason; not changed
}

// judge finds out from the last samples what is wrong with the relay. It belongs to Run.
type judge struct {
	readings []reading // of keptFor, the oldest first
	states   map[string]Condition
	changes  []Condition // the oldest first
}

func (j *judge) add(at time.Time, st *engine.Stats, trip float64) {
	j.readings = append(j.readings, reading{
		at, trip, st.Received, st.ReceivedBytes, st.Sent, st.SentBytes, st.SendFailed, st.KernelDrops, st.Drops,
	})
	j.readings = slices.DeleteFunc(j.readings, func(r reading) bool { return at.Sub(r.at) > keptFor })
}

// last returns the readings of the last so long, and the one before them if there is one.
func (j *judge) last(over time.Duration) []reading {
	from := len(j.readings) - 1
	for now := j.readings[from].at; from > 0 && now.Sub(j.readings[from].at) < over-sampleEvery/2; { // They are not on time.
		from--
	}
	return j.readings[from:]
}

// before returns the reading of so long before the newest one, or the oldest.
func (j *judge) before(over time.Duration) *reading { return &j.last(over)[0] }

// roundTrip returns the last one, with the quantiles of those of a minute.
func (j *judge) roundTrip() *RoundTrip {
	r := &RoundTrip{Last: j.before(0).trip}
	var came []float64
	for _, one := range j.last(roundTrips - sampleEvery) {
		if one.trip < 0 {
			r.Lost++
			continue
		}
		came = append(came, one.trip)
	}
	slices.Sort(came)
	if n := len(came); n > 0 {
		r.P50, r.P99 = came[n/2], came[min(n*99/100, n-1)]
	}
	return r
}

func perSecond(from, to *reading, counter func(*reading) uint64) float64 {
	seconds := to.at.Sub(from.at).Seconds()
	if a, b := counter(from), counter(to); seconds > 0 && b > a {
		return float64(b-a) / seconds
	}
	return 0
}

// dropped returns all drops, those of the kernel too.
func (r *reading) dropped() (sum uint64) {
	for _, n := range r.drops {
		sum += n
	}
	return sum + r.kernelDrops
}

func (j *judge) load() operator.Load {
	from, to := j.before(nowOver), j.before(0)
	return operator.Load{
		DatagramsIn:  perSecond(from, to, func(r *reading) uint64 { return r.received }),
		DatagramsOut: perSecond(from, to, func(r *reading) uint64 { return r.sent }),
		BytesIn:      perSecond(from, to, func(r *reading) uint64 { return r.receivedBytes }),
		BytesOut:     perSecond(from, to, func(r *reading) uint64 { return r.sentBytes }),
		Drops:        perSecond(from, to, (*reading).dropped),
	}
}

// conditions returns what the last samples say. The relay's own conditions come from elsewhere.
func (j *judge) conditions(rtt *RoundTrip, underLoad int) []Condition {
	return []Condition{roundTripCondition(rtt), j.sendCondition(), j.attackCondition(underLoad)}
}

func roundTripCondition(rtt *RoundTrip) Condition {
	c := Condition{Name: "round trip", State: "ok", Text: fmt.Sprintf(
		"through the relay and back, p99 %.2f ms and %d lost of the last minute; the limits are %.0f ms and %d",
		rtt.P99, rtt.Lost, maxRoundTrip, maxTripsLost)}
	if rtt.P99 > maxRoundTrip || rtt.Lost > maxTripsLost {
		c.State = "problem"
		c.Text += ": players notice it. Look at the processor time of its workers, and at other programs of the machine"
	}
	return c
}

func (j *judge) sendCondition() Condition {
	from, to := j.before(time.Minute), j.before(0)
	sent, refused := to.sent-from.sent, to.sendFailed-from.sendFailed
	c := Condition{Name: "sending", State: "ok", Text: fmt.Sprintf(
		"the kernel refused %d of %d datagrams of the last minute; the limit is one in %d", refused, sent+refused, maxRefusedShare)}
	if refused > (sent+refused)/maxRefusedShare {
		c.State = "problem"
		c.Text += ": look at routes and the firewall, whose table may be full, and at the queue of the network card"
	}
	return c
}

// attackCondition says which drops grow. The page Attack has the same sentence.
func (j *judge) attackCondition(underLoad int) Condition {
	c := Condition{Name: "attack", State: "problem", Page: "attack"}
	now, recent, old := j.before(0), j.before(nowOver), j.before(keptFor)
	if kernel := perSecond(recent, now, func(r *reading) uint64 { return r.kernelDrops }); kernel > 0 {
		c.Text = fmt.Sprintf("the kernel drops %.0f datagrams a second before the relay sees them: the machine is at its limit", kernel)
		return c
	}
	if underLoad > 0 {
		c.Text = fmt.Sprintf("%d workers are under load: each source prefix is limited", underLoad)
		return c
	}
	var growing []string
	for _, reason := range slices.Sorted(maps.Keys(now.drops)) {
		counter := func(r *reading) uint64 { return r.drops[reason] }
		rate := perSecond(recent, now, counter)
		if rate > growsFrom && rate > growsBy*perSecond(old, recent, counter) {
			growing = append(growing, fmt.Sprintf("%s, %.0f a second", reason, rate))
		}
	}
	if len(growing) > 0 {
		c.Text = "drops grow: " + strings.Join(growing, "; ")
		return c
	}
	c.State, c.Text = "ok", "no drops grow, and no limit is in force"
	return c
}

// maxChanges is how many changes of conditions are kept.
const maxChanges = 200

// date sets since when each condition has its state, and keeps those that changed. A condition that
// is not there any more is over.
func (j *judge) date(all []Condition, now time.Time) {
	seen, states := map[string]int{}, make(map[string]Condition, len(all))
	for i := range all {
		c := &all[i]
		seen[c.Name]++ // Several conditions may have one name, such as certificates.
		key := fmt.Sprintf("%s %d", c.Name, seen[c.Name])
		was, known := j.states[key]
		c.Since = now
		switch {
		case known && was.State == c.State:
			c.Since = was.Since
		case known || c.State != "ok":
			j.keep(*c)
		}
		states[key] = *c
	}
	for key, was := range j.states {
		if _, still := states[key]; !still && was.State != "ok" {
			was.State, was.Text, was.Since = "ok", "over", now
			j.keep(was)
		}
	}
	j.states = states
}

func (j *judge) keep(c Condition) {
	if len(j.changes) == maxChanges {
		j.changes = slices.Delete(j.changes, 0, 1)
	}
	j.changes = append(j.changes, c)
}
