package statefile

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

const killRecords = 60

func killChild(spec string) {
	var cfg Config
	var batch, acks int
	if _, err := fmt.Sscanf(spec, "%d %d %d %t %s", &cfg.Boot, &batch, &acks, &cfg.Unmapped, &cfg.Path); err != nil {
		exit("spec:", err)
	}
	cfg.Capacity, cfg.Relay = 2*killRecords, [16]byte{1}
	cfg.OnError = func(err error) { exit(err) }
	l, left, err := Open(cfg)
	if err != nil {
		exit(err)
	}
	places := map[proto.AllocationID]Place{}
	for _, f := range left.Records {
		places[f.ID] = f.Place
	}
	s := newScript(cfg.Boot, killRecords, left.Records)
	for range acks {
		for range batch {
			if !s.step(l, places) {
				exit("no place")
			}
		}
		if _, err := os.Stdout.WriteString("batch\n"); err != nil {
			exit(err)
		}
	}
	exit("this process was not killed")
}

// TestCrashKilled: confirmed changes are stored, unfinished ones may be, and the file is complete.
func TestCrashKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unmapped      bool
		batch, rounds int
	}{{false, 1, 10}, {false, 500, 10}, {true, 1, 4}, {true, 100, 4}} {
		t.Run(fmt.Sprintf("unmapped=%v,batch=%d", c.unmapped, c.batch), func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, c.unmapped)
			cfg.Capacity, cfg.Relay, cfg.Machine, cfg.Boot = 2*killRecords, [16]byte{1}, "", 1
			openAndCrash(t, cfg)
			random := rand.New(rand.NewPCG(11, uint64(c.batch)))
			var found []FoundRecord
			for round := range c.rounds {
				cfg.Boot++
				model := newScript(cfg.Boot, killRecords, found)
				child := testkit.StartChild(t, fmt.Sprintf("kill %d %d %d %t %s", cfg.Boot, c.batch, 1_000_000, cfg.Unmapped, cfg.Path))
				after := 1 + random.IntN(200)
				acks := len(child.Crash(t, func(n int, _ string) bool { return n == after }))
				for range acks * c.batch {
					model.step(nil, nil)
				}
				cfg.Boot++
				left := openAndCrash(t, cfg)
				wantComplete(t, left, cfg.Boot-1)
				if !reaches(model, left.Records, c.batch) {
					t.Fatalf("round %d: %d records after %d confirmations are of no moment since then", round, len(left.Records), acks)
				}
				found = left.Records
			}
		})
	}
}

// reaches advances the model by at most one batch until it equals the found records.
func reaches(model *script, found []FoundRecord, batch int) bool {
	for range batch {
		if model.holds(found) {
			return true
		}
		model.step(nil, nil)
	}
	return model.holds(found)
}
