package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
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

func usagePages(mux *http.ServeMux, relay *RelayConfig) {
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		usage := operator.Usage{Since: relay.Since, Projects: []operator.ProjectUsage{}}
		if !relay.UsageSince.IsZero() {
			usage.Since = relay.UsageSince
		}
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			all, err := relay.Engine.Usage(ctx)
			for _, u := range all {
				usage.Projects = append(usage.Projects, projectOf(u))
			}
			return err
		})
		writeAnswer(w, usage, err)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		writeAnswer(w, StatsOf(relay.Engine.Stats(), time.Now(), relay.Since), nil)
	})
}

type playerQuery struct {
	project, environment, sort string
	top                        int
}

func parsePlayerQuery(query url.Values) (playerQuery, error) {
	q := playerQuery{sort: "bytes", top: operator.DefaultRows}
	err := parse(query, map[string]func(string) error{
		"project":     func(text string) error { q.project = text; return nil },
		"environment": func(text string) error { q.environment = text; return nil },
		"sort": func(text string) error {
			if operator.PlayerSorts[text] == nil {
				return fmt.Errorf("%q is not one of %s", text, strings.Join(slices.Sorted(maps.Keys(operator.PlayerSorts)), ", "))
			}
			q.sort = text
			return nil
		},
		"top": func(text string) error {
			n, err := number(text, operator.MaxRows)
			q.top = int(n)
			return err
		},
	})
	if err == nil && q.environment != "" && q.project == "" {
		err = fmt.Errorf("%w: environment: %w", errQuery, errProject)
	}
	return q, err
}

func playerUsagePage(mux *http.ServeMux, history History) {
	mux.HandleFunc("GET /usage/players", func(w http.ResponseWriter, r *http.Request) {
		var usage operator.PlayersUsage
		q, err := parsePlayerQuery(r.URL.Query())
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				usage, err = history.PlayerUsage(ctx, q.project, q.environment)
				return err
			})
			usage.SortAndCut(q.sort, q.top)
		}
		writeAnswer(w, usage, err)
	})
}

// playerUsageOfFleet registers GET /usage/players of a process without a relay: the sum of the first
// operator.MaxRows players of each relay.
func playerUsageOfFleet(mux *http.ServeMux, fleet relays) {
	mux.HandleFunc("GET /usage/players", func(w http.ResponseWriter, r *http.Request) {
		var sum operator.PlayersUsage
		q, err := parsePlayerQuery(r.URL.Query())
		if err == nil {
			query := url.Values{"sort": {q.sort}, "top": {strconv.Itoa(operator.MaxRows)}}
			for name, value := range map[string]string{"project": q.project, "environment": q.environment} {
				if value != "" {
					query.Set(name, value)
				}
			}
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				sum, err = sumPlayers(ctx, fleet, "/usage/players?"+query.Encode())
				return err
			})
			sum.SortAndCut(q.sort, q.top)
		}
		writeAnswer(w, sum, err)
	})
}

func sumPlayers(ctx context.Context, fleet relays, target string) (sum operator.PlayersUsage, err error) {
	nodes, err := fleet.nodes(ctx)
	if err != nil {
		return sum, err
	}
	fleet.nodes = func(context.Context) (operator.Nodes, error) { return nodes, nil }
	has := make(map[string]bool) // those that answered, or are missing
	sum.Missing, err = askRelays(ctx, fleet, target, func(n operator.Node, part operator.PlayersUsage) bool {
		sum.Add(&part)
		has[n.ID] = true
		return false
	})
	for _, m := range sum.Missing {
		has[m.Relay] = true
	}
	for _, n := range nodes.Nodes {
		if n.Role != apiRole && !has[n.ID] {
			sum.Missing = append(sum.Missing, operator.Missing{Relay: n.ID, Region: n.Region, Reason: "its version does not count by player"})
		}
	}
	return sum, err
}

// usageOfFleet registers GET /usage of a process without a relay: the sum of all relays that
// answer, with the names of the others.
func usageOfFleet(mux *http.ServeMux, fleet relays) {
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		sum := operator.Usage{Projects: []operator.ProjectUsage{}}
		err := withTimeout(r.Context(), func(ctx context.Context) (err error) {
			sum.Missing, err = askRelays(ctx, fleet, "/usage", func(_ operator.Node, part operator.Usage) bool {
				sum.Add(&part)
				return false
			})
			return err
		})
		writeAnswer(w, sum, err)
	})
}

func projectOf(u engine.Usage) operator.ProjectUsage {
	p := operator.ProjectUsage{
		Project: u.Name.Project, Environment: u.Name.Environment, Others: u.Others,
		Allocations: u.Allocations, Hosts: u.Hosts, Players: u.Players,
		PlayerSeconds: u.PlayerSeconds, Datagrams: u.Datagrams, Bytes: u.Bytes,
	}
	if !u.Others {
		p.Tenant = hex(u.Tenant)
	}
	return p
}

func nonZero(counts map[string]uint64) map[string]uint64 {
	some := maps.Clone(counts)
	maps.DeleteFunc(some, func(_ string, n uint64) bool { return n == 0 })
	return some
}

// StatsOf returns the response of /stats.
func StatsOf(st engine.Stats, now, since time.Time) operator.Stats {
	s := operator.Stats{
		Now: now, Since: since, Allocations: st.Allocations, Bound: st.Bound, Links: st.Links, Seats: st.Seats,
		Draining: st.Draining, Received: st.Received, ReceivedBytes: st.ReceivedBytes,
		Sent: st.Sent, SentBytes: st.SentBytes, SendFailed: st.SendFailed, KernelDrops: st.KernelDrops,
		Outcomes: nonZero(st.Outcomes), Drops: nonZero(st.Drops), UnderLoad: st.WorkersUnderLoad,
		Workers: []uint64{}, Intakes: []uint64{}, FastPath: st.FastPath.Datagrams, StateComplete: st.StateComplete,
	}
	for _, w := range st.Workers {
		if w.Transport != "" {
			s.Intakes = append(s.Intakes, w.Received)
		} else {
			s.Workers = append(s.Workers, w.Received)
		}
	}
	return s
}
