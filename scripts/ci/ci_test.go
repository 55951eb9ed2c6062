package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var suite = stage{name: "suite", target: "suite", roots: []string{"game"}}

func repository(t *testing.T) *tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		".ci/run":            "make ci\n",
		"Makefile":           "suite:\n\t@test ! -e broken && echo passed\nonce:\n\ttouch ran\nlong:\n\ttouch long\nwaiter:\n\t@until test -e ran; do sleep 0.02; done; touch seen\n",
		"go.mod":             "module " + module + "\n",
		"game/game.go":       "package game\nimport _ \"" + module + "/wire\"\n",
		"game/game_test.go":  "package game\nimport _ \"" + module + "/kit\"\n",
		"kit/kit.go":         "package kit\n",
		"wire/wire.go":       "package wire\n",
		"wire/wire_test.go":  "package wire\n",
		"wire/data/file.txt": "data\n",
		"other/other.go":     "package other\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	git(t, dir, "init", "-q")
	commit(t, dir, "first")
	return reread(t, dir)
}

func commit(t *testing.T, dir, message string) {
	t.Helper()
	git(t, dir, "add", ".")
	git(t, dir, "-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-q", "--allow-empty", "-m", message)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
}

func reread(t *testing.T, dir string) *tree {
	t.Helper()
	r, err := readTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// due returns why the suite is due; empty: it is not.
func (t *tree) due(test *testing.T) string {
	test.Helper()
	plan, err := reread(test, t.dir).plan(options{}, []stage{suite})
	if err != nil {
		test.Fatal(err)
	}
	return plan[0].why
}

// TestDue changes one file at a time after the suite has passed.
func TestDue(t *testing.T) {
	r := repository(t)
	if why := r.due(t); why != "it has never passed" {
		t.Fatalf("first: %q", why)
	}
	plan, err := r.plan(options{}, []stage{suite})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.runStages(t.Context(), options{}, plan); err != nil {
		t.Fatal(err)
	}
	if why := r.due(t); why != "" {
		t.Fatalf("after it passed: %q", why)
	}
	for _, c := range []struct {
		name, text, want string // want: part of why
	}{
		{"game/game.go", "package game\n", "game/game.go"},
		{"game/game_test.go", "package game\n", "game/game_test.go"},
		{"game/new.go", "package game\n", "added or removed"},
		{"wire/wire.go", "package wire // changed\n", "wire/wire.go"},
		{"wire/data/file.txt", "changed\n", "wire/data/file.txt"},
		{"kit/kit.go", "package kit // changed\n", "kit/kit.go"},
		{"go.mod", "module " + module + "\n\ngo 1.26\n", "go.mod"},
		{"Makefile", "suite:\n\t@echo changed\n", "its command changed"},
		{"wire/wire_test.go", "package wire // changed\n", ""},
		{"other/other.go", "package other // changed\n", ""},
		{"README.md", "changed\n", ""},
	} {
		name := filepath.Join(r.dir, c.name)
		old, _ := os.ReadFile(name)
		write(t, name, c.text)
		if why := r.due(t); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: due: %q, want %q", c.name, why, c.want)
		}
		if old == nil {
			os.Remove(name)
		} else {
			write(t, name, string(old))
		}
	}
	if why := r.due(t); why != "" {
		t.Errorf("after all is as it was: %q", why)
	}
	write(t, filepath.Join(r.dir, passedFile), "suite 0000000000000000 0123456789ab\n")
	if why := r.due(t); !strings.Contains(why, "not in this clone") {
		t.Errorf("with an unknown commit: %q", why)
	}
}

