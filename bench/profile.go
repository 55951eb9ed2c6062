package bench

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// trafficProfile is what a match of a game sends, as it was measured from a capture on loopback at
// commit 8f071053. Sizes are those of the content of RELAY messages.
type trafficProfile struct {
	name    string
	players int
	up      burstFlow // of each player to the host
	down    burstFlow // of the host, in its tick to all players at the same time
}

// burstFlow sends bursts at equal distances.
type burstFlow struct {
	bursts int           // in a cycle
	sizes  []uint16      // bytes of the datagrams of a burst, which are due at once
	jitter time.Duration // each burst is due up to so much later
}

// profileCycle is the Cycle of all profiles.
const profileCycle = 10 * time.Second

var trafficProfiles = []trafficProfile{
	{ // examples/movement: movement -players 20 -rate 30 -inputs 400
		"movement-20p-30hz", 20,
		burstFlow{300, []uint16{53}, 400 * time.Microsecond},
		burstFlow{300, []uint16{308}, 300 * time.Microsecond},
	},
	{ // examples/movement: movement -players 2 -rate 60 -inputs 900
		"movement-2p-60hz", 2,
		burstFlow{601, []uint16{53}, 100 * time.Microsecond},
		burstFlow{601, []uint16{56}, 100 * time.Microsecond},
	},
	{ // client/netcode: 8 players, 20 ticks a second, snapshots of 3,000 bytes
		"netcode-8p-20hz", 8,
		burstFlow{200, []uint16{72}, 0},
		burstFlow{200, []uint16{1362, 1362, 330}, 0},
	},
}

// TrafficProfiles returns the names of the games' traffic that [Config] has.
func TrafficProfiles() (names []string) {
	for _, p := range trafficProfiles {
		names = append(names, p.name)
	}
	return names
}

// newTraffic returns what a match of a profile sends; it is the same each time. Players replaces the
// number of the profile unless it is 0.
func newTraffic(name string, players int) (*traffic, error) {
	i := slices.IndexFunc(trafficProfiles, func(p trafficProfile) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: traffic %q is not one of %s", ErrConfig, name, strings.Join(TrafficProfiles(), ", "))
	}
	p := &trafficProfiles[i]
	t := &traffic{players: cmp.Or(players, p.players), cycle: profileCycle}
	if t.players < 1 || t.players > maxPlayers {
		return nil, fmt.Errorf("%w: Players is %d, not in 1 to %d", ErrConfig, t.players, maxPlayers)
	}
	random := rand.New(rand.NewPCG(0, 0))
	for player := range t.players {
		phase := time.Duration(random.Float64() * float64(profileCycle) / float64(p.up.bursts))
		p.up.each(phase, random, func(at time.Duration, size uint16) {
			t.datagrams = append(t.datagrams, trafficDatagram{at: at, size: size, player: uint8(player)})
		})
	}
	p.down.each(0, random, func(at time.Duration, size uint16) {
		for player := range t.players {
			t.datagrams = append(t.datagrams, trafficDatagram{at: at, size: size, player: uint8(player), down: true})
		}
	})
	slices.SortStableFunc(t.datagrams, func(a, b trafficDatagram) int { return cmp.Compare(a.at, b.at) })
	return t, nil
}

// each calls add for each datagram of a cycle.
func (f *burstFlow) each(phase time.Duration, random *rand.Rand, add func(at time.Duration, size uint16)) {
	for k := range f.bursts {
		at := phase + time.Duration(float64(k)*float64(profileCycle)/float64(f.bursts)) +
			time.Duration(random.Float64()*float64(f.jitter))
		for _, size := range f.sizes {
			add(at%profileCycle, size)
		}
	}
}
