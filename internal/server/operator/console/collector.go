package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
)

// Config holds the sources of the values. They must be safe for concurrent use.
type Config struct {
	// Title is the program and its version; Mode is "dev", "serve", "relay" or "api".
	Title, Mode string
	// Relay is the id of the relay, Region its region; empty: none.
	Host, Relay, Region string
	Since               time.Time
	// Stats and Probe are of the relay. Nil: the process has none.
	Stats func() engine.Stats
	Probe func(context.Context) error
	// Nodes returns the processes of the fleet, or only this one, whose relay has the load.
	Nodes func(context.Context, operator.Load) (operator.Nodes, error)
	// Summaries returns the summaries of relays of the fleet by their ids, of a process without a
	// relay.
	Summaries func(ctx context.Context, relays []string) map[string]operator.Summary
	Matches   func(context.Context) (int, error)
	// Conditions returns what an operator should know of the process.
	Conditions func() []Condition
	// Refusals returns the newest refused messages of known allocations. Nil: none. Those of
	// [Console.CountRefusal] are counted by network.
	Refusals func() []timeline.Event
	Log      *Log
	Audit    *Log
	// Viewer reports whether the person who made a request may look now, and returns a name by
	// which their connections are counted; empty: they are not.
	Viewer func(*http.Request) (name string, ok bool)
}

type Condition = operator.Condition

// Sample is the state of the process at one time. Counters are since the start.
type Sample struct {
	At         time.Time       `json:"at"`
	Title      string          `json:"title"`
	Mode       string          `json:"mode"`
	Host       string          `json:"host"`
	Relay      string          `json:"relay,omitempty"`
	Region     string          `json:"region,omitempty"`
	Since      time.Time       `json:"since"`
	Stats      *operator.Stats `json:"stats,omitempty"`
	WorkerCPU  []float64       `json:"worker_cpu,omitempty"` // seconds of each worker of a UDP socket
	RTT        *RoundTrip      `json:"rtt,omitempty"`
	Load       *operator.Load  `json:"load,omitempty"` // of the relay, or of all of the fleet; nil: not measured yet
	Conditions []Condition     `json:"conditions"`
}

