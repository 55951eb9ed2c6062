package process

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// usageOf is a relay with that usage.
type usageOf []engine.Usage

func (u usageOf) Usage(context.Context) ([]engine.Usage, error) {
	return append([]engine.Usage(nil), u...), nil
}

// TestUsageOverRuns: the usage of a run is added to that of those before, also of tenants that
// do not come back, and names that a run does not know come from the file.
func TestUsageOverRuns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "usage")
	log := slog.New(slog.DiscardHandler)
	game, other := alloc.Tenant{Project: "game", Environment: "live"}, alloc.Tenant{Project: "other", Environment: "e"}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := func(now time.Time, usage ...engine.Usage) []engine.Usage {
		t.Helper()
		k := newUsageKeeper(file, now, nil, log)
		if err := k.load(); err != nil {
			t.Fatal(err)
		}
		k.relay = usageOf(usage)
		all, err := k.Usage(t.Context())
		if err != nil || !k.since.Equal(began) {
			t.Fatalf("%v, since %v", err, k.since)
		}
		k.read(t.Context())
		k.write()
		return all
	}
	run(began, engine.Usage{Others: true, Bytes: 5}, engine.Usage{Tenant: 1, Name: game, Bytes: 100, Datagrams: 10,
		PlayerSeconds: 1.5, Allocations: 7})
	all := run(began.Add(time.Hour), engine.Usage{Others: true}, engine.Usage{Tenant: 2, Name: other, Bytes: 30})
	if len(all) != 3 || all[0].Bytes != 5 || all[1].Bytes != 30 || all[2].Name != game || all[2].Bytes != 100 || all[2].Allocations != 0 {
		t.Errorf("second run: %+v", all)
	}
	all = run(began.Add(2*time.Hour), engine.Usage{Others: true}, engine.Usage{Tenant: 1, Bytes: 1, Datagrams: 2, PlayerSeconds: 0.5})
	if len(all) != 3 || all[1].Name != game || all[1].Bytes != 101 || all[1].Datagrams != 12 || all[1].PlayerSeconds != 2 ||
		all[2].Bytes != 30 {
		t.Errorf("third run: %+v", all)
	}
}

// TestManyTenants: the file is bounded, and no sum is lost.
func TestManyTenants(t *testing.T) {
	t.Parallel()
	var all []engine.Usage
	sum := uint64(0)
	for i := range maxKeptTenants + 500 {
		all = append(all, engine.Usage{Tenant: uint64(i + 1), Bytes: uint64(i)})
		sum += uint64(i)
	}
	kept := keptOf(all)
	for _, k := range kept {
		sum -= k.Bytes
	}
	if len(kept) != maxKeptTenants+1 || sum != 0 || kept[len(kept)-1].Tenant != 0 || kept[0].Bytes != maxKeptTenants+499 {
		t.Errorf("%d are kept, %d bytes are missing", len(kept), sum)
	}
}

// TestDamagedUsage: a file that cannot be read is moved aside, and the relay starts.
func TestDamagedUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "usage")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	k := newUsageKeeper(file, time.Now(), nil, slog.New(slog.NewTextHandler(&log, nil)))
	err := k.load()
	if err != nil || len(k.before) != 0 || !strings.Contains(log.String(), "begins at zero") {
		t.Errorf("%v, %s", err, log.String())
	}
	if content, err := os.ReadFile(file + ".damaged"); err != nil || string(content) != "{" {
		t.Errorf("moved aside: %q, %v", content, err)
	}
}

// TestUsageAfterRestart: what players have relayed is there after a restart of the process,
// with the name of their project.
func TestUsageAfterRestart(t *testing.T) {
	t.Parallel()
	o := options(local(), Serve)
	o.UsageFile = filepath.Join(t.TempDir(), "usage")
	usage := func(r running) (u operator.Usage) {
		t.Helper()
		if _, body := fetch(t, r.AdminURL()+"/usage"); json.Unmarshal([]byte(body), &u) != nil {
			t.Fatalf("%s", body)
		}
		return u
	}
	first := start(t, o)
	host, _, joiner := first.reserveMatch(t)
	play(t, host, joiner, func() {})
	before := usage(first)
	first.cancel()
	if err := <-first.ended; err != nil {
		t.Fatal(err)
	}
	after := usage(start(t, o))
	find := func(u operator.Usage) (p operator.ProjectUsage) {
		for _, p := range u.Projects {
			if p.Project == "game" && p.Environment == "test" {
				return p
			}
		}
		t.Fatalf("the project is missing in %+v", u)
		return p
	}
	if was, is := find(before), find(after); is.PlayerSeconds < was.PlayerSeconds || is.PlayerSeconds == 0 || is.Allocations != 0 {
		t.Errorf("before %+v, after %+v", was, is)
	}
	if !after.Since.Equal(before.Since) {
		t.Errorf("since %v, before the restart %v", after.Since, before.Since)
	}
}
