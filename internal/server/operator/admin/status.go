package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

const (
	// liveTimeout is the maximum time of one batch and of one probe. A batch takes
	// microseconds.
	liveTimeout = 2 * time.Second
	// pollInterval is the interval between two checks of busy workers.
	pollInterval = 20 * time.Millisecond
)

// checkLive returns nil if the relay answers a probe and no worker is stuck. It
// checks the workers first, since a stuck worker makes some probes fail and its index
// is the better error.
func checkLive(ctx context.Context, probe func(context.Context) error, workers func() []engine.WorkerStats) error {
	if err := waitForProgress(ctx, workers); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	return probe(ctx)
}

// waitForProgress waits until every worker that was busy in the first sample has been
// idle or has begun another batch. After liveTimeout, its error names the others.
func waitForProgress(ctx context.Context, workers func() []engine.WorkerStats) error {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	first := workers()
	busy := stuckWorkers(first, first)
	for len(busy) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("admin: workers %v are stuck in one batch: %w", busy, ctx.Err())
		case <-time.After(pollInterval):
		}
		busy = stuckWorkers(first, workers())
	}
	return nil
}

// stuckWorkers returns the workers that are busy with the same batch in both samples.
func stuckWorkers(before, now []engine.WorkerStats) (rows []int) {
	for i := range before {
		if before[i].Busy && now[i].Busy && before[i].Batches == now[i].Batches {
			rows = append(rows, i)
		}
	}
	return rows
}

// Usage is the response of /usage.
type Usage struct {
	// Since is when counting began: the first start with this state directory.
	Since    time.Time      `json:"since"`
	Projects []ProjectUsage `json:"projects"`
}

// ProjectUsage is the usage of one project and environment.
type ProjectUsage struct {
	// Project and Environment are empty if they are unknown, as after a restart.
	// Tenant is a digest of both, in hexadecimal.
	Project     string `json:"project,omitempty"`
	Environment string `json:"environment,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	// Others is set for the sum of those without counters of their own, see
	// engine.Usage.
	Others        bool    `json:"others,omitempty"`
	Allocations   int     `json:"allocations"`
	Hosts         int     `json:"hosts"`
	Players       int     `json:"players"` // bound, including hosts
	PlayerSeconds float64 `json:"player_seconds"`
	// Datagrams and Bytes count relayed traffic.
	Datagrams uint64 `json:"datagrams"`
	Bytes     uint64 `json:"bytes"`
}

func usagePages(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		usage := Usage{Since: cfg.Since, Projects: []ProjectUsage{}}
		if !cfg.UsageSince.IsZero() {
			usage.Since = cfg.UsageSince
		}
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			all, err := cfg.Relay.Usage(ctx)
			for _, u := range all {
				usage.Projects = append(usage.Projects, projectOf(u))
			}
			return err
		})
		writeAnswer(w, usage, err)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		writeAnswer(w, StatsOf(cfg.Relay.Stats(), time.Now(), cfg.Since), nil)
	})
}

// usageOfFleet registers GET /usage of a process without a relay: the sum of all relays. A
// relay that does not answer is an error, since a sum without it would be wrong.
func usageOfFleet(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		sum := Usage{Projects: []ProjectUsage{}}
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			return askRelays(ctx, cfg, "/usage", func(_ Node, part Usage) bool {
				sum.Add(&part)
				return false
			})
		})
		writeAnswer(w, sum, err)
	})
}

// Add adds the usage of another relay. The sum begins with the first of both.
func (u *Usage) Add(part *Usage) {
	if u.Since.IsZero() || part.Since.Before(u.Since) {
		u.Since = part.Since
	}
	for _, p := range part.Projects {
		same := func(q ProjectUsage) bool { return q.Tenant == p.Tenant && q.Others == p.Others }
		i := slices.IndexFunc(u.Projects, same)
		if i < 0 {
			u.Projects = append(u.Projects, p)
			continue
		}
		q := &u.Projects[i]
		q.Project, q.Environment = cmp.Or(q.Project, p.Project), cmp.Or(q.Environment, p.Environment)
		q.Allocations, q.Hosts, q.Players = q.Allocations+p.Allocations, q.Hosts+p.Hosts, q.Players+p.Players
		q.PlayerSeconds += p.PlayerSeconds
		q.Datagrams, q.Bytes = q.Datagrams+p.Datagrams, q.Bytes+p.Bytes
	}
}

func projectOf(u engine.Usage) ProjectUsage {
	p := ProjectUsage{
		Project: u.Name.Project, Environment: u.Name.Environment, Others: u.Others,
		Allocations: u.Allocations, Hosts: u.Hosts, Players: u.Players,
		PlayerSeconds: u.PlayerSeconds, Datagrams: u.Datagrams, Bytes: u.Bytes,
	}
	if !u.Others {
		p.Tenant = hex(u.Tenant)
	}
	return p
}

// Stats is the response of /stats: gauges, and counters since the start.
type Stats struct {
	Now           time.Time         `json:"now"`
	Since         time.Time         `json:"since"`
	Allocations   int               `json:"allocations"`
	Bound         int               `json:"bound"`
	Links         int               `json:"links"`
	Seats         int               `json:"seats"`
	Draining      bool              `json:"draining"`
	Received      uint64            `json:"datagrams_in"`
	ReceivedBytes uint64            `json:"bytes_in"`
	Sent          uint64            `json:"datagrams_out"`
	SentBytes     uint64            `json:"bytes_out"`
	SendFailed    uint64            `json:"send_failed"`
	KernelDrops   uint64            `json:"kernel_drops"`
	Outcomes      map[string]uint64 `json:"outcomes"` // by outcome, without zeros
	Drops         map[string]uint64 `json:"drops"`    // by reason, without zeros
	Workers       []uint64          `json:"workers"`  // datagrams received by each worker of a UDP socket
	Intakes       []uint64          `json:"intakes"`  // messages received by each worker of a transport
	UnderLoad     int               `json:"workers_under_load"`
	// StateComplete: the state file has all that the next run must know.
	StateComplete bool `json:"state_complete"`
}

// StatsOf returns the response of /stats.
func StatsOf(st engine.Stats, now, since time.Time) Stats {
	s := Stats{
		Now: now, Since: since, Allocations: st.Allocations, Bound: st.Bound, Links: st.Links, Seats: st.Seats,
		Draining: st.Draining, Received: st.Received, ReceivedBytes: st.ReceivedBytes,
		Sent: st.Sent, SentBytes: st.SentBytes, SendFailed: st.SendFailed, KernelDrops: st.KernelDrops,
		Outcomes: map[string]uint64{}, Drops: map[string]uint64{}, UnderLoad: st.WorkersUnderLoad,
		Workers: []uint64{}, Intakes: []uint64{}, StateComplete: st.StateComplete,
	}
	for o := range engine.NumOutcomes {
		into := s.Outcomes
		if o.Dropped() {
			into = s.Drops
		}
		if n := st.Outcomes[o]; n > 0 {
			into[o.String()] = n
		}
	}
	for _, w := range st.Workers {
		if w.Intake {
			s.Intakes = append(s.Intakes, w.Received)
		} else {
			s.Workers = append(s.Workers, w.Received)
		}
	}
	return s
}
