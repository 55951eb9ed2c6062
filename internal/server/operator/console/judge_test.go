package console

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
)

// TestReasons: each reason for which the relay drops has a sentence and what to do, and no other
// name has.
func TestReasons(t *testing.T) {
	drops := enginetest.Start(t, engine.Config{}).Stats().Drops
	for reason := range drops {
		if r := reasons[reason]; !strings.HasSuffix(r.Means, ".") || !strings.HasSuffix(r.Do, ".") {
			t.Errorf("%s: %+v", reason, r)
		}
	}
	for reason := range reasons {
		if _, ok := drops[reason]; !ok {
			t.Errorf("the relay drops nothing for the reason %q", reason)
		}
	}
}

// TestJudge: what the last samples say of round trips, of sending and of drops, however many there are.
func TestJudge(t *testing.T) {
	for _, every := range []time.Duration{sampleEvery, idleEvery} {
		t.Run(every.String(), func(t *testing.T) { testJudge(t, every) })
	}
}

func testJudge(t *testing.T, every time.Duration) {
	fine := RoundTrip{P99: 1}
	for name, c := range map[string]struct {
		rtt       RoundTrip
		perSecond engine.Stats // in the last ten seconds
		underLoad int
		problem   string // the name of the only problem
		text      string
	}{
		"quiet":       {rtt: fine, perSecond: engine.Stats{Sent: 1000}},
		"slow":        {rtt: RoundTrip{P99: maxRoundTrip + 1}, problem: "round trip", text: "p99 21.00 ms"},
		"lost":        {rtt: RoundTrip{Lost: maxTripsLost + 1}, problem: "round trip", text: "3 lost"},
		"refused":     {rtt: fine, perSecond: engine.Stats{Sent: 1000, SendFailed: 100}, problem: "sending", text: "refused 1000 of "},
		"kernel":      {rtt: fine, perSecond: engine.Stats{KernelDrops: 7}, problem: "attack", text: "the kernel drops 7 datagrams"},
		"under load":  {rtt: fine, underLoad: 2, problem: "attack", text: "2 workers are under load"},
		"flood":       {rtt: fine, perSecond: engine.Stats{Drops: map[string]uint64{"mac": 50}}, problem: "attack", text: "mac, 50 a"},
		"a few drops": {rtt: fine, perSecond: engine.Stats{Drops: map[string]uint64{"mac": growsFrom}}},
		"answers":     {rtt: fine, perSecond: engine.Stats{Outcomes: map[string]uint64{"relayed": 50}}},
	} {
		var j judge
		var st engine.Stats
		at := time.Unix(1e9, 0)
		seconds := uint64(every / time.Second)
		for passed := time.Duration(0); passed < 2*keptFor; passed += every {
			if passed >= 2*keptFor-nowOver {
				st.Sent += seconds * c.perSecond.Sent
				st.SendFailed += seconds * c.perSecond.SendFailed
				st.KernelDrops += seconds * c.perSecond.KernelDrops
				st.Drops = map[string]uint64{"mac": st.Drops["mac"] + seconds*c.perSecond.Drops["mac"]}
			} else {
				st.Sent += seconds * 1000
			}
			j.add(at.Add(passed), &st, 1)
		}
		if n := int(keptFor/every) + 1; len(j.readings) != n {
			t.Fatalf("%d readings are kept, want %d", len(j.readings), n)
		}
		var problems, text string
		for _, c := range j.conditions(&c.rtt, c.underLoad) {
			if c.State != "ok" {
				problems, text = problems+c.Name, text+c.Text
			}
		}
		if problems != c.problem || !strings.Contains(text, c.text) {
			t.Errorf("%s: problem %q %q, want %q %q", name, problems, text, c.problem, c.text)
		}
	}
}

