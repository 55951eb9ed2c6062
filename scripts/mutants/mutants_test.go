//go:build mutants

package mutants

import (
	"flag"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"
)

var only = flag.String("mutants.only", "", "regular expression: only the mutants of matching rules")

const (
	// atOnce is how many go commands run at a time: each compiles and links.
	atOnce = 2
	// atLeast is how many distinct rules the table has to cover.
	atLeast = 45
)

// all is the table.
var all = slices.Concat(inProto, inAlloc, inService, inAdmission, inData, inState, inTime, inRecovery, inSock, inLedger, inClient, inDTLS, inOperator, inIdentity)

// root returns the directory of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTable: rows are distinct and not stale. It runs nothing.
func TestTable(t *testing.T) {
	dir := root(t)
	seen := map[string]bool{}
	for _, m := range all {
		for _, once := range []string{m.rule, m.file + m.old + m.now} {
			if seen[once] {
				t.Errorf("%q is there twice", once)
			}
			seen[once] = true
		}
		if err := m.check(); err != nil {
			t.Errorf("%s: %v", m.rule, err)
		}
		if _, err := m.apply(dir); err != nil {
			t.Errorf("%s: %v", m.rule, err)
		}
	}
	if len(all) < atLeast {
		t.Errorf("%d mutants, want at least %d", len(all), atLeast)
	}
}

// TestMutants: each fault is noticed by the test of its row, which passes
// without it.
func TestMutants(t *testing.T) {
	pick, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	r := runner{t: t, root: root(t), slots: make(chan struct{}, atOnce), good: map[killer]bool{}}
	chosen := slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return !pick.MatchString(m.rule) })
	if len(chosen) == 0 {
		t.Fatalf("no rule matches %q", *only)
	}
	began := time.Now()
	var killers []killer
	for _, m := range chosen {
		if !slices.Contains(killers, m.by) {
			killers = append(killers, m.by)
		}
	}
	each(killers, r.passes)
	t.Logf("%d of %d tests pass without a mutant, %s", len(r.good), len(killers), since(began))
	each(chosen, r.dies)
	t.Logf("%d of %d mutants killed by %d tests, %s", r.killed, len(chosen), len(r.good), since(began))
}

// runner runs tests, atOnce at a time.
type runner struct {
	t     *testing.T
	root  string
	slots chan struct{}

	mu     sync.Mutex // guards what follows
	good   map[killer]bool
	killed int
}

// each does something about all of a list at the same time.
func each[T any](list []T, do func(T)) {
	var wg sync.WaitGroup
	for _, item := range list {
		wg.Go(func() { do(item) })
	}
	wg.Wait()
}

// run runs a test when there is a slot.
func (r *runner) run(k killer, overlay string) (v verdict, out string, took time.Duration) {
	r.slots <- struct{}{}
	defer func() { <-r.slots }()
	began := time.Now()
	v, out = k.run(r.t.Context(), r.root, overlay)
	return v, out, time.Since(began)
}

// passes demands that a test passes without a mutant.
func (r *runner) passes(k killer) {
	v, out, _ := r.run(k, "")
	if v != passed {
		r.t.Errorf("without a mutant, %s %s\n%s", k, v, tail(out))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.good[k] = true
}

// dies demands that the test of a mutant fails.
func (r *runner) dies(m mutant) {
	r.mu.Lock()
	usable := r.good[m.by]
	r.mu.Unlock()
	if !usable {
		return // It was said why.
	}
	overlay, err := m.overlay(r.root, r.t.TempDir())
	if err != nil {
		r.t.Errorf("%s: %v", m.rule, err)
		return
	}
	v, out, took := r.run(m.by, overlay)
	if v != failed {
		r.t.Errorf("survived: %s\n%s: %s %s\n%s", m.rule, m.file, m.by, v, tail(out))
		return
	}
	r.t.Logf("%-70s killed by %s, %.1f s", m.rule, m.by, took.Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed++
}

func since(began time.Time) time.Duration { return time.Since(began).Round(time.Second) }
