//go:build mutants

package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one fault and the test that notices it.
type mutant struct {
	// rule is what the fault breaks, in words.
	rule string
	// file is the production file, from the root of the repository.
	file string
	// old is text that is in the file exactly once, and now takes its place.
	// They have equally many lines, of which one differs; the others, if any,
	// say where it is.
	old, now string
	// by is the test that must fail.
	by killer
}

// killer names a test.
type killer struct {
	pkg  string // from the root, such as ./engine
	test string // its name, or that of a subtest: TestDropReasons/mac
	args string // further arguments of the test, separated by spaces
}

func (k killer) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", k.pkg, k.test, k.args))
}

// check returns what is wrong with the row itself.
func (m *mutant) check() error {
	was, is := strings.Split(m.old, "\n"), strings.Split(m.now, "\n")
	if len(was) != len(is) {
		return fmt.Errorf("%d lines become %d: a mutant changes one line", len(was), len(is))
	}
	changed := 0
	for i := range was {
		if was[i] != is[i] {
			changed++
		}
	}
	if changed != 1 {
		return fmt.Errorf("%d lines are changed: a mutant changes one", changed)
	}
	return nil
}

// apply returns the file with the fault in it.
func (m *mutant) apply(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("%s has the old line %d times, not once: the table is stale\n%s", m.file, n, m.old)
	}
	return strings.Replace(string(source), m.old, m.now, 1), nil
}

// overlay writes the mutated file and what tells the go command of it to dir,
// and returns the name of the latter.
func (m *mutant) overlay(root, dir string) (string, error) {
	mutated, err := m.apply(root)
	if err != nil {
		return "", err
	}
	fault := filepath.Join(dir, "fault.go")
	if err := os.WriteFile(fault, []byte(mutated), 0o600); err != nil {
		return "", err
	}
	spec, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, m.file): fault},
	})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, spec, 0o600)
}
