package netsim

import (
	"fmt"
	"strings"
	"time"
)

// preset is a network with a name, per direction. The numbers of lan,
// no-internet and unplayable, and those that the median and the worst way add,
// are the ones that netcode libraries offer; the others are round numbers of our
// own, pessimistic for what the name says, and no measurement of any network.
type preset struct {
	name          string
	delay, jitter int // ms
	loss, corrupt float64
}

// access are the networks that players sit on, without the way to the server.
var access = [...]preset{
	{"lan", 1, 1, 1, 0},
	{"broadband", 8, 3, 0.5, 0},
	{"wifi", 15, 12, 2, 0},
	{"5g", 12, 6, 1, 0},
	{"4g", 40, 12, 2, 0},
	{"3g", 110, 30, 4, 0},
	{"2g", 300, 80, 6, 0},
	{"unplayable", 300, 400, 30, 0},
	{"no-internet", 1000, 1000, 100, 0},
	{"corruption", 100, 50, 2, 1},
}

// ways are what the way to a server adds: one of the own region or one abroad.
var ways = [...]preset{
	{"regional-good", 10, 3, 0.5, 0},
	{"regional-median", 65, 10, 2, 0},
	{"international-median", 110, 12, 3, 0},
	{"international-worst", 200, 15, 5, 0},
}

func (p preset) params() Params {
	return Params{
		Delay: time.Duration(p.delay) * time.Millisecond, Jitter: time.Duration(p.jitter) * time.Millisecond,
		Loss: p.loss, Corrupt: p.corrupt,
	}
}

// Preset returns the parameters of a named network, such as "4g", or of several
// in a row, such as "4g+regional-median". Errors wrap ErrParams.
func Preset(name string) (Params, error) {
	var sum Params
	for part := range strings.SplitSeq(name, "+") {
		p, ok := find(part)
		if !ok {
			return Params{}, fmt.Errorf("%w: there is no preset %q, but %s", ErrParams, part, strings.Join(PresetNames(), ", "))
		}
		sum = sum.Plus(p.params())
	}
	return sum, nil
}

func find(name string) (preset, bool) {
	for _, list := range [][]preset{access[:], ways[:]} {
		for _, p := range list {
			if p.name == name {
				return p, true
			}
		}
	}
	return preset{}, false
}

// PresetNames returns the names that Preset knows: networks from good to bad,
// and then ways to a server.
func PresetNames() []string {
	names := make([]string, 0, len(access)+len(ways))
	for _, list := range [][]preset{access[:], ways[:]} {
		for _, p := range list {
			names = append(names, p.name)
		}
	}
	return names
}
