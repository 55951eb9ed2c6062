package placement

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

func candidate(n int, region string, seats, taken int) Candidate {
	c := Candidate{Seen: Seen{Node: testNode(n, region, seats)}}
	c.Taken = taken
	return c
}

func with(c Candidate, change func(*Candidate)) Candidate {
	change(&c)
	return c
}

func TestPlaceWhom(t *testing.T) {
	t.Parallel()
	dead := with(candidate(2, "eu", 100, 0), func(c *Candidate) { c.Age = DeadAfter + 1 })
	drains := with(candidate(3, "eu", 100, 0), func(c *Candidate) { c.Draining = true })
	stopped := with(drains, func(c *Candidate) { c.Stopped = true })
	suspect := with(candidate(4, "eu", 100, 0), func(c *Candidate) { c.Suspect = true })
	busy := with(candidate(5, "eu", 100, 0), func(c *Candidate) { c.Load = 1 })
	odd := with(candidate(6, "eu", 100, 0), func(c *Candidate) { c.Load = math.NaN() })
	tests := []struct {
		name  string
		nodes []Candidate
		q     Request
		want  []int // in any order but the first
		first []int // any of these
		err   error
	}{
		{"no relay", nil, Request{Seats: 2}, nil, nil, alloc.ErrNoRelay},
		{"no relay in the region", nil, Request{Region: "eu", Seats: 2}, nil, nil, alloc.ErrRegion},
		{"the only one", []Candidate{candidate(0, "eu", 10, 8)}, Request{Seats: 2}, []int{0}, []int{0}, nil},
		{"one seat short", []Candidate{candidate(0, "eu", 10, 9)}, Request{Seats: 2}, nil, nil, alloc.ErrFull},
		{"more taken than there are", []Candidate{candidate(0, "eu", 10, 19)}, Request{Seats: 2}, nil, nil, alloc.ErrFull},
		{"no seats wanted", []Candidate{candidate(0, "eu", 10, 0)}, Request{}, nil, nil, alloc.ErrFull},
		{"dead", []Candidate{dead}, Request{Seats: 2}, nil, nil, alloc.ErrNoRelay},
		{"dead in its region", []Candidate{dead}, Request{Region: "eu", Seats: 2}, nil, nil, alloc.ErrNoRelay},
		{"draining", []Candidate{drains, dead}, Request{Region: "eu", Seats: 2}, nil, nil, alloc.ErrDraining},
		{"stopped", []Candidate{stopped, dead}, Request{Region: "eu", Seats: 2}, nil, nil, alloc.ErrNoRelay},
		{"draining, and one full", []Candidate{drains, candidate(7, "eu", 2, 2), dead}, Request{Region: "eu", Seats: 2}, nil, nil, alloc.ErrFull},
		{"draining, and one elsewhere full", []Candidate{drains, candidate(7, "us", 2, 2)}, Request{Region: "eu", Seats: 2}, nil, nil,
			alloc.ErrDraining},
		{"unknown region", []Candidate{candidate(0, "eu", 10, 0)}, Request{Region: "us", Seats: 2}, nil, nil, alloc.ErrRegion},
		{"only where demanded", []Candidate{candidate(0, "eu", 10, 0), candidate(1, "us", 10, 0)},
			Request{Region: "us", Seats: 2}, []int{1}, []int{1}, nil},
		{"least loaded region", []Candidate{candidate(0, "eu", 10, 5), candidate(1, "us", 10, 4), candidate(2, "us", 10, 6),
			candidate(3, "asia", 9, 4)},
			Request{Seats: 2}, []int{0, 1, 2, 3}, []int{3}, nil},
		{"suspect last", []Candidate{suspect, candidate(1, "eu", 10, 8), candidate(2, "eu", 10, 8)},
			Request{Seats: 2}, []int{0, 1, 2}, []int{1, 2}, nil},
		{"suspect rather than none", []Candidate{suspect}, Request{Seats: 2}, []int{0}, []int{0}, nil},
		{"busy rather than none", []Candidate{busy}, Request{Seats: 2}, []int{0}, []int{0}, nil},
		{"busy after half full", []Candidate{busy, candidate(1, "eu", 100, 50)}, Request{Seats: 2}, []int{0, 1}, []int{1}, nil},
		{"load that is no number", []Candidate{odd, candidate(1, "eu", 100, 50)}, Request{Seats: 2}, []int{0, 1}, []int{0}, nil},
	}
	for _, tt := range tests {
		for seed := range uint64(20) {
			got, err := Place(tt.nodes, tt.q, 10, rand.New(rand.NewPCG(seed, 1)))
			if !errors.Is(err, tt.err) {
				t.Fatalf("%s: error %v, want %v", tt.name, err, tt.err)
			}
			if len(got) > 0 && !slices.Contains(tt.first, got[0]) {
				t.Errorf("%s, seed %d: first %v of %v, want one of %v", tt.name, seed, got[0], got, tt.first)
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s, seed %d: %v, want %v", tt.name, seed, got, tt.want)
			}
		}
	}
}