// TestSince: a condition has its state since it changed, and the changes are kept, as many as fit.
func TestSince(t *testing.T) {
	var j judge
	at := func(minute int) time.Time { return time.Unix(1e9, 0).Add(time.Duration(minute) * time.Minute) }
	state := func(minute int, states ...string) string {
		var all []Condition
		for i, s := range states {
			all = append(all, Condition{Name: string(rune('a' + i)), State: s})
		}
		j.date(all, at(minute))
		var text string
		for _, c := range all {
			text += fmt.Sprint(c.Name, " ", c.State, " ", int(c.Since.Sub(at(0)).Minutes()), ", ")
		}
		return text
	}
	for _, step := range []struct{ got, want string }{
		{state(0, "ok", "note"), "a ok 0, b note 0, "},
		{state(1, "ok", "note"), "a ok 0, b note 0, "},
		{state(2, "problem", "note"), "a problem 2, b note 0, "},
		{state(3, "problem"), "a problem 2, "},
		{state(4, "ok"), "a ok 4, "},
	} {
		if step.got != step.want {
			t.Errorf("%q, want %q", step.got, step.want)
		}
	}
	var changes string
	for _, c := range j.changes {
		changes += fmt.Sprint(c.Name, " ", c.State, " ", int(c.Since.Sub(at(0)).Minutes()), ", ")
	}
	if want := "b note 0, a problem 2, b ok 3, a ok 4, "; changes != want {
		t.Errorf("changes %q, want %q", changes, want)
	}
	for minute := range 2 * maxChanges {
		state(minute, "problem")
		state(minute, "ok")
	}
	if len(j.changes) != maxChanges {
		t.Errorf("%d changes are kept", len(j.changes))
	}
}

// TestDay: a point each minute, for a day.
func TestDay(t *testing.T) {
	c, _ := newConsole(t)
	began := time.Unix(1e9, 0)
	for second := 0; second < 2*maxDay*60; second += 20 {
		at := began.Add(time.Duration(second) * time.Second)
		c.collector.publish(Sample{At: at, Load: &operator.Load{At: at, Drops: float64(second % 60)}}, nil)
	}
	day := c.collector.history()
	if n := len(day.Points); n != maxDay || day.Points[n-1].Drops != 20 || day.Points[n-1].At.Sub(day.Points[0].At) != (maxDay-1)*time.Minute {
		t.Errorf("%d points", n)
	}
}

// TestSources: refused messages are counted by network, with their rate, and the table is bounded.
func TestSources(t *testing.T) {
	s := sources{all: map[netip.Prefix]*source{}}
	now := time.Unix(1e9, 0)
	count := func(from, reason string) {
		s.count(privateapi.RefuseEvent{From: netip.MustParseAddrPort(from), Outcome: reason}, now)
	}
	for range 20 {
		count("203.0.113.7:1000", "mac")
		count("203.0.113.9:1000", "nonce")
		count("203.0.113.9:1000", "unvalidated")
		count("[2001:db8:1:2ff::1]:1000", "mac")
		now = now.Add(time.Second)
	}
	now = now.Add(-time.Second)
	all := s.list(now)
	if len(all) != 2 || all[0].Prefix.String() != "203.0.113.0/24" || all[0].Rate != 2 || all[0].Count != 40 || len(all[0].Reasons) != 2 ||
		all[1].Prefix.String() != "2001:db8:1:200::/56" || all[1].Rate != 1 {
		t.Errorf("%+v", all)
	}
	if all = s.list(now.Add(sourceSeconds * time.Second)); all[0].Rate != 0 || all[0].Count != 40 {
		t.Errorf("after silence: %+v", all)
	}
	for i := range 2 * maxSources {
		count(fmt.Sprintf("10.%d.%d.1:1000", i/256, i%256), "mac")
	}
	if len(s.all) != maxSources {
		t.Errorf("%d networks are counted", len(s.all))
	}
	if all = s.list(now.Add(2 * sourcesFor)); len(all)+len(s.all) != 0 {
		t.Errorf("%d networks after hours", len(s.all))
	}
}
