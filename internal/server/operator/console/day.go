package console

import (
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	// dayEvery is the time between two points of the day, and maxDay how many are kept: some
	// 200 KB.
	dayEvery = time.Minute
	maxDay   = 24 * 60
)

// Day is the response of /console/data/day: the last 24 hours, or those since the start.
type Day struct {
	Points []operator.Load `json:"points"`
	// Changes are conditions that came and went, the oldest first.
	Changes []operator.Condition `json:"changes"`
}

// addToDay adds the load of a sample to the point of its minute, whose rates are the mean. The caller
// holds the lock.
func (c *collector) addToDay(l operator.Load) {
	c.minute.Add(&l)
	c.inMinute++
	if n := len(c.day); n > 0 && l.At.Sub(c.day[n-1].At) < dayEvery {
		return
	}
	samples := float64(c.inMinute)
	l.DatagramsIn, l.DatagramsOut = c.minute.DatagramsIn/samples, c.minute.DatagramsOut/samples
	l.BytesIn, l.BytesOut, l.Drops = c.minute.BytesIn/samples, c.minute.BytesOut/samples, c.minute.Drops/samples
	c.minute, c.inMinute = operator.Load{}, 0
	if len(c.day) == maxDay {
		c.day = slices.Delete(c.day, 0, 1)
	}
	c.day = append(c.day, l)
}

func (c *collector) history() Day {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Day{append([]operator.Load{}, c.day...), append([]operator.Condition{}, c.changes...)}
}

type FleetNode struct {
	operator.Node
	Summary *operator.Summary `json:"summary,omitempty"` // nil: the relay did not answer, or is older
}

type FleetState struct {
	At    time.Time   `json:"at"`
	Nodes []FleetNode `json:"nodes"`
	// StoreAway and StoresAway are as in operator.Nodes.
	StoreAway  time.Time            `json:"store_away_since,omitzero"`
	StoresAway []operator.StoreAway `json:"stores_away,omitempty"`
	Error      string               `json:"error,omitempty"` // why the nodes may not be all
}
