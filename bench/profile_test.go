package bench

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTrafficProfiles: each profile has the players and the tick of its name, the sizes of its
// bursts in their order, and the ticks of its host are those of all players.
func TestTrafficProfiles(t *testing.T) {
	if len(TrafficProfiles()) != 3 {
		t.Errorf("profiles %v", TrafficProfiles())
	}
	for i, name := range TrafficProfiles() {
		part := regexp.MustCompile(`-(\d+)p-(\d+)hz$`).FindStringSubmatch(name)
		players, _ := strconv.Atoi(part[1])
		tick, _ := strconv.ParseFloat(part[2], 64)
		traffic, err := newTraffic(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		if traffic.players != players {
			t.Errorf("%s: %d players", name, traffic.players)
		}
		flows := map[string][]trafficDatagram{}
		for _, d := range traffic.datagrams {
			flow := fmt.Sprint(d.player, d.down)
			flows[flow] = append(flows[flow], d)
		}
		if len(flows) != 2*players {
			t.Errorf("%s: %d flows", name, len(flows))
		}
		for flow, all := range flows {
			want := trafficProfiles[i].up
			if all[0].down {
				want = trafficProfiles[i].down
			}
			n := len(want.sizes)
			if got := float64(len(all)/n) / traffic.cycle.Seconds(); got < 0.99*tick || got > 1.01*tick {
				t.Errorf("%s, %s: %.1f bursts a second", name, flow, got)
			}
			interval := traffic.cycle / time.Duration(want.bursts)
			for k, d := range all {
				first := all[k-k%n]
				if d.at != first.at || d.size != want.sizes[k%n] {
					t.Fatalf("%s, %s: datagram %d is %+v of the burst %+v", name, flow, k, d, first)
				}
				if off := (d.at - all[0].at - time.Duration(k/n)*interval).Abs(); off > want.jitter+time.Microsecond*10 {
					t.Fatalf("%s, %s: burst %d is %v off", name, flow, k/n, off)
				}
				if d.down && d.at != flows["0 true"][k].at {
					t.Fatalf("%s, %s: datagram %d at %v, that of player 0 at %v", name, flow, k, d.at, flows["0 true"][k].at)
				}
			}
		}
		if again, err := newTraffic(name, 0); err != nil || !reflect.DeepEqual(traffic, again) {
			t.Errorf("%s is another each time: %v", name, err)
		}
	}
}

// TestTrafficProfilePlayers: the number of players is replaced, and a wrong one or a wrong name is an error.
func TestTrafficProfilePlayers(t *testing.T) {
	name := TrafficProfiles()[0]
	traffic, err := newTraffic(name, 7)
	if err != nil || traffic.players != 7 || len(traffic.datagrams) != 7*2*300 || slices.ContainsFunc(traffic.datagrams,
		func(d trafficDatagram) bool { return d.player > 6 }) {
		t.Errorf("%+v, %v", traffic, err)
	}
	for want, c := range map[string]struct {
		name    string
		players int
	}{
		"Players is 256, not in 1 to 255": {name, 256}, "Players is -1": {name, -1},
		`traffic "game.pcapng" is not one of ` + name + ", ": {"game.pcapng", 0},
	} {
		if _, err := newTraffic(c.name, c.players); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