// TestPlaceRepeats: the same rnd gives the same, and as many as asked for.
func TestPlaceRepeats(t *testing.T) {
	t.Parallel()
	var nodes []Candidate
	for n := range 50 {
		nodes = append(nodes, candidate(n, []string{"eu", "us"}[n%2], 100, n))
	}
	before := slices.Clone(nodes)
	differ := false
	for seed := range uint64(50) {
		for _, most := range []int{1, 2, 3, 30} {
			q := Request{Seats: 5}
			a, err := Place(nodes, q, most, rand.New(rand.NewPCG(seed, 0)))
			if err != nil || len(a) != most {
				t.Fatalf("%d of %d: %v", len(a), most, err)
			}
			b, _ := Place(nodes, q, most, rand.New(rand.NewPCG(seed, 0)))
			c, _ := Place(nodes, q, most, rand.New(rand.NewPCG(seed+1, 0)))
			if !slices.Equal(a, b) {
				t.Fatalf("seed %d: %v and %v", seed, a, b)
			}
			differ = differ || !slices.Equal(a, c)
		}
	}
	if !differ {
		t.Error("the seed makes no difference")
	}
	for i := range nodes {
		if nodes[i].Taken != before[i].Taken {
			t.Fatal("Place changed a node")
		}
	}
}

func TestPlaceWeighs(t *testing.T) {
	t.Parallel()
	const draws = 20_000
	small, large := candidate(0, "eu", 1_000, 0), candidate(1, "eu", 3_000, 0)
	loaded := with(candidate(2, "eu", 3_000, 0), func(c *Candidate) { c.Load = 0.75 })
	full := candidate(3, "eu", 3_000, 2_000)
	rnd := rand.New(rand.NewPCG(1, 2))
	counts := make([]int, 4)
	for range draws {
		d := draw{nodes: []Candidate{small, large, loaded, full}, seats: 5, most: 1, rnd: rnd}
		counts[d.one("eu")]++
	}
	weights := []float64{1000, 3000, 750, 1000}
	for i, n := range counts {
		want := draws * weights[i] / 5750
		if math.Abs(float64(n)-want) > 6*math.Sqrt(want) {
			t.Errorf("node %d was drawn %d times, want about %.0f", i, n, want)
		}
	}
}

// TestPlaceDoesNotPileUp: of two relays with a million seats each, the one that
// was a little busier at the last heartbeat gets its half, and one that is much
// busier gets nothing.
func TestPlaceDoesNotPileUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		load        float64
		least, most int // hosts of the first one
	}{{0.11, 495, 505}, {0.05, 495, 505}, {0.3, 0, 0}} {
		nodes := []Candidate{candidate(0, "eu", 1_000_000, 0), candidate(1, "eu", 1_000_000, 0)}
		nodes[0].Load, nodes[1].Load = c.load, 0.02
		rnd := rand.New(rand.NewPCG(5, 6))
		got := make([]int, 2)
		for range 1000 {
			to, err := Place(nodes, Request{Region: "eu", Seats: 5}, 1, rnd)
			if err != nil {
				t.Fatal(err)
			}
			nodes[to[0]].Taken += 5
			got[to[0]]++
		}
		if got[0] < c.least || got[0] > c.most {
			t.Errorf("load %v: %v hosts, want %d to %d on the first", c.load, got, c.least, c.most)
		}
	}
}

// TestGifts compares with a list of what was given.
func TestGifts(t *testing.T) {
	t.Parallel()
	type gift struct {
		at    time.Duration
		seats int
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var g recentGrants
		var all []gift
		now := time.Duration(rnd.IntN(20_000)) * time.Millisecond
		for range 100 {
			now += time.Duration(rnd.IntN(400)) * time.Millisecond
			all = append(all, gift{now, 1 + rnd.IntN(9)})
			g.add(now, all[len(all)-1].seats)
			if i := rnd.IntN(len(all)); rnd.IntN(3) == 0 && now-all[i].at < 7*time.Second {
				g.undo(all[i].at, all[i].seats)
				all = slices.Delete(all, i, i+1)
			}
			back := now - time.Duration(rnd.IntN(6_500))*time.Millisecond
			exact, atMost := 0, 0
			for _, x := range all {
				if x.at >= back {
					exact += x.seats
				}
				if x.at >= back-grantSlot {
					atMost += x.seats
				}
			}
			if got := g.since(back); got < exact || got > atMost {
				t.Fatalf("since %v at %v: %d, want %d to %d", back, now, got, exact, atMost)
			}
		}
		g.undo(now-time.Hour, 5) // long forgotten
		if got := g.since(now + grantSlot); got != 0 {
			t.Fatalf("given in the future: %d", got)
		}
	}
}
