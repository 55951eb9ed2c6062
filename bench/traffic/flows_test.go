package traffic

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

func read(t *testing.T, text string) (*bench.Traffic, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "game.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Read(name, Options{})
}

// TestFlows: a cycle has the bursts of each flow at its rate, with exactly the shares of its sizes.
func TestFlows(t *testing.T) {
	got, err := read(t, `
players: 3
cycle: 2s
flows:
  - {from: joiner, rate: 50/s, size: {30B: 25%, 100-199B: 75%}, jitter: 5ms}
  - {from: host, rate: 10/s, burst: [1400B, 300-399B], together: true}
`)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "game" || got.Players != 3 || got.Cycle != 2*time.Second || len(got.Datagrams) != 3*2*(50+10*2) {
		t.Fatalf("%q: %d players, %v, %d datagrams", got.Name, got.Players, got.Cycle, len(got.Datagrams))
	}
	small, perPlayer := 0, map[uint8]int{}
	var down []bench.TrafficDatagram
	for i, d := range got.Datagrams {
		if i > 0 && d.At < got.Datagrams[i-1].At || d.At >= got.Cycle {
			t.Fatalf("datagram %d at %v", i, d.At)
		}
		switch {
		case d.Down:
			down = append(down, d)
			continue
		case d.Size == 30:
			small++
		case d.Size < 100 || d.Size > 199:
			t.Errorf("size %d", d.Size)
		}
		perPlayer[d.Player]++
	}
	if small != 75 || perPlayer[0] != 100 || perPlayer[1] != 100 || perPlayer[2] != 100 {
		t.Errorf("%d small ones, by player %v", small, perPlayer)
	}
	for i := 0; i < len(down); i += 6 { // a tick: two datagrams to each of three
		at := time.Duration(i/6) * 100 * time.Millisecond
		for k, d := range down[i : i+6] {
			second := k%2 == 1
			if d.At != at || int(d.Player) != k/2 || !second && d.Size != 1400 ||
				second && (d.Size != down[i+1].Size || d.Size < 300 || d.Size > 399) {
				t.Fatalf("tick at %v: %+v", at, down[i:i+6])
			}
		}
	}
	again, err := parseFlows([]byte("players: 2\nflows: [{from: host, rate: 1/s, size: 40B}]"), 7)
	if err != nil || again.Players != 7 || again.Cycle != 10*time.Second || len(again.Datagrams) != 70 {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestFlowErrors: a wrong file is rejected, with the line and the reason.
func TestFlowErrors(t *testing.T) {
	const flow = "\nflows: [{from: host, rate: 1/s, size: 40B}]"
	for _, c := range []struct{ text, want string }{
		{"", "the file is empty"},
		{"players: 2", "line 1: flows: there are none"},
		{flow, "line 2: players: 0 is not in 1 to 255"},
		{"players: 256" + flow, "line 1: players: 256 is not in 1 to 255"},
		{"players: two" + flow, "line 1: cannot use !!str `two` into int"},
		{"players: 2\nspeed: 3" + flow, "line 2: field speed not found"},
		{"players: 2\nplayers: 3" + flow, `line 2: mapping key "players" already defined at line 1`},
		{"players: 2\ncycle: 1h" + flow, "line 2: cycle: 1h0m0s is not in 1s to 10m0s"},
		{"players: 2\ncycle: 10" + flow, "line 2: cannot use !!int `10` as a time such as 5ms"},
		{"players: 2" + flow + "\n---\nplayers: 2", "more than one document"},
		{"[1]", "line 1: cannot use !!seq as a file of flows"},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 40B}\n  - {from: server, rate: 1/s, size: 40B}",
			`line 4: flow 2: from: "server" is neither host nor joiner`},
		{"players: 2\nflows:\n  - {from: host, rat: 1/s, size: 40B}", "line 3: field rat not found"},
		{"players: 2\nflows:\n  - {from: host, size: 40B}", "line 3: flow 1: rate is missing"},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s}", "line 3: flow 1: either size or burst is necessary"},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 40B, burst: [40B]}", "line 3: flow 1: either size or burst is necessary"},
		{"players: 2\nflows:\n  - {from: joiner, rate: 1/s, size: 40B, together: true}", "line 3: flow 1: together is for flows from the host"},
		{"players: 2\nflows:\n  - {from: host, rate: 0.25/s, size: 40B}", "line 3: flow 1: rate: 0.25/s is 2.5 times in a cycle of 10s"},
		{"players: 2\nflows:\n  - {from: host, rate: 0.01/s, size: 40B}", "line 3: flow 1: rate: 0.01/s is 0.1 times in a cycle of 10s"},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 40B, jitter: -1s}", "line 3: flow 1: jitter: -1s"},
		{"players: 2\nflows:\n  - from: host\n    rate: 30\n    size: 40B", `line 4: rate "30" is not a number per second such as 30/s`},
		{"players: 2\nflows:\n  - {from: host, rate: 0/s, size: 40B}", `line 3: rate "0/s"`},
		{"players: 2\nflows:\n  - {from: host, rate: NaN/s, size: 40B}", `line 3: rate "NaN/s"`},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 40}", `line 3: size "40" is not a number of bytes such as 40B`},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 4kB}", `line 3: size "4kB" is not a number of bytes`},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 23B}", `line 3: size "23B" is below 24B`},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 1435B}", `line 3: size "1435B" is above 1434B, the most that a relay forwards`},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: 60-50B}", `line 3: size "60-50B" ends below its start`},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: [40B]}", "line 3: a size is 40B, a range"},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: {40B: 10%, 50B: 80%}}", "line 3: the shares are 90% together"},
		{"players: 2\nflows:\n  - {from: host, rate: 1/s, size: {40B: 1}}", `line 3: share "1" is not above 0% and up to 100%`},
		{"players: 2\nflows:\n  - {from: host, rate: 1, size: 1B}", `reason`},
		{"players: 255\nflows: [{from: host, rate: 5000/s, size: 40B}]", "more than 4194304 datagrams"},
	} {
		if c.want == "reason" { // both are named
			c.want = `line 3: rate "1" is not a number per second such as 30/s, above 0/s and up to 100000/s; line 3: size "1B" is below`
		}
		_, err := read(t, c.text)
		text := fmt.Sprint(err)
		if !errors.Is(err, ErrTraffic) || !strings.Contains(text, c.want) ||
			strings.Contains(text, "\n") || !strings.Contains(text, "game.yaml") {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
	for name, o := range map[string]Options{"nowhere": {}, "./nowhere.yaml": {}, Names()[0]: {Host: "10.0.0.1"}} {
		if _, err := Read(name, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestProfiles: each profile has the players and the tick of its name, and says how it was measured.
// What describe derives from its traffic is the profile again.
func TestProfiles(t *testing.T) {
	if len(Names()) != 3 {
		t.Errorf("profiles %v", Names())
	}
	for _, name := range Names() {
		part := regexp.MustCompile(`-(\d+)p-(\d+)hz$`).FindStringSubmatch(name)
		players, _ := strconv.Atoi(part[1])
		tick, _ := strconv.ParseFloat(part[2], 64)
		traffic, err := Read(name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := Text(name, Options{})
		if err != nil || !strings.Contains(string(text), "# Measured by scripts/bench/traffic/measure.sh at commit ") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		first, count := map[string]time.Duration{}, map[string]float64{}
		for _, d := range traffic.Datagrams { // A burst counts once.
			from := fmt.Sprint(d.Player, d.Down)
			if last, seen := first[from]; !seen || d.At-last > 5*time.Millisecond {
				count[from]++
			}
			first[from] = d.At
		}
		for from, n := range count {
			if got := n / traffic.Cycle.Seconds(); math.Abs(got-tick) > 0.05*tick {
				t.Errorf("%s: %s sends %.1f times a second", name, from, got)
			}
		}
		if traffic.Players != players || len(count) != 2*players {
			t.Errorf("%s: %d players, %d flows", name, traffic.Players, len(count))
		}
		again, err := parseFlows(describe(traffic), 0)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, describe(traffic))
		}
		if a, b := traffic.Rate(), again.Rate(); math.Abs(a-b) > 0.01*a {
			t.Errorf("%s: %v datagrams/s become %v", name, a, b)
		}
		if a, b := traffic.MeanSize(), again.MeanSize(); math.Abs(a-b) > 0.01*a {
			t.Errorf("%s: %v B become %v", name, a, b)
		}
	}
}

// TestDescribe: sizes that are many become ranges, and datagrams beside the bursts a flow of their own.
func TestDescribe(t *testing.T) {
	traffic, err := parseFlows([]byte(`
players: 4
flows:
  - {from: joiner, rate: 20/s, size: {50-400B: 90%, 1000B: 10%}}
  - {from: host, rate: 20/s, burst: [1300B, 700B], together: true}
  - {from: host, rate: 2/s, size: 90B}
`), 0)
	if err != nil {
		t.Fatal(err)
	}
	text := string(describe(traffic))
	for _, want := range []string{
		`size: \{50-\d+B: 12.5%, .*-1000B: \d`, `burst: \[1300B, 700B\]\n.*together: true`, `rate: 2(\.\d+)?/s\n    size: .*90B`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	again, err := parseFlows([]byte(text), 0)
	if err != nil || math.Abs(again.Rate()-traffic.Rate()) > 0.02*traffic.Rate() ||
		math.Abs(again.MeanSize()-traffic.MeanSize()) > 0.03*traffic.MeanSize() {
		t.Errorf("%v datagrams/s of %v B become %v of %v: %v\n%s", traffic.Rate(), traffic.MeanSize(), again.Rate(), again.MeanSize(), err, text)
	}
}
