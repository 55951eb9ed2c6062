package machine

import (
	"strings"
	"testing"
)

// TestQueues: counters that begin anew, and what is said of a queue that drops.
func TestQueues(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]Queues{
		{{Sent: 1000, Dropped: 12}, {Sent: 600, Dropped: 2}, {Sent: 400, Dropped: 10}},
		{{Sent: 10, Dropped: 1}, {Sent: 600, Dropped: 2}, {Sent: 10, Dropped: 1}}, // another queue
	} {
		if got := c[0].Since(c[1]); got != c[2] {
			t.Errorf("%+v since %+v: %+v", c[0], c[1], got)
		}
	}
	for _, c := range []struct {
		q      Queues
		advice bool
	}{{Queues{}, false}, {Queues{Sent: 1998, Dropped: 2}, false}, {Queues{Sent: 1990, Dropped: 10}, true}} {
		if l := c.q.Losses(); len(l) != 1 || (l[0].Change != "") != c.advice || !strings.Contains(l[0].Finding, "dropped") {
			t.Errorf("%+v: %+v", c.q, l)
		}
	}
}
