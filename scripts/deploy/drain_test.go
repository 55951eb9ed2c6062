package deploy

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

// spare is how much longer than a drain a supervisor must wait, for the last
// datagrams.
const spare = 30 * time.Second

const longestCall = 10 * time.Second

func seconds(t *testing.T, text string) time.Duration {
	t.Helper()
	text = strings.NewReplacer("min", "m", " ", "").Replace(text)
	if regexp.MustCompile(`^[0-9]+$`).MatchString(text) {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Error(err)
	}
	return d
}

// TestDrainTimes checks that no supervisor kills a draining relay, that all
// files have the same drain time, and that README names it.
func TestDrainTimes(t *testing.T) {
	t.Parallel()
	type place struct {
		where string
		line  commandLine
		waits time.Duration
	}
	var all []place
	for _, name := range units(t) {
		lines := parseUnit(t, name)
		start := values(lines, "ExecStart")[0]
		all = append(all, place{name, commandLine{name, strings.Fields(start)[1:]}, seconds(t, values(lines, "TimeoutStopSec")[0])})
	}
	for name, s := range readCompose(t).Services {
		if s.Image == "ferry" {
			all = append(all, place{"compose: " + name, commandLine{name, s.Command}, seconds(t, s.StopGracePeriod)})
		}
	}
	drains := 0
	for _, p := range all {
		text := p.line.flag("drain-timeout")
		relay := p.line.words[0] == "relay"
		if relay != (text != "") {
			t.Errorf("%s: ferry %s with --drain-timeout %q: only relays of a fleet drain", p.where, p.line.words[0], text)
		}
		if !relay {
			if p.waits < longestCall {
				t.Errorf("%s: calls may take %v, and it is given %v", p.where, longestCall, p.waits)
			}
			continue
		}
		drains++
		if drain := seconds(t, text); p.waits < drain+spare {
			t.Errorf("%s: drains for %v and is killed after %v", p.where, drain, p.waits)
		}
		if !strings.Contains(read(t, "README.md"), "`--drain-timeout "+text+"`") {
			t.Errorf("%s: README does not say that relays drain for %s", p.where, text)
		}
	}
	if drains != 2 {
		t.Errorf("%d relays", drains)
	}
}