// TestBase: with a base, the file counts as of that commit, whatever the change says that has passed.
func TestBase(t *testing.T) {
	r := repository(t)
	plan, err := r.plan(options{}, []stage{suite})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.record(plan[0]); err != nil {
		t.Fatal(err)
	}
	commit(t, r.dir, "a change that says what has passed")
	shallow := filepath.Join(t.TempDir(), "shallow")
	git(t, r.dir, "clone", "-q", "--depth", "1", "file://"+r.dir, shallow)
	for _, c := range []struct {
		name, dir, base string
		due             bool
	}{
		{"none", r.dir, "", false},
		{"the change itself", r.dir, "HEAD", false},
		{"its parent", r.dir, "HEAD~1", true},
		{"a commit that is not in the clone", r.dir, strings.Repeat("0", 40), true},
		{"an option", r.dir, "--output=ran", true},
		{"its parent in a shallow clone", shallow, "HEAD~1", true},
		{"none in a shallow clone", shallow, "", false},
	} {
		plan, err := reread(t, c.dir).plan(options{base: c.base}, []stage{suite})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if (plan[0].why != "") != c.due {
			t.Errorf("base %s: due: %q, want %v", c.name, plan[0].why, c.due)
		}
	}
}

// TestSubjects runs make subjects.
func TestSubjects(t *testing.T) {
	makefile, err := filepath.Abs("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	r := repository(t)
	check := func(dir, since string) (string, error) {
		cmd := exec.Command("make", "-f", makefile, "subjects", "SUBJECTS_SINCE="+since)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	commit(t, r.dir, strings.Repeat("é", 72)+"\n\n"+strings.Repeat("body ", 20))
	if out, err := check(r.dir, "HEAD~1"); err != nil {
		t.Errorf("72 characters: %v: %s", err, out)
	}
	long := strings.Repeat("x", 73)
	commit(t, r.dir, long)
	if out, err := check(r.dir, "HEAD~1"); err == nil || !strings.Contains(out, long) {
		t.Errorf("73 characters: %v: %s", err, out)
	}
	if out, err := check(r.dir, "HEAD"); err != nil {
		t.Errorf("73 characters before the first that is checked: %v: %s", err, out)
	}
	commit(t, r.dir, "short")
	shallow := filepath.Join(t.TempDir(), "shallow")
	git(t, r.dir, "clone", "-q", "--depth", "1", "file://"+r.dir, shallow)
	if out, err := check(shallow, "HEAD~1"); err != nil {
		t.Errorf("a shallow clone: %v: %s", err, out)
	}
}

// TestFailure: a suite that failed, or whose inputs changed while it ran, is due again,
// and the stages after a failure run.
func TestFailure(t *testing.T) {
	r := repository(t)
	both := []stage{suite, {name: "once", target: "once"}}
	write(t, filepath.Join(r.dir, "broken"), "")
	plan, err := r.plan(options{}, both)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.runStages(t.Context(), options{}, plan); err == nil || err.Error() != "1 of 2 stages failed" {
		t.Errorf("runStages: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "ran")); err != nil {
		t.Errorf("the stage after the failure: %v", err)
	}
	if why := r.due(t); why != "it has never passed" {
		t.Errorf("after a failure: %q", why)
	}
	os.Remove(filepath.Join(r.dir, "broken"))
	write(t, filepath.Join(r.dir, "game/game.go"), "package game\n")
	if err := r.runStages(t.Context(), options{}, plan); err != nil {
		t.Error(err)
	}
	if why := r.due(t); why != "it has never passed" {
		t.Errorf("after a pass with other inputs: %q", why)
	}
}

// TestBeside: a stage that waits runs beside the others, here for one that comes later.
func TestBeside(t *testing.T) {
	r := repository(t)
	plan, err := r.plan(options{}, []stage{{name: "waiter", target: "waiter", waits: true}, {name: "once", target: "once"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.runStages(ctx, options{}, plan); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "seen")); err != nil {
		t.Error(err)
	}
}

// TestPart: a part of a suite runs when the suite is not due.
func TestPart(t *testing.T) {
	r := repository(t)
	plan, err := r.plan(options{}, []stage{suite})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.record(plan[0]); err != nil {
		t.Fatal(err)
	}
	if plan, err = r.plan(options{}, []stage{suite, {name: "some", target: "suite", partOf: "suite"}}); err != nil {
		t.Fatal(err)
	}
	if plan[0].why != "" || plan[1].why != "each time" {
		t.Errorf("%+v", plan)
	}
}

// TestPackages: each package of a stage is a suite of its own, and those that are due run together.
func TestPackages(t *testing.T) {
	r := repository(t)
	each := []stage{{name: "each", target: "each", packages: "PKGS", in: func(*tree) ([]string, error) {
		return []string{"game", "other", "wire"}, nil
	}}}
	write(t, filepath.Join(r.dir, "Makefile"), "each:\n\t@echo $(PKGS) >>seen\n")
	for _, c := range []struct{ name, text, want string }{
		{"", "", "./game ./other ./wire"},
		{"other/other.go", "package other // changed\n", "./other"},
		{"wire/wire_test.go", "package wire // changed\n", "./wire"},
		{"wire/wire.go", "package wire // changed\n", "./game ./wire"},
		{"README.md", "changed\n", ""},
	} {
		if c.name != "" {
			write(t, filepath.Join(r.dir, c.name), c.text)
		}
		os.Remove(filepath.Join(r.dir, "seen"))
		plan, err := reread(t, r.dir).plan(options{}, each)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.runStages(t.Context(), options{}, plan); err != nil {
			t.Fatal(err)
		}
		ran, _ := os.ReadFile(filepath.Join(r.dir, "seen"))
		if got := strings.TrimSpace(string(ran)); got != c.want {
			t.Errorf("%s changed: %q ran, want %q (%s)", c.name, got, c.want, plan[0].why)
		}
	}
}

// TestChoice: -only and -nightly choose stages, whether they are due or not.
func TestChoice(t *testing.T) {
	r := repository(t)
	all := []stage{
		{name: "check", target: "suite"}, suite, {name: "some", target: "suite", partOf: "suite"},
		{name: "deep", target: "once", nightly: true}, {name: "fuzz", target: "suite", long: "long"},
	}
	for _, c := range []struct {
		options
		want string
	}{
		{options{}, "check suite fuzz"},
		{options{only: regexp.MustCompile("^deep$")}, "deep"},
		{options{nightly: true}, "check suite deep fuzz"},
	} {
		o, want := c.options, c.want
		plan, err := r.plan(o, all)
		if err != nil {
			t.Fatal(err)
		}
		var run []string
		for _, p := range plan {
			if p.why != "" {
				run = append(run, p.name)
			}
		}
		if got := strings.Join(run, " "); got != want {
			t.Errorf("%+v: %s, want %s", o, got, want)
		}
		if !o.nightly {
			continue
		}
		if err := r.runStages(t.Context(), o, plan); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(r.dir, "long")); err != nil {
			t.Errorf("the long form: %v", err)
		}
	}
}

// TestStages: each row of the table names a target of the Makefile and inputs that
// exist, so does each package of a stage of packages, and .ci/run runs README's test
// command.
func TestStages(t *testing.T) {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	r := reread(t, dir)
	var all []stage
	for _, s := range stages {
		if s.in == nil {
			all = append(all, s)
			continue
		}
		dirs, err := s.in(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			all = append(all, s.of(dir))
		}
	}
	names := map[string]bool{}
	for _, s := range all {
		if names[s.name] || strings.ContainsAny(s.name, " \n") {
			t.Errorf("the name %q is taken, or has spaces", s.name)
		}
		names[s.name] = true
		if _, _, err := r.digest(s); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		for _, target := range []string{s.target, s.long} {
			if target == "" {
				continue
			}
			if _, err := r.recipe(target); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	}
	if !names["fuzz/proto"] || !names["race/engine"] {
		t.Error("proto has no suite of its fuzz targets, or engine none with the race detector")
	}
	if recipe, err := r.recipe("test"); err != nil || string(recipe) != "go test ./...\n" {
		t.Errorf("make test is %q, %v, not README's command", recipe, err)
	}
}
