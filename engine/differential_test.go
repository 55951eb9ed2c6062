package engine

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

var (
	modelSequences = flag.Int("model.sequences", 0, "random sequences to compare; 0: 10000, or 300 with the race detector or -short")
	modelSteps     = flag.Int("model.steps", 200, "steps per sequence")
	modelSeed      = flag.Uint64("model.seed", 0, "first seed; 0: by the clock if -model.sequences is given, else 1")
)

// minHits is how often a run must hit every rule.
const minHits = 100

// modelRules are the rules that a run must hit, besides every outcome.
var modelRules = []string{
	"bind: first", "bind: takes an endpoint over", "bind: ended, ERROR 4 whatever the nonce",
	"nonce: same endpoint, lower", "nonce: same endpoint, equal", "nonce: same endpoint, higher",
	"nonce: other endpoint, not higher", "nonce: other endpoint, higher",
	"connect: wrong role or match, ERROR 2", "connect: ticket of another player, ERROR 2",
	"connect: another ticket of the same player", "connect: host ended, ERROR 4", "connect: repeated",
	"link: first of a host restarts its clocks",
	"disconnect: forwarded and echoed", "disconnect: no link, same match, echoed",
	"mute: three ERROR 3, then silence", "mute: a BIND is on its way",
	"mute: ERROR 5 once a second per pair", "mute: ERROR 5 about three peers a second",
	"budget: mismatch", "budget: mismatch of a live allocation", "budget: version", "budget: control",
	"budget: not connected",
	"budget: one of a code in 200 ms",
	"bind: answered once more, from memory", "bind: answered once more too often",
	"bind: old nonce once more, no signature checked",
	"connect: host may yet come back", "connect: places are kept for who had them",
	"qos: more than 40 of a prefix at once", "link: more than 20 a second", "link: unused for 10 s, closed silently",
	"close: takes effect after a second", "close: cancelled by traffic",
	"disconnect: takes effect after a second", "disconnect: cancelled by traffic",
	"restart: allocation rebuilt", "restart: a BIND from before is worthless",
	"restart: same endpoint, equal nonce", "restart: who was kicked stays out",
	"expiry: an unproven endpoint is not told", "expiry: put off since the relay stood still",
	"expiry: never bound", "expiry: idle", "expiry: host alone", "expiry: not heard",
	"expiry: deferred after a bad nonce",
	"size: first of a match is reported, dropped false", "size: first of a match is reported, dropped true",
	"grace: a reply waits for a busy worker", "grace: an overdue allocation was heard in time",
}

// unreachable are outcomes that a simulation without sockets, or within the
// size of the ring, cannot make; TestDropReasons raises them.
var unreachable = []Outcome{
	DropTruncated, DropSource, DropBusy, OutProbe, DropForbidden, DropPanic, DropLoad, OutRecord, DropPlain, DropIdentity,
}

// TestModel compares the engine with the reference model over random
// sequences, and fails when a rule was hardly tested.
func TestModel(t *testing.T) {
	sequences, seed := *modelSequences, *modelSeed
	if seed == 0 {
		seed = randomSeed(sequences)
	}
	if sequences == 0 {
		sequences = 10_000
		if testkit.RaceEnabled || testing.Short() {
			sequences = 300
		}
	}
	t.Logf("%d sequences of %d steps, first seed %d", sequences, *modelSteps, seed)
	ident := newIdentity(t)
	hits := map[string]int{}
	for i := range uint64(sequences) {
		script := randomScript(rand.New(rand.NewPCG(seed+i, 0)), *modelSteps)
		fresh := func() *sim { return ident.newSim(i%2 == 0) }
		s := simFor(fresh)
		if err := s.play(script); err != nil {
			short := shrink(fresh, script[:s.failedAt+1])
			t.Fatalf("seed %d, step %d: %v\na short script that fails:\n%s", seed+i, s.failedAt, err, showScript(short))
		}
		s.close()
		for rule, n := range s.hits {
			hits[rule] += n
		}
	}
	report(t, hits, sequences)
}

// randomSeed is another one each time for a search, of which somebody has said how
// long it is to be, and the same for everyday runs, which are to be repeatable.
func randomSeed(length int) uint64 {
	if length == 0 {
		return 1
	}
	return uint64(time.Now().UnixNano())
}

// simFor makes simulations until the hash of its budgets keeps prefixes apart.
func simFor(make func() *sim) *sim {
	for {
		s := make()
		if s.budgetsApart() {
			return s
		}
		s.close()
	}
}

func report(t *testing.T, hits map[string]int, sequences int) {
	want := slices.Clone(modelRules)
	for o := range NumOutcomes {
		if !slices.Contains(unreachable, o) {
			want = append(want, "outcome: "+o.String())
		}
	}
	for _, rule := range want {
		hits[rule] += 0
	}
	var b strings.Builder
	for _, rule := range slices.Sorted(maps.Keys(hits)) {
		fmt.Fprintf(&b, "%9d  %s\n", hits[rule], rule)
	}
	t.Logf("hits of each rule:\n%s", b.String())
	if sequences < 5000 {
		t.Logf("no verdict on rules that were hit seldom: %d sequences are too few for one", sequences)
		return
	}
	for _, rule := range want {
		if hits[rule] < minHits {
			t.Errorf("rule %q was hit %d times, want at least %d", rule, hits[rule], minHits)
		}
	}
}

// shrink removes steps as long as the script still fails.
func shrink(newSim func() *sim, script []op) []op {
	for size := len(script) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(script); {
			shorter := slices.Concat(script[:at], script[at+size:])
			s := simFor(newSim)
			fails := s.play(shorter) != nil
			s.close()
			if fails {
				script = shorter
			} else {
				at += size
			}
		}
	}
	return script
}

func showScript(script []op) string {
	var b strings.Builder
	for _, o := range script {
		fmt.Fprintf(&b, "\t{%d, %d, %d, %d, %d},\n", o.kind, o.a, o.b, o.c, o.d)
	}
	return b.String()
}

// FuzzModel lets the fuzzer write the scripts: nine bytes a step.
func FuzzModel(f *testing.F) {
	for seed := range uint64(4) {
		var data []byte
		for _, o := range randomScript(rand.New(rand.NewPCG(seed, 1)), 40) {
			data = append(data, byte(o.kind))
			for _, n := range []uint16{o.a, o.b, o.c, o.d} {
				data = binary.LittleEndian.AppendUint16(data, n)
			}
		}
		f.Add(data)
	}
	ident := newIdentity(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var script []op
		for ; len(data) >= 9 && len(script) < 100; data = data[9:] {
			n := func(i int) uint16 { return binary.LittleEndian.Uint16(data[1+2*i:]) }
			script = append(script, op{actionCase(data[0] % byte(numOps)), n(0), n(1), n(2), n(3)})
		}
		s := simFor(func() *sim { return ident.newSim(true) })
		defer s.close()
		if err := s.play(script); err != nil {
			t.Fatalf("%v\n%s", err, showScript(script))
		}
	})
}
