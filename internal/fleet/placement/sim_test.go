package placement

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// simAllocations sets the size of the simulation. With 1,000,000 it has 1,000
// relays and takes minutes; make stress has 100,000.
var simAllocations = flag.Int("allocations", 40_000, "allocations of TestFleetSimulation, which has a thousandth as many relays")

// What happens in the simulation. Times are the bubble's.
const (
	simAPIs       = 4
	simTick       = 20 * time.Millisecond
	simTrip       = 3 * time.Millisecond // of a call between API and relay
	simLife       = 100 * time.Second    // of a match, on average
	simUnbound    = 0.2                  // of reservations are not bound, and lapse
	simLapse      = 10 * time.Second
	simFill       = 0.75       // of all seats is taken, in ordinary times
	simRush       = 3          // times as many come between 60 and 80 % of all
	simBeatLost   = 0.05       // of heartbeats
	simAnswerLost = 0.0005     // of answers
	simLost       = 0.05       // of a dead relay's hosts do not come back
	simDeaths     = 1.0 / 5000 // per relay and second
	simDrains     = 1.0 / 10000
)

var (
	simRegions = []string{"eu", "us", "asia", "au"}
	simSizes   = []int{500, 1000, 2000}
	// simMax are the maxima of connections that hosts ask for.
	simMax = []int{1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 7, 7, 7, 7, 7, 15, 15, 15, 31, 31, 99}
)

// sim is a fleet and what happens to it.
type sim struct {
	relays []*simRelay
	apis   []*Fleet

	mu   sync.Mutex // guards the following fields
	rnd  *rand.Rand
	ends map[int64][]simEnd // by tick
	came phases
	// imbalance has, for each second and region in ordinary times, how full the
	// fullest relay is to the average one; fill has the average.
	imbalance, fill []float64
	// full has how full the relays in question were when a host was not placed.
	full          []float64
	over          int // relays with more hosts than seats, by second
	kills, drains int
}

// phases are counts in ordinary times, and from the beginning of the rush on
// until it has passed.
type phases [2]struct{ placed, refused, falsely, unavailable int }

type simEnd struct {
	relay *simRelay
	host  proto.AllocationID
}

func (s *sim) chance(p float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.Float64() < p
}