// RoundTrip is the time in milliseconds of a datagram from this process through the relay
// and back: the last one, and quantiles of those of the last minute.
type RoundTrip struct {
	Last float64 `json:"last"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Lost int     `json:"lost"` // of the last minute
}

const (
	sampleEvery = time.Second
	// fleetEvery is the time between two questions to the relays of a fleet.
	fleetEvery = 2 * time.Second
	// idleEvery is the time between two of either while no browser is connected, for the day, the
	// conditions and other processes that ask: the time that present rates are over.
	idleEvery = nowOver
	// matchesEvery is the time between two counts of matches.
	matchesEvery = 5 * time.Second
	// keptFor is of when a browser gets samples when it connects: some 700 KB if there was another one.
	keptFor = 5 * time.Minute
	// roundTrips is the time that the quantiles of round trips cover.
	roundTrips = time.Minute
	// maxBrowsers is how many connections get live values at once.
	maxBrowsers = 64
	// personBrowsers is how many of them one person may have.
	personBrowsers = 8
	// browserQueue is how many samples may wait for a slow browser. It then misses some.
	browserQueue = 16
	// sendWithin is how long a browser may take for one sample.
	sendWithin = 10 * time.Second
)

// collector takes a sample each second, however many browsers there are, and few while there is none.
type collector struct {
	cfg         Config
	sources     sources
	wanted, ask chan struct{} // of Run: what is newer than the last sample, and of the fleet

	mu       sync.Mutex // guards what follows
	running  bool
	kept     []keptSample           // the oldest first
	browsers map[chan []byte]string // by person
	day      []operator.Load        // the oldest first
	minute   operator.Load          // the sum of so many samples since the last point of the day
	inMinute int
	changes  []Condition // the oldest first
	last     Sample
	fleet    FleetState

	// What follows belongs to Run.
	judge     judge
	matches   int
	countedAt time.Time // of matches
}

type keptSample struct {
	at   time.Time
	json []byte
}

func (c *collector) init(cfg Config) {
	c.cfg, c.browsers, c.sources.all = cfg, map[chan []byte]string{}, map[netip.Prefix]*source{}
	c.wanted, c.ask = make(chan struct{}, 1), make(chan struct{}, 1)
}

// Run takes samples until ctx ends, and then ends the connections of browsers.
func (c *Console) Run(ctx context.Context) {
	s := &c.collector
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	defer s.stop()
	if s.cfg.Stats == nil {
		var asking sync.WaitGroup
		asking.Go(func() {
			for s.askFleet(ctx); s.await(ctx, fleetEvery, s.ask); s.askFleet(ctx) {
			}
		})
		defer asking.Wait()
	}
	for {
		sample := s.sample(ctx)
		b, err := json.Marshal(sample)
		if err != nil {
			c.log.Error("the console has no values", "error", err)
			return
		}
		if s.publish(sample, b); !s.await(ctx, sampleEvery, s.wanted) {
			return
		}
	}
}

// await waits for a time, or longer if no browser is connected and nothing is wanted. It returns false
// when ctx has ended.
func (c *collector) await(ctx context.Context, every time.Duration, wanted <-chan struct{}) bool {
	c.mu.Lock()
	if len(c.browsers) == 0 && len(c.kept) > 1 { // From two samples on there are rates.
		every = idleEvery
	}
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-wanted:
	case <-periodic.Next(every):
	}
	return true
}

// look has a sample taken, for the next look, if the last one is old. The caller holds the lock.
func (c *collector) look() {
	if time.Since(c.last.At) < sampleEvery {
		return
	}
	for _, wanted := range []chan struct{}{c.wanted, c.ask} {
		select {
		case wanted <- struct{}{}:
		default:
		}
	}
}

func (c *collector) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
	for b := range c.browsers {
		close(b)
	}
	clear(c.browsers)
}

func (c *collector) publish(s Sample, sample []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.changes = s, slices.Clone(c.judge.changes)
	if s.Load != nil {
		c.addToDay(*s.Load)
	}
	c.kept = append(c.kept, keptSample{s.At, sample})
	c.kept = slices.DeleteFunc(c.kept, func(k keptSample) bool { return s.At.Sub(k.at) > keptFor })
	for b := range c.browsers {
		select {
		case b <- sample:
		default:
		}
	}
}

func (c *collector) sample(ctx context.Context) Sample {
	s := Sample{
		At: time.Now(), Title: c.cfg.Title, Mode: c.cfg.Mode, Host: c.cfg.Host, Relay: c.cfg.Relay, Region: c.cfg.Region,
		Since: c.cfg.Since, Conditions: c.cfg.Conditions(),
	}
	if c.cfg.Stats == nil {
		c.addFleet(&s)
	} else {
		c.addRelay(ctx, &s)
	}
	c.judge.date(s.Conditions, s.At)
	return s
}

func (c *collector) addRelay(ctx context.Context, s *Sample) {
	st := c.cfg.Stats()
	page := admin.StatsOf(st, s.At, c.cfg.Since)
	s.Stats = &page
	for _, w := range st.Private.Workers {
		if w.Transport == "" {
			s.WorkerCPU = append(s.WorkerCPU, w.CPU.Seconds())
		}
	}
	c.judge.add(s.At, &st, c.roundTrip(ctx))
	s.RTT = c.judge.roundTrip()
	s.Conditions = append(s.Conditions, c.judge.conditions(s.RTT, st.Private.WorkersUnderLoad)...)
	if s.At.Sub(c.countedAt) >= matchesEvery {
		if n, err := c.cfg.Matches(ctx); err == nil {
			c.matches, c.countedAt = n, s.At
		}
	}
	if len(c.judge.readings) < 2 {
		return
	}
	l := c.judge.load()
	l.At, l.P99, l.Matches, l.Relays = s.At, s.RTT.P99, c.matches, 1
	l.Allocations, l.Players, l.Links, l.Seats = st.Allocations, st.Bound, st.Links, st.Seats
	s.Load = &l
}

func (c *collector) askFleet(ctx context.Context) {
	f := FleetState{At: time.Now()}
	nodes, err := c.cfg.Nodes(ctx, operator.Load{})
	if err != nil {
		f.Error = err.Error()
	}
	var relays []string
	f.StoreAway, f.StoresAway = nodes.StoreAway, nodes.StoresAway
	for _, n := range nodes.Nodes {
		if n.Role != "api" {
			relays = append(relays, n.ID)
		}
	}
	summaries := c.cfg.Summaries(ctx, relays)
	for _, n := range nodes.Nodes {
		f.Nodes = append(f.Nodes, fleetNode(n, summaries))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fleet = f
}

func fleetNode(n operator.Node, summaries map[string]operator.Summary) FleetNode {
	all := FleetNode{Node: n}
	if s, ok := summaries[n.ID]; ok && n.Role != "api" {
		all.Summary = &s
	}
	return all
}

func (c *collector) addFleet(s *Sample) {
	c.mu.Lock()
	f := c.fleet
	c.mu.Unlock()
	if f.At.IsZero() { // The relays were not asked yet.
		return
	}
	if f.Error != "" {
		s.Conditions = append(s.Conditions, Condition{Name: "fleet", State: "problem", Text: f.Error, Page: "fleet"})
	}
	var sum operator.Load
	for _, n := range f.Nodes {
		if n.Summary != nil {
			sum.Add(&n.Summary.Load)
		}
	}
	if sum.Relays > 0 {
		sum.At, s.Load = s.At, &sum
	}
}

func (c *collector) state(ctx context.Context) FleetState {
	c.mu.Lock()
	c.look()
	f, last := c.fleet, c.last
	c.mu.Unlock()
	if c.cfg.Stats == nil {
		return f
	}
	f = FleetState{At: last.At, Nodes: []FleetNode{}}
	summary := summaryOf(&last)
	nodes, err := c.cfg.Nodes(ctx, summary.Load)
	if err != nil {
		f.Error = err.Error()
	}
	for _, n := range nodes.Nodes {
		f.Nodes = append(f.Nodes, fleetNode(n, map[string]operator.Summary{c.cfg.Relay: summary}))
	}
	return f
}

// Summary returns what the console of an API process shows of this relay.
func (c *Console) Summary() operator.Summary {
	c.collector.mu.Lock()
	c.collector.look()
	last := c.collector.last
	c.collector.mu.Unlock()
	return summaryOf(&last)
}

func summaryOf(s *Sample) operator.Summary {
	all := operator.Summary{Host: s.Host}
	if s.Load != nil {
		all.Load = *s.Load
	}
	for _, c := range s.Conditions {
		if c.State != "ok" {
			all.Conditions = append(all.Conditions, c)
		}
	}
	return all
}

// CountRefusal counts a refused message by its network.
func (c *Console) CountRefusal(e privateapi.RefuseEvent) { c.collector.sources.count(e, time.Now()) }

// roundTrip measures one, in milliseconds. Below 0: it was lost.
func (c *collector) roundTrip(ctx context.Context) float64 {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	began := time.Now()
	if c.cfg.Probe(ctx) != nil {
		return -1
	}
	return time.Since(began).Seconds() * 1000
}

var (
	errBrowsers = fmt.Errorf("console: the process ends, or %d browsers are connected, which is the limit", maxBrowsers)
	errPerson   = fmt.Errorf("console: you have %d connections, which is the limit for one person: close other windows", personBrowsers)
)

// subscribe returns the kept samples, and a channel of further ones, which is closed when
// Run ends. It fails if there are too many browsers, or too many of the person, or Run does
// not run.
func (c *collector) subscribe(person string) (kept [][]byte, further chan []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running || len(c.browsers) >= maxBrowsers {
		return nil, nil, errBrowsers
	}
	own := 0
	for _, p := range c.browsers {
		if p == person {
			own++
		}
	}
	if person != "" && own >= personBrowsers {
		return nil, nil, errPerson
	}
	further = make(chan []byte, browserQueue)
	c.browsers[further] = person
	c.look()
	for _, k := range c.kept {
		kept = append(kept, k.json)
	}
	return kept, further, nil
}

func (c *collector) unsubscribe(b chan []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.browsers, b)
}

// serve sends samples as server-sent events until the browser disconnects, or may look no
// more: its session has ended, or its person lost the role.
func (c *collector) serve(w http.ResponseWriter, r *http.Request) {
	person, _ := c.cfg.Viewer(r)
	kept, further, err := c.subscribe(person)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer c.unsubscribe(further)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	send := func(samples ...[]byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(sendWithin)) // Writers without deadlines are those of tests.
		for _, s := range samples {
			if _, err := fmt.Fprintf(w, "data: %s\n\n", s); err != nil {
				return false
			}
		}
		return control.Flush() == nil
	}
	if !send(kept...) {
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case sample, open := <-further:
			if _, may := c.cfg.Viewer(r); !open || !may || !send(sample) {
				return
			}
		}
	}
}

func (c *Console) refusals() []operator.WhyEvent {
	all := []operator.WhyEvent{} // not null
	if c.cfg.Refusals == nil {
		return all
	}
	for _, e := range c.cfg.Refusals() {
		row := e.Row()
		row.ID = e.ID.String()
		all = append(all, row)
	}
	return all
}
