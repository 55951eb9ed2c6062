package statefile

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// killRecords is how many records a child holds at once, at most.
const killRecords = 60

// killChild changes a state file until it is killed, and writes a byte to its standard
// output after each batch of changes.
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
		if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
			exit(err)
		}
	}
	exit("this process was not killed")
}

// runAndKill starts a child, kills it after so many bytes, and returns how
// many it wrote.
func runAndKill(t *testing.T, cfg Config, batch, after int) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killEnv+"="+fmt.Sprintf("%d %d %d %t %s", cfg.Boot, batch, 1_000_000, cfg.Unmapped, cfg.Path))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, after)
	_, errRead := io.ReadFull(out, first)
	errKill := cmd.Process.Kill()
	rest, errRest := io.ReadAll(out)
	errWait := cmd.Wait()
	if errRead != nil || errKill != nil || errRest != nil || errWait == nil {
		t.Fatal(errRead, errKill, errRest, errWait)
	}
	return after + len(rest)
}

// TestKill kills a process in the middle of its changes, again and again on
// the same file. Confirmed changes are stored, unfinished ones may be, and the file is
// complete each time.
func TestKill(t *testing.T) {
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
				acks := runAndKill(t, cfg, c.batch, 1+random.IntN(200))
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
