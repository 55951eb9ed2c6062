package bench

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// traffic is what a match sends in a cycle, which repeats: times and sizes of a game's datagrams.
type traffic struct {
	players   int // of the match, 1 to 255, the host not counted
	cycle     time.Duration
	datagrams []trafficDatagram // by at, rising
}

// trafficDatagram is a datagram between the host and a player.
type trafficDatagram struct {
	at     time.Duration // from the start of the cycle, below its end
	size   uint16        // bytes without the dialect's header, 24 to 1,434
	player uint8         // 0 to players-1
	down   bool          // from the host
}

// rate returns the datagrams per second of one match.
func (t *traffic) rate() float64 { return float64(len(t.datagrams)) / t.cycle.Seconds() }

func (cfg *Config) setTraffic() (err error) {
	if cfg.Traffic == "" {
		return nil
	}
	if cfg.Shape != "" || cfg.Direction != "" && cfg.Direction != directionBoth || cfg.Payload != 0 || cfg.Window != 0 ||
		cfg.ReplaceRate != 0 {
		return fmt.Errorf("%w: Traffic decides Shape, Direction and Payload, and excludes Window and ReplaceRate", ErrConfig)
	}
	t := cfg.traffic // of a test
	if t == nil {
		if t, err = newTraffic(cfg.Traffic, cfg.Players); err != nil {
			return err
		}
	}
	cfg.traffic, cfg.Shape, cfg.Players = t, shapeStar, t.players
	cfg.Payload = int(slices.MaxFunc(t.datagrams, func(a, b trafficDatagram) int { return cmp.Compare(a.size, b.size) }).size)
	cfg.Matches = cmp.Or(cfg.Matches, 200)
	cfg.Rate = cmp.Or(cfg.Rate, t.rate()*float64(cfg.Matches))
	return nil
}

type trafficSchedule struct {
	traffic *traffic
	start   int64   // ns of sock.Now
	speed   float64 // of the cycle: 2 halves all times
	shifts  []int64 // by match: ns of the cycle before the start of the schedule
	first   matchHeap
}

type matchNext struct {
	due    int64
	number int64 // from the first of a cycle, counted over the cycles
	match  int32
}

type matchHeap []matchNext

func (h matchHeap) Len() int           { return len(h) }
func (h matchHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h matchHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (matchHeap) Push(any)             { panic("a match is added") }
func (matchHeap) Pop() any             { panic("a match is removed") }

func newTrafficSchedule(cfg *Config, start int64) *trafficSchedule {
	t := cfg.traffic
	s := &trafficSchedule{
		traffic: t, start: start, speed: cfg.Rate / (t.rate() * float64(cfg.Matches)),
		shifts: make([]int64, cfg.Matches), first: make(matchHeap, cfg.Matches),
	}
	for i := range s.first {
		// Multiples of the golden ratio spread matches over the cycle and over each tick within it.
		_, phase := math.Modf(float64(i) * math.Phi)
		s.shifts[i] = int64(phase * float64(t.cycle))
		number := s.numberAt(s.shifts[i], start)
		s.first[i] = matchNext{due: s.due(s.shifts[i], number), number: number, match: int32(i)}
	}
	heap.Init(&s.first)
	return s
}

func (s *trafficSchedule) due(shift, number int64) int64 {
	cycle, i := number/int64(len(s.traffic.datagrams)), number%int64(len(s.traffic.datagrams))
	at := cycle*int64(s.traffic.cycle) + int64(s.traffic.datagrams[i].at) - shift
	return s.start + int64(float64(at)/s.speed)
}

func (s *trafficSchedule) numberAt(shift, at int64) int64 {
	cycles := int64(float64(at-s.start)*s.speed)/int64(s.traffic.cycle) + 3
	return int64(sort.Search(int(cycles)*len(s.traffic.datagrams), func(i int) bool { return s.due(shift, int64(i)) >= at }))
}

func (s *trafficSchedule) before(end int64) (count uint64) {
	for _, shift := range s.shifts {
		if end > s.start {
			count += uint64(s.numberAt(shift, end) - s.numberAt(shift, s.start))
		}
	}
	return count
}

func (s *trafficSchedule) next() scheduled {
	n := &s.first[0]
	d := &s.traffic.datagrams[n.number%int64(len(s.traffic.datagrams))]
	flow := int(n.match)*2*s.traffic.players + int(d.player)
	if d.down {
		flow += s.traffic.players
	}
	return scheduled{n.due, flow, int(d.size)}
}

func (s *trafficSchedule) advance() {
	n := &s.first[0]
	n.number++
	n.due = s.due(s.shifts[n.match], n.number)
	heap.Fix(&s.first, 0)
}
