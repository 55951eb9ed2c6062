package main

import "math/rand/v2"

// Machine is a relay's machine.
type Machine struct {
	Workers   int     // processors with a worker; the others are for control, API and the system
	NICs      int     // cards
	NICGbps   float64 // line rate of a card
	NICMpps   float64 // datagrams per second of a card, in millions, each way
	Dilation  float64 // unit costs relative to those of the measured machine
	MemoryGiB float64
}

// Game is one kind of load: each player sends up datagrams to its host, and the host
// sends each player down datagrams.
type Game struct {
	Name               string
	Players            int // of a match, besides its host
	UpHz, DownHz       float64
	UpBytes, DownBytes int     // payload of the game
	PerDatagram        float64 // s; measured near saturation, see costs.go
}

// relayHeader and wireHeader are what a payload has around it: the RELAY header, and
// Ethernet with preamble and gap, IPv4, UDP.
const relayHeader, wireHeader = 38, 66

// perPlayer returns the datagrams per second that a relay receives for a player, with
// those of its host to it; each leaves again.
func (g Game) perPlayer() float64 { return g.UpHz + g.DownHz }

// bitsPerPlayer returns the bits per second on the wire for a player, one way.
func (g Game) bitsPerPlayer() float64 {
	return 8 * (g.UpHz*float64(g.UpBytes+relayHeader+wireHeader) + g.DownHz*float64(g.DownBytes+relayHeader+wireHeader))
}

// load returns the load of a worker with a rate of the game.
func (g Game) load(rate float64) Load {
	return Load{Rate: rate, Burst: g.Players, Share: g.DownHz / g.perPlayer()}
}

// Control is the work of the one control goroutine, in seconds of a processor.
type Control struct {
	Bind   float64 // a BIND that moves or is the first
	Refile float64 // a live allocation that comes up in the timer wheel
	Match  float64 // reservation, link and end of an allocation, without its BIND
}

// use returns the part of a processor that control needs for players whose matches take
// so many seconds. Allocations are those of players and hosts; each comes up once in nine
// seconds.
func (c Control) use(players float64, g Game, seconds float64) float64 {
	allocations := players * (1 + 1/float64(g.Players))
	return allocations * (c.Refile/9 + (c.Bind+c.Match)/seconds)
}

// imbalance returns the load of the most loaded worker divided by the mean, when the kernel
// spreads endpoints by hash: that of a host carries all that it sends.
func imbalance(g Game, players, workers int, seed uint64) float64 {
	rng := rand.New(rand.NewPCG(seed, 2))
	load := make([]float64, workers)
	for range players {
		load[rng.IntN(workers)] += g.UpHz
	}
	for range players / g.Players {
		load[rng.IntN(workers)] += g.DownHz * float64(g.Players)
	}
	sum, most := 0.0, 0.0
	for _, l := range load {
		sum += l
		most = max(most, l)
	}
	return ratio(most*float64(workers), sum)
}

// Capacity is what a machine carries of a game at a load.
type Capacity struct {
	Players    int
	Mpps, Gbps float64 // each way
	MemoryGiB  float64 // of the table
	Control    float64 // part of a processor
	Imbalance  float64
	Limit      string // what is saturated first when more come
}

// bytesPerAllocation is the resident memory of an allocation: 310 MiB for a million.
const bytesPerAllocation = 310 << 20 / 1e6

// matchSeconds is the length of a match, after which all its allocations are new.
const matchSeconds = 600

// capacity returns how many players fit if no part is loaded by more than load, a part of
// its saturation.
func capacity(m Machine, g Game, c Costs, k Control, load float64) Capacity {
	c = c.scaled(m.Dilation)
	k = Control{k.Bind * m.Dilation, k.Refile * m.Dilation, k.Match * m.Dilation}
	most, limit := 0.0, ""
	consider := func(players float64, name string) {
		if most == 0 || players < most {
			most, limit = players, name
		}
	}
	mean := float64(m.Workers) * c.saturation() / g.perPlayer() * load
	consider(mean/imbalance(g, ceil(mean), m.Workers, 1), "the most loaded worker")
	consider(float64(m.NICs)*m.NICMpps*1e6/g.perPlayer()*load, "datagrams per second of the cards")
	consider(float64(m.NICs)*m.NICGbps*1e9/g.bitsPerPlayer()*load, "line rate of the cards")
	consider(load/k.use(1, g, matchSeconds), "control")
	consider(m.MemoryGiB*(1<<30)/(bytesPerAllocation*(1+1/float64(g.Players)))*load, "memory")
	return Capacity{
		Players: int(most), Mpps: most * g.perPlayer() / 1e6, Gbps: most * g.bitsPerPlayer() / 1e9,
		MemoryGiB: most * (1 + 1/float64(g.Players)) * bytesPerAllocation / (1 << 30),
		Control:   k.use(most, g, matchSeconds), Imbalance: imbalance(g, ceil(most), m.Workers, 1), Limit: limit,
	}
}

func (c Costs) scaled(by float64) Costs {
	c.Wake, c.Batch, c.Datagram = c.Wake*by, c.Batch*by, c.Datagram*by
	return c
}
