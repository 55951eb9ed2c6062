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

// Traffic is what a match sends in a cycle, which repeats: times and sizes of a game's
// datagrams. [TrafficProfile] has that of games.
type Traffic struct {
	Name      string
	Players   int // of the match, 1 to 255, the host not counted
	Cycle     time.Duration
	Datagrams []TrafficDatagram // by At, rising
}

// TrafficDatagram is a datagram between the host and a player.
type TrafficDatagram struct {
	At     time.Duration // from the start of the cycle, below its end
	Size   uint16        // bytes without the dialect's header, 24 to 1,434
	Player uint8         // 0 to Players-1
	Down   bool          // from the host
}

// Rate returns the datagrams per second of one match.
func (t *Traffic) Rate() float64 { return float64(len(t.Datagrams)) / t.Cycle.Seconds() }

// MeanSize returns the mean of the sizes in bytes.
func (t *Traffic) MeanSize() float64 {
	sum := 0
	for i := range t.Datagrams {
		sum += int(t.Datagrams[i].Size)
	}
	return ratio(uint64(sum), uint64(len(t.Datagrams)))
}

func (t *Traffic) check() error {
	if t.Players < 1 || t.Players > maxPlayers || t.Cycle <= 0 || len(t.Datagrams) == 0 {
		return fmt.Errorf("%w: traffic %q needs 1 to %d players, a cycle and datagrams", ErrConfig, t.Name, maxPlayers)
	}
	last := time.Duration(0)
	for i, d := range t.Datagrams {
		if d.At < last || d.At >= t.Cycle || int(d.Player) >= t.Players || d.Size < stampLen || d.Size > maxPayload {
			return fmt.Errorf("%w: traffic %q, datagram %d: %+v", ErrConfig, t.Name, i, d)
		}
		last = d.At
	}
	return nil
}

func (cfg *Config) setTraffic() error {
	t := cfg.Traffic
	if t == nil {
		return nil
	}
	if err := t.check(); err != nil {
		return err
	}
	if cfg.Shape != "" || cfg.Direction != "" && cfg.Direction != DirectionBoth || cfg.Payload != 0 || cfg.Window != 0 ||
		cfg.Churn.ReplaceRate != 0 || cfg.Align == AlignEven || cfg.Players != 0 && cfg.Players != t.Players {
		return fmt.Errorf("%w: Traffic decides Shape, Direction, Players and Payload, and excludes Window, ReplaceRate and AlignEven", ErrConfig)
	}
	cfg.Shape, cfg.Players = ShapeStar, t.Players
	cfg.Payload = int(slices.MaxFunc(t.Datagrams, func(a, b TrafficDatagram) int { return cmp.Compare(a.Size, b.Size) }).Size)
	cfg.Matches = cmp.Or(cfg.Matches, 200)
	cfg.Rate = cmp.Or(cfg.Rate, t.Rate()*float64(cfg.Matches))
	return nil
}

type trafficSchedule struct {
	traffic *Traffic
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
	t := cfg.Traffic
	s := &trafficSchedule{
		traffic: t, start: start, speed: cfg.Rate / (t.Rate() * float64(cfg.Matches)),
		shifts: make([]int64, cfg.Matches), first: make(matchHeap, cfg.Matches),
	}
	for i := range s.first {
		if cfg.Align != AlignTick {
			// Multiples of the golden ratio spread matches over the cycle and over each tick within it.
			_, phase := math.Modf(float64(i) * math.Phi)
			s.shifts[i] = int64(phase * float64(t.Cycle))
		}
		number := s.numberAt(s.shifts[i], start)
		s.first[i] = matchNext{due: s.due(s.shifts[i], number), number: number, match: int32(i)}
	}
	heap.Init(&s.first)
	return s
}

func (s *trafficSchedule) due(shift, number int64) int64 {
	cycle, i := number/int64(len(s.traffic.Datagrams)), number%int64(len(s.traffic.Datagrams))
	at := cycle*int64(s.traffic.Cycle) + int64(s.traffic.Datagrams[i].At) - shift
	return s.start + int64(float64(at)/s.speed)
}

func (s *trafficSchedule) numberAt(shift, at int64) int64 {
	cycles := int64(float64(at-s.start)*s.speed)/int64(s.traffic.Cycle) + 3
	return int64(sort.Search(int(cycles)*len(s.traffic.Datagrams), func(i int) bool { return s.due(shift, int64(i)) >= at }))
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
	d := &s.traffic.Datagrams[n.number%int64(len(s.traffic.Datagrams))]
	flow := int(n.match)*2*s.traffic.Players + int(d.Player)
	if d.Down {
		flow += s.traffic.Players
	}
	return scheduled{n.due, flow, int(d.Size)}
}

// advance returns false: datagrams of Traffic have no ticks.
func (s *trafficSchedule) advance() bool {
	n := &s.first[0]
	n.number++
	n.due = s.due(s.shifts[n.match], n.number)
	heap.Fix(&s.first, 0)
	return false
}
