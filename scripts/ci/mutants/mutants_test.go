//go:build mutants

package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var only = flag.String("mutants.only", "", "regular expression: run only the rules that match")

const (
	// atOnce is how many go commands run at a time: each compiles and links.
	atOnce = 2
	// testTimeout is the time-out of a test. Killers take seconds.
	testTimeout = 90 * time.Second
	// runTimeout is the time-out of go test as a whole, which has to compile
	// first, perhaps on a busy machine.
	runTimeout = 10 * time.Minute
)

// mutant is one fault and the test that fails because of it.
type mutant struct {
	rule string
	// in is the directory of the package, from the root of the repository.
	in string
	// old is text that the package contains once, and now is its replacement. A
	// space in old stands for any white space.
	old, now string
	by       killer
}

type killer struct {
	pkg  string // from the root, such as ./engine
	test string // its name, or that of a subtest: TestDropReasons/mac
	args string // further arguments of the test, separated by spaces
}

func (k killer) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", k.pkg, k.test, k.args))
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTable checks that no row is stale: its text is in its package once, and its
// test exists. It runs no test.
func TestTable(t *testing.T) {
	dir := root(t)
	seen := map[string]bool{}
	for _, m := range rules {
		if seen[m.rule] {
			t.Errorf("two rows have the rule %q", m.rule)
		}
		seen[m.rule] = true
		if _, _, err := m.apply(dir); err != nil {
			t.Errorf("%s: %v", m.rule, err)
		}
		if !m.by.exists(dir) {
			t.Errorf("%s: no test %s", m.rule, m.by)
		}
	}
}

// TestMutants applies each fault and checks that its test fails, and that the
// test passes without the fault.
func TestMutants(t *testing.T) {
	pick, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	dir, began := root(t), time.Now()
	var chosen []mutant
	passes := map[killer]func() bool{}
	for _, m := range rules {
		if !pick.MatchString(m.rule) {
			continue
		}
		chosen = append(chosen, m)
		if passes[m.by] == nil {
			passes[m.by] = sync.OnceValue(func() bool {
				err := m.by.run(t.Context(), dir, "")
				if err != nil {
					t.Errorf("without a fault, %s: %v", m.by, err)
				}
				return err == nil
			})
		}
	}
	if len(chosen) == 0 {
		t.Fatalf("no rule matches %q", *only)
	}
	var killed int
	var mu sync.Mutex // guards killed
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, m := range chosen {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if !passes[m.by]() {
				return
			}
			start := time.Now()
			overlay, err := m.writeOverlay(dir, t.TempDir())
			if err != nil {
				t.Errorf("%s: %v", m.rule, err)
				return
			}
			if err := m.by.run(t.Context(), dir, overlay); !errors.Is(err, errTestFailed) {
				t.Errorf("survived: %s\n%s: %v", m.rule, m.by, err)
				return
			}
			t.Logf("%-70s killed by %s, %.1f s", m.rule, m.by, time.Since(start).Seconds())
			mu.Lock()
			defer mu.Unlock()
			killed++
		})
	}
	running.Wait()
	t.Logf("%d of %d mutants killed by %d tests in %s", killed, len(chosen), len(passes), time.Since(began).Round(time.Second))
}

func (m *mutant) apply(root string) (file, faulty string, err error) {
	words := strings.Fields(m.old)
	for i := range words {
		words[i] = regexp.QuoteMeta(words[i])
	}
	old := regexp.MustCompile(strings.Join(words, `\s+`))
	dir := filepath.Join(root, m.in)
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	programs, _ := filepath.Glob(filepath.Join(dir, "*.c"))
	found := 0
	for _, name := range append(files, programs...) {
		base := filepath.Base(name)
		built, err := build.Default.MatchFile(dir, base)
		if built = built || strings.HasSuffix(base, ".c"); err != nil || !built || strings.HasSuffix(base, "_test.go") {
			continue // The same text may be in the file of another system.
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return "", "", err
		}
		if n := len(old.FindAllIndex(source, -1)); n > 0 {
			found += n
			file, faulty = name, old.ReplaceAllLiteralString(string(source), m.now)
		}
	}
	if found != 1 {
		return "", "", fmt.Errorf("%s contains the text %d times, want once: %s", m.in, found, m.old)
	}
	return file, faulty, nil
}

// writeOverlay writes the faulty file and the overlay of the go command to dir, so
// that no source file changes. It returns the name of the overlay.
func (m *mutant) writeOverlay(root, dir string) (string, error) {
	file, faulty, err := m.apply(root)
	if err != nil {
		return "", err
	}
	copied := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(copied, []byte(faulty), 0o600); err != nil {
		return "", err
	}
	if strings.HasSuffix(file, ".c") { // What the package contains is compiled from it.
		cmd := exec.Command("make", "-s", "fast-path-object", "BPF="+dir)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		file, copied = strings.TrimSuffix(file, ".c")+".o", strings.TrimSuffix(copied, ".c")+".o"
	}
	spec, err := json.Marshal(map[string]map[string]string{"Replace": {file: copied}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, spec, 0o600)
}

func (k killer) exists(root string) bool {
	test, _, _ := strings.Cut(k.test, "/")
	files, _ := filepath.Glob(filepath.Join(root, k.pkg, "*_test.go"))
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(source), "func "+test+"(t *testing.T)") {
			return true
		}
	}
	return false
}

// errTestFailed is the result of a test that ran and failed.
var errTestFailed = errors.New("the test failed")

// run runs the test, with an overlay if one is named. It returns nil if the test
// passed and errTestFailed if it failed. A build that breaks, a time-out and a
// skipped test prove nothing: they are other errors.
func (k killer) run(ctx context.Context, root, overlay string) error {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	parts := strings.Split(k.test, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	args := []string{"test", "-vet=off", "-count=1", "-v", "-timeout", testTimeout.String(), "-run", strings.Join(parts, "/")}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(append(args, k.pkg), strings.Fields(k.args)...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	reports := func(result string) bool {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\s*--- %s: %s`, result, regexp.QuoteMeta(k.test)))
		return line.Match(out)
	}
	var exit *exec.ExitError
	timedOut := strings.Contains(string(out), "panic: test timed out after")
	switch {
	case err == nil && reports("PASS"):
		return nil
	case errors.As(err, &exit) && reports("FAIL") && !timedOut:
		return errTestFailed
	}
	const keep = 1500
	return fmt.Errorf("neither passed nor failed (%v): %s", err, out[max(0, len(out)-keep):])
}