// TestFleetSimulation runs the real Fleet and Local over engines that count, with
// everything that makes their picture of each other wrong, and counts what
// players would notice of it.
func TestFleetSimulation(t *testing.T) {
	hosts := *simAllocations
	synctest.Test(t, func(t *testing.T) {
		s := &sim{rnd: rand.New(rand.NewPCG(6, 2)), ends: make(map[int64][]simEnd)}
		s.build(t, max(hosts/1000, 20))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, f := range s.apis {
			running.Go(func() {
				if err := f.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.run(t, hosts)
		s.report(t, hosts)
		s.wantNothingLeft(t)
		cancel()
		running.Wait()
	})
}

func (s *sim) build(t *testing.T, relays int) {
	dialer := make(fakeDialer)
	for n := range relays {
		r := &simRelay{
			sim: s, seats: simSizes[n%len(simSizes)], live: make(map[proto.AllocationID]int), beat: time.Now(),
			node: testNode(n, simRegions[n%7%len(simRegions)], simSizes[n%len(simSizes)]),
		}
		r.begin(t)
		s.relays = append(s.relays, r)
		dialer[strconv.Itoa(n)] = simRemote{relay: r}
	}
	for n := range simAPIs {
		s.apis = append(s.apis, New(Config{
			Registry: simStore{sim: s}, Directory: simStore{sim: s}, Dialer: dialer, Seed: uint64(n + 1),
		}))
	}
}

func (s *sim) run(t *testing.T, hosts int) {
	var seats, mean float64
	for _, r := range s.relays {
		seats += float64(r.seats)
	}
	for _, n := range simMax {
		mean += float64(n+1) / float64(len(simMax))
	}
	life := (1-simUnbound)*simLife.Seconds() + simUnbound*simLapse.Seconds()
	perTick := seats * simFill / mean * simTick.Seconds() / life
	var calls sync.WaitGroup
	var due float64
	for tick, come := int64(0), 0; come < hosts; tick++ {
		part := float64(come) / float64(hosts)
		rush, phase := 1.0, 0
		if part > 0.6 {
			phase = 1
		}
		if part > 0.6 && part < 0.8 {
			rush = simRush
		}
		for due += perTick * rush; due >= 1 && come < hosts; due-- {
			come++
			calls.Go(func() { s.arrive(tick, phase) })
		}
		s.mu.Lock()
		ends := s.ends[tick]
		delete(s.ends, tick)
		s.mu.Unlock()
		for _, e := range ends {
			_ = e.relay.End(t.Context(), e.host)
		}
		s.happen(t, tick, part)
		time.Sleep(simTick)
	}
	calls.Wait()
}

func (s *sim) arrive(tick int64, phase int) {
	s.mu.Lock()
	q := alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: simMax[s.rnd.IntN(len(simMax))]}
	api := s.apis[s.rnd.IntN(len(s.apis))]
	if s.rnd.IntN(2) == 0 {
		q.Region = s.relays[s.rnd.IntN(len(s.relays))].node.Region
	}
	life := time.Duration(s.rnd.ExpFloat64() * float64(simLife))
	if s.rnd.Float64() < simUnbound {
		life = simLapse
	}
	s.mu.Unlock()
	res, err := api.ReserveHost(context.Background(), q)
	var falsely bool
	var full float64
	if err != nil {
		falsely, full = s.hadRoom(q)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	came := &s.came[phase]
	if full > 0 {
		s.full = append(s.full, full)
	}
	switch {
	case err == nil:
		came.placed++
		end := tick + 100 + int64(life/simTick) // The call took less than 100 ticks.
		i, _ := strconv.Atoi(res.Endpoints[0].Host)
		s.ends[end] = append(s.ends[end], simEnd{s.relays[i], res.ID})
	case !errors.Is(err, alloc.ErrFull):
		came.unavailable++
	case falsely:
		came.falsely++
		came.refused++
	default:
		came.refused++
	}
}

// hadRoom reports whether some relay would have taken the host, and how full
// those are that could.
func (s *sim) hadRoom(q alloc.HostRequest) (room bool, full float64) {
	var all, taken int
	for _, r := range s.relays {
		if q.Region != "" && q.Region != r.node.Region {
			continue
		}
		seats, gone, open := r.truth()
		if open {
			all, taken = all+seats, taken+gone
			room = room || seats-gone > q.MaxConnections
		}
	}
	return room, float64(taken) / float64(all)
}

func (s *sim) happen(t *testing.T, tick int64, part float64) {
	const beat, second = int64(HeartbeatEvery / simTick), int64(time.Second / simTick)
	now := time.Now()
	for i, r := range s.relays {
		if (tick+int64(i))%beat == 0 {
			r.announce()
		}
		if (tick+int64(i))%second != 0 {
			continue
		}
		r.mu.Lock()
		wakes := !r.down.IsZero() && !now.Before(r.down)
		if wakes {
			r.down = time.Time{}
		}
		r.mu.Unlock()
		if wakes {
			r.begin(t)
			r.announce()
		}
		dies, drains := s.chance(simDeaths), s.chance(simDrains)
		r.mu.Lock()
		if dies && r.down.IsZero() {
			r.down = now.Add(10*time.Second + time.Duration(i%60)*time.Second)
			s.kills++
		}
		if drains && r.down.IsZero() {
			r.draining = now.Add(time.Minute)
			s.drains++
		}
		r.mu.Unlock()
	}
	if tick%second == 0 {
		s.look(part > 0.3 && part < 0.6)
	}
}

func (s *sim) look(ordinary bool) {
	type region struct{ most, sum, n float64 }
	all := make(map[string]*region)
	for _, r := range s.relays {
		seats, taken, open := r.truth()
		if taken > seats {
			s.over++
		}
		if !open {
			continue
		}
		x := all[r.node.Region]
		if x == nil {
			x = new(region)
			all[r.node.Region] = x
		}
		full := float64(taken) / float64(seats)
		x.most, x.sum, x.n = max(x.most, full), x.sum+full, x.n+1
	}
	for _, x := range all {
		if ordinary {
			s.imbalance = append(s.imbalance, x.most*x.n/x.sum)
			s.fill = append(s.fill, x.sum/x.n)
		}
	}
}

func (s *sim) report(t *testing.T, all int) {
	var st Stats
	for _, f := range s.apis {
		x := f.Stats()
		st.Tries, st.Placed, st.Full, st.Draining, st.Silent = st.Tries+x.Tries, st.Placed+x.Placed,
			st.Full+x.Full, st.Draining+x.Draining, st.Silent+x.Silent
	}
	slices.Sort(s.imbalance)
	n := len(s.imbalance)
	var mean, fill float64
	for i := range n {
		mean += s.imbalance[i] / float64(n)
		fill += s.fill[i] / float64(n)
	}
	t.Logf("%d relays, %d API processes; %d relays died, %d drained", len(s.relays), len(s.apis), s.kills, s.drains)
	t.Logf("fullest relay of a region to the average one, at %.0f %% of seats taken: mean %.3f, p99 %.3f, most %.3f",
		100*fill, mean, s.imbalance[n*99/100], s.imbalance[n-1])
	for i, what := range []string{"ordinary times", "rush and after"} {
		c := s.came[i]
		t.Logf("%s: %d placed, %d refused, of these %d falsely, %d unavailable", what, c.placed, c.refused, c.falsely, c.unavailable)
	}
	slices.Sort(s.full)
	least, half := 1.0, 1.0
	if n := len(s.full); n > 0 {
		least, half = s.full[n/100], s.full[n/2]
	}
	t.Logf("seats taken of those in question when a host was not placed: median %.1f %%, 99 %% above %.1f %%", 100*half, 100*least)
	t.Logf("%d tries for %d hosts: %d relays were full, %d drained, %d silent; relays with more hosts than seats: %d",
		st.Tries, st.Placed, st.Full, st.Draining, st.Silent, s.over)
	ordinary, rush := s.came[0], s.came[1]
	tolerated := 0
	if all < 100_000 { // A region of few relays may be full for a moment.
		tolerated = all / 5_000
	}
	for what, bad := range map[string]bool{
		"imbalance":                      mean > 1.35 || s.imbalance[n-1] > 1.6,
		"false refusals":                 ordinary.falsely > tolerated,
		"not placed with room to spare":  least < 0.9 || half < 0.95,
		"hardly a refusal in the rush":   rush.refused < all/100,
		"hosts that could not be placed": ordinary.unavailable > all/1000,
		// In the rush the relay with the last seats may be one that just died. A
		// caller that finds all others full and that one silent gets the error of the
		// silence; the rule of "room to spare" above applies too.
		"more silence than refusals": rush.unavailable > rush.refused/10,
		"more hosts than seats":      s.over > 0,
		"tries for one host":         st.Tries > st.Placed*5/4,
		"hosts that were not accounted for": ordinary.placed+ordinary.refused+ordinary.unavailable+rush.placed+rush.refused+
			rush.unavailable != all,
	} {
		if bad {
			t.Error(what)
		}
	}
}

// wantNothingLeft ends all hosts: no seat may be taken then, at any relay or in
// the view of any process.
func (s *sim) wantNothingLeft(t *testing.T) {
	for _, r := range s.relays {
		r.mu.Lock()
		dead := !r.down.IsZero()
		r.down, r.draining = time.Time{}, time.Time{}
		r.mu.Unlock()
		if dead {
			r.begin(t)
		}
	}
	time.Sleep(time.Second) // What is given in the moment of a heartbeat counts twice.
	for _, ends := range s.ends {
		for _, e := range ends {
			_ = e.relay.End(t.Context(), e.host)
		}
	}
	for _, r := range s.relays {
		if held := r.announcer.Stats().Hosts; held != 0 || r.taken != 0 || len(r.live) != 0 {
			t.Errorf("relay %s: %d seats and %d hosts are left, %d are announced", r.node.Control, r.taken, len(r.live), held)
		}
		for range 10 { // some of them are lost
			r.announce()
		}
	}
	time.Sleep(3 * PollEvery)
	for i, f := range s.apis {
		for _, c := range f.Nodes() {
			if c.Taken != 0 {
				t.Errorf("process %d believes that %d seats of relay %s are taken", i, c.Taken, c.Control)
			}
		}
	}
}
